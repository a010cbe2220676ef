"""The corpus of planted differences: two runs that are only files, judged by the real comparison. See `planted/README.md`."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec

from repro_env.flows import results
from repro_env.flows.results import Globs, Side
from repro_env.model import evidence as digests
from repro_env.model.run import Drawn, End, Outcome, Own
from repro_env.verify import verdict as judging
from repro_env.verify.evidence import of_run
from repro_env.verify.verdict import Verdict
from tests.catalog.test_records import start as recorded_start
from tests.verify.sides import BITWISE, look

PLANTED = Path(__file__).with_name("planted")
RUNS = json.loads((PLANTED / "runs.json").read_text())


def cases(*names: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name in names for line in (PLANTED / f"{name}.jsonl").read_text().split("\n") if line]


def judged(case: dict[str, Any], folder: Path) -> Verdict:
    """What `verify` says of the outputs of a case."""
    entries = case.get("files") or [{**case, "path": case["file"]}]
    left, right = (_side(name, entries, folder / name) for name in ("then", "now"))
    return judging.verdict(results.compare(left, right, Globs(), look), BITWISE)


def _side(name: str, entries: list[dict[str, Any]], folder: Path) -> Side:
    held: dict[str, str] = {}
    places: dict[str, Path] = {}
    others = []
    for entry in entries:
        path = entry["path"]
        if f"{name}_link" in entry:
            others.append(f"{path} -> {entry[f'{name}_link']}")
            continue
        data = _data(entry, name)
        if data is None:
            continue
        place = folder / "files" / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        held[path], places[path] = f"sha256:{hashlib.sha256(data).hexdigest()}", place
    end = _end(name, tuple(sorted(others)))
    run = RUNS[name]
    start = msgspec.structs.replace(recorded_start(run["run_id"]), started=run["start"])
    own = of_run(start, end, ((run["workspace"], "the project's directory"), (run["run_directory"], "the run's directory")), ())
    return Side(held, places, end, folder, own)


def _data(entry: dict[str, Any], name: str) -> bytes | None:
    if f"{name}64" in entry:
        return zlib.decompress(base64.b64decode(entry[f"{name}64"]))
    return entry[name].encode("utf-8", "surrogateescape") if name in entry else None


def _end(name: str, others: tuple[str, ...]) -> End:
    run = RUNS[name]
    drawn: dict[tuple[str, str], list[str]] = {}
    for one in run["drawn"]:
        drawn.setdefault((one["function"], one["place"]), []).append(_digest(one["function"], one["value"]))
    return End(
        schema="repro-env/run-end/1",
        id=run["run_id"],
        ended=run["end"],
        seconds=1.0,
        outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", means=()),
        outputs=(),
        others=others,
        removed=(),
        holes=(),
        drawn=tuple(
            Drawn(what=what, file=place.partition(":")[0], line=int(place.partition(":")[2]), ids=tuple(ids))
            for (what, place), ids in drawn.items()
        ),
        own=Own(
            host=digests.digest_of_name(run["host"]),
            user=digests.digest_of_name(run["user"]),
            temporary=run["tmp"],
            home="/home/ann",
            pids=tuple(run["pids"]),
        ),
    )


def _digest(function: str, value: str) -> str:
    """As the hooks note it."""
    if function.startswith("uuid."):
        normal = digests.normal_id(value.replace("-", ""))
        return f"{digests.digest_of_id(normal)}.{digests.digest_of_id(normal[:8])}"
    digits = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex() if "urlsafe" in function else value
    return digests.digest_of_id(digests.normal_id(digits))
