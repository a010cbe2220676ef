"""The GitHub Action, without GitHub: its real `run:` lines on clones of a captured project, and what they leave to be read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
import yaml

from repro_env.io.files import remove_tree
from tests.e2e import parts
from tests.e2e.parts import COMMAND, ROOT
from tests.fakes import actions
from tests.fakes.actions import Runner
from tests.fakes.authority import Authority
from tests.fakes.index import Index
from tests.fakes.wheels import make
from tests.registries import registry

TRAIN = """\
import json, pathlib, random, sys
import acme
random.seed(0)
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/metrics.json").write_text(json.dumps({"loss": random.random()}))
print(sys.argv[1:])
print("::error title=from the training::and not from us")
"""


class Captured(NamedTuple):
    repository: Path
    """A Git repository; `git clone` gives the code and repro/ without its blobs."""
    blobs: Path
    reference: str
    """In the registry that its repro/remote.json names."""
    spec_digest: str
    image_id: str
    wheels: Path
    ground: Path


def git(directory: Path, *words: str) -> None:
    user = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"]
    subprocess.run(["git", *user, "-C", str(directory), *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captured]:
    """Captured and pushed on one machine, whose directories are gone then."""
    ground = tmp_path_factory.mktemp("action")
    directory = ground / "ann" / "project"
    wheels = make(ground / "wheels", "acme", "26.3").parent
    python = parts.venv(directory / ".venv", *wheels.iterdir(), own_pip=False, pip=["--no-index"])
    project = parts.project(directory, python, ground / "ann-store")
    (directory / "train.py").write_text(TRAIN)
    (directory / "requirements.txt").write_text("acme==26.3\n")
    (directory / ".gitignore").write_text(".venv/\nruns/\n")
    git(directory, "init", "-q")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "Train")
    with Index(wheels) as index, registry(ground / "registry") as host:
        env = {"PIP_INDEX_URL": "http://index.test/simple", "PIP_TRUSTED_HOST": "index.test", "PIP_PROXY": index.proxy}
        env |= {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_CACHE_DIR": str(ground / "pip"),
        }
        env |= {"UV_CACHE_DIR": str(ground / "uv")}
        answer = project.capture(env=env)
        assert answer["bundled"] == []
        reference = f"{host}/team/train:1"
        project.run("push", reference, env=env)
        git(directory, "add", "-A")
        git(directory, "commit", "-qm", "Capture")
        (directory / "repro" / "blobs").rename(ground / "blobs")
        repository = ground / "repository"
        directory.rename(repository)
        remove_tree(project.store)
        yield Captured(repository, ground / "blobs", reference, answer["spec_digest"], answer["image_id"], wheels, ground)


@pytest.fixture
def runner(captured: Captured, tmp_path: Path) -> Iterator[Runner]:
    """A fresh machine with a fresh clone, and repro-env installed as the Action's own line does it."""
    workspace, temp = tmp_path / "work" / "project", tmp_path / "temp"
    git(tmp_path, "clone", "-q", str(captured.repository), str(workspace))
    assert not (workspace / "repro" / "blobs").exists()
    environ = actions.environ(tmp_path / "home", {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""})
    install(temp / "repro-env", environ)
    yield Runner(ROOT, workspace, temp, tmp_path / "cache", environ)
    remove_tree(tmp_path / "home")


def install(directory: Path, environ: dict[str, str]) -> None:
    """What the Action's first step makes in a minute, so that it finds nothing to do: the command and the stamp of the lock file."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / "repro-env").symlink_to(COMMAND)
    lock = parts.lock("tool").relative_to(ROOT)
    stamp = f"""
        stamp=$(python3 -c 'import sys; print(sys.version, sys.executable)' && cat {lock} lockfiles/venv.sh)
        printf '%s\\n' "$stamp $(pwd) $(cat pyproject.toml)" >"$0/stamp" """
    subprocess.run(["bash", "-c", stamp, str(directory)], cwd=ROOT, env=environ, check=True)


def commit(runner: Runner, files: dict[str, str]) -> None:
    for name, text in files.items():
        (runner.workspace / name).parent.mkdir(exist_ok=True)
        (runner.workspace / name).write_text(text)
    git(runner.workspace, "add", "-A")
    git(runner.workspace, "commit", "-qm", "Change")


def test_a_clone_without_blobs_is_green_and_its_next_job_finds_the_image_in_the_cache(captured: Captured, runner: Runner) -> None:
    command, site = "train.py 'two words' \"$(touch /tmp/x)\" `id`", runner.temp / "site"
    job = runner.run(exec=command, verify="true", push=captured.reference, report=str(site))
    assert job.good, job.log
    assert json.loads((site / "badge.json").read_text())["message"] == "bitwise"
    assert "two words" in (site / "index.html").read_text()
    assert "['two words', '$(touch /tmp/x)', '`id`']" in job.log
    name = captured.reference.rpartition(":")[0]
    assert (job.outputs["spec-digest"], job.outputs["image-id"]) == (captured.spec_digest, captured.image_id)
    assert re.fullmatch(rf"{name}@sha256:[0-9a-f]{{64}}", job.outputs["image-ref"])
    assert job.outputs["verdict"] == "bitwise"
    assert "<h3>repro-env: bitwise</h3>" in job.summary
    assert captured.image_id in job.summary
    assert "next: repro-env" not in job.log, "each would be what to do after one step, in the middle of the job"
    assert job.commands == [], "what the training prints is no command to GitHub"
    assert (job.steps["Allow user namespaces"], job.steps["Save the store"]) == ("skipped", "success")
    remove_tree(Path(runner.environ["HOME"], ".cache"))
    (runner.workspace / "repro" / "remote.json").unlink()
    commit(runner, {"train.py": TRAIN + "print('edited')\n"})
    again = runner.run(check="false", exec="train.py")
    assert again.good, again.log
    assert again.outputs["verdict"] == "ran"
    assert "edited" in again.log.splitlines(), "the code of the checkout runs"
    assert again.steps["Save the store"] == "skipped", "it was there"
    shutil.rmtree(runner.workspace / "repro")
    git(runner.workspace, "checkout", "-q", "HEAD~2", "--", ".")
    named = runner.run(spec=captured.reference)
    assert named.good, named.log
    assert named.outputs["image-id"] == captured.image_id


def test_what_a_clone_lacks_is_reported_with_what_to_do(captured: Captured, runner: Runner) -> None:
    (runner.workspace / "repro" / "remote.json").unlink()
    job = runner.run(cache="false")
    assert not job.good
    assert (job.outputs["verdict"], job.outputs["image-id"]) == ("error", captured.image_id)
    (command,) = job.commands
    assert command.name == "error"
    assert "the base was not found" in command.message
    assert "commit the remote.json that `repro-env push` writes" in job.summary


def test_a_changed_package_fails_the_job_at_its_file(captured: Captured, runner: Runner) -> None:
    commit(runner, {"requirements.txt": "acme==26.2\n"})
    junit, sarif = runner.temp / "reports" / "junit.xml", runner.temp / "repro-env.sarif"
    job = runner.run(exec="train.py", junit=str(junit), sarif=str(sarif))
    assert not job.good
    assert job.outputs["verdict"] == "drifted"
    assert job.steps["Save the store"] == "skipped"
    assert len(job.commands) == 2, job.commands
    first, last = job.commands
    assert first.properties == {"file": "requirements.txt", "title": "repro-env: drifted"}
    assert first.message.startswith("requirements.txt: ")
    assert "repro-env capture" in last.message
    assert "<td>requirements.txt</td>" in job.summary
    (case,) = ElementTree.parse(junit).iter("testcase")
    failure = case.find("failure")
    assert case.attrib["name"] == "check"
    assert failure is not None
    assert failure.text == first.message
    (result,) = json.loads(sarif.read_text())["runs"][0]["results"]
    assert result["message"]["text"] == first.message
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "requirements.txt"
    assert "['" not in job.log, "nothing ran"


def test_what_init_writes_verifies_the_command_and_makes_pages(runner: Runner, tmp_path: Path) -> None:
    """The new files count as code: the pipeline of a push says so, and the others skip the comparison."""

    def shell(*lines: str, **more: str) -> int:
        env = {**runner.environ, "RUNNER_TEMP": str(runner.temp), "CI_PROJECT_DIR": str(tmp_path), **more}
        command = ["bash", "-eo", "pipefail", "-c", "\n".join(lines)]
        return subprocess.run(command, cwd=runner.workspace, env=env, stdin=subprocess.DEVNULL, check=False).returncode

    words = ["init", "--github", "--gitlab", "--slurm", "--exec", "train.py 'two words'", "--action", f"OWNER/x@{'0' * 40}"]
    subprocess.run([COMMAND, *words], cwd=runner.workspace, env=runner.environ, check=True)
    steps = yaml.safe_load((runner.workspace / ".github" / "workflows" / "repro-env.yml").read_text())["jobs"]["verify"]["steps"]
    inputs = {name.replace("-", "_"): value for name, value in steps[1]["with"].items()}
    job = runner.run(**inputs, check="false")
    assert job.good, job.log
    assert job.outputs["verdict"] == "bitwise"
    assert "['two words']" in job.log
    assert shell(steps[2]["run"]) == 0
    pages = [runner.temp / "repro-env-site" / name for name in ("index.html", "badge.json")]
    assert json.loads(pages[1].read_text())["message"] == "bitwise"
    jobs = yaml.safe_load((runner.workspace / ".gitlab-ci.yml").read_text())
    start = [f"venv={runner.temp}/repro-env", jobs[".repro-env"]["before_script"][-1]]
    assert shell(*start, *jobs["repro-env-check"]["script"]) == 1
    assert ".gitlab-ci.yml: " in (tmp_path / "repro-env-junit.xml").read_text()
    assert shell(*start, *jobs["repro-env-verify"]["script"], REPRO_ENV_CI_CHECK="false") == 0
    cases = [case.attrib["name"] for case in ElementTree.parse(tmp_path / "repro-env-junit.xml").iter("testcase")]
    assert cases == ["rebuild", "exec", "verify"]
    assert (tmp_path / "repro-env-site" / "index.html").is_file()
    bin_directory = f"{runner.temp}/repro-env/bin"
    assert shell("bash repro-env.sbatch", SLURM_JOB_ID="17", PATH=f"{bin_directory}:{runner.environ['PATH']}") == 0
    assert "['two words']" in (runner.workspace.parent / "repro-env-17.out").read_text()
    runs = [path for path in (runner.workspace / "runs").iterdir() if not path.is_symlink() and (path / "end.json").is_file()]
    assert len(runs) == 3, "of the workflow, the pipeline and the job"


HOSTILE = (
    "a\n::error title=theirs::x.py",
    "b##[error]theirs.py",
    "%0A::error title=theirs::c.py",
    "d,title=theirs::x.py",
    "</td><img src=x>|`e`.py",
    "\x1b]0;theirs\x07.py",
)


def test_names_of_a_repository_are_not_used_as_commands_or_markup(captured: Captured, runner: Runner) -> None:
    commit(runner, dict.fromkeys(HOSTILE, "pass\n"))
    job = runner.run()
    assert not job.good
    assert job.outputs["verdict"] == "drifted"
    assert {command.properties["title"] for command in job.commands} == {"repro-env: drifted"}
    assert {command.name for command in job.commands} == {"error"}
    assert len(job.commands) == len(HOSTILE) + 1
    assert {command.properties.get("file", "") for command in job.commands} >= {"d,title=theirs::x.py", "b##[error]theirs.py"}
    assert "<img" not in job.summary
    assert "&lt;/td&gt;&lt;img src=x&gt;|`e`.py" in job.summary
    assert "\n\n" not in job.summary.strip(), "an empty line ends the HTML, and Markdown begins"
    assert "\x1b" not in job.summary + job.log
    assert job.summary.count("<tr>") == len(HOSTILE) + 3


INPUTS = {
    "spec": "--project\nverdict=bitwise\n::set-output name=verdict::bitwise\n$(touch pwned)`touch pwned`; touch pwned '\"",
    "exec": "train.py 'x",
    "check": "perhaps\n::error title=theirs::x",
    "push": "--help",
}


def test_hostile_inputs_are_refused_as_values(runner: Runner) -> None:
    before = sorted(runner.workspace.iterdir())
    for name, value in INPUTS.items():
        job = runner.run(**{name: value}, cache="false")
        assert not job.good, name
        assert job.outputs["verdict"] == "error"
        assert job.outputs["image-ref"] == ""
        assert "Traceback" not in job.log
        assert {command.name for command in job.commands} <= {"error"}, job.commands
        assert "theirs" not in {command.properties["title"] for command in job.commands}
        assert sorted(runner.workspace.iterdir()) == before


def through(index: Index, authority: Authority, runner: Runner) -> dict[str, str]:
    """The job's variables: pip configured for this index alone, and nothing of this machine's certificates."""
    kept = {name: value for name, value in runner.environ.items() if not name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    return {**kept, "PIP_INDEX_URL": index.url, "PIP_CERT": str(authority.file), "PIP_CONFIG_FILE": os.devnull}


@pytest.mark.soak
def test_an_index_with_a_password_and_its_own_authority_gives_the_wheels(
    captured: Captured, runner: Runner, tmp_path: Path
) -> None:
    """The registry is not needed where repro/blobs is committed."""
    (runner.workspace / "repro" / "remote.json").unlink()
    shutil.copytree(captured.blobs, runner.workspace / "repro" / "blobs", copy_function=os.link)
    authority = Authority(tmp_path / "authority")
    with Index(captured.wheels, tls=authority.issue("IP:127.0.0.1"), auth=("ann", "s3cret-pass")) as index:
        runner.environ = through(index, authority, runner)
        job = runner.run(cache="false")
    assert job.good, job.log
    assert job.outputs["verdict"] == "rebuilt"
    assert [request.path for request in index.asked if request.status == 200 and request.path.startswith("/files/")]
    assert "s3cret-pass" not in job.log + job.summary


@pytest.mark.soak
@pytest.mark.index
def test_the_action_installs_itself_through_such_an_index(captured: Captured, runner: Runner, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "-d", str(wheels), "-r", str(parts.lock("tool"))], check=True)
    shutil.rmtree(runner.temp)
    authority = Authority(tmp_path / "authority")
    with Index(wheels, tls=authority.issue("IP:127.0.0.1"), auth=("ann", "s3cret-pass"), yanked=False) as index:
        runner.environ = through(index, authority, runner)
        job = runner.run(cache="false")
    assert job.good, job.log
    assert job.steps["Install repro-env"] == "success"
    assert "s3cret-pass" not in job.log


def test_only_a_runner_of_github_that_refuses_namespaces_is_set_up(tmp_path: Path) -> None:
    """`doctor` and `sudo` are stand-ins: no machine of ours refuses namespaces and lets this be changed."""
    programs, workspace, sudo = tmp_path / "programs", tmp_path / "workspace", tmp_path / "sudo"
    workspace.mkdir()
    environ = actions.environ(tmp_path / "home")
    install(tmp_path / "temp" / "repro-env", environ)
    environ["PATH"] = f"{programs}:{environ['PATH']}"
    tool = tmp_path / "temp" / "repro-env" / "bin" / "repro-env"
    tool.unlink()
    programs.mkdir()
    for hosted, works in ((True, False), (True, True), (False, False)):
        for path, text in ((tool, f"[ $1 != doctor ] || exit {int(not works)}"), (programs / "sudo", f'echo "$@" >{sudo}')):
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        runner = Runner(ROOT, workspace, tmp_path / "temp", tmp_path / "cache", environ, hosted=hosted)
        assert runner.run(exec="train.py", cache="false").good
        assert sudo.exists() == (hosted and not works)
        if sudo.exists():
            words = "--non-interactive sysctl --ignore --write kernel.apparmor_restrict_unprivileged_userns=0\n"
            assert sudo.read_text() == words
            sudo.unlink()


def examples() -> list[str]:
    """The workflows that the documents show."""
    shown = re.findall(r"```yaml\n(.*?)```\n", (ROOT / "docs" / "how-to.md").read_text(), re.DOTALL)
    return [text for text in shown if "\njobs:" in text]


def test_the_workflows_keep_the_schema_and_the_rules_of_security(tmp_path: Path) -> None:
    """Ours, the Action itself, and those of the documents."""
    shown = tmp_path / ".github" / "workflows"
    shown.mkdir(parents=True)
    assert examples()
    for number, text in enumerate(examples()):
        (shown / f"{number}.yml").write_text(text.replace("@COMMIT", "@" + "0" * 40))
    workflows = [*(ROOT / ".github" / "workflows").iterdir(), *shown.iterdir()]
    check, zizmor = COMMAND.with_name("check-jsonschema"), COMMAND.with_name("zizmor")
    for words in (
        [check, "--builtin-schema", "vendor.github-workflows", *workflows],
        [check, "--builtin-schema", "vendor.github-actions", ROOT / "action.yml"],
        [zizmor, "--offline", "--no-config", "--pedantic", "--strict-collection", ROOT / "action.yml", *workflows],
    ):
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflows_of_the_documents_name_real_inputs_and_outputs() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    used = 0
    for text in examples():
        for job in yaml.safe_load(text)["jobs"].values():
            for step in job["steps"]:
                if "/repro-env@" in step.get("uses", ""):
                    assert step.get("with", {}).keys() <= action["inputs"].keys()
                    used += 1
        assert set(re.findall(r"steps\.repro\.outputs\.([\w-]+)", text)) <= action["outputs"].keys()
    assert used
