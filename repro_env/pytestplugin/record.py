"""The record of a test: `same_numbers/<module>/<test>.json` next to the module, with the values of its calls in order."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from repro_env.pytestplugin.values import Leaves, differences, leaves

SCHEMA = "repro-env/same-numbers/1"
_LONGEST = 100
"""Characters of a test's name that its file has."""
_CPU = Path("/proc/cpuinfo")


def path_of(module: Path, test: str) -> Path:
    """Return the path of a test's record. A name that does not fit into a file name is shortened and gets a digest."""
    name = re.sub(r"[^\w.,=+\[\]-]", "_", test.replace("::", "."))[:_LONGEST]
    if name != test.replace("::", "."):
        name += f"-{sha256(test.encode(errors='surrogatepass')).hexdigest()[:8]}"
    return module.parent / "same_numbers" / module.stem / f"{name}.json"


class SameNumbers:
    """The fixture of a test: the values of its calls, and the stored ones. Differences are raised as `AssertionError`."""

    def __init__(self, path: Path, *, hint: str, is_recording: bool) -> None:
        """`hint`: what to do about a difference. `is_recording`: whether values are stored instead of compared."""
        self._path = path
        self._hint = hint
        self._is_recording = is_recording
        self._values: list[Leaves] = []

    def __call__(self, value: object, *, level: str = "bitwise", relative: float = -1, absolute: float = -1) -> None:
        """Fail the test if a number in the value differs from the recorded one.

        The value consists of floats, integers, text, lists, dicts, NumPy arrays and torch tensors. Level `bitwise`: all bits
        are equal. Level `numeric`: for each float and each array of floats, the relative difference (of L2 norms) is at most
        `relative`, or no difference is larger than `absolute`; other values are equal.
        """
        __tracebackhide__ = True
        if level not in ("bitwise", "numeric"):
            raise ValueError(f"invalid level {level!r} (choose from bitwise, numeric)")
        if (level == "numeric") != (max(relative, absolute) >= 0):
            raise ValueError('level="numeric" needs a tolerance: relative=1e-6, for example; level="bitwise" has none')
        self._values.append(leaves(value))
        if self._is_recording:
            return
        stored, number = self._read(), len(self._values)
        if number > len(stored["values"]):
            raise self._failure(f"the record has {len(stored['values'])} values, and this is value {number}")
        found = list(differences(stored["values"][number - 1], self._values[-1], relative=relative, absolute=absolute))
        if found:
            then, now = stored["recorded_with"], facts()
            changes = [f"{name} was {then.get(name)}, now {fact}" for name, fact in now.items() if then.get(name) != fact]
            more = [f"{len(found) - 1:,} more differences"] if len(found) > 1 else []
            raise self._failure(found[0], *more, *changes)

    def finish(self) -> None:
        """Store the values of a test that passed, or compare their number with the stored one."""
        if not self._values:
            raise self._failure("the test uses the fixture same_numbers, but compared no value")
        if not self._is_recording:
            if missing := len(self._read()["values"]) - len(self._values):
                raise self._failure(f"the test compared {len(self._values)} values, and {missing} more are in the record")
            return
        with contextlib.suppress(AssertionError):
            if json.dumps(self._read()["values"]) == json.dumps(self._values):
                return
        text = json.dumps({"schema": SCHEMA, "recorded_with": facts(), "values": self._values}, indent=1) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(text)

    def _read(self) -> dict[str, Any]:
        __tracebackhide__ = True
        try:
            stored: dict[str, Any] = json.loads(self._path.read_text())
            if stored["schema"] != SCHEMA:
                raise ValueError(f"unknown format {stored['schema']!r}")
            return {name: stored[name] for name in ("values", "recorded_with")}
        except FileNotFoundError:
            raise self._failure("this test has no record") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._failure(f"the record cannot be read: {error!r}") from None

    def _failure(self, *lines: str) -> AssertionError:
        return AssertionError("\n".join((*lines, f"record: {self._path}", self._hint)))


def facts() -> dict[str, str]:
    """Return what the numbers depend on besides the code: versions, the CPU, the GPU and the spec of the run."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "spec": os.environ.get("REPRO_ENV_SPEC", "none")}
    found |= {name: str(sys.modules[name].__version__) for name in ("numpy", "torch") if name in sys.modules}
    if "torch" in found and sys.modules["torch"].cuda.is_initialized():
        found["gpu"] = sys.modules["torch"].cuda.get_device_name()
    found["cpu"] = ", ".join(dict.fromkeys(re.findall(r"^model name\s*: (.*)", _CPU.read_text(), re.MULTILINE)))
    return found
