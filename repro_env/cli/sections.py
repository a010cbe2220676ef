"""The sections of `repro-env show`, as people read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from repro_env.cli.page import Page
from repro_env.cli.say import size
from repro_env.flows.show import Page as Facts
from repro_env.model.accelerator import Device, Frameworks
from repro_env.model.environment import Git

_ORIGINS = {"carried": "bundled"}
"""How people read what a spec calls an origin."""


def environment(facts: Facts, page: Page) -> None:
    one = facts.environment
    page.heading("environment", one.spec)
    page.row("python", f"{one.banner or one.python} ({one.platform})")
    page.row("kind", f"{one.kind} at {one.prefix}")
    page.row("command", one.command)
    page.row("interpreter", one.interpreter)
    page.row("system", ", ".join(part for part in (one.os, one.libc, one.openssl) if part))
    page.row("seed", f"{one.seed}, the master seed of runs")
    page.row("spec digest", one.spec_digest)
    page.row("image ID", f"{one.image_id} ({one.image})")
    page.row("written by", one.written_by)


def distributions(facts: Facts, page: Page) -> None:
    one = facts.distributions
    page.heading("distributions", f"{one.count:,}: {one.downloadable:,} downloadable, {one.bundled:,} bundled, {size(one.size)}")
    page.row("origin", _counts({_ORIGINS.get(origin, origin): count for origin, count in one.origins.items()}))
    page.row("installed by", _counts(one.installers) + (f"; {one.requested:,} asked for by name" if one.requested else ""))
    page.listing("indexes", one.indexes, "--only distributions")
    page.listing("editable", one.editable, "--only distributions")
    rows = [
        (
            f"{found.name} {found.version}{_place(found.place, facts)}",
            size(found.size),
            ("" if found.kind == "wheel" else "conda, ") + _ORIGINS.get(found.origin, found.origin),
        )
        for found in one.all
    ]
    if rows:
        page.row("largest", "first:")
        page.table(rows, "--only distributions", indent=4)


def bundled(facts: Facts, page: Page) -> None:
    if not facts.bundled:
        page.heading("bundled", "the file trees alone: every distribution can be downloaded again by URL and sha256")
        return
    total = sum(one.size for one in facts.bundled)
    page.heading("bundled", f"{len(facts.bundled):,} that cannot be downloaded again" + (f", {size(total)}" if total else ""))
    rows = [(f"{one.name} {one.version}".strip(), size(one.size) if one.size else "", one.why) for one in facts.bundled]
    page.table(rows, "--only bundled")


def edited(facts: Facts, page: Page) -> None:
    if facts.edited:
        page.heading("edited", f"{len(facts.edited):,} files were edited after installation; the edited files are bundled")
        page.table([(line,) for line in facts.edited], "--only edited")


def outside(facts: Facts, page: Page) -> None:
    if facts.outside:
        page.heading("outside", "what Python imports from outside the environment")
        page.table([(one.path, one.why) for one in facts.outside], "--only outside")


def system(facts: Facts, page: Page) -> None:
    one = facts.system
    how = "" if page.whole else " (--only system names them)"
    page.heading("system", f"{len(one.packages):,} packages of the operating system are in the base{how}")
    if one.owners:
        rows = [(owner or "no package", str(count)) for owner, count in one.owners.items()]
        page.row("in use", f"{len(one.libraries):,} shared libraries, by owner:")
        page.table(rows, "--only system", indent=4)
    nobody = [library.path for library in one.libraries if not library.owner]
    page.listing("no package", nobody, "--only system")
    page.row("unowned", f"{size(one.unowned)} that belong to no package are bundled" if one.unowned else "")
    page.row("programs", ", ".join(one.programs))
    if page.whole:  # hundreds of names are not for a page
        page.listing("packages", [f"{package.name} {package.version}" for package in one.packages], "--only system")


def machine(facts: Facts, page: Page) -> None:
    host, accelerators, frameworks = facts.machine.host, facts.machine.accelerators, facts.machine.frameworks
    page.heading("machine", "as it was at capture; in no image")
    page.row("CPU", f"{host.cpu or 'unknown'} ({host.machine}), {host.cores} cores, {size(host.memory)} memory")
    page.row("CPU flags", " ".join(host.isa))
    page.row("kernel", host.kernel)
    page.listing("compilers", host.compilers, "--only machine")
    if accelerators.devices:
        page.listing("GPUs", [_device(one) for one in accelerators.devices], "--only machine")
    else:
        page.row("GPUs", f"none: {accelerators.why}" if accelerators.why else "none")
    drivers = (
        ("NVIDIA", accelerators.driver),
        ("CUDA up to", accelerators.newest),
        ("AMD", accelerators.amdgpu),
        ("ROCm", accelerators.rocm),
    )
    page.row("drivers", ", ".join(f"{name} {version}" for name, version in drivers if version))
    _frameworks(frameworks, page)


def _frameworks(one: Frameworks, page: Page) -> None:
    known = bool(one.torch or one.libraries or one.versions)
    page.row("frameworks", f"{'not all is known' if known else 'none'}: {one.problem}" if one.problem else "")
    if one.torch:
        parts = [f"CUDA {one.cuda}" if one.cuda else "", f"ROCm {one.hip}" if one.hip else "", one.cpu_capability]
        about = ", ".join(part for part in parts if part)
        page.row("torch", f"{one.torch} ({about})" if about else one.torch)
        page.row("has code for", " ".join(one.arch))
    page.row("triton", one.triton)
    page.listing("loaded too", one.versions, "--only machine")
    libraries = [
        (found.name, found.version, (found.owner or found.path) + (f" ({' '.join(found.build.split())})" if found.build else ""))
        for found in one.libraries
    ]
    if libraries:
        page.row("libraries", "as they are really loaded:")
        page.table(libraries, "--only machine", indent=4)
    page.row("threads", ", ".join(f"{found.library} {found.count}" for found in one.threads))
    page.row("compiler", "needed at run time (Triton, torch.compile)" if one.needs_compiler else "")


def code(facts: Facts, page: Page) -> None:
    one = facts.code
    if one is None:
        page.heading("code", "none was captured")
        return
    page.heading("code", one.path)
    page.row("snapshot", f"{one.files:,} files and folders, {size(one.size)}, {one.digest}")
    page.row("git", _git(one.git))
    page.listing("untracked", one.git.untracked if one.git is not None else (), "--only code")
    page.listing("submodules", one.git.submodules if one.git is not None else (), "--only code")
    page.listing("requirements", [f"{found.path} ({found.sha256[7:19]})" for found in one.requirements], "--only code")
    page.listing("notebooks", [f"{found.path} (code {found.code[7:19]})" for found in one.notebooks], "--only code")
    rules = [*(f"--include {glob}" for glob in one.include), *(f"--exclude {glob}" for glob in one.exclude)]
    page.row("rules", " ".join(rules))
    if one.excluded:
        page.row("left out", f"{len(one.excluded):,} paths, the largest first:")
        page.table(
            [(found.path, size(found.size) if found.size else "", found.why) for found in one.excluded], "--only code", indent=4
        )


def data(facts: Facts, page: Page) -> None:
    if facts.data:
        page.heading("data", "known by digest, never copied")
        rows = [
            (
                one.path,
                f"{one.files:,} file{'s' * (one.files != 1)}",
                size(one.size),
                one.digest[7:19] + (", Croissant" if one.croissant else ""),
            )
            for one in facts.data
        ]
        page.table(rows, "--only data")


def variables(facts: Facts, page: Page) -> None:
    one = facts.variables
    page.heading("variables")
    page.listing("set in runs", [f"{found.name}={found.value}" for found in one.image], "--only variables")
    page.listing("only seen", [f"{found.name}={found.value}" for found in one.recorded], "--only variables")
    page.row("by name only", f"{len(one.named):,}: {', '.join(one.named)}" if one.named else "")


def layers(facts: Facts, page: Page) -> None:
    here = sum(one.stored for one in facts.layers)
    page.heading("layers", f"{len(facts.layers)}, lowest first; {here} of them in the store")
    rows = [
        (
            one.kind,
            one.diff_id[7:19],
            size(one.size) if one.size else "",
            "stored" if one.stored else "",
            _few(_held(name, facts) for name in one.holds),
        )
        for one in facts.layers
    ]
    page.table(rows, "--only layers")


def blobs(facts: Facts, page: Page) -> None:
    missing = [one for one in facts.blobs if not one.here]
    stored = sum(one.stored for one in facts.blobs)
    about = f"{len(facts.blobs) - len(missing)} of {len(facts.blobs)} beside the spec, {size(stored)} on disk"
    page.heading("blobs", about + (f"; {len(missing)} MISSING" if missing else ""))
    rows = [
        (one.what, one.sha256[7:19], size(one.size), f"here, {size(one.stored)}" if one.here else "missing")
        for one in sorted(facts.blobs, key=lambda one: one.here)
    ]
    page.table(rows, "--only blobs")


def notes(facts: Facts, page: Page) -> None:
    _lines("notes", "facts to know; nothing is wrong", facts.notes, page)


def unknown(facts: Facts, page: Page) -> None:
    _lines("unknown", "what could not be found out, or is not in the spec", facts.unknown, page)


def _lines(name: str, about: str, lines: tuple[str, ...], page: Page) -> None:
    if lines:
        page.heading(name, about)
        page.table([(line,) for line in lines], f"--only {name}")


SECTIONS: Mapping[str, Callable[[Facts, Page], None]] = {
    "environment": environment,
    "distributions": distributions,
    "bundled": bundled,
    "edited": edited,
    "outside": outside,
    "system": system,
    "machine": machine,
    "code": code,
    "data": data,
    "variables": variables,
    "layers": layers,
    "blobs": blobs,
    "notes": notes,
    "unknown": unknown,
}
"""By the name that `--only` takes, which is its key in `--json` too."""


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in found.items())


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _held(text: str, facts: Facts) -> str:
    """`numpy@1==1.26` and `conda/openssl==3.2` as people say it."""
    key, _, version = text.rpartition("==")
    name, _, place = key.removeprefix("conda/").partition("@")
    return f"{name} {version}{_place(int(place) if place.isdigit() else 0, facts)}"


def _place(number: int, facts: Facts) -> str:
    others = facts.environment.others
    return f" in {others[number - 1]}" if 0 < number <= len(others) else ""


def _git(git: Git | None) -> str:
    if git is None:
        return "no repository that could be read"
    parts = [f"commit {git.commit[:12]}" if git.commit else "no commit yet", f"on {git.branch}" if git.branch else "detached"]
    parts.append("with uncommitted changes" if git.diff or git.untracked or git.dirty else "clean")
    parts.append({"yes": "pushed", "no": "not pushed", "unknown": "unknown whether it is pushed"}[git.pushed])
    return ", ".join(parts) + (f", {git.remote}" if git.remote else "")


def _device(one: Device) -> str:
    parts = [one.architecture, f"{one.units} units" if one.units else "", size(one.memory) if one.memory else "", one.partition]
    return f"{one.name} ({', '.join(part for part in parts if part)})"
