"""Connection files of Jupyter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repro_env.sandbox import notebook
from repro_env.schema.errors import UsageError

FACTS: dict[str, Any] = {
    "transport": "tcp",
    "ip": "127.0.0.1",
    "key": "5e5510n-key",
    "signature_scheme": "hmac-sha256",
    **{port: 40000 + number for number, port in enumerate(notebook.PORTS)},
}


def test_a_kernel_listens_at_sockets_with_the_key_of_jupyter(tmp_path: Path) -> None:
    (tmp_path / "kernel.json").write_text(json.dumps(FACTS))
    connection = notebook.read(tmp_path / "kernel.json")
    inside = json.loads(connection.inside)
    assert connection.addresses["kernel-1"] == ("127.0.0.1", FACTS["shell_port"])
    assert (inside["transport"], inside["shell_port"], inside["key"]) == ("ipc", 1, FACTS["key"])
    assert f"{inside['ip']}-{inside['hb_port']}".endswith(list(connection.addresses)[-1])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", json.dumps({**FACTS, "transport": "ipc"}), json.dumps({**FACTS, "hb_port": "x"})]
)
def test_what_is_no_connection_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "kernel.json").write_text(text)
    with pytest.raises(UsageError, match="not a connection file"):
        notebook.read(tmp_path / "kernel.json")
