"""The project itself: what the wheel ships, what the README shows, what the lock files pin, what no file may say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from repro_env.version import __version__
from tests.parts import need

ROOT = Path(__file__).parents[1]
LOCKS = sorted(ROOT.glob("lockfiles/**/*.txt"))


def tracked() -> list[Path]:
    """Every file that belongs to the project."""
    need((ROOT / ".git").exists(), "the checkout has no .git: clone it with git")
    git = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}"]
    listed = subprocess.run([*git, "ls-files", "-z"], capture_output=True, check=True)
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def toml(path: Path) -> dict[str, object]:
    import pip._vendor.tomli as tomli  # tomllib is younger than Python 3.10

    return tomli.loads(path.read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a release would build it, by the locked hatchling."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index", "-w", directory, ROOT],
        check=True,
    )
    (found,) = directory.glob("*.whl")
    return found


def test_the_wheel_ships_templates_and_what_goes_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "templates").rglob("*"):
        if path.is_file():
            assert f"repro_env/_templates/{path.relative_to(ROOT / 'templates').as_posix()}" in names
    assert "repro_env/py.typed" in names
    for path in (ROOT / "repro_env").rglob("*.py"):
        assert path.relative_to(ROOT).as_posix() in names
    assert any(name.startswith("repro_env/_templates/") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "examples/", "benchmarks/"))]


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """Wherever, whenever and by whom: of the source distribution, and of the wheel that is built from it."""
    built = []
    for name, umask, zone in (("a", 0o022, "UTC"), ("b and c", 0o077, "Asia/Tokyo")):
        for path in tracked():
            copy = tmp_path / name / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copy.chmod(0o777 & ~umask if os.access(path, os.X_OK) else 0o666 & ~umask)
        env = {**os.environ, "TZ": zone, "PYTHONHASHSEED": str(umask)}
        uv = [str(Path(sys.executable).with_name("uv")), "build", "--quiet", "--offline", "--no-build-isolation"]
        subprocess.run([*uv, "--python", sys.executable], cwd=tmp_path / name, env=env, umask=umask, check=True)
        built.append({path.name: path.read_bytes() for path in (tmp_path / name / "dist").iterdir()})
    assert {name.rpartition(".")[2] for name in built[0]} >= {"whl", "gz"}
    assert built[0] == built[1]


def test_the_wheel_has_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_readme_shows_the_real_help() -> None:
    shown = re.search(r"<!-- help -->\n```console\n\$ repro-env --help\n(.*?)```\n", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown, "README.md has no help block"
    real = subprocess.run(
        [sys.executable, "-m", "repro_env", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "PATH": "/usr/bin:/bin"},
    ).stdout
    plain = [line.rstrip() for line in real.strip("\n").splitlines()]
    assert shown[1].strip("\n").splitlines() == plain, "write the real output into README.md between the marks"


def test_links_between_documents_lead_somewhere() -> None:
    for document in (path for path in tracked() if path.suffix == ".md"):
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", document.read_text()):
            there = document.parent / target if target else document
            assert there.exists(), f"{document.relative_to(ROOT)} links to {target}"
            assert not anchor or anchor in headings(there), f"{document.relative_to(ROOT)} links to {target}#{anchor}"


def test_the_map_for_contributors_names_files_and_directories_that_exist() -> None:
    rows = re.findall(r"^\| `.*", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    names = re.findall(r"`([\w/]+(?:/|\.py))`", " ".join(rows))
    assert len(names) > 30
    assert [name for name in names if not any((ROOT / "repro_env").glob(f"**/{name.rstrip('/')}"))] == []


def headings(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lock_file_pins_by_hash_and_names_no_index(path: Path) -> None:
    lines = [line for line in path.read_text().replace("\\\n", " ").splitlines() if line and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9.-]+==\S+ (?:; \S.* )?(?: *--hash=sha256:[0-9a-f]{64} *)+", line + " "), line[:80]
    assert "://" not in path.read_text()
    assert "--find-links" not in path.read_text()
    assert "make relock" in path.read_text(), "lock files are written by `make relock` alone"


def test_what_the_tool_needs_is_what_its_lock_holds() -> None:
    from packaging.requirements import Requirement

    project = toml(ROOT / "pyproject.toml")["project"]
    assert isinstance(project, dict)
    needed = [Requirement(line) for line in project["dependencies"]]
    asked = {line for line in (ROOT / "lockfiles" / "tool.in").read_text().splitlines() if not line.startswith("#")}
    assert {Requirement(line).name for line in asked} == {requirement.name for requirement in needed} | {"editables", "hatchling"}
    for lock in LOCKS:
        if lock.name in ("example.txt", "ml185.txt", "relock.txt", "trainers.txt", "notebook.txt", "jupyterlab.txt"):
            continue
        pinned = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", lock.read_text(), re.MULTILINE))
        version = "3.10" if lock.parent.name == "py310" else "3.11"
        for requirement in needed:
            if requirement.marker is None or requirement.marker.evaluate({"python_version": version}):
                found = pinned[requirement.name]
                assert requirement.specifier.contains(found), f"{lock.name}: {found} is not {requirement}"


CONDA = {"docker": "docker-py", "isal": "python-isal"}
"""Packages that have another name on conda-forge."""


def test_the_recipe_for_conda_has_the_requirements_of_the_package() -> None:
    import yaml
    from packaging.requirements import Requirement

    project = toml(ROOT / "pyproject.toml")["project"]
    assert isinstance(project, dict)
    needed = [Requirement(line) for line in project["dependencies"]]
    expected = {f"{CONDA.get(entry.name, entry.name)}: {entry.specifier}" for entry in needed if entry.name != "hyperscan"}
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    run = dict(line.split(" ") for line in recipe["requirements"]["run"] if line != "__linux")
    assert run.pop("python") == project["requires-python"]
    assert {f"{name}: {Requirement(name + bound).specifier}" for name, bound in run.items()} == expected
    build = toml(ROOT / "pyproject.toml")["build-system"]
    assert isinstance(build, dict)
    built_with = [line.replace(">=", " >=") for line in build["requires"]]
    assert recipe["requirements"]["host"] == [f"python {project['requires-python']}", "pip", *built_with]
    assert recipe["context"]["version"] == __version__
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {target}" for name, target in project["scripts"].items()]


def test_the_changelog_has_the_version_with_its_date() -> None:
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert re.fullmatch(rf"## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)", first)


def test_trainers_are_locked_for_the_torch_that_make_installs() -> None:
    (release,) = re.findall(r"^TORCH \?= (torch==[\d.]+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert release in (ROOT / "lockfiles" / "trainers.in").read_text().splitlines()


def test_ci_runs_every_python_that_the_package_names() -> None:
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    (matrix,) = re.findall(r"^ *python: \[(.*)\]$", workflow, re.MULTILINE)
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert re.findall(r'"(.*?)"', matrix) == named
    assert named[0] == "3.10"


IMPORT_ALL = """
import importlib, pkgutil, sys, repro_env
for module in pkgutil.walk_packages(repro_env.__path__, "repro_env."):
    if not module.name.startswith(("repro_env.guest", "repro_env.checkpoint", "repro_env.__main__")):
        importlib.import_module(module.name)
print(len(sys.modules), *sys.modules.keys() & {"docker", "hyperscan", "pip", "pynvml", "requests", "rich", "yaml"})
"""


def test_large_dependencies_are_imported_only_when_they_are_used() -> None:
    shown = subprocess.run([sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    count, *imported = shown.split()
    assert int(count) > 300
    assert imported == []


def test_the_extra_for_tests_is_what_the_tests_run_on() -> None:
    project = toml(ROOT / "pyproject.toml")["project"]
    assert isinstance(project, dict)
    extra = {re.split(r"[<>=~! ]", line)[0] for line in project["optional-dependencies"]["test"]}
    asked = set((ROOT / "lockfiles" / "test.in").read_text().split("\n"))
    assert extra <= asked


HOSTS = re.compile(
    r"(?:.+\.)?(?:test|invalid|localhost)|(?:.+\.)?example\.(?:org|com|net)|127\.0\.0\.1|\[::1\]|localhost|\[2001:db8:[\da-f:]+\]|[\d.]+"
)
"""Reserved names (RFC 2606) and addresses: what a test or a document may call a server."""
PAGES = {"github.com", "www.apache.org", "opencontainers.org", "peps.python.org", "packaging.python.org", "docs.python.org"}
"""Where a document may point a reader."""
SOURCES = {
    "docs.nvidia.com", "developer.nvidia.com", "gitlab.com", "en.wikipedia.org", "unix.stackexchange.com", "blog.zhaowcheng.com",
}  # fmt: skip
"""Of facts about machines (`compare/preflight/compatibility.toml`) and of the pairs that test them."""
SERVICES = {
    "hooks.slack.com", "discord.com", "bucket.s3.amazonaws.com", "b.s3.amazonaws.com", "d1.cloudfront.net", "storage.googleapis.com",
    "lab.blob.core.windows.net", "packages.north.org", "conda.north.org", "git.north.org", "api.north.org",
}  # fmt: skip
"""Of URLs that are secrets, or hold one: planted in tests, never asked. One in a URL of an example host counts as made up."""
FORMATS = {"in-toto.io", "slsa.dev", "index.docker.io", "www.w3.org", "purl.org", "vega.github.io", "json.schemastore.org"}
"""In names that a format prescribes: statement and predicate types, Docker's key for the credentials of its default registry, and
namespaces of XML and JSON documents."""


def test_no_file_names_a_package_index_or_this_checkout() -> None:
    """The default index comes from pip at run time, and no path of the machine it was written on is in a file."""
    found = []
    for path in (path for path in tracked() if path.name != "LICENSE"):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        hosts = set(
            re.findall(r"https?://(?:[^/@\s\"'`]+@)?(\[[\da-f:]+\]|[A-Za-z\d][A-Za-z\d.-]*\.[A-Za-z\d.-]*[A-Za-z\d])", text)
        )
        found += [
            f"{path.relative_to(ROOT)}: {host}"
            for host in hosts
            if not HOSTS.fullmatch(host) and host not in PAGES | SOURCES | SERVICES | FORMATS
        ]
        if re.search(re.escape(str(ROOT)) + r"(?![\w-])", text):
            found.append(f"{path.relative_to(ROOT)}: {ROOT}")
    assert not found


def test_every_action_is_pinned_by_commit() -> None:
    for path in (ROOT / "action.yml", *(ROOT / ".github").rglob("*.yml")):
        text = path.read_text()
        uses = re.findall(r"uses:\s*(\S+)", text)
        assert all(re.fullmatch(r"(?:\./\S*|[\w.-]+/[\w./-]+@[0-9a-f]{40})", one) for one in uses), path
        assert path.name == "action.yml" or re.search(r"^permissions:\n  contents: read\n", text, re.MULTILINE), path


def test_scripts_are_shell_that_parses() -> None:
    scripts = [ROOT / ".ci" / "run", *ROOT.glob("lockfiles/*.sh")]
    assert len(scripts) > 2
    for path in scripts:
        shell = "bash" if path.read_text().startswith("#!/usr/bin/env bash") else "sh"
        subprocess.run([shell, "-n", path], check=True)
        assert path.stat().st_mode & 0o100, f"{path.name} is not executable"
