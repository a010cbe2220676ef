"""The command `repro-env capture`: describe an environment, its code and its data in a spec.

It reads the source, locks the environment, bundles what cannot be downloaded again, and writes the spec last: if it is
killed, the earlier spec and its blobs are still complete.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from repro_env.api.arguments import Pairs, absolute_pairs_of
from repro_env.delivery.documents import files
from repro_env.environment import assembly, lock
from repro_env.environment import code as capturedcode
from repro_env.environment.bundler import Bundler
from repro_env.environment.live import Request as LockRequest
from repro_env.environment.lock import LockedEnvironment
from repro_env.environment.machine import searchedplaces, variables
from repro_env.environment.python import selection as targets
from repro_env.environment.python.selection import Target
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.source.request import CodeRequest
from repro_env.io import machine
from repro_env.runs.start import sourcedirectory
from repro_env.sandbox import plan
from repro_env.schema.environment import Environ
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.run import Mount
from repro_env.specs.argument import Opened
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store


class CaptureResult(Opened, frozen=True, kw_only=True):
    """The captured spec. Functions that need a spec accept it."""

    target: Target
    """The captured Python, and why it was chosen."""
    proven: int
    """The number of distributions with their original wheel: downloadable or bundled."""

    @property
    def path(self) -> Path:
        """Path of the spec."""
        return self.directory / "spec.json"


def capture(
    source: Path | str = ".",
    *,
    python: str | None = None,
    output: Path | str = "repro",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    data: Pairs = (),
    programs: Sequence[str] = (),
    env: Sequence[str] = (),
    seed: int = 0,
    not_secret: Sequence[str] = (),
    ask: bool = False,
    tell: Tell = SILENT,
) -> CaptureResult:
    """Capture a live environment, and write its spec to the directory `output`. The options are those of `repro-env capture`.

    After an error, the earlier spec is unchanged. New blobs may exist, which the next capture uses or removes.
    Raises `CaptureError` and other errors of this package.
    """
    machine.platform()  # first, because it raises if images for this machine are not supported
    store, environ, added = Store.open(), Environ(os.environ), tuple(dict.fromkeys(env))
    variables.check_added(added, environ)
    request = CodeRequest(
        source=Path(source).resolve(),
        output=Path(output).absolute(),
        include=tuple(include),
        exclude=tuple(exclude),
        not_secret=tuple(not_secret),
        data=absolute_pairs_of(data),
    )
    target = targets.choose(python, environ, request.source)
    own = "; repro-env is installed in it" if target.is_own else ""
    tell(f"python  {target.path} ({target.why}{own})")
    code = capturedcode.look(request, environ, target.venv, store, tell)
    search = SecretSearch(request.not_secret, store.facts)
    lock_request = LockRequest(
        target=target,
        environ=environ,
        workspace=request.source,
        store=store,
        programs=tuple(dict.fromkeys((*programs, *code.libraries))),
        added=added,
        asks=ask,
    )
    locked = lock.lock(lock_request, tell, search)
    capturedcode.check_output(request, locked)
    code = code.with_imports(locked)
    tell.detail("writing the bundled files")
    blobs = SpecBlobs(request.output / "blobs")
    bundler = Bundler(blobs, store)
    bundled_code = code.bundle(bundler)
    remarks = (*bundled_code.remarks, *search.notes, *_searched_places(locked, request))
    spec = assembly.spec(locked, bundler.tree, replace(bundled_code, remarks=remarks), seed)
    plan.check_mounts(spec, [Mount(kind="data", source=data.path, target=data.path) for data in spec.observed.data])
    bundler.packages(locked)
    locked.check_unchanged()
    if problem := files.write(request.output, spec, store, lambda wheel: locked.forms[wheel.key]):
        tell(f"no Dockerfile was written: {problem}; `repro-env rebuild` can still build the image")
    blobs.keep_only(spec.bundled)  # remove the blobs of earlier captures
    sourcedirectory.remember(spec, store)
    return CaptureResult(
        spec=spec,
        directory=request.output,
        target=target,
        proven=sum(wheel.hint.origin != "repacked" for wheel in locked.wheels),
    )


def _searched_places(locked: LockedEnvironment, request: CodeRequest) -> tuple[str, ...]:
    """Return a note about files of this machine that libraries search for, unless they are captured or named as data."""
    environ, live = locked.request.environ, locked.live
    installed = {dist.facts.name for _, dist in locked.installed} | {package.artifact.name for package in locked.packages}
    held = {str(request.source), *(target for _, target in request.data), *(str(site.prefix) for site in live.sites)}
    held |= {f"{environ.get('HOME', '')}/{file.name}" for file in locked.home_files}
    return searchedplaces.look(installed, environ, held=held, image=live.lower_entries)
