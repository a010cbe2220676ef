"""Every kind of page in Chromium: at three widths, light, dark and printed, without a request, a script of a name or a violation of axe."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.pages.hostile import HOSTILE
from tests.parts import need

SCRIPT = "<img src=x onerror=alert(1)>.py"
TRAIN = """\
import json, math, random, sys
with open("names.json") as file:
    names = json.load(file)
with open("metrics.jsonl", "w") as file:
    for step in range(100):
        loss = math.exp(-step / 30) + 0.05 * random.random()
        values = {name: loss + number for number, name in enumerate(names) if len(name) <= 200}
        file.write(json.dumps({"loss": loss, **values}) + "\\n")
for name in names:
    path = name.encode("utf-8", "surrogatepass").replace(b"/", b"_").replace(b"\\0", b"")
    with open(path[:255], "w") as file:
        file.write(str(random.random()))
"""
MARKUP = """() => [...document.querySelectorAll("*")].flatMap((element) => [
  ...(element.closest("base, embed, form, iframe, img, link, object, template, video, foreignObject, use, [href]:not(a)") ? [element.outerHTML] : []),
  ...element.getAttributeNames().filter((name) => /^(on|src|style|action|.*href)/.test(name) && !/^runs\\/[\\w-]+\\.html$/.test(element.getAttribute(name))),
])"""
"""Elements and attributes that none of our pages has; the site of a project has links to the pages of its runs."""
VIEWS = [
    (360, "light", "screen"),
    (360, "dark", "print"),
    (800, "dark", "screen"),
    (1600, "light", "screen"),
    (1600, "light", "print"),
]


class Browser:
    """Chromium, which opens pages without network."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        package = importlib.util.find_spec("axe_playwright_python")
        assert package
        assert package.origin
        self._axe = Path(package.origin).with_name("axe.min.js").read_text()

    def problems(self, file: Path, width: int, scheme: str, media: str) -> list[str]:
        """What is wrong with a page: scripts, requests, new tabs, messages of the console, violations of axe, and content that is too wide."""
        found: list[str] = []
        context = self._browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": width, "height": 900})
        page = context.new_page()
        page.emulate_media(media=media)
        page.on("console", lambda message: found.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: found.append(f"error: {error}"))
        page.on("dialog", lambda dialog: found.append(f"script: {dialog.message}"))
        page.on("dialog", lambda dialog: dialog.dismiss())
        page.on("request", lambda request: found.append(f"request: {request.url}") if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        found += [f"markup: {text[:200]}" for text in page.evaluate(MARKUP)]
        page.evaluate(self._axe)  # a script too, so the policy is tested by `rows_with_loss`
        found += [
            f"axe: {item['id']} {item['nodes'][0]['html'][:200]}"
            for item in page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        ]
        if (needed := page.evaluate("document.documentElement.scrollWidth")) > width:
            found.append(f"{needed} pixels are needed")
        if context.pages != [page] or page.frames != [page.main_frame] or page.url != file.as_uri():
            found.append("a name opened another page")
        context.close()
        return found

    def rows_with_loss(self, file: Path) -> int:
        """Sort the first table that has a filter by its first column, filter it, and return the number of rows that are shown."""
        context = self._browser.new_context()
        page = context.new_page()
        page.on("console", lambda message: pytest.fail(message.text))
        page.goto(file.as_uri())
        page.locator("input + .scroll th button").first.click()
        page.locator("input").first.fill("loss metrics")
        shown: int = page.locator("input + .scroll").first.locator("tbody tr:visible").count()
        context.close()
        return shown


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    need(importlib.util.find_spec("playwright") and program, "chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield Browser(opened)
        opened.close()


class Pages:
    """A project with two runs and a page of each command about them. Everything that can have a hostile name has one."""

    def __init__(self, ground: Path) -> None:
        self.directory = ground / "pages <b>"
        self.project = parts.project(self.directory, parts.venv(self.directory / ".venv", own_pip=False), ground / "pages-store")
        (self.directory / SCRIPT).write_text(TRAIN)
        (self.directory / "names.json").write_text(json.dumps(HOSTILE))
        data = ground / HOSTILE[17].replace("/", " ")
        data.mkdir()
        (data / "x").touch()
        self.project.capture()
        names = [text.encode("utf-8", "replace").decode().replace("\0", "") for text in HOSTILE]
        self._words = (SCRIPT, *names)
        self.project.run("exec", "--seed", "1", "--data", str(data), *self._words)
        first = json.loads(self.project.run("runs", "list", "--json").out)["runs"][0]["id"]
        self.project.run("exec", "--seed", "2", "--parent", first, *self._words)
        self.project.run("runs", "note", "--decision", "--by", HOSTILE[0], "latest", "--", "\n".join(names))
        (site,) = (self.directory / ".venv" / "lib").glob("python*/site-packages")
        for name in names:
            (site / name.replace("/", "_")[:200]).touch()
        latest, before = (run["id"] for run in json.loads(self.project.run("runs", "list", "--json").out)["runs"])
        self.commands: dict[str, tuple[str, ...]] = {
            "show": ("show",),
            "run": ("runs", "show", latest),
            "compare": ("runs", "compare", before, latest),
            "verify": ("verify", latest),
            "lineage": ("lineage", latest),
            "plot": ("runs", "plot", "loss", before, latest),
            "check": ("check",),
            "diff": ("diff", "repro", "live"),
            "sensitivity": ("sensitivity", "--seeds", "2", "--", *self._words),
        }

    def write(self, name: str, file: Path) -> Path:
        command = self.commands[name]
        at = command.index("--") if "--" in command else len(command)
        done = self.project.run(*command[:at], "--html", str(file), *command[at:], code=None)
        assert "the page is in" in done.err, done.err
        return file


@pytest.fixture(scope="module")
def pages(ground: Path) -> Pages:
    return Pages(ground)


KINDS = ("show", "run", "compare", "verify", "lineage", "plot", "check", "diff", "sensitivity")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_readable_everywhere_and_asks_for_nothing(browser: Browser, pages: Pages, kind: str, tmp_path: Path) -> None:
    file = pages.write(kind, tmp_path / "page.html")
    assert {view: found for view in VIEWS if (found := browser.problems(file, *view))} == {}
    assert file.stat().st_size < 300_000


def test_a_name_that_is_not_escaped_is_found(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(SCRIPT)
    found = browser.problems(tmp_path / "page.html", *VIEWS[0])
    assert {problem.partition(":")[0] for problem in found} >= {"script", "request", "markup"}


@pytest.mark.parametrize("kind", ["show", "run", "compare", "lineage", "check"])
def test_the_same_records_give_the_same_page(pages: Pages, kind: str, tmp_path: Path) -> None:
    assert pages.write(kind, tmp_path / "a.html").read_bytes() == pages.write(kind, tmp_path / "b.html").read_bytes()


def test_the_site_of_a_project_is_readable_everywhere(browser: Browser, pages: Pages, tmp_path: Path) -> None:
    pages.project.run("report", str(tmp_path))
    assert {view: found for view in VIEWS if (found := browser.problems(tmp_path / "index.html", *view))} == {}


def test_tables_are_sorted_and_filtered_under_the_policy_of_the_page(browser: Browser, pages: Pages, tmp_path: Path) -> None:
    assert browser.rows_with_loss(pages.write("compare", tmp_path / "page.html")) == 1
