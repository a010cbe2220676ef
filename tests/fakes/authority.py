"""A certificate authority of a site, made by the `openssl` program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.parts import need


class Authority:
    """Its own certificate is `authority.file`."""

    def __init__(self, directory: Path) -> None:
        need(shutil.which("openssl"), "openssl: apt-get install openssl")
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "ca.crt"
        self._key = directory / "ca.key"
        new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
        _openssl(*new, "-subj", "/CN=repro-env-test authority", "-keyout", str(self._key), "-out", str(self.file))

    def issue(self, *names: str, days: int = 30) -> tuple[str, str]:
        """Certificate and key for a server that has these names (`DNS:x`, `IP:127.0.0.1`)."""
        stem = self._directory / f"server-{len(list(self._directory.iterdir()))}"
        key, asked, made = stem.with_suffix(".key"), stem.with_suffix(".csr"), stem.with_suffix(".crt")
        more = stem.with_suffix(".ext")
        more.write_text(f"subjectAltName={','.join(names)}\n")
        new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=repro-env-test"]
        _openssl(*new, "-keyout", str(key), "-out", str(asked))
        signed = ["x509", "-req", "-in", str(asked), "-CA", str(self.file), "-CAkey", str(self._key), "-CAcreateserial"]
        _openssl(*signed, "-days", str(days), "-extfile", str(more), "-out", str(made))
        return str(made), str(key)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
