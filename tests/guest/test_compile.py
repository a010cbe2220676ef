"""The script that compiles the modules of an image, run with the interpreter of the tests."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from importlib.util import source_hash
from pathlib import Path

from repro_env.io import package
from repro_env.runs.execution import bytecode


def compile_(out: Path, *directories: Path, code: int = 0, root: str = "", cores: int = 1) -> dict[str, bytes]:
    """Path below the first directory -> bytecode."""
    command = [sys.executable, "-s", "-S", str(package.ROOT / "guest" / "compile.py"), str(out), root, *map(str, directories)]
    if not out.exists():
        out.mkdir()
    env = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    done = subprocess.run(
        ["taskset", "--cpu-list", ",".join(map(str, chosen)), *command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    if code:
        return {}
    compiled = {entry.path: b"".join(chunks) for entry, chunks in bytecode._modules(out, out)}
    names = (out / "names").read_text().split("\0")
    assert list(compiled) == [name for name in names if name in compiled]
    below = f"{directories[0]}/"[1:]
    return {name.removeprefix(below): data for name, data in compiled.items()}


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


def test_the_names_of_the_modules_of_a_layer_do_not_contain_where_it_is_mounted(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    source = write(layer / "opt" / "env", {"pack/one.py": "import os\n"})
    (data,) = compile_(tmp_path / "out", Path("/opt/env"), root=str(layer)).values()
    assert data[8:16] == source_hash((source / "pack/one.py").read_bytes())
    assert marshal.loads(data[16:]).co_filename == "/opt/env/pack/one.py"
    assert str(layer).encode() not in data


def test_the_bytecode_does_not_depend_on_the_number_of_cores(tmp_path: Path) -> None:
    """Also of modules that use the same words, which Python has only once in a process."""
    source = write(
        tmp_path / "source",
        {f"m{number}.py": f"def shared_{number % 7}(shared_word): return shared_word\n" for number in range(200)},
    )
    one, two = (compile_(tmp_path / f"out{cores}", source, cores=cores) for cores in (1, 2))
    assert len(one) == 200
    assert one == two


def test_a_directory_with_two_names_is_compiled_under_the_first_name(tmp_path: Path) -> None:
    source = write(tmp_path / "lib", {"one.py": ""})
    (tmp_path / "lib64").symlink_to("lib")
    assert list(compile_(tmp_path / "out", tmp_path / "lib64", source)) == cache_names("one")


def test_an_unwritable_output_directory_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {"one.py": ""})
    (tmp_path / "out").touch()
    assert compile_(tmp_path / "out", source, code=1) == {}
