"""Two runs that are only files: what `verify` says of them, with the real look into tensors, in this process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.flows import results as flow
from repro_env.flows.results import Globs, Side
from repro_env.inside.tensors import pairs as inside
from repro_env.model.run import End, Outcome
from repro_env.verify import verdict as judging
from repro_env.verify.answers import Answer, answers
from repro_env.verify.ignore import parse
from repro_env.verify.verdict import Promise, Verdict

INSIDE = Path(flow.__file__).parents[1] / "inside" / "compare.py"
BITWISE = Promise(level="bitwise", sentence="expected: bitwise identical")
NUMERIC = Promise(level="numeric", sentence="expected: numeric")


def look(pairs: Sequence[tuple[Path, Path]]) -> tuple[Answer, ...]:
    """As a run would: through JSON. Without NumPy, which is faster and has a test of its own."""
    return answers(msgspec.json.encode([inside.compare(str(left), str(right), None) for left, right in pairs]), len(pairs))


def end(others: tuple[str, ...] = (), removed: tuple[str, ...] = (), code: int = 0) -> End:
    return End(
        schema="repro-env/run-end/1",
        id="id",
        ended="2026-07-01T00:00:00.000Z",
        seconds=1.0,
        outcome=Outcome(exit_code=code, signal=0, out_of_memory=False, isolation="embedded", means=()),
        outputs=(),
        others=others,
        removed=removed,
        holes=(),
    )


def side(root: Path, files: Mapping[str, bytes], others: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> Side:
    digests, places = {}, {}
    for path, data in files.items():
        here = root / path
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(data)
        digests[path] = f"sha256:{hashlib.sha256(data).hexdigest()}"
        places[path] = here
    return Side(digests, places, end(others=others, removed=removed), root)


def judged(
    root: Path,
    left: Mapping[str, bytes],
    right: Mapping[str, bytes],
    *,
    results: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
    promise: Promise = BITWISE,
    links: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    removed: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> Verdict:
    one, other = side(root / "left", left, links[0], removed[0]), side(root / "right", right, links[1], removed[1])
    globs = Globs(results=results, ignored=tuple(map(parse, ignored)))
    return judging.verdict(flow.compare(one, other, globs, look), promise)
