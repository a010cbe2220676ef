"""pip's insides: its configuration, and its sessions. The only file that knows them, as they are in pip 24.1 to 26."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from repro_env import __version__
from repro_env.io import pace
from repro_env.model import redact
from repro_env.model.errors import LockError


def configured(prefix: str) -> tuple[Any, Any]:
    """pip's install command and its options as configured."""
    try:
        _quiet()
        command = importlib.import_module("pip._internal.commands.install").InstallCommand("install", "")
        if prefix:
            _site_of(command.parser.config, prefix)
        options, _ = command.parse_args([])
        if options.cache_dir:
            options.cache_dir = os.path.abspath(options.cache_dir)  # noqa: PTH100
            if not importlib.import_module("pip._internal.utils.filesystem").check_path_owner(options.cache_dir):
                options.cache_dir = None
        for name in ("index_url", "extra_index_urls", "find_links", "no_index", "cache_dir", "retries"):
            getattr(options, name)
    except SystemExit:
        raise LockError("pip's configuration cannot be read", where="pip", hint="see what `pip config debug` says") from None
    except Exception as error:  # noqa: BLE001 - whatever a pip with other insides raises
        raise LockError(
            f"pip cannot be used to reach indexes: {redact.line(repr(error))}",
            where=f"pip {_pip_version()}",
            hint="install pip 24.1 to 26 beside repro-env, and see what `pip config debug` says",
        ) from None
    return command, options


def build(command: Any, options: Any, *, plain: bool, indexes: Sequence[str] = ()) -> Any:
    """A session of pip's. `indexes`: further ones, whose credentials also count for the files that they name."""
    if plain:
        options = type(options)(vars(options) | {"cache_dir": None})
    try:
        sessions: Any = importlib.import_module("pip._internal.network.session")
        sessions.user_agent = _user_agent
        session = command._build_session(options)  # noqa: SLF001
        # Several threads ask at once, so nobody is asked for a password; keyring is as configured.
        session.auth._prompt_for_password = _no_password  # noqa: SLF001
        session.auth.index_urls = [*(session.auth.index_urls or ()), *indexes]
        session.auth._should_save_password_to_keyring = lambda: False  # noqa: SLF001
        pace.keep(session)
    except Exception as error:  # noqa: BLE001
        raise LockError(
            f"pip cannot be used to reach indexes: {redact.line(repr(error))}",
            where=f"pip {_pip_version()}",
            hint="install pip 24.1 to 26 beside repro-env",
        ) from None
    return session


def default_index() -> str:
    """The index that pip uses when none is configured."""
    return str(importlib.import_module("pip._internal.models.index").PyPI.simple_url)


def config_files(command: Any) -> tuple[str, ...]:
    """Every file that the command's configuration may come from, whether it is there or not."""
    known = importlib.import_module("pip._internal.configuration").get_configuration_files()
    named = [name for names in known.values() for name in names]
    named += [name for _, names in command.parser.config.iter_config_files() for name in names]
    return tuple(sorted(set(named)))


def _user_agent() -> str:
    """Without the facts that pip adds to its own: it starts `rustc` to know its version, which may write into HOME."""
    return f"pip/{_pip_version()} repro-env/{__version__}"


def _no_password(netloc: str) -> tuple[None, None, bool]:  # noqa: ARG001
    return None, None, False


def _site_of(config: Any, prefix: str) -> None:
    """Let the captured environment's own `pip.conf` count, not that of the environment that repro-env lives in."""
    listed = config.iter_config_files

    def files() -> Iterator[tuple[Any, list[str]]]:
        for kind, names in listed():
            yield kind, ([str(Path(prefix, "pip.conf"))] if getattr(kind, "value", kind) == "site" else names)

    config.iter_config_files = files


def _quiet() -> None:
    """pip warns through logging, with URLs that nobody redacted; without a handler Python prints them to stderr."""
    import logging

    logger = logging.getLogger("pip")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    warnings.filterwarnings("ignore", module=r"pip\b")  # what pip imports may be out of date, and is not ours to mend


def _pip_version() -> str:
    try:
        return str(importlib.import_module("pip").__version__)
    except ImportError:
        return "that is missing"


def cuts() -> tuple[type[Exception], ...]:
    """What requests and urllib3 raise when a connection breaks within a body."""
    requests = importlib.import_module("pip._vendor.requests.exceptions")
    urllib3 = importlib.import_module("pip._vendor.urllib3.exceptions")
    return (requests.ChunkedEncodingError, requests.ConnectionError, urllib3.HTTPError, ConnectionError, TimeoutError)
