"""Templates are found in the package and in a checkout, and a missing value is an error."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from repro_env.delivery.documents import templates
from repro_env.io import package


def test_templates_are_found_in_the_package_and_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (package.templates() / "requirements.txt.j2").is_file()
    (tmp_path / "repro_env" / "_templates").mkdir(parents=True)
    monkeypatch.setattr(package, "ROOT", tmp_path / "repro_env")
    assert package.templates() == tmp_path / "repro_env" / "_templates"


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        templates.render("requirements.txt.j2")
