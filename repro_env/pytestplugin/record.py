"""The record of a test: `same_numbers/<module>/<test>.json` next to the module, with the values of its calls in order."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from hashlib import sha256
from pathlib import Path

from repro_env.pytestplugin.values import Leaves, differences, leaves

SCHEMA = "repro-env/same-numbers/1"
_LARGEST = 10_000_000
"""Characters of a record, which is a file to commit."""
_LONGEST = 100
"""Characters of a test's name that its file has."""


def path_of(module: Path, test: str) -> Path:
    """Return the path of a test's record. A name that does not fit into a file name is shortened and gets a digest."""
    name = re.sub(r"[^\w.,=+\[\]-]", "_", test.replace("::", "."))[:_LONGEST]
    if name != test.replace("::", "."):
        name += f"-{sha256(test.encode(errors='surrogatepass')).hexdigest()[:8]}"
    return module.parent / "same_numbers" / module.stem / f"{name}.json"


class Record:
    """The stored values, which are read when the first one is compared, and the values of the test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: list[Leaves] = []

    def add(self, value: object, relative: float, absolute: float, *, compare: bool) -> str:
        """Add the value of a call. Return why it differs from the stored one; empty if it does not."""
        now = leaves(value)
        self._values.append(now)
        if not compare:
            return ""
        number, stored = len(self._values), self._read()
        if isinstance(stored, str):
            return stored
        if number > len(stored[0]):
            return f"the record has {len(stored[0])} values, and this is value {number}: {self._path}"
        found = list(differences(stored[0][number - 1], now, relative=relative, absolute=absolute))
        if not found:
            return ""
        changes = [
            f"{name} was {stored[1].get(name)}, now {fact}" for name, fact in facts().items() if stored[1].get(name) != fact
        ]
        more = f"{len(found) - 1:,} more differences from " if len(found) > 1 else "recorded in "
        return "\n".join((found[0], f"{more}{self._path}", *changes))

    def finish(self, *, write: bool) -> str:
        """Store the values if they differ from the stored ones. Return what is wrong; empty if nothing is."""
        if not self._values:
            return "the test uses the fixture same_numbers, but compared no value"
        stored = self._read()
        if not write:
            missing = 0 if isinstance(stored, str) else len(stored[0]) - len(self._values)
            return f"the test compared {len(self._values)} values, and {missing} more are in the record: {self._path}" * bool(
                missing
            )
        if isinstance(stored, tuple) and json.dumps(stored[0]) == json.dumps(self._values):
            return ""
        text = json.dumps({"schema": SCHEMA, "recorded_with": facts(), "values": self._values}, indent=1) + "\n"
        if len(text) > _LARGEST:
            return f"the record would have {len(text):,} characters (at most {_LARGEST:,}): compare a part, or norms"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{os.getpid()}.tmp")
        temporary.write_text(text)
        temporary.replace(self._path)
        return ""

    def _read(self) -> tuple[list[Leaves], dict[str, str]] | str:
        """Return the stored values and facts, or why there are none."""
        try:
            stored = json.loads(self._path.read_text())
            if stored["schema"] != SCHEMA:
                return f"the record has the unknown format {stored['schema']!r}: {self._path}"
            return stored["values"], stored["recorded_with"]
        except FileNotFoundError:
            return f"there is no record of this test: {self._path}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"the record cannot be read ({error!r}): {self._path}"


def facts() -> dict[str, str]:
    """Return what the numbers depend on besides the code: versions, the CPU, the GPU and the spec of the run."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    if model := re.search(r"^model name\s*: (.*)", _cpu_information(), re.MULTILINE):
        found["cpu"] = model[1]
    found |= {name: str(sys.modules[name].__version__) for name in ("numpy", "torch") if name in sys.modules}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found["gpu"] = torch.cuda.get_device_name()
    if spec := os.environ.get("REPRO_ENV_SPEC"):
        found["spec"] = spec
    return found


def _cpu_information() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
