"""Repeatable code where PyTorch has a choice. What the script sets later wins; only `strict` lets an operation fail.

With REPRO_ENV_DETERMINISM=off nothing is set.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
alerts: Any = seeds.part("alerts")
devices: Any = seeds.part("devices")

_RESTORING = ("/torch/_dynamo/convert_frame.py", "/fabric/strategies/launchers/multiprocessing.py")


class _State:
    filled = False
    """The script set the filling of uninitialized memory itself."""


def hook(torch: Any) -> None:
    """Choose repeatable code, as `torch.use_deterministic_algorithms` does, but without importing the compiler."""
    if seeds._MODE == "off":
        return
    torch._C._set_cudnn_benchmark(False)
    torch._C._set_cudnn_deterministic(True)
    if hasattr(torch._C, "_set_sdp_use_cudnn") and devices.built_in(torch):
        # The one attention kernel that is not repeatable and does not say so (`check_cudnn_deterministic`).
        torch._C._set_sdp_use_cudnn(False)
    alerts.listen()
    choose = torch._C._set_deterministic_algorithms
    choose(True, warn_only=seeds._MODE == "warn")
    fill = getattr(torch._C, "_set_deterministic_fill_uninitialized_memory", None)
    if fill is not None and seeds._MODE == "warn":
        fill(False)  # it only shows programs that read what they never wrote, and costs time

        def _set_deterministic_fill_uninitialized_memory(mode: bool) -> None:
            _State.filled = True
            fill(mode)

        torch._C._set_deterministic_fill_uninitialized_memory = _set_deterministic_fill_uninitialized_memory

    def _set_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        if not alerts.State.asked and not _is_restoring(sys._getframe(1)):
            alerts.State.asked = True
            if not _State.filled and fill is not None:
                fill(True)  # PyTorch's own default
        choose(mode, warn_only=warn_only)

    torch._C._set_deterministic_algorithms = _set_deterministic_algorithms


def _is_restoring(frame: FrameType | None) -> bool:
    """Whether a library puts back what it found: the compiler after each piece, Lightning in its children."""
    for _ in range(3):
        if frame is None:
            break
        if frame.f_code.co_filename.endswith(_RESTORING):
            return True
        frame = frame.f_back
    return False


def hook_inductor(config: Any) -> None:
    """The compiler is asked where the script still wants repeatable code."""
    torch = sys.modules["torch"]
    if hasattr(config, "deterministic") and torch._C._get_deterministic_algorithms():
        config.deterministic = True
