"""What `repro-env capture` does with its options: the flow, then what was captured, in words or JSON."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from repro_env.capture import rules, variables
from repro_env.capture.target import Target
from repro_env.cli import say
from repro_env.model.environment import Excluded, Variables
from repro_env.model.errors import UsageError
from repro_env.model.spec import Spec

_GARBAGE = 100_000
"""New values before a search for cycles: there are hundreds of thousands, and nearly all live to the end."""

_OFFERS = 4
"""Data that nobody named: how many lines say of some what runs see of them."""
_NAMED = 8
"""How many variables a line names; further ones are counted."""


def run(
    *,
    python: str | None = None,
    source: Path = Path(),
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    data: Sequence[str] | None = None,
    output: Path = Path("repro"),
    base: str = "host",
    keep_base: bool = False,
    with_: Sequence[str] | None = None,
    env: Sequence[str] | None = None,
    seed: int = 0,
    not_secret: Sequence[str] | None = None,
    json: bool = False,
) -> None:
    from repro_env.flows.capture import Request, capture
    from repro_env.store.store import Store

    gc.set_threshold(_GARBAGE)
    if keep_base and base == "host":
        raise UsageError("goes with --base REF", where="--keep-base", hint="a base cut from this machine is always kept")
    if with_ and base != "host":
        hint = "leave --with out and name an image that has them, or cut the base from this machine: --base host"
        raise UsageError("takes programs from this machine's packages, which that base is not made of", where="--with", hint=hint)
    request = Request(
        python=python,
        source=_folder(source),
        output=output.absolute(),
        environ=dict(os.environ),
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        data=tuple(_mount(text) for text in data or ()),
        programs=tuple(with_ or ()),
        env=tuple(dict.fromkeys(env or ())),
        seed=seed,
        not_secret=tuple(not_secret or ()),
        base="" if base == "host" else base,
        keep_base=keep_base,
    )
    done = capture(request, store=Store.open(), tell=say.say)
    if json:
        say.json_result(_facts(done.path, done.spec, done.target, done.proven))
    else:
        _tell(done.path, done.spec, done.proven, done.mentioned, holds_us=done.holds_us)
        for offer in done.offers[:_OFFERS]:
            say.result(f"note          {offer}")
    say.say("next: repro-env rebuild" if output == Path("repro") else f"next: repro-env rebuild {output}")


def _folder(path: Path) -> Path:
    """Absolute and resolved: runs show the source at this path."""
    if not path.is_dir():
        raise UsageError("is no folder", where=str(path), hint="name the folder of your code with --source")
    return path.resolve()


def _mount(text: str) -> tuple[Path, str]:
    """`SRC[:DST]`; DST defaults to the same absolute path."""
    path, _, target = text.partition(":")
    absolute = Path(os.path.normpath(Path(path).absolute()))
    return absolute, target.rstrip("/") or str(absolute)


def _facts(path: Path, spec: Spec, target: Target, proven: int) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    return {
        "spec": str(path),
        "spec_digest": spec.digest,
        "image_id": spec.expected.image_id,
        "python": {"path": str(target.path), "why": target.why, "notes": list(target.notes)},
        "packages": len(spec.identity.packages),
        "distributions": len(spec.identity.distributions),
        "proven": proven,
        "carried": [{"name": one.name, "version": one.version, "why": one.why} for one in spec.observed.carried],
        "edited": list(spec.observed.edited),
        "excluded": [{"path": one.path, "size": one.size, "why": one.why} for one in spec.observed.excluded],
        "unknown": list(spec.observed.unknown),
        "unheld_variables": list(variables.unlisted(spec.observed.variables.named)),
        "base": None
        if spec.hints.base is None
        else {"reference": spec.hints.base.reference, "digest": spec.hints.base.digest, "kept": spec.hints.base.kept},
    }


def _tell(path: Path, spec: Spec, proven: int, mentioned: Collection[str], *, holds_us: bool) -> None:
    identity, observed = spec.identity, spec.observed
    if holds_us:
        say.say("note: repro-env is installed in this environment, so it is captured with it")
    say.result(f"spec          {path}")
    say.result(f"spec digest   {spec.digest}")
    say.result(f"image ID      {spec.expected.image_id}")
    say.result(f"python        {observed.interpreter.version} ({identity.layout.prefix})")
    if identity.packages:
        count = sum(hint.origin == "direct" for hint in spec.hints.packages)
        say.result(f"conda         {len(identity.packages)} packages, {count} downloadable from their channel")
    count = sum(hint.origin in ("index", "direct") for hint in spec.hints.wheels)
    say.result(f"distributions {len(identity.distributions)}, {count} downloadable, {proven} with their original wheel")
    for one in observed.carried:
        named = f"{one.name} {one.version}".strip() + (f" ({say.size(one.size)})" if one.size else "")
        say.result(f"  bundled     {named}: {one.why}")
    for edited in observed.edited:
        say.result(f"  edited      {edited}")
    say.result(f"base          {len(observed.system_packages)} system packages, {say.size(identity.base.size)}{_pulled(spec)}")
    if identity.overlay is not None:
        say.result(f"other files   {identity.overlay.files}, {say.size(identity.overlay.size)}")
    if observed.source is not None:
        say.result(f"source        {observed.source.path}, {say.size(observed.source.size)}{_state(spec)}")
    shown = [one for one in observed.excluded if one.why not in rules.USUAL or say.Screen.level == "verbose"]
    for excluded in _largest(shown):
        measured = f" ({say.size(excluded.size)})" if excluded.size else ""
        say.result(f"  left out    {excluded.path}{measured}: {excluded.why}")
    if observed.source is not None and any(row.why.startswith("git-ignored") for row in shown):
        from repro_env.capture.source import CAP

        most = say.size(CAP)
        say.result(f"              git-ignored data is not captured; runs in this directory still see it, up to {most}")
    for data in observed.data:
        say.result(f"data          {data.path}, {data.files:,} file{'s' * (data.files != 1)}, {say.size(data.size)}")
    for note in (*observed.notes, *_unheld(observed.variables, mentioned)):
        say.result(f"note          {note}")
    for unknown in observed.unknown:
        say.result(f"unknown       {unknown}")


def _unheld(found: Variables, mentioned: Collection[str]) -> Iterator[str]:
    """Lines on variables that are set here but not on the list or in the spec; names in the project's code come first."""
    names = sorted(variables.unlisted(found.named), key=lambda name: (name not in mentioned, name))
    plain = [name for name in names if not variables.is_secret(name)]
    secret = [name for name in names if variables.is_secret(name)]
    if plain:
        yield f"set here but not in the spec: {_some(plain)} (capture --env NAME adds one)"
    if secret:
        yield f"set here but left out as secrets: {_some(secret)} (exec --env NAME passes one to a run)"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _pulled(spec: Spec) -> str:
    hint = spec.hints.base
    if hint is None:
        return ""
    return f", {'a bundled copy of' if hint.kept else 'downloadable:'} {hint.reference}@{hint.digest}"


def _largest(excluded: Sequence[Excluded]) -> list[Excluded]:
    return sorted(excluded, key=lambda one: (-one.size, one.path))[:10]


def _state(spec: Spec) -> str:
    git = spec.observed.source.git if spec.observed.source else None
    if git is None:
        return ", no git repository that could be read"
    return f", commit {git.commit[:12] or '(none yet)'}{' with changes' if git.dirty or git.untracked else ''}"
