"""docs/checkpoints.md: its lines are those of the scripts, and the scripts do what it says."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tests.checkpoint import place

_PAGE = place.ROOT / "docs" / "checkpoints.md"
_PLAIN, _WITH = ((place.ROOT / "examples" / "checkpoints" / name).read_text() for name in ("plain.py", "train.py"))


def test_killed_and_gone_on_with_it_ends_with_the_weights_of_the_plain_loop(tmp_path: Path) -> None:
    place.run("tutorial.py", str(tmp_path), cwd=tmp_path)


def test_the_page_shows_the_real_loop_and_the_real_lines() -> None:
    page = _PAGE.read_text()
    (loop,) = re.findall(r"<!-- plain -->\n```python\n(.*?)```\n", page, re.DOTALL)
    assert loop == _PLAIN
    (shown,) = re.findall(r"<!-- with checkpoints -->\n```diff\n(.*?)```\n", page, re.DOTALL)
    lines = list(difflib.unified_diff(_PLAIN.splitlines(), _WITH.splitlines(), lineterm="", n=1))[2:]
    changed = [line for line in lines if re.match(r"[-+](?!\"\"\"|$)", line)]  # but for the docstring, and empty lines
    assert [line for line in shown.splitlines() if line[:1] in ("-", "+")] == changed
    assert sum(line.startswith("+") for line in changed) <= 10
