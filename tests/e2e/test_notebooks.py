"""Notebooks with their real programs: a client of Jupyter, JupyterLab in Chromium, and papermill inside a run."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e import parts
from tests.parts import need

SESSION = """
import json, sys
from jupyter_client.manager import KernelManager

manager = KernelManager(kernel_name="notes")
client = None

def ready():
    client.wait_for_ready(timeout=100)

def execute(code):
    texts = []
    def collect(message):
        content = message["content"]
        texts.append(content.get("text") or content.get("data", {}).get("text/plain") or content.get("ename") or "")
    reply = client.execute_interactive(code, timeout=100, output_hook=collect)
    return [reply["content"]["status"], "".join(texts)]

manager.start_kernel(cwd=sys.argv[1])
client = manager.blocking_client()
client.start_channels()
ready()
answers = [execute("import os, random; value = random.random(); open('made.txt', 'w').write(str(value)); value")]
answers.append(execute("get_ipython().kernel.session.key.decode() in open('/proc/self/environ').read(), os.getcwd()"))
answers.append(execute("import socket; socket.create_connection(('192.0.2.1', 80), 5)"))
waiting = client.execute("print('waiting'); import time; time.sleep(1000)")
while client.get_iopub_msg(timeout=100)["content"].get("text") != "waiting\\n":
    pass
manager.interrupt_kernel()
while (reply := client.get_shell_msg(timeout=100))["parent_header"]["msg_id"] != waiting:
    pass
answers.append([reply["content"]["status"], reply["content"]["ename"]])
answers.append(execute("print(f'{value}')"))
manager.restart_kernel()
ready()
answers.append(execute("value"))
answers.append(execute("import random; print(random.random()); open('second.txt', 'w').write('x')"))
key = manager.session.key.decode()
manager.shutdown_kernel(now=True)
print(json.dumps({"answers": answers, "key": key}))
"""
CELLS = ("rate = 0.5", "import random\nprint('drawn', rate * random.random())", "open('cell.txt', 'w').write('from a cell')")


def notebook(file: Path, kernel: str, *cells: str) -> Path:
    """Write a notebook. The first cell has papermill's parameters."""
    facts: list[dict[str, object]] = [
        {"cell_type": "code", "id": f"cell-{number}", "source": source, "outputs": [], "execution_count": None,
         "metadata": {"tags": ["parameters"]} if not number else {}}
        for number, source in enumerate(cells)
    ]  # fmt: skip
    spec = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    file.write_text(json.dumps({"cells": facts, "metadata": spec, "nbformat": 4, "nbformat_minor": 5}))
    return file


class Notes(NamedTuple):
    """A captured project with ipykernel and papermill, and the JupyterLab of another environment, for which its kernel is installed."""

    project: parts.Project
    jupyter: Path
    """Its Python."""
    environ: dict[str, str]

    def runs(self) -> list[dict[str, Any]]:
        """The records of all runs, the newest first."""
        listed = json.loads(self.project.run("runs", "list", "--json").out)["runs"]
        return [json.loads(self.project.run("runs", "show", run["id"], "--json").out) for run in listed]


@pytest.fixture(scope="module")
def notes(ground: Path) -> Notes:
    captured, jupyter = (os.environ.get(f"REPRO_ENV_TEST_{name}", "") for name in ("NOTEBOOK", "JUPYTERLAB"))
    for python in (captured, jupyter):
        need(python and Path(python).exists(), "environments of notebooks: `make notebook`, and name them as `make test` does")
    project = parts.project(ground / "notes", Path(captured), ground / "notes-store")
    project.capture("--seed", "7")
    home = ground / "notes-home"
    home.mkdir()
    places = {"HOME": str(home), "JUPYTER_DATA_DIR": str(home / "data"), "JUPYTER_RUNTIME_DIR": str(home / "runtime")}
    project.run("kernel", "install", "--name", "notes", env=places)
    return Notes(project, Path(jupyter), {**parts.environ(project.store), **places})


def test_a_client_starts_interrupts_restarts_and_kills_a_kernel_and_each_session_is_a_run(notes: Notes) -> None:
    directory = notes.project.directory
    words = [str(notes.jupyter), "-c", SESSION, str(directory)]
    done = subprocess.run(words, env=notes.environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    first, inside, network, interrupted, kept, restarted, again = answer["answers"]
    assert first[0] == "ok"
    assert inside == ["ok", f"(False, '{directory}')"]
    assert network == ["error", "OSError"]
    assert interrupted == ["error", "KeyboardInterrupt"]
    assert kept == ["ok", f"{first[1]}\n"]
    assert restarted == ["error", "NameError"]
    assert again == ["ok", f"{first[1]}\n1"], "the same seed, whatever clients ask a kernel before the first cell"
    assert not (directory / "made.txt").exists()
    killed, ended = notes.runs()[:2]  # standard error is closed when the second one is recorded
    assert ended["end"]["outcome"]["exit_code"] == ended["end"]["outcome"]["interrupted"] == 0
    assert killed["end"]["outcome"]["interrupted"] == signal.SIGTERM
    assert [[item["path"] for item in run["end"]["outputs"]] for run in (ended, killed)] == [["made.txt"], ["second.txt"]]
    assert answer["key"]
    for file in (path for path in (directory / "runs").rglob("*") if path.is_file()):
        assert answer["key"].encode() not in file.read_bytes(), file
    assert "nothing can execute its cells again" in notes.project.run("verify", str(ended["start"]["id"]), code=19).err


def test_papermill_in_a_run_makes_the_executed_notebook_an_output_that_verify_compares(notes: Notes) -> None:
    directory = notes.project.directory
    notebook(directory / "in.ipynb", "notes", *CELLS)  # as JupyterLab saves the name of the installed kernel
    notes.project.run("exec", "papermill", "in.ipynb", "out.ipynb", "-k", "python3", "-p", "rate", "2")
    end = notes.runs()[0]["end"]
    assert [item["path"] for item in end["outputs"]] == ["cell.txt", "out.ipynb"], "no connection file and no history"
    answer = json.loads(notes.project.run("verify", "--json").out)
    assert (answer["same"], answer["level"]) == (True, "equal except for"), answer
    (file,) = [file for file in answer["files"] if file["path"] == "out.ipynb"]
    assert file["ignored"]
    for place in ("cells.2.outputs", "cells.2.source"):
        assert not [change for change in file["ignored"] if change["place"].startswith(place)]


def test_an_environment_without_ipykernel_has_no_kernel(small: parts.Project) -> None:
    done = small.run("kernel", "install", code=127)
    assert "the captured environment has no ipykernel" in done.err
    assert "capture again" in done.err


def test_jupyterlab_in_a_browser_runs_a_notebook_in_the_captured_environment(notes: Notes, browser: Any, tmp_path: Path) -> None:
    directory = notes.project.directory
    notebook(directory / "lab.ipynb", "notes", *CELLS, "import sys; sys.prefix, __import__('os').environ['REPRO_ENV_SPEC']")
    with lab(notes) as (address, token):
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(f"{address}/lab/tree/lab.ipynb?token={token}")
        page.get_by_text(" (repro-env, notes) | Idle").wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        page.get_by_text("drawn").last.wait_for(timeout=60_000)
        page.get_by_text("'sha256:").wait_for(timeout=60_000)
        page.keyboard.press("Control+s")
        page.locator("#jp-main-dock-panel .jp-mod-dirty").wait_for(state="detached")
        page.screenshot(path=os.environ.get("REPRO_ENV_TEST_SCREENSHOT", tmp_path / "lab.png"))
        page.close()
    saved = json.loads((directory / "lab.ipynb").read_text())
    run = notes.runs()[0]
    assert run["start"]["spec"] in "".join(saved["cells"][3]["outputs"][0]["data"]["text/plain"])
    assert run["end"]["outcome"]["exit_code"] == 0
    assert [item["path"] for item in run["end"]["outputs"]] == ["cell.txt"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    need(importlib.util.find_spec("playwright") and program, "chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        words = ["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"]  # a third less work
        opened = started.chromium.launch(executable_path=program, args=words)
        yield opened
        opened.close()


@contextlib.contextmanager
def lab(notes: Notes) -> Iterator[tuple[str, str]]:
    """JupyterLab with the project: its address and token. It is stopped as Ctrl-C does, and stops its kernels."""
    options = ["--no-browser", "--allow-root", "--ServerApp.port=0", f"--ServerApp.root_dir={notes.project.directory}"]
    words = [str(notes.jupyter), "-m", "jupyterlab", *options]
    with subprocess.Popen(words, env=notes.environ, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        reader = threading.Thread(target=server.stderr.read)
        try:
            text = ""
            while not (found := re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", text)):
                text += (line := server.stderr.readline())
                assert line, text
            reader.start()
            yield found[1], found[2]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
            if reader.ident is not None:
                reader.join()
