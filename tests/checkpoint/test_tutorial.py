"""Check that docs/checkpoints.md shows the example scripts, and that they work as described."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tests.checkpoint import place

_PAGE = place.ROOT / "docs" / "checkpoints.md"
_PLAIN, _TRAIN = ((place.ROOT / "examples" / "checkpoints" / name).read_text() for name in ("plain.py", "train.py"))


def test_the_resumed_script_ends_with_the_weights_of_the_plain_script(tmp_path: Path) -> None:
    place.run("tutorial.py", str(tmp_path), cwd=tmp_path)


def test_the_page_shows_the_current_scripts() -> None:
    page = _PAGE.read_text()
    (loop,) = re.findall(r"<!-- plain -->\n```python\n(.*?)```\n", page, re.DOTALL)
    assert loop == _PLAIN
    (shown,) = re.findall(r"<!-- with checkpoints -->\n```diff\n(.*?)```\n", page, re.DOTALL)
    lines = list(difflib.unified_diff(_PLAIN.splitlines(), _TRAIN.splitlines(), lineterm="", n=1))[2:]
    changed = [line for line in lines if re.match(r"[-+](?!\"\"\"|$)", line)]  # without the docstring and empty lines
    assert [line for line in shown.splitlines() if line[:1] in ("-", "+")] == changed
    assert sum(line.startswith("+") for line in changed) <= 10
