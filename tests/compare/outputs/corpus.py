"""Read the corpus of planted differences, and compare the files of two runs as `verify` does. See `planted/README.md`."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec

from repro_env.compare.outputs import results
from repro_env.compare.outputs import verdict as judging
from repro_env.compare.outputs.evidence import of_run
from repro_env.compare.outputs.results import Globs, Side
from repro_env.compare.outputs.verdict import Promise, Verdict
from repro_env.schema import fingerprints as digests
from repro_env.schema.run import End, MachineFacts, Outcome, RandomIds
from tests.compare.outputs.sides import BITWISE, look
from tests.runs.records.examples import start as make_start

PLANTED = Path(__file__).with_name("planted")
RUNS = json.loads((PLANTED / "runs.json").read_text())


def cases(*names: str) -> list[dict[str, Any]]:
    return [json.loads(line) for name in names for line in (PLANTED / f"{name}.jsonl").read_text().split("\n") if line]


def judge(case: dict[str, Any], directory: Path, promise: Promise = BITWISE) -> Verdict:
    """Give the verdict on the outputs of a case."""
    entries = case.get("files") or [{**case, "path": case["file"]}]
    zones = [case["zone"]] if "zone" in case else []
    left, right = (_side(name, entries, directory / name, zones) for name in ("then", "now"))
    return judging.verdict(results.compare(left, right, Globs(), look), promise)


def _side(name: str, entries: list[dict[str, Any]], directory: Path, zones: list[int]) -> Side:
    outputs: dict[str, str] = {}
    files: dict[str, Path] = {}
    others = []
    for entry in entries:
        path = entry["path"]
        if f"{name}_link" in entry:
            others.append(f"{path} -> {entry[f'{name}_link']}")
            continue
        data = _data(entry, name)
        if data is None:
            continue
        file = directory / "files" / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        outputs[path], files[path] = f"sha256:{hashlib.sha256(data).hexdigest()}", file
    end = _end(name, tuple(sorted(others)))
    run = RUNS[name]
    start = msgspec.structs.replace(make_start(run["run_id"]), started=run["start"])
    evidence = of_run(start, end, run["workspace"], [(run["run_directory"], "the run's directory")], zones)
    return Side(outputs, files, end, directory, evidence)


def _data(entry: dict[str, Any], name: str) -> bytes | None:
    if f"{name}64" in entry:
        return zlib.decompress(base64.b64decode(entry[f"{name}64"]))
    return entry[name].encode("utf-8", "surrogateescape") if name in entry else None


def _end(name: str, others: tuple[str, ...]) -> End:
    run = RUNS[name]
    drawn: dict[tuple[str, str], list[str]] = {}
    for draw in run["random_ids"]:
        drawn.setdefault((draw["function"], draw["place"]), []).append(_digest(draw["function"], draw["value"]))
    return End(
        schema="repro-env/run-end/1",
        id=run["run_id"],
        ended=run["end"],
        seconds=1.0,
        outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", methods=()),
        outputs=(),
        special_files=others,
        removed=(),
        auto_seeded=(),
        random_ids=tuple(
            RandomIds(what=what, file=place.partition(":")[0], line=int(place.partition(":")[2]), ids=tuple(ids))
            for (what, place), ids in drawn.items()
        ),
        machine=MachineFacts(
            host=digests.digest_of_name(run["host"]),
            user=digests.digest_of_name(run["user"]),
            temporary=run["tmp"],
            home="/home/ann",
            pids=tuple(run["pids"]),
        ),
    )


def _digest(function: str, value: str) -> str:
    """Return the digest that the hooks write."""
    if function.startswith("uuid."):
        normal = digests.normal_id(value.replace("-", ""))
        return f"{digests.digest_of_id(normal)}.{digests.digest_of_id(normal[:8])}"
    digits = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex() if "urlsafe" in function else value
    return digests.digest_of_id(digests.normal_id(digits))
