"""The script that compiles the modules of an image, run with the interpreter of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from repro_env.io import package


def compile_(out: Path, *directories: Path, code: int = 0, known: Path = Path("/nowhere")) -> dict[str, bytes]:
    """Path below the first directory -> bytecode."""
    command = [
        sys.executable,
        "-s",
        "-S",
        str(package.ROOT / "guest" / "compile.py"),
        str(out),
        str(known),
        *map(str, directories),
    ]
    env = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    root = Path(f"{out}{directories[0]}")
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def write(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(text.encode(errors="surrogateescape"))
    return directory


def cache_names(*names: str) -> list[str]:
    return [f"{name}.{sys.implementation.cache_tag}.pyc" for name in names]


def test_valid_modules_are_compiled_and_invalid_ones_are_skipped_silently(tmp_path: Path) -> None:
    texts = {"good": "VALUE = 1\n", "broken": "def (:\n", "deep/warns": "x = '\\d'\nassert (1, 2)\n", "odd": "VALUE = '\udc80'\n"}
    source = write(tmp_path / "source", {f"{name}.py": text for name, text in texts.items()})
    write(source, {"text.txt": "", "__pycache__/x.py": "", "deep/tests/x.py": "", "test/x.py": ""})
    (source / "gone.py").symlink_to("nowhere.py")
    compiled = compile_(tmp_path / "out", source)
    assert list(compiled) == cache_names("deep/warns", "good")
    assert {data[4:8] for data in compiled.values()} == {b"\3\0\0\0"}, "checked by the hash of the source"
    assert str(source / "good.py").encode() in compiled[cache_names("good")[0]]


def test_the_bytecode_does_not_depend_on_the_time_of_the_source(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"one.py": "def f(x):\n    '''text'''\n    return x in {'a', 'b', 'c'}\n"})
    first = compile_(tmp_path / "first", source)
    os.utime(source / "one.py", (0, 0))
    assert compile_(tmp_path / "second", source) == first


def test_known_bytecode_is_copied_only_if_it_is_of_the_same_source_and_python(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {f"{name}.py": f"NAME = {name!r}\n" for name in ("same", "edited", "older")})
    known = tmp_path / "known"
    fresh = compile_(known, source)
    for name in fresh:
        path = Path(f"{known}{source}") / name
        data = path.read_bytes() + b"known"
        path.write_bytes(b"\0\0\0\0" + data[4:] if name.startswith("older") else data)
    (source / "edited.py").write_text("NAME = 'other!'\n")
    compiled = compile_(tmp_path / "out", source, known=known)
    assert list(compiled) == list(fresh)
    same, edited, older = cache_names("same", "edited", "older")
    assert compiled[same] == fresh[same] + b"known"
    assert compiled[older] == fresh[older]
    assert b"other!" in compiled[edited]


def test_many_modules_are_all_compiled(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {f"m{number}.py": f"VALUE = {number}\n" for number in range(50)})
    assert len(compile_(tmp_path / "out", source)) == 50


def test_a_directory_with_two_names_is_compiled_under_the_first_name(tmp_path: Path) -> None:
    source = write(tmp_path / "lib", {"one.py": ""})
    (tmp_path / "lib64").symlink_to("lib")
    assert list(compile_(tmp_path / "out", tmp_path / "lib64", source)) == cache_names("one")
    assert not Path(f"{tmp_path / 'out'}{source}").exists()


def test_an_unwritable_output_directory_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"one.py": ""})
    (tmp_path / "out").touch()
    assert compile_(tmp_path / "out", source, code=1) == {}
