"""An environment of 185 distributions with torch: is each explained, and what does looking at it cost?

`python benchmarks/wide.py [--count N] [--rebuild]` prints every ratio and writes benchmarks/results/wide.json.
`--rebuild` makes the image too, from an empty store, and compares its ID with the captured one (a GB from the index).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import capture
import parts

PROBE = """
import os, sys
from repro_env.environment.python import distributions, interpreter as python
from repro_env.environment.python import sites
facts = python.interpret(sys.argv[1], dict(os.environ))
scanned = distributions.scan(facts.layout)
print(len(scanned.distributions), len(sites.list_files(facts, facts.layout, scanned)))
"""


def explained(directory: Path) -> tuple[parts.Row, dict[str, object]]:
    """Of the spec that was written last: how each distribution is held."""
    spec = json.loads((directory / "repro" / "spec.json").read_text())
    origins = {hint["sha256"]: hint["origin"] for hint in spec["hints"]["wheels"]}
    reasons = {one["name"]: one["why"] for one in spec["observed"]["bundled"]}
    held = {one["name"]: origins[one["sha256"]] for one in spec["identity"]["distributions"]}
    installed = [one["name"] for one in spec["observed"]["distributions"]]
    linked = [name for name in installed if held.get(name) in ("index", "direct")]
    bundled = {name: reasons[name] for name in installed if name not in linked and reasons.get(name)}
    dark = sorted(set(installed) - set(linked) - set(bundled))
    whole = sum(held.get(name) == "bundled" for name in bundled)
    row = parts.Row(
        f"of {len(installed)} distributions: {len(linked)} proven and linked, {whole} proven and bundled, {len(bundled) - whole}"
        f" bundled with a reason; without either, against 0",
        str(len(dark)),
        "0",
        float(len(dark)),
        "0",
        not dark,
    )
    return row, {"installed": len(installed), "linked": len(linked), "bundled": bundled, "unexplained": dark}


def probe(directory: Path, count: int) -> parts.Row:
    """The static probe, from the start of its process to its end: interpret, scan, list every file; nothing is hashed."""
    words: list[str | Path] = [sys.executable, "-c", PROBE, directory / ".venv" / "bin" / "python"]
    found, paths = parts.output(words, env=parts.environ()).split()
    took = parts.median(count, lambda: parts.run(words))
    what = f"the static probe ({found} distributions, {paths} paths listed), its process included, against 1 s"
    return parts.Row(what, f"{took:.2f} s", "1 s", took, "under 1.0", took < 1)


def rebuild(directory: Path) -> parts.Row:
    """Once, with the environment out of sight: wheels come from the index."""
    spec = json.loads((directory / "repro" / "spec.json").read_text())
    store = parts.fresh(parts.BUILD / "wide-store")
    hidden = directory / ".venv-hidden"
    (directory / ".venv").rename(hidden)
    try:
        start = time.perf_counter()
        made = parts.output([parts.TOOL, "rebuild"], env=parts.environ(store), cwd=directory).strip()
        took = time.perf_counter() - start
    finally:
        hidden.rename(directory / ".venv")
    parts.fresh(store)
    equal = made == spec["expected"]["image_id"]
    what = f"rebuilt from an empty store ({took:.0f} s): image IDs that differ, against 0"
    return parts.Row(what, str(int(not equal)), "0", float(not equal), "0", equal)


def main() -> None:
    parser = parts.parser(__doc__)
    parser.add_argument("--rebuild", action="store_true", help="make the image too, once")
    options = parser.parse_args()
    directory = parts.wide()
    rows = capture.measure(directory, options.count, "185 distributions with torch", most=12)
    row, counts = explained(directory)
    rows = [row, probe(directory, options.count), *rows, *([rebuild(directory)] if options.rebuild else [])]
    parts.report(rows)
    print("written to", parts.write(rows, "wide", distributions=counts).relative_to(parts.ROOT))


if __name__ == "__main__":
    main()
