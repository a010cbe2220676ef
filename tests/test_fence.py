"""The fence: no number of docs/fence.md goes up without a reason next to it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests import fence, sources
from tests.sources import PACKAGE

MODULES = [path.relative_to(PACKAGE).as_posix() for path in sources.MODULES]


def nodes(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


@pytest.fixture(scope="module")
def numbers() -> dict[str, int]:
    return fence.measure()


def test_no_number_went_up_without_a_reason(numbers: dict[str, int]) -> None:
    rows = fence.parse(fence.TABLE.read_text())
    over = [f"{name}: {numbers[name]:,}, the limit is {rows[name].limit:,}" for name in fence.grown(rows, numbers)]
    assert not over, (
        "the package grew: " + "; ".join(over) + ". Remove as much, or give the reason: make fence ARGS='--reason \"...\"'"
    )


def test_a_limit_above_the_lowest_has_its_reason() -> None:
    for name, row in fence.parse(fence.TABLE.read_text()).items():
        assert row.lowest <= row.limit, (
            f"docs/fence.md, {name}: the lowest limit is above the limit; write the table with `make fence`"
        )
        assert row.lowest == row.limit or row.reason, (
            f"docs/fence.md, {name}: the limit went up without a reason; use `make fence`"
        )


def test_the_table_has_a_row_for_each_number(numbers: dict[str, int]) -> None:
    assert list(fence.parse(fence.TABLE.read_text())) == list(numbers), "write the table with `make fence`"


def test_every_module_is_in_one_room() -> None:
    assert {fence.room_of(module) for module in MODULES} == set(fence.ROOMS)
    with pytest.raises(LookupError, match=r"repro_env/mixtures/mixture.py is in no room: add its path to CORE or AROUND"):
        fence.room_of("mixtures/mixture.py")


def test_rooms_name_paths_that_exist_and_share_none() -> None:
    paths = [path for room in fence.ROOMS.values() for path in room]
    assert [path for path, count in Counter(paths).items() if count > 1] == []
    lost = [path for path in paths if not any(module.startswith(path) for module in MODULES)]
    assert not lost, (
        f"tests/fence.py names {', '.join(lost)}, which is not in repro_env: write where that code is now, or remove it"
    )


def test_code_lines_are_those_with_code() -> None:
    text = '''"""A module,
on two lines."""

import os  # counts

# does not

LIMIT = 3
"""Of what."""
TEXT = """a value
counts as a whole"""


def run(
    path: str,
) -> None:
    """Docstring."""
    os.remove(path)
'''
    assert fence.code_lines(text, nodes(text)) == 8


def test_a_name_crosses_a_border_once() -> None:
    trees = {
        "schema/run.py": "Launch = 1\ndef check(): ...\n",
        "schema/spec.py": "from repro_env.schema.run import Launch\n",
        "runs/start.py": "from repro_env.schema import run\nfrom repro_env.schema.run import Launch\nrun.check()\nrun.check()\n",
        "api/execute.py": "from repro_env.schema.run import Launch\nfrom pathlib import Path\n",
        "__main__.py": "from repro_env.api import execute\n",
    }
    names = fence.crossings({module: nodes(text) for module, text in trees.items()})
    assert names == {"repro_env.schema.run.Launch", "repro_env.schema.run.check"}


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ('options.runner == "docker"', "runner"),
        ('if "host" in (start.runner, new.runner): ...', "runner"),
        ('name not in ["pod", "embedded"]', "runner"),
        ('match runner:\n case "pod" | "host": ...', "runner"),
        ('facts.kind in ("venv", "conda")', "kind of environment"),
        ('facts.kind == "system"', "kind of environment"),
        ('engine != "slurm"', "engine"),
        ("isinstance(engine, slurm.Slurm)", "engine"),
        ("options.recorded is not None", "origin"),
        ("isinstance(origin, (Resume, Join))", "origin"),
        ("match origin:\n case Repeat(): ...", "origin"),
        ('target.kind == "docker"', ""),
        ('layer.kind == "interpreter"', ""),
        ('facts.product != "Docker"', ""),
        ("isinstance(facts, conda.Facts)", ""),
        ('name == "system"', ""),
        ('RUNNERS = {"docker": Docker}', ""),
        ("path is None", ""),
    ],
)
def test_a_place_that_asks_for_a_variant_by_name_is_found(text: str, variant: str) -> None:
    assert [found for found, _ in fence.variants("runs/start/data.py", nodes(text))] == ([variant] if variant else [])


def test_an_origin_is_asked_for_only_where_a_run_starts() -> None:
    assert list(fence.variants("store/layers.py", nodes("member is None"))) == []


def test_parameters_count_with_self_and_without_the_variable_ones() -> None:
    text = "def fits(self, a, b, *args, c, d, e, **kwargs): ...\ndef long(self, a, b, /, c, *, d, e, f): ...\n"
    assert list(fence.long_signatures(nodes(text))) == ["long"]


def _rows(**limits: int) -> dict[str, fence.Row]:
    return {name.replace("_", " "): fence.Row(limit, limit, limit) for name, limit in limits.items()}


def test_a_number_goes_up_only_with_its_reason() -> None:
    rows = _rows(core=10, capture=4, image=6, names_across_rooms=5)
    numbers = {"core": 12, "capture": 6, "image": 6, "names across rooms": 4}
    assert fence.grown(rows, numbers) == ["core", "capture"]
    after = fence.updated(rows, numbers, "captures wheels of Rust")
    assert after["core"] == fence.Row(10, 10, 12, "captures wheels of Rust")
    assert after["names across rooms"] == fence.Row(5, 4, 4)
    assert fence.parse(fence.render(after)) == after
    assert fence.grown(after, numbers) == []
    again = fence.updated(after, {**numbers, "core": 13}, "and of Go")
    assert again["core"] == fence.Row(10, 10, 13, "captures wheels of Rust; and of Go")
    # It stays while the number is above what it was, and goes with the growth.
    assert fence.updated(after, {**numbers, "core": 11}, "")["core"].reason == "captures wheels of Rust"
    assert fence.updated(after, {**numbers, "core": 10}, "")["core"] == fence.Row(10, 10, 10)


def test_code_may_move_within_the_core() -> None:
    rows = _rows(core=10, capture=4, image=6)
    numbers = {"core": 10, "capture": 6, "image": 4}
    assert fence.grown(rows, numbers) == []
    assert fence.updated(rows, numbers, "")["capture"] == fence.Row(4, 6, 6)


def test_a_new_room_needs_a_reason() -> None:
    numbers = {"around it": 10, "mixtures": 4}
    assert fence.grown(_rows(around_it=10), numbers) == ["mixtures"]


def test_growth_is_not_written_without_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "fence.md"
    table.write_text(fence.render(_rows(core=10)))
    monkeypatch.setattr(fence, "TABLE", table)
    monkeypatch.setattr(fence, "measure", lambda: {"core": 11})
    before = table.read_text()
    assert fence.main([]) == 1
    assert "went up: core" in capsys.readouterr().err
    assert table.read_text() == before
    assert fence.main(["--reason", "a fact of rpm"]) == 0
    assert table.read_text().endswith("| core | 10 | 10 | 11 | 30,500 | a fact of rpm |\n")
