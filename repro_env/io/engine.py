"""Connect to container engines with docker-py: Docker, or Podman through its compatible socket.

Every failure becomes an `EngineError`: a missing socket, missing permissions, no answer, a lost connection, or an error
that the engine reports. docker-py is imported when an engine is connected to, not before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from repro_env.io.http import chain, class_names
from repro_env.schema import codec, redact
from repro_env.schema.errors import EngineError
from repro_env.schema.image import LABEL

if TYPE_CHECKING:
    from docker import DockerClient

DEFAULT = "unix:///var/run/docker.sock"
ANSWER = 60.0
"""Seconds to wait for the answer to a short request."""
MISSING = "no Docker or Podman engine answers at this address"
_START = "start it (as root: systemctl start docker), or set DOCKER_HOST; the embedded runner needs no engine"
_LOST = "check whether the engine still runs (docker info), then try again; unfinished containers may have to be removed by hand"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine reports about itself."""

    product: str
    """`Docker` or `Podman`."""
    version: str
    remote_reason: str
    """Why the engine does not share this machine's file system, or empty. A remote engine cannot mount local directories."""
    has_manifests: bool
    """The engine names an image by the digest of its manifest, not of its config: Docker's containerd store, the default since 29."""
    has_limits: bool
    """The engine can limit the memory and the CPU time of a container."""
    rootless: bool
    """The engine runs as an unprivileged user, and uid 0 in its containers is that user."""


class Engine(contextlib.AbstractContextManager["Engine"]):
    """A connected engine. Use docker-py's `client` inside `talk`, which translates its exceptions."""

    def __init__(self, client: DockerClient, address: str, facts: Facts) -> None:
        self.client = client
        self.address = address
        """Without credentials."""
        self.facts = facts

    @contextlib.contextmanager
    def talk(self, action: str) -> Iterator[None]:
        """Translate the exceptions of docker-py to `EngineError`; its `status` is the HTTP status of the engine's answer, or 0.

        `action` completes "the engine cannot ...", for example `start the container`.
        """
        with _translated(self.address, action):
            yield

    def inspect_image(self, image: str) -> dict[str, Any]:
        """Return the details of an image; empty if the engine does not have it. Raises `EngineError`."""
        try:
            with self.talk("look for an image"):
                details: dict[str, Any] = self.client.api.inspect_image(image)
                return details
        except EngineError as error:
            if error.status == 404:
                return {}
            raise

    def has_image(self, own_id: str) -> bool:
        """Return whether the engine has the image that it names by this digest. Raises `EngineError`."""
        return str(self.inspect_image(own_id).get("Id")).removeprefix("sha256:") == own_id.removeprefix("sha256:")

    def find_image(self, image_id: str) -> str:
        """Return the ID by which the engine has the image of repro-env with this image ID; empty if it does not have it.

        Of one image, a store with manifests can have several: with plain layers, with compressed ones, from a registry. So the
        config of each image is made again from what the engine reports, and hashed. Raises `EngineError`.
        """
        if not self.facts.has_manifests:
            return image_id if self.has_image(image_id) else ""
        with self.talk("list its images"):
            images = self.client.api.images(all=True, filters={"label": LABEL})
        return next((str(image["Id"]) for image in images if image_id in _config_digests(self.inspect_image(image["Id"]))), "")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.client.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _config_digests(details: Mapping[str, Any]) -> set[str]:
    """Return the digests that the config of an image can have if repro-env wrote it (`oci.config.config`)."""
    created = str(details.get("Created"))
    config = {
        "architecture": details.get("Architecture"),
        "config": {name: value for name, value in (details.get("Config") or {}).items() if value},
        "os": details.get("Os"),
        "rootfs": {"diff_ids": (details.get("RootFS") or {}).get("Layers") or [], "type": "layers"},
    }
    times = (created, created.replace("Z", "+00:00"))  # engines may write the first for the second
    return {f"sha256:{hashlib.sha256(codec.canonical({**config, 'created': time})).hexdigest()}" for time in times}


def connect(address: str = "", *, timeout: float = ANSWER) -> Engine:
    """Connect to the engine at an address (`unix:///...`, `tcp://...`), or to the one that Docker's commands would use.

    That is the first of: `DOCKER_HOST`, the current Docker context, the default socket, the user's own (rootless) socket.
    `timeout`: seconds to wait for each answer. Raises `EngineError`.
    """
    with _translated(address or "the Docker configuration", "be found"):
        where, tls = _address(address)
    shown = redact.url(where)
    if where.startswith("ssh://"):
        raise EngineError(
            "engines cannot be reached by ssh",
            where=shown,
            hint="forward its socket: ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock HOST, then DOCKER_HOST=unix:///tmp/engine.sock",
        )
    with _translated(shown, _IDENTIFY):
        _check_socket(where, timeout)
        import docker
        from docker.constants import MINIMUM_DOCKER_API_VERSION
        from docker.errors import DockerException

        def make_client(version: str) -> DockerClient:
            try:
                return docker.DockerClient(base_url=where, version=version, timeout=timeout, tls=tls or False)
            except (ValueError, KeyError, TypeError, AttributeError) as error:  # docker-py does not check the user's settings
                raise EngineError(
                    f"the Docker configuration cannot be read: {error}",
                    where=os.environ.get("DOCKER_CONFIG") or "~/.docker",
                    hint="fix config.json there, or set DOCKER_CONFIG to another directory",
                ) from None

        with contextlib.closing(make_client(MINIMUM_DOCKER_API_VERSION)) as client:  # docker-py's `auto` leaves a socket open
            version = client.api.version(api_version=False)
            if not version.get("ApiVersion"):
                raise DockerException("the engine does not report its API version")
            info = client.info()
        return Engine(make_client(str(version["ApiVersion"])), shown, facts(version, info, where=where))


_IDENTIFY = "report its version"


def _check_socket(where: str, timeout: float) -> None:
    """Raise `OSError` if a local socket refuses connections: docker-py would leave its own socket open."""
    if where.startswith("unix://"):
        path = "/" + where.removeprefix("unix://").lstrip("/")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(path)


def facts(version: Mapping[str, Any], info: Mapping[str, Any], *, where: str) -> Facts:
    """Interpret the engine's answers to `/version` and `/info`. `where`: the address of the engine."""
    rootless = bool(info.get("Rootless")) or any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
    components = [str(component.get("Name", "")).lower() for component in version.get("Components") or ()]
    return Facts(
        product="Podman" if any("podman" in name for name in components) else "Docker",
        version=str(version.get("Version") or "unknown"),
        remote_reason=_remote_reason(where, str(info.get("Name") or "")),
        has_manifests="io.containerd.snapshotter" in str(info.get("DriverStatus")),
        has_limits=not rootless or str(info.get("CgroupVersion")) != "1",
        rootless=rootless,
    )


def _remote_reason(where: str, name: str) -> str:
    parts = urlsplit(where)
    if parts.scheme in ("tcp", "http", "https") and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return f"its address is {redact.url(where)}"
    local_name = os.uname().nodename
    if name and name != local_name:  # a forwarded socket, a virtual machine, or this process runs in a container
        return f"it runs on {name}, not on this machine ({local_name})"
    return ""


def _address(address: str) -> tuple[str, Any]:
    """Return the address of the engine, and docker-py's TLS settings or None."""
    from docker.context import ContextAPI
    from docker.utils import kwargs_from_env

    if host := address or os.environ.get("DOCKER_HOST"):
        return host, kwargs_from_env().get("tls")
    name = os.environ.get("DOCKER_CONTEXT")
    context = ContextAPI.get_context(name)
    if context is None or not context.Host:
        hint = "choose from the output of `docker context ls`, or set DOCKER_HOST"
        raise EngineError("the Docker context does not exist", where=name or "the current context", hint=hint)
    if context is not ContextAPI.DEFAULT_CONTEXT:
        return str(context.Host), context.TLSConfig
    rootless = f"{os.environ.get('XDG_RUNTIME_DIR') or f'/run/user/{os.getuid()}'}/docker.sock"
    is_rootless = not os.path.exists(DEFAULT.removeprefix("unix://")) and os.path.exists(rootless)  # noqa: PTH110
    return f"unix://{rootless}" if is_rootless else DEFAULT, None


@contextlib.contextmanager
def _translated(where: str, action: str) -> Iterator[None]:
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        engine_error = translate(error, where, action)
        if engine_error is None:
            raise
        raise engine_error from None


def translate(error: Exception, where: str, action: str) -> EngineError | None:
    """Translate an exception that docker-py raised to an `EngineError`; None if it has nothing to do with the engine."""
    from docker.errors import APIError, DockerException

    if isinstance(error, APIError):
        message = " ".join(str(error.explanation or error).split())
        return EngineError(
            f"the engine cannot {action}: {message}", where=where, hint=_hint(message), status=int(error.status_code or 0)
        )
    package = type(error).__module__.split(".")[0]
    if not isinstance(error, (DockerException, OSError)) and package not in ("urllib3", "http", "requests"):
        return None
    number = next((cause.errno for cause in chain(error) if isinstance(cause, OSError) and isinstance(cause.errno, int)), 0)
    kinds = class_names(error)
    text = " ".join(str(error).split())
    for names, what, hint in _FAILURES:
        if kinds & names:
            return EngineError(what.format(text=text), where=where, hint=hint)
    if isinstance(error, DockerException) and not (kinds & _BROKEN_CONNECTION):
        hint = "check DOCKER_HOST, DOCKER_CONTEXT and the Docker configuration"
        return EngineError(f"the engine cannot be used: {text}", where=where, hint=hint)
    if action == _IDENTIFY:
        reason = os.strerror(number).lower() if number else text
        return EngineError(f"{MISSING}: {reason}", where=where, hint=_START)
    return EngineError(f"the connection was lost while the engine was asked to {action}", where=where, hint=_LOST)


_FAILURES = (
    ({"FileNotFoundError"}, f"{MISSING}: the socket does not exist", _START),
    ({"ConnectionRefusedError"}, f"{MISSING}: connection refused", _START),
    (
        {"PermissionError"},
        "this user is not allowed to use the engine",
        "add the user to the engine's group (docker), or set DOCKER_HOST to a rootless engine",
    ),
    (
        {"SSLError", "TLSParameterError"},
        "the TLS connection to the engine failed: {text}",
        "check DOCKER_CERT_PATH and DOCKER_TLS_VERIFY",
    ),
    ({"gaierror", "NameResolutionError"}, f"{MISSING}: the host name cannot be resolved", _START),
    ({"Timeout", "TimeoutError"}, "the engine does not answer", "it may hang or be overloaded; restart it, then try again"),
)
"""Names of exceptions and of their base classes, what happened, and what to do."""
_BROKEN_CONNECTION = {"ConnectionError", "HTTPError", "HTTPException", "ChunkedEncodingError"}
"""Names of the base classes, in several libraries, of the exceptions for a broken connection."""


def _hint(message: str) -> str:
    lower = message.lower()
    if "no space left" in lower:
        return "free some disk space where the engine keeps its images (docker system df)"
    if "no such image" in lower or "not found" in lower:
        return "load or pull the image first"
    return "this message comes from the engine"
