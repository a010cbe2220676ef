"""Encoding and decoding of values."""

from __future__ import annotations

import subprocess
import sys

RACE = """
import sys, threading
import msgspec
from repro_env.schema import codec

sys.setswitchinterval(1e-6)
for _ in range(60):
    text = "class A(msgspec.Struct):\\n    a: int\\nclass B(msgspec.Struct):\\n    b: 'dict[str, A]'\\n"
    namespace = {"msgspec": msgspec, "__name__": __name__}
    exec(text, namespace)
    sys.modules[__name__].__dict__.update(namespace)
    start = threading.Barrier(8)
    decoded = []

    def decode(into=namespace["B"]):
        start.wait()
        decoded.append(codec.decode(b'{"b": {"x": {"a": 1}}}', into, where="here"))

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value.b["x"].a for value in decoded] == [1] * 8, decoded
"""


def test_threads_can_decode_a_new_type_at_the_same_time() -> None:
    """Without the lock in `codec.decoder`, this sometimes caused a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", RACE], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
