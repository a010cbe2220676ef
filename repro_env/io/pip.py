"""Use pip's internal modules for its configuration and its HTTP sessions. Works with pip 24.1 to 26."""

from __future__ import annotations

import functools
import importlib
import os
import re
import threading
import urllib.parse
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io import http
from repro_env.schema import redact
from repro_env.schema.errors import LockError
from repro_env.version import __version__

_LONGEST_WAIT = 60.0
"""Seconds to wait if an index asks for a pause (Retry-After). After it, the request is repeated."""


def configured(prefix: str) -> tuple[Any, Any]:
    """Return pip's install command, and its options as set by pip's configuration."""
    try:
        _silence_pip()
        command = importlib.import_module("pip._internal.commands.install").InstallCommand("install", "")
        if prefix:
            _use_site_config(command.parser.config, prefix)
        options, _ = command.parse_args([])
        if options.cache_dir:
            options.cache_dir = os.path.abspath(options.cache_dir)  # noqa: PTH100
            if not importlib.import_module("pip._internal.utils.filesystem").check_path_owner(options.cache_dir):
                options.cache_dir = None
        for name in ("index_url", "extra_index_urls", "find_links", "no_index", "cache_dir", "retries"):
            getattr(options, name)
    except SystemExit:
        raise LockError(
            "pip's configuration cannot be read", where="pip", hint="check the output of `pip config debug`"
        ) from None
    except Exception as error:  # noqa: BLE001 - pip's internals may differ in another version
        hint = "install pip 24.1 to 26 in the environment of repro-env, and check the output of `pip config debug`"
        raise _unusable_error(error, hint) from None
    return command, options


def origin() -> str:
    """Return which pip is used; empty if there is none."""
    try:
        pip = importlib.import_module("pip")
    except ImportError:
        return ""
    return f"{pip.__file__} {pip.__version__}"


def configuration_files(prefix: str) -> list[str]:
    """Return all files from which pip may read its configuration, whether they exist or not."""
    files = importlib.import_module("pip._internal.configuration").get_configuration_files()
    own = [f"{prefix}/pip.conf", *filter(None, [os.environ.get("PIP_CONFIG_FILE")])]
    return [*(path for paths in files.values() for path in paths), *own]


def build(command: Any, options: Any, *, plain: bool, indexes: Sequence[str] = ()) -> Any:
    """Create a session of pip. `indexes`: additional indexes, whose credentials are also used for the files on their pages."""
    if plain:
        options = type(options)(vars(options) | {"cache_dir": None})
    try:
        sessions: Any = importlib.import_module("pip._internal.network.session")
        # To build its own user agent, pip would start `rustc`, which may write to HOME.
        sessions.user_agent = lambda: f"pip/{_pip_version()} repro-env/{__version__}"
        with _building:  # the first one reads certificates
            session = command._build_session(options)  # noqa: SLF001
            _certificates().share(session.adapters["https://"])
        # Several threads make requests at once, so pip must not prompt for a password. It may use the keyring.
        session.auth._prompt_for_password = lambda _: (None, None, False)  # noqa: SLF001
        session.auth.index_urls = [*(session.auth.index_urls or ()), *indexes]
        session.auth._should_save_password_to_keyring = lambda: False  # noqa: SLF001
        http.enforce_rate(session)
        for adapter in session.adapters.values():
            if (retries := getattr(adapter, "max_retries", None)) is not None:
                adapter.max_retries = _limited(retries).new(status_forcelist={*retries.status_forcelist, 429, 502, 504})
    except Exception as error:  # noqa: BLE001
        raise _unusable_error(error, "install pip 24.1 to 26 in the environment of repro-env") from None
    return session


class _Certificates:
    """A TLS context with the certificates that pip's own context has on Linux: those of the system, and of pip. Each source is read once.

    pip reads them again for each connection, which takes 40 ms of processor time.
    """

    def __init__(self) -> None:
        import ssl

        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.set_default_verify_paths()
        self._lock = threading.Lock()
        self._loaded: set[tuple[str | None, str | None]] = {(None, None)}
        self.load(importlib.import_module("pip._vendor.certifi").where(), None)

    def load(self, file: str | None, directory: str | None) -> None:
        with self._lock:
            if (file, directory) not in self._loaded:
                self.context.load_verify_locations(file, directory)
                self._loaded.add((file, directory))

    def share(self, adapter: Any) -> None:
        """Let an adapter use this context, if pip uses one of this kind: 24.1 does not, nor does `--use-deprecated=legacy-certs`."""
        if getattr(adapter, "_ssl_context", None) is None:
            return
        load = self.load

        class Sharing(type(adapter)):  # type: ignore[misc]  # a class of pip
            def cert_verify(self, connection: Any, url: str, verify: Any, cert: Any) -> None:
                super().cert_verify(connection, url, verify, cert)
                if connection.cert_reqs == "CERT_REQUIRED":
                    load(connection.ca_certs, connection.ca_cert_dir)
                    connection.ca_certs = connection.ca_cert_dir = None

        adapter.__class__ = Sharing
        adapter._ssl_context = self.context  # noqa: SLF001
        adapter.init_poolmanager(adapter._pool_connections, adapter._pool_maxsize, block=adapter._pool_block)  # noqa: SLF001


_certificates = functools.cache(_Certificates)
_building = threading.Lock()


def _limited(retries: Any) -> Any:
    """Return pip's rule for repeated requests, with a limit on how long a server may ask to wait."""

    class Limited(type(retries)):  # type: ignore[misc]  # a class of pip
        def get_retry_after(self, response: Any) -> float | None:
            seconds = super().get_retry_after(response)
            return None if seconds is None else min(float(seconds), _LONGEST_WAIT)

    retries.__class__ = Limited
    return retries


def _unusable_error(error: Exception, hint: str) -> LockError:
    what = f"this version of pip cannot be used to reach indexes: {redact.line(repr(error))}"
    return LockError(what, where=f"pip {_pip_version()}", hint=hint)


class _Page(msgspec.Struct):
    """An index page in JSON."""

    files: list[msgspec.Raw]


def links(body: bytes, content_type: str, url: str, wanted: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Return (URL without fragment, sha256 or empty) of links on an index page. Raises `ValueError` if it is not one.

    `wanted`: for the name of a file. Only JSON pages are reduced by it, because pip takes 0.1 ms for each of thousands of files.
    """
    if content_type not in ("text/html", "application/xhtml+xml") and not content_type.startswith(
        "application/vnd.pypi.simple.v1+"
    ):
        raise ValueError(f"its content type is {content_type or 'missing'}")
    collector: Any = importlib.import_module("pip._internal.index.collector")
    try:
        if content_type.endswith("json"):
            files = msgspec.json.decode(body, type=_Page).files
            body = b'{"files":[%s]}' % b",".join(file for file in files if wanted(_name_of(file)))
        page = collector.IndexContent(body, content_type, None, url, cache_link_parsing=False)
        return [(link.url_without_fragment, link._hashes.get("sha256", "")) for link in collector.parse_links(page)]  # noqa: SLF001
    except (LookupError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(repr(error)) from None


def _name_of(file: msgspec.Raw) -> str:
    """Return the name of a file on an index page in JSON."""
    url = msgspec.json.decode(file).get("url") or ""
    return urllib.parse.unquote(re.split("[?#]", url, maxsplit=1)[0].rpartition("/")[2])


def default_index() -> str:
    """Return the URL of the index that pip uses if none is configured."""
    return str(importlib.import_module("pip._internal.models.index").PyPI.simple_url)


def _use_site_config(config: Any, prefix: str) -> None:
    """Make pip read the `pip.conf` of the captured environment instead of that of repro-env's environment."""
    original = config.iter_config_files

    def iter_config_files() -> Iterator[tuple[Any, list[str]]]:
        for kind, paths in original():
            yield kind, ([str(Path(prefix, "pip.conf"))] if getattr(kind, "value", kind) == "site" else paths)

    config.iter_config_files = iter_config_files


def _silence_pip() -> None:
    """Discard pip's log messages and warnings: they contain URLs with credentials, and Python would print them to stderr."""
    import logging

    logger = logging.getLogger("pip")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    warnings.filterwarnings("ignore", module=r"pip\b")


def _pip_version() -> str:
    try:
        return str(importlib.import_module("pip").__version__)
    except ImportError:
        return "(not installed)"
