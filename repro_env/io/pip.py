"""Use pip's internal modules for its configuration and its HTTP sessions. Works with pip 24.1 to 26."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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


def build(command: Any, options: Any, *, plain: bool, indexes: Sequence[str] = ()) -> Any:
    """Create a session of pip. `indexes`: additional indexes, whose credentials are also used for the files on their pages."""
    if plain:
        options = type(options)(vars(options) | {"cache_dir": None})
    try:
        sessions: Any = importlib.import_module("pip._internal.network.session")
        # To build its own user agent, pip would start `rustc`, which may write to HOME.
        sessions.user_agent = lambda: f"pip/{_pip_version()} repro-env/{__version__}"
        session = command._build_session(options)  # noqa: SLF001
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


def links(body: bytes, content_type: str, url: str) -> list[tuple[str, str]]:
    """Return (URL without fragment, sha256 or empty) of each link on an index page. Raises `ValueError` if it is not one."""
    if content_type not in ("text/html", "application/xhtml+xml") and not content_type.startswith(
        "application/vnd.pypi.simple.v1+"
    ):
        raise ValueError(f"its content type is {content_type or 'missing'}")
    collector: Any = importlib.import_module("pip._internal.index.collector")
    try:
        if content_type.endswith("json") and not isinstance(json.loads(body)["files"], list):
            raise ValueError("it has no list of files")
        page = collector.IndexContent(body, content_type, None, url, cache_link_parsing=False)
        return [(link.url_without_fragment, link._hashes.get("sha256", "")) for link in collector.parse_links(page)]  # noqa: SLF001
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(repr(error)) from None


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
