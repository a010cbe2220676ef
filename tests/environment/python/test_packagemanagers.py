"""The package sources of uv, Poetry and requirements files are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.environment.python import packagemanagers
from repro_env.environment.python.packagemanagers import look
from repro_env.schema.sources import LockedFile, PackageSources

HEX = "ab" * 32
TORCH = "https://wheels.test/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
LOCKED = LockedFile(TORCH, HEX, "")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "home/project/src").mkdir(parents=True)
    (tmp_path / "home/project/.git").mkdir()
    return tmp_path / "home/project"


def sources_of(project: Path, **variables: str) -> PackageSources:
    """Return the package sources for code in a subdirectory of the project."""
    home = {"HOME": str(project.parent), "XDG_CONFIG_DIRS": ""}
    return look(project / "src", {**home, **variables})


def test_indexes_of_uv_are_found(project: Path, tmp_path: Path) -> None:
    (project / "pyproject.toml").write_text("""
        [tool.uv]
        extra-index-url = ["https://extra.test/simple/"]
        find-links = ["wheels"]
        [[tool.uv.index]]
        name = "pytorch-cpu"
        url = "https://torch.test/whl/cpu"
        explicit = true
        [[tool.uv.index]]
        url = "https://own.test/simple"
        default = true
        [[tool.uv.index]]
        url = "./flat"
        format = "flat"
    """)
    user = tmp_path / "home/.config/uv/uv.toml"
    user.parent.mkdir(parents=True)
    user.write_text('[pip]\nextra-index-url = ["https://user.test/simple"]\n')
    found = sources_of(project)
    assert found.problems == ()
    assert found.replaces_default
    assert found.indexes == (
        "https://extra.test/simple",
        "https://torch.test/whl/cpu",
        "https://own.test/simple",
        "https://user.test/simple",
    )
    assert found.find_links == (str(project / "wheels"), str(project / "flat"))
    assert look(None, {"HOME": str(project.parent)}).indexes[0] == "https://user.test/simple"
    assert sources_of(project, UV_NO_CONFIG="1") == PackageSources()
    (tmp_path / "one.toml").write_text('index-url = "https://one.test/simple"\n')
    assert sources_of(project, UV_CONFIG_FILE=str(tmp_path / "one.toml")).indexes == ("https://one.test/simple",)


def test_variables_of_uv_set_indexes_and_credentials(project: Path) -> None:
    (project / "uv.toml").write_text(
        '[[index]]\nname = "in-house"\nurl = "https://a.test/simple"\n[[index]]\nname = "b"\nurl = "https://old.test"\n'
    )
    found = sources_of(
        project,
        UV_INDEX="b=https://new.test/simple https://c.test/simple?a=b",
        UV_DEFAULT_INDEX="https://d.test/simple",
        UV_INDEX_IN_HOUSE_USERNAME="ann",
        UV_INDEX_IN_HOUSE_PASSWORD="p/w",
        UV_FIND_LINKS="https://links.test/a.html,/srv/wheels",
    )
    assert list(found.indexes) == [
        "https://new.test/simple",
        "https://c.test/simple?a=b",
        "https://d.test/simple",
        "https://ann:p%2Fw@a.test/simple",
    ]
    assert found.find_links == ("https://links.test/a.html", "/srv/wheels")
    assert found.replaces_default


def test_sources_of_poetry_and_requirements_files_are_found(project: Path) -> None:
    (project / "pyproject.toml").write_text("""
        [[tool.poetry.source]]
        name = "torch-cpu"
        url = "https://torch.test/whl/cpu"
        priority = "explicit"
        [[tool.poetry.source]]
        name = "PyPI"
        [[tool.poetry.source]]
        name = "default"
        url = "https://default.test/simple"
        priority = "default"
        [[tool.poetry.source]]
        name = "private"
        url = "https://${USER}@private.test/simple"
    """)
    (project / "requirements-dev.txt").write_text("numpy\n--extra-index-url https://pip.test/simple\n -f=./wheels\n")
    found = sources_of(project, POETRY_HTTP_BASIC_TORCH_CPU_USERNAME="ann", POETRY_HTTP_BASIC_TORCH_CPU_PASSWORD="pw")
    assert found.indexes == (
        "https://ann:pw@torch.test/whl/cpu",
        "https://default.test/simple",
        "https://pip.test/simple",
    )
    assert found.find_links == (str(project / "wheels"),)
    assert found.replaces_default
    (problem,) = found.problems
    assert "private.test/simple is not used, because it needs a variable" in problem


UV = f"""
version = 1
[[package]]
name = "torch"
version = "2.13.0+cpu"
source = {{ registry = "https://torch.test/whl/cpu" }}
sdist = {{ url = "https://wheels.test/torch.tar.gz", hash = "sha256:{HEX}" }}
wheels = [
    {{ url = "{TORCH}", hash = "sha256:{HEX}", size = 1 }},
    {{ url = "file:///etc/x-1-py3-none-any.whl", hash = "sha256:{HEX}" }},
    {{ url = "https://wheels.test/y-1-py3-none-any.whl", hash = "md5:00" }},
]
[[package]]
name = "mine"
version = "0.1"
source = {{ virtual = "." }}
"""
PYLOCK = f"""
lock-version = "1.0"
created-by = "x"
[[packages]]
name = "Torch"
version = "2.13.0+cpu"
wheels = [{{ name = "t.whl", url = "{TORCH}", hashes = {{ sha256 = "{HEX}" }} }}]
"""


@pytest.mark.parametrize(
    ("name", "text", "file"),
    [
        ("uv.lock", UV, LockedFile(TORCH, HEX, "https://torch.test/whl/cpu")),
        ("pylock.toml", PYLOCK, LOCKED),
        ("pylock.gpu.toml", PYLOCK, LOCKED),
    ],
)
def test_wheels_of_lock_files_are_found(project: Path, name: str, text: str, file: LockedFile) -> None:
    (project / name).write_text(text)
    assert sources_of(project) == PackageSources(files={"torch": (file,)})


@pytest.mark.parametrize(
    "text",
    [
        "[[package]\n",
        "package = 1\n",
        "[[package]]\nname = 3\n",
        "[[package]]\nname = 'x'\nwheels = [{ url = 1 }]\n",
        f"x = {'[' * 5000}",
    ],
)
def test_a_damaged_lock_file_is_a_problem_and_others_are_used(project: Path, text: str) -> None:
    (project / "uv.lock").write_text(text)
    (project / "pylock.toml").write_text(PYLOCK)
    found = sources_of(project)
    assert found.files == {"torch": (LOCKED,)}
    (problem,) = found.problems
    assert problem.startswith(f"the package sources in {project}/uv.lock are not used, because it is not valid: ")


def test_large_and_special_files_are_not_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packagemanagers, "LARGEST", 1000)
    (project / "uv.lock").write_text(UV + "#" * 1000)
    (project / "pylock.toml").symlink_to("/dev/zero")
    indexes = "\n".join(f"[[index]]\nurl = 'https://{number}.test'" for number in range(20))
    (project / "uv.toml").write_text(indexes)
    monkeypatch.setattr(packagemanagers, "MOST", 10)
    found = sources_of(project)
    assert found.files == {}
    assert len(found.indexes) == 10
    *unreadable, too_many = found.problems
    assert [problem.partition(" are not used")[0] for problem in unreadable] == [
        f"the package sources in {project}/{name}" for name in ("uv.lock", "pylock.toml")
    ]
    assert too_many == "the project names more than 10 indexes or find-links; only the first 10 are used"


@pytest.mark.parametrize("url", ["ssh://git@host/x", "javascript://x", "https://", "https://[bad/", "ftp://host/simple"])
def test_an_index_with_an_unsupported_url_is_not_used(project: Path, url: str) -> None:
    (project / "uv.toml").write_text(f"index-url = '{url}'\n")
    found = sources_of(project)
    assert found.indexes == ()
    assert "is not used, because it is not an http, https or file URL" in found.problems[0]
