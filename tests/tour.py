"""The commands of `docs/tutorial.md`, run in their order by one shell, as a reader does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.commands import COMMAND
from tests.parts import BASE_PYTHON

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "tutorial.md"
FIRST = "1f2e3d4c"
"""Stands for the ID of the reader's first run."""
HIDDEN = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "UV",
    "UV_PROJECT_ENVIRONMENT",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONHASHSEED",
    "XDG_CACHE_HOME",
)


class Done(NamedTuple):
    """A command of the tutorial that has ended."""

    line: str
    code: int
    out: str
    """What it printed, on stdout and stderr."""


def steps() -> list[tuple[str, str]]:
    """Each file and each command in their order: its name and text, or `$` and the line."""
    found: list[tuple[str, str]] = []
    for language, block in re.findall(r"^```(python|console)\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL):
        if language == "python":
            found.append((block.partition("\n")[0].removeprefix("# "), block))
        else:
            found += [("$", line.partition("  #")[0].rstrip()) for line in block.splitlines()]
    return found


def environ(home: Path) -> dict[str, str]:
    """The variables of a reader with an empty HOME, who has Python and repro-env. pip keeps the index of this machine."""
    programs = home / ".local" / "bin"
    programs.mkdir(parents=True)
    (programs / "repro-env").symlink_to(COMMAND)
    (programs / "python3").symlink_to(BASE_PYTHON)
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN and not name.startswith("REPRO_ENV")}
    configuration = Path("~/.config/pip/pip.conf").expanduser()
    pip = {"PIP_CONFIG_FILE": str(configuration)} if configuration.is_file() else {}
    return {**pip, **kept, "HOME": str(home), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}


def play(home: Path, environ: dict[str, str]) -> list[Done]:
    """Run everything in `home`, until the end or a command that the shell cannot continue after."""
    script = []
    for number, (name, text) in enumerate(steps()):
        if name == "$":
            line = text.replace(FIRST, f"$(ls {home}/*/runs | head -n 1 | sed s/.*-//)")
            script.append(f"{{ {line}\n}} >{home}/.out-{number} 2>&1; echo $? >{home}/.code-{number}")
        else:
            script.append(f"cat >{name} <<'END OF FILE'\n{text}END OF FILE")
    subprocess.run(["bash", "-c", "\n".join(script)], cwd=home, env=environ, stdin=subprocess.DEVNULL, check=True)
    return [
        Done(line, int((home / f".code-{number}").read_text()), (home / f".out-{number}").read_text())
        for number, (name, line) in enumerate(steps())
        if name == "$"
    ]
