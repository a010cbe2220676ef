"""Repositories that a stranger made: nothing of them runs, and nothing in them is waited for."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from repro_env.environment.git import command, repository
from tests.e2e.parts import COMMAND, copy_blobs
from tests.hostile.ground import Ground

CONFIGURED = {
    "filter-with-equals": '[filter "a=b"]\n clean = {}\n smudge = {}\n required = true\n',
    "filter": '[filter "plain"]\n clean = {}\n required = true\n',
    "filter-process": '[filter "proc"]\n process = {}\n',
    "filter-lfs": '[filter "lfs"]\n clean = {}\n process = {}\n',
    "filter-odd-name": '[filter "x.y z\\"]"]\n clean = {}\n',
    "fsmonitor": "[core]\n fsmonitor = {}\n",
    "external-diff": "[diff]\n external = {}\n",
    "diff-driver": '[diff "command"]\n command = {}\n',
    "textconv": '[diff "text"]\n textconv = {}\n',
    "merge-driver": '[merge "drv"]\n driver = {}\n',
    "pager": "[core]\n pager = {}\n[pager]\n diff = {}\n config = {}\n ls-files = {}\n",
    "editor": "[core]\n editor = {}\n[sequence]\n editor = {}\n",
    "ssh": "[core]\n sshCommand = {}\n gitProxy = {}\n",
    "credentials": "[credential]\n helper = !{}\n",
    "signatures": "[gpg]\n program = {}\n[log]\n showSignature = true\n",
    "alias": '[alias]\n diff = "!{}"\n ls-files = "!{}"\n config = "!{}"\n',
    "alternate-references": "[core]\n alternateRefsCommand = {}\n",
    "pack-objects": "[uploadpack]\n packObjectsHook = {}\n",
    "submodule-update": '[submodule "sub"]\n update = !{}\n url = ext::sh\n active = true\n',
    "partial-clone": (
        "[core]\n repositoryformatversion = 1\n[extensions]\n partialClone = evil\n[protocol]\n allow = always\n"
        '[protocol "ext"]\n allow = always\n[remote "evil"]\n promisor = true\n url = "ext::{}"\n uploadpack = {}\n'
    ),
    "include": "[include]\n path = INCLUDED\n",
    "include-by-directory": '[includeIf "gitdir:/**"]\n path = INCLUDED-IF\n',
    "hooks": "[core]\n hooksPath = HOOKS\n",
    "worktree-configuration": "[extensions]\n worktreeConfig = true\n",
}
"""Configuration of a repository in which programs are named: by the name of the mark that the program leaves."""
ATTRIBUTES = """\
a.py filter=a=b diff=text
b.py filter=plain diff=command
c.py filter=proc merge=drv
d.py filter=lfs
e.py filter=inc
f.py filter=incif
g.py filter=wt
"""


@dataclass
class Stranger:
    directory: Path

    def __post_init__(self) -> None:
        self.marks.mkdir(parents=True)

    @property
    def marks(self) -> Path:
        return self.directory / "marks"

    @property
    def ran(self) -> list[str]:
        return sorted(path.name for path in self.marks.iterdir())

    def program(self, name: str) -> str:
        """A shell command that leaves a mark."""
        path = self.directory / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch '{self.marks}/{name}'\ncat\n")
        path.chmod(0o755)
        return str(path)

    def repository(self, name: str) -> Path:
        """With two commits and an edit; nothing hostile in it yet."""
        top = self.directory / name
        top.mkdir(parents=True)
        git(top, "init", "-q")
        for letter in "abcdefgh":
            (top / f"{letter}.py").write_text(f"{letter} = 1\n")
        (top / ".gitattributes").write_text(ATTRIBUTES)
        git(top, "add", ".")
        git(top, "commit", "-qm", "first")
        for letter in "abcdefg":
            (top / f"{letter}.py").write_text(f"{letter} = 2\n")
        return top

    def configure(self, own: Path) -> None:
        """Put all of `CONFIGURED` into a repository's directory."""
        (own / "evil-hooks").mkdir()
        shutil.copy(self.program("hooks"), own / "evil-hooks" / "post-index-change")
        shutil.copy(self.program("default-hooks"), own / "hooks" / "post-index-change")
        (own / "included").write_text(f'[filter "inc"]\n clean = {self.program("include")}\n')
        (own / "included-if").write_text(f'[filter "incif"]\n clean = {self.program("include-by-directory")}\n')
        (own / "config.worktree").write_text(f'[filter "wt"]\n clean = {self.program("worktree-configuration")}\n')
        with (own / "config").open("a") as file:
            for name, text in CONFIGURED.items():
                text = text.replace("INCLUDED-IF", "included-if").replace("INCLUDED", "included")
                text = text.replace("HOOKS", str(own / "evil-hooks"))
                file.write(text.replace("{}", self.program(name)))

    def embed(self, top: Path, outer: Path) -> Path:
        """Lay a repository into another one, as a directory that looks like a bare repository: the form that can be cloned."""
        inside = outer / top.name
        shutil.copytree(top, inside, ignore=shutil.ignore_patterns(".git"), symlinks=True)
        shutil.copytree(top / ".git", inside, dirs_exist_ok=True)
        with (inside / "config").open("a") as file:
            file.write("[core]\n bare = false\n worktree = .\n")
        return inside

    def forget(self) -> None:
        for path in self.marks.iterdir():
            path.unlink()


def git(directory: Path, *words: str) -> str:
    own = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main"]
    own += ["-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", "-C", directory, *own, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any configuration."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return directory


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path / "stranger")


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory, store: Path, blobs: list[Path]) -> Ground:
    """An environment of one's own, captured. What is hostile is only the code."""
    ground = Ground(tmp_path_factory.mktemp("trusted") / "ground", store)
    copy_blobs(blobs, ground.project, store)
    assert ground.capture().code == 0
    return ground


# -- through the installed command --------------------------------------------------------------------------------

PYTHON_FILES = (
    "sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py", "repro_env/__init__.py", "msgspec.py", "typer.py",
    "pip.py", "requests.py", "evil.pth",
)  # fmt: skip
PROGRAMS = ("git", "python3", "python", "gcc", "cc", "nvcc", "rpm", "dpkg-query", "ldconfig", "mksquashfs", "nvidia-smi", "sh")


def code(stranger: Stranger, top: Path) -> None:
    """Files of the project that Python, pip or a shell would run if they were started in its directory."""
    for name in PYTHON_FILES:
        (top / name).parent.mkdir(exist_ok=True)
        mark = stranger.marks / f"imported-{name.replace('/', '-')}"
        (top / name).write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    for name in PROGRAMS:
        shutil.copy(stranger.program(f"{name}-of-the-clone"), top / name)
    (top / "pip.conf").write_text(f"[global]\nindex-url = file://{top}\n")
    (top / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "setup"\nbackend-path = ["."]\n')
    (top / ".gitmodules").write_text('[submodule "sub"]\n path = sub\n url = ext::sh\n update = !sh\n')
    (top / ".lfsconfig").write_text(f'[lfs]\n url = ext::sh\n[lfs "customtransfer.x"]\n path = {top}/sh\n')


@pytest.mark.parametrize("way", ["direct", "clone"])
def test_nothing_of_a_repository_runs(trusted: Ground, stranger: Stranger, way: str) -> None:
    """Everything at once: 24 kinds of configuration, two kinds of hooks, and what Python and a shell find in a directory."""
    made = stranger.repository("case")
    code(stranger, made)
    (made / "repro").mkdir()
    shutil.copy(trusted.spec, made / "repro")
    stranger.configure(made / ".git")
    top = made
    if way == "clone":
        outer = stranger.directory / "outer"
        outer.mkdir()
        git(outer, "init", "-q")
        stranger.embed(made, outer)
        git(outer, "add", "--force", ".")
        git(outer, "commit", "-qm", "embedded")
        git(stranger.directory, "clone", "-q", str(outer), "clone")
        top = stranger.directory / "clone" / "case"
    assert stranger.ran == []
    with contextlib.suppress(subprocess.CalledProcessError):
        git(top, "diff", "HEAD", "--")
    assert {"filter-with-equals", "fsmonitor", "external-diff", "include"} <= set(stranger.ran), "git itself runs these"
    stranger.forget()
    env = {**trusted.variables(), "PATH": f".::bin:{os.environ['PATH']}"}
    output = trusted.project / "repro"
    for words in (
        ("check", "--project"),
        ("show",),
        ("diff", "repro", str(trusted.project)),
        ("capture", "--python", str(trusted.venv), "--output", str(output)),
    ):
        done = subprocess.run([COMMAND, *words], cwd=top, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert stranger.ran == [], f"{words}: {done.stdout}{done.stderr}"
        assert done.returncode == (1 if words[0] == "check" else 0), f"{words}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("kind", ["file", "environment"])
def test_a_bare_word_never_names_a_program_of_the_clone(trusted: Ground, stranger: Stranger, kind: str) -> None:
    """`python3` means the one on PATH, whatever files and directories of that name are here."""
    clone = stranger.directory / "clone"
    binary = clone / "python3" / ("bin/python" if kind == "environment" else "")
    binary.parent.mkdir(parents=True)
    shutil.copy(stranger.program("python3-of-the-clone"), binary)
    env = {**trusted.variables(), "PATH": ".:/nowhere"}
    for words in (("capture", "--python", "python3"), ("diff", str(trusted.spec), "python3")):
        done = subprocess.run([COMMAND, *words], cwd=clone, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert "no program of this name is on PATH" in done.stderr
        assert "./python3" in done.stderr
        assert stranger.ran == [], words


def test_capture_says_that_a_commit_cannot_be_read(trusted: Ground, stranger: Stranger) -> None:
    top = stranger.repository("case")
    commit_of(top).write_bytes(b"junk")
    words = ("capture", "--python", str(trusted.venv), "--output", str(trusted.project / "repro"))
    env = trusted.variables()
    done = subprocess.run([COMMAND, *words], cwd=top, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert ", commit" not in done.stdout
    assert "the git repository cannot be read" in " ".join(done.stdout.split())


# -- one by one ---------------------------------------------------------------------------------------------------


def a_git_file_that_names_a_directory_of_the_project(stranger: Stranger, top: Path) -> Path:
    stranger.configure(top / ".git")
    (top / ".git").rename(top / "store")
    (top / ".git").write_text("gitdir: store\n")
    return top


def a_symlink_to_a_directory_of_the_project(stranger: Stranger, top: Path) -> Path:
    stranger.configure(top / ".git")
    (top / ".git").rename(top / "store")
    (top / ".git").symlink_to("store")
    return top


def a_common_directory_elsewhere(stranger: Stranger, top: Path) -> Path:
    stranger.configure(top / ".git")
    shutil.copytree(top / ".git", top / "store")
    (top / ".git" / "commondir").write_text("../store\n")
    return top


def a_linked_working_tree(stranger: Stranger, top: Path) -> Path:
    git(top, "worktree", "add", "-q", str(stranger.directory / "tree"))
    stranger.configure(top / ".git")
    (top / ".git" / "worktrees" / "tree" / "config.worktree").write_text(
        f"[core]\n fsmonitor = {stranger.program('monitor-of-the-tree')}\n"
    )
    (stranger.directory / "tree" / "a.py").write_text("a = 3\n")
    return stranger.directory / "tree"


def a_submodule(stranger: Stranger, top: Path) -> Path:
    other = stranger.repository("other")
    git(top, "submodule", "add", "-q", str(other), "sub")
    git(top, "commit", "-qm", "sub")
    stranger.configure(top / ".git" / "modules" / "sub")
    for letter in "abcdefg":
        (top / "sub" / f"{letter}.py").write_text(f"{letter} = 3\n")
    return top


def the_users_own_filters(stranger: Stranger, top: Path) -> Path:
    """As `git lfs install` writes them: meant for repositories that one works in."""
    config = Path.home() / ".gitconfig"
    config.write_text(
        "".join(CONFIGURED[name].replace("{}", stranger.program(name)) for name in CONFIGURED if name != "partial-clone")
    )
    return top


def an_object_that_is_to_be_fetched(stranger: Stranger, top: Path) -> Path:
    blob = git(top, "rev-parse", "HEAD:a.py")
    stranger.configure(top / ".git")
    (top / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    return top


def an_index_with_a_monitor(stranger: Stranger, top: Path) -> Path:
    git(top, "config", "core.fsmonitor", stranger.program("fsmonitor"))
    git(top, "config", "core.splitIndex", "true")
    git(top, "config", "core.untrackedCache", "true")
    git(top, "update-index", "--fsmonitor", "--split-index", "--untracked-cache")
    stranger.configure(top / ".git")
    stranger.forget()
    return top


SINGLE = [
    a_git_file_that_names_a_directory_of_the_project, a_symlink_to_a_directory_of_the_project, a_common_directory_elsewhere,
    a_linked_working_tree, a_submodule, the_users_own_filters, an_object_that_is_to_be_fetched, an_index_with_a_monitor,
]  # fmt: skip


@pytest.mark.parametrize("plant", SINGLE)
def test_nothing_runs_whatever_leads_to_the_configuration(stranger: Stranger, plant: Callable[[Stranger, Path], Path]) -> None:
    top = plant(stranger, stranger.repository("case"))
    assert stranger.ran == []
    answer = repository.look(top)
    assert repository.ignores(top, ["a.py"]) == frozenset()
    assert stranger.ran == []
    assert answer.problem == ""
    assert answer.git is not None
    assert answer.git.commit == git(top, "rev-parse", "HEAD")
    assert answer.git.dirty
    stranger.forget()
    with contextlib.suppress(subprocess.CalledProcessError):
        git(top, "status")
    assert stranger.ran, "git itself runs something here"


def test_an_embedded_bare_repository_is_treated_as_files(stranger: Stranger) -> None:
    made = stranger.repository("case")
    stranger.configure(made / ".git")
    outer = stranger.repository("outer")
    inside = stranger.embed(made, outer)
    git(outer, "add", "--force", "case")
    git(outer, "commit", "-qm", "embedded")
    for root in (inside, inside / "refs"):
        answer = repository.look(root)
        assert answer.git is not None
        assert answer.git.commit == git(outer, "rev-parse", "HEAD") != git(made, "rev-parse", "HEAD")
    assert stranger.ran == []


NOT_READ = ("objects/00/x", "objects/pack/pack-x.idx")
"""Git does not open these files."""
PIPES = (
    "HEAD", "config", "index", "packed-refs", "refs/heads/main", "refs/remotes/x/y", "shallow", "commondir", "config.worktree",
    "info/exclude", "info/attributes", "info/sparse-checkout", "info/grafts", "objects/info/alternates", "objects/pack/pack-x.idx",
    "objects/00/x", "sharedindex.0000", "objects/info/commit-graph", "",
)  # fmt: skip


@pytest.mark.parametrize("way", ["pipe", "large"])
def test_no_pipe_is_waited_for_and_no_endless_file_is_read(stranger: Stranger, way: str) -> None:
    top = stranger.repository("case")
    shutil.copytree(top / ".git", stranger.directory / "kept")
    (top / ".git" / "config").write_text("[extensions]\n worktreeConfig = true\n")
    for name in PIPES if way == "pipe" else [name for name in PIPES if name and not name.startswith("objects/")]:
        path = top / ".git" / name if name else top / ".git"
        if name:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
        if way == "pipe":
            os.mkfifo(path)
        else:
            path.touch()
            os.truncate(path, 1 << 40)
        began = time.monotonic()
        problem = repository.look(top).problem
        assert time.monotonic() - began < 5, name
        reasons = ("is not a regular file", "a named pipe") if way == "pipe" else ("is larger than",)
        assert any(reason in problem for reason in reasons) or name in NOT_READ, name
        path.unlink()
        shutil.rmtree(top / ".git", ignore_errors=True)
        shutil.copytree(stranger.directory / "kept", top / ".git")


@pytest.mark.parametrize("name", ["sub/.gitignore", "sub/.gitattributes", "nested/.git/HEAD", ".gitattributes", ".gitignore"])
def test_a_pipe_among_the_files_is_named(stranger: Stranger, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git opens these whenever it lists files."""
    monkeypatch.setattr(command, "PATIENCE", 0.5)
    top = stranger.repository("case")
    path = top / name
    shutil.copytree(top / ".git", top / "nested" / ".git")
    path.parent.mkdir(exist_ok=True)
    (path.parent / "new.py").touch()
    if path.parent.name == "sub":
        git(top, "add", "sub")
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    began = time.monotonic()
    assert f"{name} is a named pipe" in repository.look(top).problem
    assert time.monotonic() - began < 8


def test_a_slow_git_is_given_more_time(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    top = stranger.repository("case")
    expected = repository.look(top)
    monkeypatch.setattr(command, "PATIENCE", 0.0)
    assert repository.look(top) == expected


def commit_of(top: Path) -> Path:
    name = git(top, "rev-parse", "HEAD")
    path = top / ".git" / "objects" / name[:2] / name[2:]
    path.chmod(0o644)
    return path


def a_commit_of_junk(top: Path) -> None:
    commit_of(top).write_bytes(b"junk")


def a_commit_larger_than_it_says(top: Path) -> None:
    commit_of(top).write_bytes(zlib.compress(b"commit 10\0" + bytes(50_000_000)))


def a_commit_that_is_gone(top: Path) -> None:
    commit_of(top).unlink()


def a_detached_head_whose_commit_is_gone(top: Path) -> None:
    git(top, "checkout", "-q", "--detach")
    commit_of(top).unlink()


def a_packed_branch_whose_commit_is_gone(top: Path) -> None:
    git(top, "pack-refs", "--all")
    commit_of(top).unlink()


def a_branch_that_names_a_file(top: Path) -> None:
    (top / ".git" / "refs" / "heads" / "main").write_text(git(top, "rev-parse", "HEAD:a.py"))


def a_head_that_climbs_out(top: Path) -> None:
    (top / ".git" / "HEAD").write_text("ref: refs/heads/../../x\n")


def a_branch_with_nothing_in_it(top: Path) -> None:
    (top / ".git" / "refs" / "heads" / "main").write_bytes(b"")


def a_branch_that_names_itself(top: Path) -> None:
    (top / ".git" / "refs" / "heads" / "main").write_text("ref: refs/heads/main\n")


def packed_branches_of_junk(top: Path) -> None:
    git(top, "pack-refs", "--all")
    (top / ".git" / "packed-refs").write_text("junk\n")


DAMAGES = (
    a_commit_of_junk, a_commit_larger_than_it_says, a_commit_that_is_gone, a_detached_head_whose_commit_is_gone,
    a_packed_branch_whose_commit_is_gone, a_branch_that_names_a_file, a_head_that_climbs_out, a_branch_with_nothing_in_it,
    a_branch_that_names_itself, packed_branches_of_junk,
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_repository_has_no_facts_but_a_problem(stranger: Stranger, damage: Callable[[Path], None]) -> None:
    top = stranger.repository("case")
    damage(top)
    answer = repository.look(top)
    assert answer.git is None
    assert answer.problem


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[core]\nrepositoryformatversion = 2\n", "does not support: repositoryformatversion 2"),
        ("[core]\nrepositoryformatversion = 1\n[extensions]\nrefStorage = reftable\n", "does not support: refstorage"),
        ("[extensions]\nsomething = x\n", "does not support: something"),
        ("[core]\nworktree = /\n", "sets a different working tree: /"),
        ("[core\n", "bad config line"),
    ],
)
def test_a_repository_in_an_unknown_format_is_refused_by_name(stranger: Stranger, text: str, reason: str) -> None:
    top = stranger.repository("case")
    with (top / ".git" / "config").open("a") as file:
        file.write(text)
    answer = repository.look(top)
    assert answer.git is None
    assert reason in answer.problem
