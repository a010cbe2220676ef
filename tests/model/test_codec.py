"""Values as bytes: what the modules of the types themselves do not test."""

from __future__ import annotations

import subprocess
import sys

RACE = """
import sys, threading
import msgspec
from repro_env.model import codec

sys.setswitchinterval(1e-6)
for number in range(60):
    text = f"class A(msgspec.Struct):\\n    a: int\\nclass B(msgspec.Struct):\\n    b: 'dict[str, A]'\\n"
    made = {"msgspec": msgspec, "__name__": __name__}
    exec(text, made)
    sys.modules[__name__].__dict__.update(made)
    start = threading.Barrier(8)

    def decode(into=made["B"]):
        start.wait()
        codec.decode(b'{"b": {"x": {"a": 1}}}', into, where="here")

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_meet_a_type_at_once() -> None:
    """It ended with a segmentation fault, once in a few hundred times, when each thread decoded by itself."""
    subprocess.run([sys.executable, "-c", RACE], check=True, capture_output=True)
