"""Paths in code and settings are found without running anything."""

from __future__ import annotations

from pathlib import Path

from repro_env.environment.source.mentions import mentioned_paths
from repro_env.io.files import walk


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
