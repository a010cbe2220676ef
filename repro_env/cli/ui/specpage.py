"""The page of `repro-env show`."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from repro_env.api.show import Shown
from repro_env.cli.ui.messages import size
from repro_env.cli.ui.page import Page
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Git
from repro_env.schema.frameworks import Frameworks
from repro_env.schema.messages import plural, shorten
from repro_env.schema.spec import Spec


def add(shown: Shown, page: Page) -> None:
    """Add all sections to the page. Sections without content are left out."""
    spec, observed = shown.spec, shown.spec.observed
    _environment(shown, page)
    _distributions(spec, page)
    _bundled(spec, page)
    if observed.edited:
        page.heading(
            "edited", f"files that were edited after installation ({len(observed.edited):,}); they are bundled as they are"
        )
        page.table([(line,) for line in observed.edited])
    if outside := list(_outside(spec)):
        page.heading("outside", "external paths from which Python imports")
        page.table(outside)
    _system(spec, page)
    _machine(spec, page)
    _code(spec, page)
    _data(spec, page)
    page.heading("variables")
    page.listing("set in runs", [f"{variable.name}={variable.value}" for variable in spec.identity.config.env])
    page.listing("recorded", [f"{variable.name}={variable.value}" for variable in observed.variables.recorded])
    named = observed.variables.named
    page.row("names only", f"{len(named):,}: {', '.join(named)}" if named else "")
    _layers(shown, page)
    _blobs(shown, page)
    unknown = [*observed.unknown, *(f"frameworks: {line}" for line in observed.frameworks.unknown)]
    for name, about, lines in (
        ("remarks", "for your information", observed.remarks),
        ("unknown", "could not be determined, or is not in the spec", unknown),
    ):
        if lines:
            page.heading(name, about)
            page.table([(line,) for line in lines])


def _environment(shown: Shown, page: Page) -> None:
    spec, identity, observed = shown.spec, shown.spec.identity, shown.spec.observed
    platform = f"{identity.platform.os}/{identity.platform.architecture}"
    page.heading("environment", str(shown.directory))
    page.row("python", f"{identity.interpreter.version} ({platform})")
    page.row("kind", f"{observed.kind} at {identity.layout.prefix}")
    page.row("command", identity.command)
    page.row("interpreter", identity.interpreter.executable)
    page.row("system", observed.host.os)
    page.row("seed", f"{spec.defaults.seed} (the default of runs)")
    page.row("spec digest", spec.digest)
    page.row("image ID", f"{spec.expected.image_id} ({shown.image})")
    page.row("written by", observed.tool)


def _distributions(spec: Spec, page: Page) -> None:
    installed = spec.observed.distributions
    origins = {hint.sha256: hint.origin for hint in (*spec.hints.wheels, *spec.hints.packages)}
    artifacts = sorted(spec.identity.artifacts, key=lambda artifact: (-artifact.size, artifact.key))
    downloadable = sum(origins.get(artifact.sha256) in ("index", "direct") for artifact in artifacts)
    bundled = len(artifacts) - downloadable
    total = size(sum(artifact.size for artifact in artifacts))
    page.heading("distributions", f"{len(artifacts):,}: {downloadable:,} downloadable, {bundled:,} bundled, {total}")
    page.row("origin", _count(origins.get(artifact.sha256, "unknown") for artifact in artifacts))
    editable = [distribution for distribution in installed if distribution.editable]
    page.listing(
        "editable",
        [f"{distribution.name} {distribution.version} from {distribution.direct_url or '?'}" for distribution in editable],
    )
    if artifacts:
        page.row("by size", "largest first:")
        rows = []
        for artifact in artifacts:
            name = f"{artifact.name} {artifact.version}{_directory(getattr(artifact, 'site', 0), spec)}"
            kind = "conda, " if isinstance(artifact, CondaPackage) else ""
            rows.append((name, size(artifact.size), kind + origins.get(artifact.sha256, "unknown")))
        page.table(rows, indent=4)


def _bundled(spec: Spec, page: Page) -> None:
    parts = sorted(spec.observed.bundled, key=lambda part: (-part.size, part.name))
    if not parts:
        page.heading("bundled", "only file trees: every distribution can be downloaded again by URL and sha256")
        return
    total = sum(part.size for part in parts)
    page.heading("bundled", f"{plural(len(parts), 'part')} that cannot be downloaded again{f', {size(total)}' if total else ''}")
    page.table([(f"{part.name} {part.version}".strip(), size(part.size) if part.size else "", part.why) for part in parts])


def _outside(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the import paths that are not in the environment, and not in the interpreter's standard library, with a reason."""
    observed, identity = spec.observed, spec.identity
    source = observed.source.path if observed.source is not None else ""
    zipped = f"python{''.join(observed.interpreter.version.split('.')[:2])}.zip"
    layouts = [identity.layout, *identity.other_layouts]
    own = [*(layout.prefix for layout in layouts), observed.interpreter.stdlib, observed.interpreter.platstdlib]
    for path in observed.startup.sys_path:
        if path.startswith("/") and not _is_below(path, own) and posixpath.basename(path) != zipped:
            where = "in the source" if source and _is_below(path, [source]) else "bundled at its own path"
            yield path, f"on sys.path, {where}"
    for layout in identity.other_layouts:
        yield layout.prefix, "another directory that packages are imported from, bundled at its own path"


def _is_below(path: str, directories: Sequence[str]) -> bool:
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories)


def _system(spec: Spec, page: Page) -> None:
    observed, unpackaged = spec.observed, spec.identity.unpackaged
    packages, libraries = observed.system_packages, observed.libraries
    how = "" if page.complete else " (--all lists them)"
    page.heading("system", f"{len(packages):,} packages of the operating system are in the base{how}")
    if libraries:
        owners = Counter(library.owner or "no package" for library in libraries)
        page.row("in use", f"{len(libraries):,} shared libraries, by package:")
        page.table([(owner, str(count)) for owner, count in _sort(owners)], indent=4)
    page.listing("no package", [library.path for library in libraries if not library.owner])
    page.row(
        "unpackaged", "" if unpackaged is None else f"{size(unpackaged.size)} of files that belong to no package are bundled"
    )
    page.row("programs", ", ".join(observed.programs))
    if page.complete:  # there are hundreds of packages
        page.listing("packages", [f"{package.name} {package.version}" for package in packages])


def _machine(spec: Spec, page: Page) -> None:
    host = spec.observed.host
    page.heading("machine", "at capture; not part of the image")
    page.row("CPU", f"{host.cpu or 'unknown'} ({host.machine}), {host.cores} cores, {size(host.memory)} memory")
    page.row("CPU flags", " ".join(host.isa))
    page.row("kernel", host.kernel)
    page.listing("GPUs", host.gpus or ["none"])
    drivers = (("NVIDIA", host.nvidia), ("AMD", host.amdgpu))
    page.row("drivers", ", ".join(f"{name} {version}" for name, version in drivers if version))
    _frameworks(spec.observed.frameworks, page)


def _frameworks(frameworks: Frameworks, page: Page) -> None:
    incomplete = bool(frameworks.torch or frameworks.libraries)
    page.row("frameworks", f"{'incomplete' if incomplete else 'none'}: {frameworks.problem}" if frameworks.problem else "")
    if frameworks.torch:
        page.row("torch", frameworks.torch + (f" ({frameworks.cpu_capability})" if frameworks.cpu_capability else ""))
    page.listing(
        "GPUs of torch",
        [
            f"{device.name} ({device.architecture}, {device.units} multiprocessors, {size(device.memory)})"
            for device in frameworks.devices
        ],
    )
    libraries = [
        (
            library.name,
            (library.owner or library.path) + (f" ({' '.join(library.build.split())})" if library.build else ""),
        )
        for library in frameworks.libraries
    ]
    if libraries:
        page.row("libraries", "loaded at capture:")
        page.table(libraries, indent=4)
    page.row("threads", ", ".join(f"{pool.library} {pool.count}" for pool in frameworks.threads))


def _code(spec: Spec, page: Page) -> None:
    source = spec.observed.source
    if source is None:
        page.heading("code", "none was captured")
        return
    page.heading("code", source.path)
    page.row("snapshot", f"{source.tree.files:,} paths, {size(source.size)}, {source.tree.sha256}")
    page.row("git", _git(source.git))
    page.listing("untracked", source.git.untracked if source.git is not None else ())
    rules = [*(f"--include {glob}" for glob in source.include), *(f"--exclude {glob}" for glob in source.exclude)]
    page.row("rules", " ".join(rules))
    if excluded := sorted(spec.observed.excluded, key=lambda row: (-row.size, row.path)):
        page.row("left out", f"{len(excluded):,} paths, largest first:")
        rows = [(row.path, size(row.size) if row.size else "", row.why) for row in excluded]
        page.table(rows, indent=4)


def _data(spec: Spec, page: Page) -> None:
    if data := spec.observed.data:
        page.heading("data", "recorded by digest, not copied")
        page.table([(entry.path, plural(entry.files, "file"), size(entry.size), entry.digest[7:19]) for entry in data])


def _layers(shown: Shown, page: Page) -> None:
    stored = sum(layer.stored for layer in shown.layers)
    page.heading("layers", f"{len(shown.layers)}, lowest first; {stored} in the store")
    rows = []
    for layer in shown.layers:
        holds = shorten([_package(name, shown.spec) for name in layer.holds], 4)
        state = "stored" if layer.stored else ""
        rows.append((layer.kind, layer.diff_id[7:19], size(layer.size) if layer.size else "", state, holds))
    page.table(rows)


def _blobs(shown: Shown, page: Page) -> None:
    missing = [blob for blob in shown.blobs if not blob.here]
    stored = sum(blob.stored for blob in shown.blobs)
    about = f"{len(shown.blobs) - len(missing)} of {len(shown.blobs)} next to the spec, {size(stored)} on disk"
    page.heading("blobs", about + (f"; {len(missing)} MISSING" if missing else ""))
    rows = [
        (blob.what, blob.sha256[7:19], size(blob.size), f"here, {size(blob.stored)}" if blob.here else "missing")
        for blob in sorted(shown.blobs, key=lambda blob: blob.here)
    ]
    page.table(rows)


def _count(names: Iterable[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in _sort(Counter(names)))


def _sort(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _package(text: str, spec: Spec) -> str:
    """`numpy 1.26 in DIRECTORY` for `numpy@1==1.26`, and `openssl 3.2` for `conda/openssl==3.2`."""
    key, _, version = text.rpartition("==")
    name, _, number = key.removeprefix("conda/").partition("@")
    return f"{name} {version}{_directory(int(number) if number.isdigit() else 0, spec)}"


def _directory(number: int, spec: Spec) -> str:
    """The site directory with this number; empty for the first one."""
    others = spec.identity.other_layouts
    return f" in {others[number - 1].prefix}" if 0 < number <= len(others) else ""


def _git(git: Git | None) -> str:
    if git is None:
        return "no readable repository"
    parts = [f"commit {git.commit[:12]}" if git.commit else "no commit yet", f"on {git.branch}" if git.branch else "detached"]
    parts.append("with uncommitted changes" if git.dirty else "clean")
    return ", ".join(parts) + (f", {git.remote}" if git.remote else "")
