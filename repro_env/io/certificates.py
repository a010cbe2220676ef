"""Choose the trusted certificates for a server: from the system or from variables, and from Docker's directories for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro_env.schema.errors import NetworkError

VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
"""Files or directories of certificates. If any is set, their certificates replace those of the system."""
DIRECTORIES_VARIABLE = "SSL_CERT_DIR"
"""Directories, separated by colons. As in OpenSSL, those that do not exist are ignored."""
DIRECTORIES = ("/etc/docker/certs.d", "/etc/containers/certs.d", "~/.config/docker/certs.d", "~/.config/containers/certs.d")
"""In each, `HOST[:PORT]/*.crt` are additional trusted certificates; `NAME.cert` and `NAME.key` are a client certificate."""


def tls_context(name: str, bundle: str) -> Any:
    """Return the TLS context for `name` (`host[:port]`). `bundle`: certificates for a Python that finds none of the system.

    Raises `NetworkError` for a file without certificates.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # As in Docker: private certificate authorities may not meet the strict rules of newer Pythons.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    sources = [(variable, Path(os.environ[variable])) for variable in VARIABLES if os.environ.get(variable)]
    directories = [Path(text) for text in os.environ.get(DIRECTORIES_VARIABLE, "").split(":") if text]
    sources += [(DIRECTORIES_VARIABLE, directory) for directory in directories if directory.is_dir()]
    for variable, path in sources:
        _load(context, path, f"unset {variable}")
    if not sources:
        paths = ssl.get_default_verify_paths()
        context.load_default_certs()
        if paths.cafile is None and paths.capath is None:  # a Python whose built-in paths do not exist on this machine
            _load(context, Path(bundle), "reinstall the Python package that contains it")
    for directory in _directories(name):
        for path in sorted(directory.glob("*.crt")):
            _load(context, path, "remove it")
        for path in sorted(directory.glob("*.cert")):
            _load_client_certificate(context, path)
    return context


def _directories(name: str) -> Iterator[Path]:
    if "/" in name or name in ("", ".", ".."):
        return
    for parent in DIRECTORIES:
        directory = Path(parent).expanduser() / name
        if directory.is_dir():
            yield directory


def _load(context: Any, path: Path, alternative: str) -> None:
    import ssl

    try:
        if path.is_dir():
            context.load_verify_locations(capath=str(path))
        else:
            context.load_verify_locations(cafile=str(path))
    except (OSError, ssl.SSLError):
        what = "no certificates can be read from this file or directory"
        raise NetworkError(what, where=str(path), hint=f"provide certificates in PEM format, or {alternative}") from None


def _load_client_certificate(context: Any, path: Path) -> None:
    import ssl

    key = path.with_suffix(".key")
    try:
        context.load_cert_chain(str(path), str(key), password=_no_password)
    except (OSError, ssl.SSLError, ValueError):
        what = f"this client certificate cannot be used with the key {key.name}"
        raise NetworkError(what, where=str(path), hint="provide both in PEM format, without a password") from None


def _no_password() -> str:
    raise ValueError  # otherwise OpenSSL prompts on the terminal
