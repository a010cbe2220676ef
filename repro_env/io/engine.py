"""The one door to container engines: Docker, or Podman through its compatible socket, by docker-py.

Whatever goes wrong on the way is one sentence: no socket, no permission, nothing that answers, an engine that dies
in mid-talk, or what the engine itself says. docker-py is imported when an engine is opened, never before.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from repro_env.model import redact
from repro_env.model.errors import EngineError

if TYPE_CHECKING:
    from docker import DockerClient

DEFAULT = "unix:///var/run/docker.sock"
ANSWER = 60.0
"""Seconds that an engine may be silent while it is asked for something short."""
MISSING = "no Docker or Podman engine answers there"
_START = "start it (as root: systemctl start docker), or name another with DOCKER_HOST; the embedded runner and builder need none"
_LOST = "see whether it still runs (docker info), and start again; what was begun there may have to be removed by hand"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself."""

    product: str
    """`Docker` or `Podman`."""
    version: str
    api: str
    """Version of the engine's API that is talked."""
    architecture: str
    """As the OCI image spec names it; as the engine says it where that is unknown."""
    os: str
    """`linux`."""
    elsewhere: str
    """Why its files are not this machine's; empty when they are. A folder cannot be mounted into its containers then."""
    rootless: bool
    """It runs as a plain user: uid 0 of its containers is that user."""
    buildkit: bool
    """Its build endpoint takes `version=2`."""
    runtimes: tuple[str, ...]
    """Names of its OCI runtimes, sorted: `nvidia` says that GPUs can be had where device requests cannot be tried."""
    storage: str
    """Its storage driver; images are compared by it, containers run on it."""
    cgroups: str
    """`1`, `2`, or empty when it does not say."""


class Engine:
    """An engine that answered. `client` is docker-py's; use it inside `talk`, so that a failure is a sentence."""

    def __init__(self, client: DockerClient, address: str, facts: Facts) -> None:
        self.client = client
        self.address = address
        """Without credentials."""
        self.facts = facts

    @contextlib.contextmanager
    def talk(self, doing: str = "") -> Iterator[None]:
        """Translates every failure of docker-py within. Raises `EngineError`; its `status` says whether the engine answered, and what.

        `doing` completes "the engine cannot …": `start the container`.
        """
        with _translated(self.address, doing):
            yield

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.client.close()

    def __enter__(self) -> Engine:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(address: str = "", environ: Mapping[str, str] | None = None, *, timeout: float = ANSWER) -> Engine:
    """The engine at an address (`unix:///…`, `tcp://…`), or the one that the user's Docker commands would reach.

    That is `DOCKER_HOST`, else the Docker context in force, else the default socket, else the user's own (rootless)
    one. `timeout`: seconds of silence within a talk that mean that it does not answer. Raises `EngineError`.
    """
    environ = os.environ if environ is None else environ
    where, tls = _address(address, environ)
    shown = redact.url(where)
    if where.startswith("ssh://"):
        raise EngineError(
            "is reached by ssh, which is not supported",
            where=shown,
            hint="forward its socket: ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock HOST, then DOCKER_HOST=unix:///tmp/engine.sock",
        )
    with _translated(shown, "say what it is"):
        _knock(where, timeout)
        import docker
        from docker.constants import MINIMUM_DOCKER_API_VERSION
        from docker.errors import DockerException

        def client(version: str) -> DockerClient:
            try:
                return docker.DockerClient(base_url=where, version=version, timeout=timeout, tls=tls or False)
            except (ValueError, KeyError, TypeError, AttributeError) as error:  # it reads the user's settings, trusting them
                raise EngineError(
                    f"the Docker configuration cannot be read: {error}",
                    where=environ.get("DOCKER_CONFIG") or "~/.docker",
                    hint="mend config.json there, or name another folder with DOCKER_CONFIG",
                ) from None

        with contextlib.closing(client(MINIMUM_DOCKER_API_VERSION)) as asking:  # docker-py's `auto` leaves a socket open
            version = asking.api.version(api_version=False)
            if not version.get("ApiVersion"):
                raise DockerException("it does not say which version of the API it talks")
            info = asking.info()
        talking = client(str(version["ApiVersion"]))
    found = facts(version, info, where=where, api=str(version["ApiVersion"]))
    return Engine(talking, shown, found)


def _knock(where: str, timeout: float) -> None:
    """Raises `OSError` for a local socket that takes no connection: docker-py would leave its end of it open."""
    if where.startswith("unix://"):
        path = "/" + where.removeprefix("unix://").lstrip("/")
        with socket.socket(socket.AF_UNIX) as talk:
            talk.settimeout(timeout)
            talk.connect(path)


def available(address: str = "", environ: Mapping[str, str] | None = None) -> bool:
    """Whether an engine answers soon."""
    try:
        opened(address, environ, timeout=5).close()
    except EngineError:
        return False
    return True


def podman(environ: Mapping[str, str] | None = None) -> str:
    """The address of a Podman socket on this machine, the user's own first; empty when there is none."""
    environ = os.environ if environ is None else environ
    folders = [environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}", "/run"]
    found = (f"{folder}/podman/podman.sock" for folder in folders)
    return next((f"unix://{path}" for path in found if os.path.exists(path)), "")  # noqa: PTH110 - a plain string


def facts(version: Mapping[str, Any], info: Mapping[str, Any], *, where: str, api: str) -> Facts:
    """What the engine's answers to `/version` and `/info` mean. `where`: the address that it was asked at."""
    components = {str(one.get("Name", "")): one for one in version.get("Components") or ()}
    product = "Podman" if any("podman" in name.lower() for name in components) else "Docker"
    machine = str(version.get("Arch") or info.get("Architecture") or "")
    security = [str(one) for one in info.get("SecurityOptions") or ()]
    return Facts(
        product=product,
        version=str(version.get("Version") or "unknown"),
        api=api,
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        os=str(version.get("Os") or info.get("OSType") or ""),
        elsewhere=_elsewhere(where, str(info.get("Name") or "")),
        rootless=any("rootless" in one for one in security),
        # Podman takes `version=2` and builds with its own builder, which has no such cache mounts or progress.
        buildkit=product == "Docker" and _number(api) >= (1, 39),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        storage=str(info.get("Driver") or ""),
        cgroups=str(info.get("CgroupVersion") or ""),
    )


def _elsewhere(where: str, name: str) -> str:
    parts = urlsplit(where)
    if parts.scheme in ("tcp", "http", "https") and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return f"it is reached at {redact.url(where)}"
    here = os.uname().nodename
    if name and name != here:  # a forwarded socket, a virtual machine, or we are in a container ourselves
        return f"it runs on {name}, and this is {here}"
    return ""


def _number(api: str) -> tuple[int, ...]:
    return tuple(int(part) for part in api.split(".") if part.isdigit())


def _address(address: str, environ: Mapping[str, str]) -> tuple[str, Any]:
    """Where to, and docker-py's TLS settings or None."""
    if address:
        return address, _tls(environ) if address.startswith("tcp://") else None
    if given := environ.get("DOCKER_HOST"):
        return given, _tls(environ)
    chosen = environ.get("DOCKER_CONTEXT") or _current_context(environ)
    if chosen and chosen != "default":
        return _context(chosen)
    if not os.path.exists(DEFAULT.removeprefix("unix://")):  # noqa: PTH110
        own = f"{environ.get('XDG_RUNTIME_DIR') or f'/run/user/{os.getuid()}'}/docker.sock"
        if os.path.exists(own):  # noqa: PTH110
            return f"unix://{own}", None
    return DEFAULT, None


def _current_context(environ: Mapping[str, str]) -> str:
    folder = environ.get("DOCKER_CONFIG") or f"{environ.get('HOME') or '/'}/.docker"
    try:
        found = json.loads(Path(folder, "config.json").read_bytes())
        return str(found.get("currentContext") or "")
    except (OSError, ValueError, AttributeError):
        return ""


def _context(name: str) -> tuple[str, Any]:
    with _translated(f"the Docker context {name}", "be read"):
        from docker.context import ContextAPI

        found = ContextAPI.get_context(name)
        if found is None or not found.Host:
            raise EngineError("is not there", where=f"the Docker context {name}", hint="docker context ls; or set DOCKER_HOST")
        return str(found.Host), found.TLSConfig


def _tls(environ: Mapping[str, str]) -> Any:
    """As Docker's own commands read the variables (docker-py, `kwargs_from_env`)."""
    if not (environ.get("DOCKER_TLS_VERIFY") or environ.get("DOCKER_CERT_PATH")):
        return None
    from docker.utils import kwargs_from_env

    return kwargs_from_env(environment=dict(environ)).get("tls")


@contextlib.contextmanager
def _translated(where: str, doing: str) -> Iterator[None]:
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        found = explained(error, where, doing)
        if found is None:
            raise
        raise found from None


def explained(error: Exception, where: str, doing: str) -> EngineError | None:
    """What an exception of docker-py means; None for one that is not its."""
    from docker.errors import APIError, DockerException, TLSParameterError

    if isinstance(error, APIError):
        said = " ".join(str(error.explanation or error).split())
        what = f"the engine cannot {doing}: {said}" if doing else f"the engine says: {said}"
        return EngineError(what, where=where, hint=_hint(said), status=int(error.status_code or 0))
    foreign = type(error).__module__.split(".")[0]
    if not isinstance(error, (DockerException, OSError)) and foreign not in ("urllib3", "http", "requests"):
        return None
    roots = list(_roots(error))
    number = next((one.errno for one in roots if isinstance(one, OSError) and isinstance(one.errno, int)), 0)
    kinds = {type(one).__name__ for one in roots}
    text = " ".join(str(error).split())
    first = not doing or doing == "say what it is"
    if number == errno.ENOENT:
        return EngineError(f"{MISSING}: there is no such socket", where=where, hint=_START)
    if number in (errno.EACCES, errno.EPERM):
        return EngineError(
            "this user may not talk to the engine",
            where=where,
            hint="be a member of its group (docker), or use a rootless engine with DOCKER_HOST",
        )
    if first and number in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOTSOCK):
        return EngineError(f"{MISSING}: {os.strerror(number).lower()}", where=where, hint=_START)
    if isinstance(error, TLSParameterError) or any(isinstance(one, ssl.SSLError) for one in roots) or "SSLError" in kinds:
        return EngineError(f"TLS fails: {text}", where=where, hint="see DOCKER_CERT_PATH and DOCKER_TLS_VERIFY")
    if kinds & {"ReadTimeout", "ReadTimeoutError", "ConnectTimeout", "ConnectTimeoutError", "TimeoutError"}:
        return EngineError(
            "the engine does not answer", where=where, hint="it hangs or is overloaded; restart it, and start again"
        )
    if "NameResolutionError" in kinds or "gaierror" in kinds:
        return EngineError(f"{MISSING}: the name is not known", where=where, hint=_START)
    if isinstance(error, DockerException) and not (kinds & _LINES):
        return EngineError(
            f"cannot be used: {text}", where=where, hint="see DOCKER_HOST, DOCKER_CONTEXT and the Docker configuration"
        )
    if first:
        return EngineError(f"{MISSING}: {text}", where=where, hint=_START)
    return EngineError(f"the engine went away while it was asked to {doing}", where=where, hint=_LOST)


_LINES = {"ConnectionError", "ProtocolError", "RemoteDisconnected", "IncompleteRead", "ChunkedEncodingError", "MaxRetryError"}
"""Exceptions, of several libraries, that mean a connection that broke."""


def _roots(error: BaseException) -> Iterator[BaseException]:
    """The exception and all that it wraps, in any of the ways that HTTP libraries do."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]


def _hint(said: str) -> str:
    low = said.lower()
    if "no space left" in low:
        return "make room where the engine keeps its images (docker system df)"
    if "could not select device driver" in low:
        return "install the engine's GPU runtime (nvidia-container-toolkit), or leave --gpus out"
    if "no such image" in low or "not found" in low:
        return "load or pull the image first"
    return "the sentence is the engine's own"
