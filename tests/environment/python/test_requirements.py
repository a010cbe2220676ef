"""The requirements of a project that an environment lacks."""

from __future__ import annotations

from pathlib import Path

from repro_env.environment.python import requirements


def missing(directory: Path, *installed: str) -> list[str]:
    site = directory / "site"
    for name in installed:
        (site / name).mkdir(parents=True)
    return requirements.missing(directory, "3.11.7", [str(site), "/gone", str(directory / "file.zip")])


def test_missing_and_old_packages_are_named_with_their_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "# all of it\n-r more.txt\n-c limits.txt\n--index-url https://pip.example.org/simple\n\nNumPy >= 2  # arrays\n"
        "scikit_learn==1.5 \\\n  --hash=sha256:00\nold ; python_version < '3.9'\nextra; extra == 'gpu'\ngone\n./local\n-e .\n"
    )
    (tmp_path / "more.txt").write_text("torch>=2\n-r requirements.txt\n-r absent.txt\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["rich>13", "numpy"]\n')
    found = missing(
        tmp_path, "numpy-1.26.4.dist-info", "scikit_learn-1.5.0-py3.11.egg-info", "torch-2.5.1+cpu.dist-info", "Rich.egg-info"
    )
    assert found == ["NumPy>=2 (requirements.txt; 1.26.4 is installed)", "gone (requirements.txt)"]


def test_a_project_without_requirements_lacks_nothing(tmp_path: Path) -> None:
    assert missing(tmp_path) == []
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert missing(tmp_path) == []
    (tmp_path / "pyproject.toml").write_text("project = 3\n")
    (tmp_path / "requirements.txt").write_text("")
    assert missing(tmp_path) == []


def test_files_that_cannot_be_read_as_requirements_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"[project\xff")
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe=\n==\nname @ https://pip.example.org/name.whl\n")
    assert missing(tmp_path) == ["name (requirements.txt)"]
