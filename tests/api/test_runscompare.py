from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.api.runscompare import compare_runs
from tests.api.place import Place


def test_lines_of_the_code_that_differ_are_named_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    monkeypatch.setenv("REPRO_ENV_STORE", str(place.store.root))
    names = ("train.py", "data.bin")
    (place.project / names[0]).write_text("import math\nrate = 0.01\nTOKEN = ''\nprint(rate)\n")
    (place.project / names[1]).write_bytes(b"\0\xff")
    first = place.run()
    (place.project / names[0]).write_text(f"import math\nrate = 0.05\nTOKEN = 'hf_{'Ab1' * 12}'\nprint(rate)\n")
    (place.project / names[1]).write_bytes(b"\0\xfe")
    (place.project / "new.py").write_text("x = 1\n")
    second = place.run()
    compared = compare_runs(str(first.directory), str(second.directory))
    assert [difference.what for difference in compared.differences if difference.level == "source"] == [
        "data.bin",
        "new.py",
        "train.py",
    ]
    shown = {file.path: file.shown for file in compared.code}
    assert shown.keys() == set(names)
    assert shown["train.py"][:2] == ("- line 2: rate = 0.01", "+ line 2: rate = 0.05")
    assert shown["train.py"][3] == "+ line 3: TOKEN = '<redacted>'"
