"""The documents as a site: every link has a target, and Chromium asks no other host for anything."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import need

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(importlib.util.find_spec("sphinx"), "sphinx: make dev")
    directory = tmp_path_factory.mktemp("site")
    words = [
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-d",
        str(directory / "doctrees"),
        "-c",
        "docs",
        ".",
        str(directory / "html"),
    ]
    done = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "html"


def test_every_document_is_in_the_site_and_can_be_searched(site: Path) -> None:
    documents = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
    missing = [path.name for path in documents if not (site / path.relative_to(ROOT)).with_suffix(".html").is_file()]
    assert missing == []
    assert "lineage" in (site / "searchindex.js").read_text()


def test_a_page_of_the_site_needs_no_other_host(site: Path) -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    need(importlib.util.find_spec("playwright") and program, "chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        others: list[str] = []
        page.on("request", lambda request: others.append(request.url) if not request.url.startswith("file:") else None)
        for name in ("docs/index.html", "README.html", "docs/commands.html", "docs/how-to.html"):
            page.goto((site / name).as_uri())
        browser.close()
    assert others == []
