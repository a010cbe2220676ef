"""Templates are found, installed or in a checkout, and hold no surprise."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from repro_env.render import templates


def test_templates_are_found_where_they_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (templates.folder() / "requirements.txt.j2").is_file()
    (tmp_path / "repro_env" / "_templates").mkdir(parents=True)
    monkeypatch.setattr(templates, "PACKAGE", tmp_path / "repro_env")
    assert templates.folder() == tmp_path / "repro_env" / "_templates"


def test_a_value_that_is_not_given_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        templates.render("requirements.txt.j2")
