"""Deterministic algorithms in PyTorch, and the number of calls of operations that have none, by line.

Later settings of the script win. Operations fail only in `strict`. PyTorch's warnings about them are counted and not shown. With
REPRO_ENV_DETERMINISM=off nothing is set. A report is {"operation", "count", "file", "line"}.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Items = list[Any]
else:
    Items = list

seeds: Any = __import__("_repro_env_seeds")
callers: Any = seeds.part("callers")
reports: Any = seeds.part("reports")
settings: Any = seeds.part("settings")

_PHRASES = (" does not have a deterministic implementation", " defaults to a non-deterministic algorithm")
"""The text after the name of the operation in PyTorch's alerts (`Context::alertNotDeterministic`, the attention kernels)."""
_CUBLAS = "not deterministic because it uses CuBLAS"
_MOST = 1000
"""The most pairs of an operation and a line that a process counts."""


def hook(torch: Any) -> None:
    """Enable deterministic algorithms, as `torch.use_deterministic_algorithms` does, but without importing the compiler."""
    if seeds._MODE == "off":
        return
    torch._C._set_cudnn_benchmark(False)
    torch._C._set_cudnn_deterministic(True)
    if hasattr(torch._C, "_set_sdp_use_cudnn") and settings.has_gpu_support(torch):
        # The only attention kernel that is nondeterministic without an alert (`check_cudnn_deterministic`).
        torch._C._set_sdp_use_cudnn(False)
    _install_filter()
    torch._C._set_deterministic_algorithms(True, warn_only=seeds._MODE == "warn")
    fill = getattr(torch._C, "_set_deterministic_fill_uninitialized_memory", None)
    if fill is not None and seeds._MODE == "warn":
        fill(False)  # it takes time, and matters only if a program reads memory that it never wrote


def hook_inductor(config: Any) -> None:
    """Make the compiler deterministic, unless the script has disabled deterministic algorithms."""
    torch = sys.modules["torch"]
    if hasattr(config, "deterministic") and torch._C._get_deterministic_algorithms():
        config.deterministic = True


_counts: dict[tuple[str, str, int], list[int]] = {}
"""(operation, file, line) -> [number of calls, number of these in the reports]."""


class _Alerts:
    """The message of a warning filter that matches PyTorch's alerts. Its filter is the first, before the filters of the script."""

    pattern = "(?!)"
    """A regular expression that matches nothing. scikit-learn sends the patterns of all filters to its workers."""

    def match(self, text: str) -> bool:
        """Count an alert, and return True to ignore its warning: without the hooks there would be none."""
        name = operation(text) if "determinis" in text else ""
        if name:
            with seeds.Attempt("operation"):
                _count(name, *callers.user_line())
        return bool(name)


class _Filters(Items):
    """`warnings.filters`, in which the filter for alerts always comes first."""

    alerts = ("ignore", _Alerts(), UserWarning, None, 0)

    def _put_alerts_first(self) -> None:
        if not self or self[0] is not self.alerts:
            super().__setitem__(slice(None), [self.alerts, *(item for item in self if item is not self.alerts)])

    def insert(self, index: Any, item: Any) -> None:
        super().insert(index, item)
        self._put_alerts_first()

    def __setitem__(self, index: Any, item: Any) -> None:
        super().__setitem__(index, item)
        self._put_alerts_first()

    def __getitem__(self, index: Any) -> Any:  # `catch_warnings` copies by a slice
        result = super().__getitem__(index)
        return _Filters(result) if isinstance(index, slice) else result


def _install_filter() -> None:
    """Add the filter for alerts. The functions of `warnings` would make Python show warnings again that it has already shown."""
    warnings: Any = __import__("warnings")
    if not isinstance(warnings.filters, _Filters):
        warnings.filters = _Filters(warnings.filters)
        warnings.filters._put_alerts_first()


def operation(text: str) -> str:
    """The name of the operation in an alert of PyTorch; empty for any other text."""
    for line in text.splitlines():
        for phrase in _PHRASES:
            name, separator, _ = line.partition(phrase)
            if separator:
                return name.rpartition("Error: ")[2].strip() or "unknown"
        if _CUBLAS in line:
            return "cuBLAS"
    return ""


def _count(name: str, file: str, line: int) -> None:
    """Count a call. The first is reported at once, in case the process is killed, and the others at exit."""
    key = (name, file, line)
    if key in _counts:
        _counts[key][0] += 1
    elif len(_counts) < _MOST:
        _counts[key] = [1, 1]
        reports.report({"operation": name, "count": 1, "file": file, "line": line})


def forget() -> None:
    """In a forked child: the parent reports its own counts."""
    _counts.clear()


def finish() -> None:
    """Report the counts that are not in the reports yet."""
    for key, (count, reported) in list(_counts.items()):
        if count > reported:
            _counts[key][1] = count
            reports.report({"operation": key[0], "count": count - reported, "file": key[1], "line": key[2]})
