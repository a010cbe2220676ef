"""`repro-env store`, beside runs; and a damaged layer that a run would have used."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e import parts

LATER = """
import sys
print("started", flush=True)
input()
import pygments, mdurl
print(mdurl.EDITED, pygments.__file__)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "store"


@pytest.fixture
def there(small: parts.Project, store: Path) -> parts.Project:
    """The small project with a store of its own, and its image in it."""
    made = small.elsewhere(store)
    made.rebuild()
    return made


def test_a_run_keeps_its_entries_while_all_others_are_removed(there: parts.Project) -> None:
    words: list[str | Path] = [parts.COMMAND, "exec", "python", "-c", LATER]
    run = subprocess.Popen(
        words, cwd=there.directory, env=parts.environ(there.store), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == "started\n"
    (image,) = (there.store / "images").iterdir()
    there.run("store", "gc", "--keep-days", "0")
    assert image.exists()
    out, _ = run.communicate("\n")
    assert run.returncode == 0
    assert out.startswith("True ")
    there.run("store", "gc", "--keep-days", "0")
    source = json.loads(there.run("runs", "show", "--json").out)["start"]["source"]["digest"]
    left = {f"sha256:{path.name}" for path in (there.store / "layers").iterdir()}
    starts = [json.loads(path.read_text()) for path in (there.directory / "runs").glob("*/start.json")]
    assert source in left <= {start["source"]["digest"] for start in starts}, "which belong to their records"
    assert there.python_says("print(6 * 7)") == "42\n", "and it is made again"


def test_a_damaged_layer_is_found_before_a_run_uses_it(there: parts.Project) -> None:
    output = there.python_says("import mdurl; print(mdurl.__file__)")
    (path,) = (there.store / "layers").glob("*/opt/env/lib/python*/site-packages/mdurl/_parse.py")
    whole = path.read_bytes()
    path.write_bytes(b"raise SystemExit('damaged')\n")
    assert there.python_says("import mdurl; print(mdurl.__file__)") == output
    assert path.read_bytes() == whole


def test_the_usage_of_the_store_is_listed_and_reduced(there: parts.Project) -> None:
    page = there.run("store", "usage").out
    assert "layers and source trees" in page
    dry = json.loads(there.run("store", "gc", "--keep-days", "0", "--dry-run", "--json").out)
    assert dry["freed"] > 0.9 * dry["before"]
    done = there.run("store", "gc", "--max-size", "1MB", "--json")
    assert json.loads(done.out)["freed"] > 100e6
    assert there.run("store", "gc", "--max-size", "many", code=2).err.count('--max-size must be a size (got "many")') == 1


def test_a_file_of_the_image_that_was_changed_with_its_time_is_not_run(small: parts.Project) -> None:
    (file,) = small.store.glob("layers/*/opt/env/lib/python*/site-packages/packaging/py.typed")
    facts = file.stat()
    code = "import packaging, pathlib; print(repr(pathlib.Path(packaging.__file__).with_name('py.typed').read_bytes()))"
    before = small.run("exec", "-c", code).out
    file.write_bytes(b"damaged")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert small.run("exec", "-c", code).out == before
    assert file.read_bytes() != b"damaged"
