"""Console scripts: a canonical form that runs anywhere, and stubs of all installers distinguished from edited scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from repro_env.guest.wheelrule import EntryPoint, replace_shebang
from repro_env.oci import consolescript, wheel
from repro_env.schema.errors import ArtifactError

POINT = EntryPoint("tool", "pkg.cli", "main")


def own(path: str) -> bool:
    """Return whether a path is the Python of the environment of the stubs."""
    return path in ("/home/ann/venv/bin/python", "/home/ann/venv/bin/python3.11", "/home/ann/my project/venv/bin/python")


STUBS = {
    "pip 23": """#!/home/ann/venv/bin/python
# -*- coding: utf-8 -*-
import re
import sys
from pkg.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
""",
    "pip 25": """#!/home/ann/venv/bin/python
import sys
from pkg.cli import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
""",
    "uv": """#!/home/ann/venv/bin/python
# -*- coding: utf-8 -*-
import sys
from pkg.cli import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
""",
    "long path": """#!/bin/sh
'''exec' "/home/ann/my project/venv/bin/python" "$0" "$@"
' '''
import sys
from pkg.cli import main
if __name__ == '__main__':
    sys.exit(main())
""",
    "ours": POINT.text().decode().replace("#!/usr/bin/env", "#!/usr/bin/env"),
}


@pytest.mark.parametrize("text", STUBS.values(), ids=STUBS.keys())
def test_stubs_of_all_installers_are_recognized(text: str) -> None:
    assert consolescript.is_stub_of(text.encode(), POINT, own)


EDITED = {
    "one more line": STUBS["pip 25"].replace("    sys.exit", "    print('hello')\n    sys.exit"),
    "another function": STUBS["pip 25"].replace("sys.exit(main())", "sys.exit(other())"),
    "another module": STUBS["pip 25"].replace("from pkg.cli", "from pkg.evil"),
    "argument": STUBS["pip 25"].replace("main())", "main(1))"),
    "one more import": STUBS["pip 25"].replace("import sys\n", "import sys\nimport os\n"),
    "call in the trim": STUBS["pip 25"].replace("removesuffix('.exe')", "removesuffix(open('/x').read())"),
    "else": STUBS["pip 25"] + "else:\n    main()\n",
    "options for python": STUBS["pip 25"].replace("bin/python\n", "bin/python -O\n"),
    "another python": STUBS["pip 25"].replace("#!/home/ann/venv", "#!/usr"),
    "options in the detour": STUBS["long path"].replace('python" "$0"', 'python" -O "$0"'),
    "another python in the detour": STUBS["long path"].replace("my project", "other project"),
    "env": STUBS["pip 25"].replace("#!/home/ann/venv/bin/python", "#!/usr/bin/env python3"),
    "no python": "#!/bin/sh\necho hello\n",
    "nothing": "",
    "binary": "\x7fELF\0\0",
}


@pytest.mark.parametrize("text", EDITED.values(), ids=EDITED.keys())
def test_edited_stubs_are_not_recognized(text: str) -> None:
    assert not consolescript.is_stub_of(text.encode(), POINT, own)


def test_a_nested_attribute_imports_its_first_part() -> None:
    point = EntryPoint("tool", "pkg", "App.main")
    assert b"from pkg import App\n" in point.text()
    assert b"sys.exit(App.main())" in point.text()
    assert consolescript.is_stub_of(
        STUBS["pip 25"].replace("pkg.cli import main", "pkg import App").replace("main()", "App.main()").encode(), point, own
    )


def environment(directory: Path, name: str, text: bytes) -> Path:
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "python").symlink_to(sys.executable)
    path = directory / "bin" / name
    path.write_bytes(text)
    path.chmod(0o755)
    return path


def test_a_canonical_script_runs_with_the_python_next_to_it(tmp_path: Path) -> None:
    text = EntryPoint("tool", "platform", "python_version").text()
    path = environment(tmp_path / 'it\'s a "path" $HOME', "tool", text)
    done = subprocess.run([path], capture_output=True, check=False)
    assert done.stderr.decode().strip() == ".".join(map(str, sys.version_info[:3]))
    assert done.returncode == 1  # sys.exit of a text prints it and exits with 1


def test_a_canonical_script_gets_its_arguments_and_allows_future_imports(tmp_path: Path) -> None:
    body = b'#!python\n"""A docstring."""\nfrom __future__ import annotations\nimport sys\nprint(sys.argv[1:])\n'
    path = environment(tmp_path, "tool", replace_shebang(body))
    done = subprocess.run([path, "a b", "$HOME", "*", "--", "'"], capture_output=True, check=True)
    assert done.stdout.decode().strip() == repr(["a b", "$HOME", "*", "--", "'"])


@pytest.mark.parametrize(
    ("body", "same"),
    [
        (b"#!python\nprint(1)\n", True),
        (b"#!pythonw\nprint(1)\n", True),
        (b"#!python -E\nprint(1)\n", False),
        (b"#!python\nprint(2)\n", False),
        (b"#!/bin/sh\nprint(1)\n", False),
    ],
)
def test_wheel_scripts_are_compared_after_their_first_line(body: bytes, same: bool) -> None:
    assert consolescript.has_same_body(b"#!/home/ann/venv/bin/python3.11\nprint(1)\n", body, own) is same


def test_scripts_that_are_not_python_stay_as_they_are() -> None:
    body = b"#!/bin/sh\necho hello\n"
    assert replace_shebang(body) == body
    assert consolescript.has_same_body(body, body, own)
    assert not consolescript.has_same_body(body + b"#", body, own)


def test_entry_points_are_read_as_specified() -> None:
    text = "[console_scripts]\nb = pkg.cli:main\na=pkg:App.run [extra]\n[gui_scripts]\nC = pkg:gui\n[other]\nx = y:z\n"
    assert [(point.name, point.module, point.attr) for point in wheel.read_entry_points(text.encode(), "w")] == [
        ("C", "pkg", "gui"),
        ("a", "pkg", "App.run"),
        ("b", "pkg.cli", "main"),
    ]


@pytest.mark.parametrize(
    "line", ["../x = pkg:main", "x/y = pkg:main", ".. = pkg:main", "x = pkg", "x = pkg:main; import os", "x = pkg:os.system('x')"]
)
def test_entry_points_that_would_escape_or_inject_are_refused(line: str) -> None:
    with pytest.raises(ArtifactError):
        wheel.read_entry_points(f"[console_scripts]\n{line}\n".encode(), "w")
