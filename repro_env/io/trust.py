"""Which certificates are trusted for a server: those of the system or of the variables, and those of Docker's folders for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro_env.model.errors import NetworkError

VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
"""Files or folders of certificates: those of all that are set are trusted, instead of the system's."""
PLACES = "SSL_CERT_DIR"
"""Folders, parted by colons; one that is not there counts for nothing (OpenSSL)."""
FOLDERS = ("/etc/docker/certs.d", "/etc/containers/certs.d", "~/.config/docker/certs.d", "~/.config/containers/certs.d")
"""In each, `HOST[:PORT]/*.crt` is trusted beside the others for that server; `NAME.cert` with `NAME.key` is shown to it."""


def trusted(name: str, bundle: str) -> Any:
    """The TLS context for `name` (`host[:port]`). `bundle`: certificates for a Python that knows of no system's.

    Raises `NetworkError` for a file without certificates.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # As Docker has it: the authority of a site may lack what newer Pythons insist on.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    chosen = [(name, Path(os.environ[name])) for name in VARIABLES if os.environ.get(name)]
    chosen += [(PLACES, Path(place)) for place in os.environ.get(PLACES, "").split(":") if place and Path(place).is_dir()]
    for variable, path in chosen:
        _load(context, path, variable)
    if not chosen:
        paths = ssl.get_default_verify_paths()
        context.load_default_certs()
        if paths.cafile is None and paths.capath is None:  # a Python built elsewhere, which looks where nothing is
            _load(context, Path(bundle), "certificates that come with Python packages")
    for folder in _folders(name):
        for path in sorted(folder.glob("*.crt")):
            _load(context, path, str(folder))
        for path in sorted(folder.glob("*.cert")):
            _show(context, path)
    return context


def _folders(name: str) -> Iterator[Path]:
    if "/" in name or name in ("", ".", ".."):
        return
    for folder in FOLDERS:
        found = Path(folder).expanduser() / name
        if found.is_dir():
            yield found


def _load(context: Any, path: Path, named: str) -> None:
    import ssl

    try:
        if path.is_dir():
            context.load_verify_locations(capath=str(path))
        else:
            context.load_verify_locations(cafile=str(path))
    except (OSError, ssl.SSLError):
        what = f"holds no certificates that can be read ({named})"
        raise NetworkError(what, where=str(path), hint=f"name a file in PEM form, or unset {named}") from None


def _show(context: Any, path: Path) -> None:
    import ssl

    key = path.with_suffix(".key")
    try:
        context.load_cert_chain(str(path), str(key), password=_no_password)
    except (OSError, ssl.SSLError, ValueError):
        what = f"is no certificate that can be shown to the registry with {key.name}"
        raise NetworkError(what, where=str(path), hint="put certificate and key there, in PEM form, without a password") from None


def _no_password() -> str:
    raise ValueError  # else OpenSSL asks on the terminal
