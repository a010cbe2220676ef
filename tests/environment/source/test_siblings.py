from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.environment.source import siblings
from repro_env.environment.source.siblings import mentioned_paths
from repro_env.io.files import walk


def test_names_returns_only_siblings() -> None:
    paths = {
        "../data",
        "../a.b-c",
        "data",
        "..",
        "../",
        "../.ssh",
        "../../etc",
        "../a/b",
        "..//x",
        "/etc",
        "../a\0b",
        "../a\n",
        "../" + "a" * 300,
    }
    assert siblings.names(paths) == ("../a.b-c", "../data")


def look(root: Path, *, most: int = 1000) -> dict[str, list[str]]:
    names = [f"../{path.name}" for path in root.iterdir()]
    listings = siblings.look(root / "project", names, excluded=[root / "apart" / "store"], most=most)
    return {name: sorted(entry.path for entry in listing) for name, listing in listings.items()}


def write(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_the_smallest_directories_are_used_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, size in (("small/deep/x", 100), ("middle/x", 400), ("large/x", 600), ("project/x", 1), ("apart/x", 1)):
        write(tmp_path / name, size)
    write(tmp_path / "file", 1)
    assert look(tmp_path) == {"../empty": [], "../small": ["deep", "deep/x"], "../middle": ["x"]}
    assert look(tmp_path, most=0) == {"../empty": []}


def test_caches_environments_and_dotenv_are_left_out(tmp_path: Path) -> None:
    for name in (".env", ".git/config", "__pycache__/x.pyc", "venv/pyvenv.cfg", "deep/.env.local", "run.log", "deep/kept"):
        write(tmp_path / "data" / "sub" / name)
    (tmp_path / "data" / "gone").symlink_to("nowhere")
    assert look(tmp_path) == {"../data": ["gone", "sub", "sub/deep", "sub/deep/kept", "sub/run.log"]}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write(path / "deep" / "id_rsa"),
        lambda path: write(path / "token_ids.csv"),
        lambda path: write(path / ".git"),
        lambda path: write(path / "pyvenv.cfg"),
        lambda path: write(path / "repro" / "spec.json"),
        lambda path: write(path / "oci-layout"),
        lambda path: write(path / "two\nlines"),
        lambda path: write(Path(os.fsdecode(os.fsencode(path) + b"/\xff"))),
        lambda path: os.mkfifo(path / "pipe"),
        lambda path: (path.rename(path.with_name("real")), path.symlink_to("real")),
        lambda path: [write(path / str(number)) for number in range(10)],
    ],
)
def test_a_directory_that_cannot_be_used_completely_is_not_used(
    tmp_path: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "MANY", 10)
    write(tmp_path / "data" / "x")
    assert look(tmp_path, most=10**9) == {"../data": ["x"]}
    change(tmp_path / "data")
    assert "../data" not in look(tmp_path, most=10**9)


def test_a_directory_that_contains_home_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "people" / "ann" / "x")
    assert look(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "ann"))
    assert look(tmp_path) == {}


def test_paths_in_strings_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "open('data/x.csv'); p = \"../raw/y\"; q = './out'; r = '../../.ssh/id'; s = 'a word'; t = '/data/z'\n"
    )
    found = mentioned_paths(tmp_path, list(walk(tmp_path)))
    assert {"data", "../raw", "out"} <= found
    assert not [path for path in found if "ssh" in path or path.startswith("/")]


def test_paths_in_settings_are_found(tmp_path: Path) -> None:
    texts = {
        "conf/config.yaml": "data: ../data/waves.csv\nraw: '../../raw'\nroot: ${hydra:runtime.cwd}/../images\nlr: 0.1\n",
        "run.sh": "python train.py --data=../shards --cache ./cache/a /etc/../passwd\n",
        "notes.md": "see ../other\n",
        "eda.ipynb": '{"source": ["pd.read_csv(\'../raw/x.csv\')", "os.path.join(\\"..\\", \\"input\\")"]}',
        "join.py": "os.path.join('..', 'results'); Path('..') / 'models'; Path(\"..\", \"input\"); ('...', 'no'); '..' + '/no'; f'{here}/../logs'; here + '/../runs/x'",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    found = mentioned_paths(tmp_path, list(walk(tmp_path)))
    assert found >= {"../data", "../../raw", "../images", "../shards", "cache"}, "settings"
    assert found >= {"../raw", "../input", "../results", "../models", "../logs", "../runs"}, "code"
    assert not found & {"../other", "../no", "../passwd", "0.1", "etc"}
