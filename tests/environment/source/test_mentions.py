from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from repro_env.environment.source.mentions import Mentions, look
from repro_env.io.files import walk


def mentions(directory: Path, texts: Mapping[str, str], names: tuple[str, ...] = ()) -> Mentions:
    for name, text in texts.items():
        path = directory / (name if "." in name else f"{name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return look(directory, tuple(walk(directory)), names)


@pytest.mark.parametrize(
    "code",
    [
        "import git",
        "from git.repo import Repo",
        "import pygit2 as p",
        "from dulwich import porcelain",
        "from setuptools_scm import get_version",
        "import versioneer",
        "import subprocess\nsubprocess.check_output(['git', 'rev-parse', 'HEAD'])",
        "run(['/usr/bin/git', 'describe'])",
        "GITS = ['git']",
        "import os\nos.popen('git describe --tags').read()",
        "run(f'git log -{n}', shell=True)",
    ],
)
def test_code_that_calls_git_is_found(tmp_path: Path, code: str) -> None:
    assert mentions(tmp_path, {"a": code}).git == (f"a.py:{1 + code.count(chr(10))}",)


@pytest.mark.parametrize(
    "code",
    [
        '"""Use `git describe` to see it."""',
        "# subprocess.run(['git'])",
        "from .git import x",
        "import digit, gitignore",
        "names = ['legit', 'github']",
        "def broken(:\n  import git",
    ],
)
def test_text_about_git_does_not_count_as_a_call(tmp_path: Path, code: str) -> None:
    assert mentions(tmp_path, {"a": code}).git == ()


def test_build_scripts_are_skipped_and_results_are_sorted(tmp_path: Path) -> None:
    found = mentions(tmp_path, {"setup": "import git", "b": "x = 1\nimport git", "a/c.py": "import git", "d.txt": "import git"})
    assert found.git == ("a/c.py:1", "b.py:2")


def test_variables_in_the_code_are_found(tmp_path: Path) -> None:
    found = mentions(tmp_path, {"a": "os.environ['DATA']", "b": 'getenv("MORE") or XOTHER'}, ("DATA", "OTHER", "MORE"))
    assert found.variables == {"DATA", "MORE"}


def test_paths_in_strings_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "open('data/x.csv'); p = \"../raw/y\"; q = './out'; r = '../../.ssh/id'; s = 'a word'; t = '/data/z'\n"
    )
    found = look(tmp_path, list(walk(tmp_path)), ()).paths
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
    found = mentions(tmp_path, texts, ()).paths
    assert found >= {"../data", "../../raw", "../images", "../shards", "cache"}, "settings"
    assert found >= {"../raw", "../input", "../results", "../models", "../logs", "../runs"}, "code"
    assert not found & {"../other", "../no", "../passwd", "0.1", "etc"}
