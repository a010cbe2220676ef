"""The command `repro-env capture`: describe an environment, its code and its data in a spec.

It reads the source, locks the environment, bundles what cannot be downloaded again, and writes the spec last: if it is
killed, the earlier spec and its blobs are still complete.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from repro_env.delivery.documents import dockerfile, files
from repro_env.environment import assembly, lock
from repro_env.environment import code as capturedcode
from repro_env.environment.bundle import Bundle
from repro_env.environment.code import CodeRequest
from repro_env.environment.live import Request as LockRequest
from repro_env.environment.machine import variables
from repro_env.environment.python import selection as targets
from repro_env.environment.python.selection import Target
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.io import machine
from repro_env.runs.start import sourcedirectory
from repro_env.sandbox import plan
from repro_env.schema.progress import Tell
from repro_env.schema.run import Mount
from repro_env.schema.spec import Spec
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requested."""

    python: str | None
    code: CodeRequest
    environ: dict[str, str]
    programs: tuple[str, ...] = ()
    seed: int = 0
    env: tuple[str, ...] = ()
    """Names of variables to replay in addition to the standard ones."""


class CaptureResult(msgspec.Struct, frozen=True):
    path: Path
    """Path of the spec."""
    spec: Spec
    target: Target
    """The captured Python, and why it was chosen."""
    proven: int
    """The number of distributions with their original wheel: downloadable or bundled."""


def capture(request: Request, *, store: Store, tell: Tell) -> CaptureResult:
    """Capture to the directory `request.code.output`. Raises `CaptureError` and other errors of this package.

    After an error, the earlier spec is unchanged. New blobs may exist, which the next capture uses or removes.
    """
    machine.platform()  # first, because it raises if images for this machine are not supported
    variables.check_added(request.env, request.environ)
    output, environ = request.code.output, request.environ
    target = targets.choose(request.python, environ, request.code.source)
    tell(f"python  {target.path} ({target.why})")
    code = capturedcode.look(request.code, environ, target.venv, store, tell)
    search = SecretSearch(request.code.not_secret, store.facts)
    lock_request = LockRequest(
        target=target,
        environ=environ,
        workspace=request.code.source,
        store=store,
        programs=tuple(dict.fromkeys((*request.programs, *code.libraries))),
        added=request.env,
    )
    locked = lock.lock(lock_request, tell, search)
    capturedcode.check_output(request.code, locked)
    code = code.with_imports(locked)
    tell.detail("writing the bundled files")
    blobs = SpecBlobs(output / "blobs")
    bundle = Bundle(blobs, store)
    bundled_code = code.bundle(bundle)
    spec = assembly.spec(locked, bundle.tree, replace(bundled_code, notes=(*bundled_code.notes, *search.notes)), request.seed)
    plan.check_mounts(spec, [Mount(kind="data", source=data.path, target=data.path) for data in spec.observed.data])
    bundle.packages(locked)
    locked.check_unchanged()
    facts = {wheel.artifact.sha256: wheel.facts for wheel in locked.wheels}
    if problem := dockerfile.write(output, spec, store, lambda wheel: facts[wheel.sha256]):
        tell(f"no Dockerfile was written: {problem}; `repro-env rebuild` can still build the image")
    files.write(output, spec)
    blobs.keep_only(spec.bundled)  # remove the blobs of earlier captures
    sourcedirectory.remember(spec, store)
    return CaptureResult(
        path=output / "spec.json",
        spec=spec,
        target=target,
        proven=sum(wheel.hint.origin != "repacked" for wheel in locked.wheels),
    )
