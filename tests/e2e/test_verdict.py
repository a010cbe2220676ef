"""What `repro-env verify` calls the same, in the whole command: rounding, and the texts that accept a difference."""

from __future__ import annotations

import json

import pytest

from tests.e2e import parts

NUMBERS = """
import json, os
value = os.environ["VALUES"].split()[int(os.environ["SIDE"])]
open("m.json", "w").write('{"visit": %s}' % value)
open("m.csv", "w").write("row,visit\\n0,%s\\n" % value)
"""


@pytest.mark.parametrize(
    ("values", "level"),
    [("46023.4375 46062.4375", "different"), ("1e400 1e500", "different"), ("0.123456789 0.123456788", "numeric")],
)
def test_dates_and_overflow_are_no_rounding(small: parts.Project, values: str, level: str) -> None:
    (small.directory / "verdict_numbers.py").write_text(NUMBERS)
    small.run("exec", "--determinism", "off", "--env", f"VALUES={values}", "--env", "SIDE=0", "verdict_numbers.py")
    code = 0 if level == "numeric" else 1
    found = json.loads(small.run("verify", "latest", "--env", f"VALUES={values}", "--env", "SIDE=1", "--json", code=code).out)
    assert (found["promised"], found["level"]) == ("numeric", level), found
    assert {file["level"] for file in found["files"] if file["kind"] == "result"} == {level}
