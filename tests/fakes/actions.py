"""A runner of GitHub Actions that is small: it runs the steps of a composite action, their real `run:` lines under the real shell.

Whatever an action says that it does not know is an error: an unknown input, step, context, function or key.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.parts import BASE_PYTHON

_STEP = {"name", "id", "if", "shell", "run", "env", "working-directory", "uses", "with"}
_TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(==|!=|\|\||&&)|([A-Za-z_][\w-]*(?:\.[\w-]+)*(?:\(\))?))")


class Command(NamedTuple):
    """A workflow command that the log holds, in force."""

    name: str
    properties: Mapping[str, str]
    message: str


@dataclass
class Job:
    """What came of the action."""

    good: bool = True
    steps: dict[str, str] = field(default_factory=dict)
    """Name of each step -> `success`, `failure` or `skipped`."""
    log: str = ""
    commands: list[Command] = field(default_factory=list)
    summary: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass
class Runner:
    """A machine with a workspace. `cache` is what actions/cache keeps, for all runners that share the directory."""

    action: Path
    workspace: Path
    temp: Path
    cache: Path
    environ: Mapping[str, str]
    hosted: bool = False

    def run(self, **inputs: str) -> Job:
        """Run the action with these inputs (`working_directory` for `working-directory`)."""
        said = yaml.safe_load((self.action / "action.yml").read_text())
        defaults = {name: str(one.get("default", "")) for name, one in said["inputs"].items()}
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        assert given.keys() <= defaults.keys()
        self.temp.mkdir(parents=True, exist_ok=True)
        ids = {step["id"]: {"outputs": _Outputs()} for step in said["runs"]["steps"] if "id" in step}
        contexts: dict[str, Any] = {
            "inputs": defaults | given,
            "steps": ids,
            "runner": {"environment": "github-hosted" if self.hosted else "self-hosted"},
        }
        job = Job()
        assert said["runs"]["using"] == "composite"
        for number, step in enumerate(said["runs"]["steps"]):
            assert step.keys() <= _STEP
            condition = step.get("if", "")
            if not (job.good or "always()" in condition) or (condition and not _evaluated(condition, contexts)):
                job.steps[step["name"]] = "skipped"
                continue
            outputs: dict[str, str] = {}
            good = self._uses(step, contexts, outputs) if "uses" in step else self._runs(number, step, contexts, outputs, job)
            if "id" in step:
                ids[step["id"]]["outputs"].update(outputs)
            job.good &= good
            job.steps[step["name"]] = "success" if good else "failure"
        job.outputs = {name: _text(one["value"], contexts) for name, one in said["outputs"].items()}
        return job

    def _runs(self, number: int, step: Mapping[str, Any], contexts: Mapping[str, Any], outputs: dict[str, str], job: Job) -> bool:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an expression in a script is code of whoever gives its value"
        files = {name: self.temp / f"{number}-{name.lower()}" for name in ("OUTPUT", "ENV", "PATH", "STEP_SUMMARY")}
        for path in files.values():
            path.write_text("")
        script = self.temp / f"{number}.sh"
        script.write_text(step["run"])
        env = {
            **self.environ,
            **{name: _text(str(value), contexts) for name, value in step.get("env", {}).items()},
            **{f"GITHUB_{name}": str(path) for name, path in files.items()},
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(self.action),
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temp),
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace / _text(step.get("working-directory", "."), contexts),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )
        log = done.stdout.decode(errors="replace")
        job.log += log
        job.commands += _commands(log)
        job.summary += files["STEP_SUMMARY"].read_text()
        outputs |= _outputs(files["OUTPUT"].read_text())
        assert not files["ENV"].read_text(), "no other step of the job is changed"
        assert not files["PATH"].read_text(), "no other step of the job is changed"
        return done.returncode == 0

    def _uses(self, step: Mapping[str, Any], contexts: Mapping[str, Any], outputs: dict[str, str]) -> bool:
        """actions/cache, by the one real tar of the machine's: what comes back has other times of change and other inodes."""
        name, at, commit = step["uses"].partition("@")
        assert at
        assert re.fullmatch(r"[0-9a-f]{40}", commit)
        paths = [Path(line) for line in _text(step["with"]["path"], contexts).split("\n") if line]
        kept = self.cache / f"{_text(step['with']['key'], contexts)}.tar"
        self.cache.mkdir(exist_ok=True)
        if name == "actions/cache/save":
            with tarfile.open(kept, "x", format=tarfile.PAX_FORMAT) as archive:
                for path in paths:
                    archive.add(path)
        else:
            assert name == "actions/cache/restore"
            outputs["cache-hit"] = str(kept.exists()).lower()
            if kept.exists():
                subprocess.run(["tar", "-xPf", kept, "-C", "/"], check=True)
        return True


class _Outputs(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return ""


def _text(template: str, contexts: Mapping[str, Any]) -> str:
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(_evaluated(match[1], contexts)), template)


def _evaluated(expression: str, contexts: Mapping[str, Any]) -> Any:
    """The value of an expression: names, strings, ==, !=, && before ||, always()."""
    tokens: list[tuple[str, Any]] = []
    at = 0
    expression = expression.strip()
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        assert match, f"not known here: {expression[at:]}"
        at = match.end()
        string, operator, name = match.groups()
        tokens.append(("operator", operator) if operator else ("value", string[1:-1] if string else _value(name, contexts)))

    def split(tokens: list[tuple[str, Any]], operator: str) -> list[list[tuple[str, Any]]]:
        parts: list[list[tuple[str, Any]]] = [[]]
        for token in tokens:
            if token == ("operator", operator):
                parts.append([])
            else:
                parts[-1].append(token)
        return parts

    def compared(tokens: list[tuple[str, Any]]) -> Any:
        if len(tokens) == 1:
            return tokens[0][1]
        (_, left), (_, operator), (_, right) = tokens
        return (left == right) == (operator == "==")

    def chosen(values: list[Any], until: bool) -> Any:
        return next((value for value in values if bool(value) is until), values[-1])

    return chosen([chosen([compared(part) for part in split(one, "&&")], False) for one in split(tokens, "||")], True)


def _value(name: str, contexts: Mapping[str, Any]) -> Any:
    if name == "always()":
        return True
    found: Any = contexts
    for part in name.split("."):
        found = found[part]
    return found


def _outputs(text: str) -> dict[str, str]:
    """What a step wrote to $GITHUB_OUTPUT."""
    found = {}
    lines = iter(text.splitlines())
    for line in lines:
        match = re.fullmatch(r"([^<=]+)<<(.+)", line)
        assert match, line
        value = []
        for each in lines:
            if each == match[2]:
                break
            value.append(each)
        found[match[1]] = "\n".join(value)
    return found


def _commands(log: str) -> list[Command]:
    """The workflow commands of a log, as GitHub's runner reads them: `::name key=value::message`, and `##[name]message` anywhere."""
    found = []
    resume = ""
    for line in re.split(r"\r\n|\r|\n", log):
        match = re.match(r"\s*::([^ :]+)(?: ([^:]*))?::(.*)", line) or re.search(r"##\[([^ \]]+)(?: ([^\]]*))?\](.*)", line)
        if not match:
            continue
        name, properties, message = match[1], match[2] or "", match[3]
        if resume:
            resume = "" if name == resume else resume
        elif name == "stop-commands":
            resume = message
        else:
            pairs = [pair.partition("=") for pair in properties.split(",") if pair]
            found.append(Command(name, {key: _unescaped(value) for key, _, value in pairs}, _unescaped(message)))
    assert not resume, "workflow commands are still stopped at the end of the step"
    return found


def _unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def environ(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a job starts with: a home of its own and the pip settings of this machine."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    home.mkdir(parents=True, exist_ok=True)
    python = Path(BASE_PYTHON).parent
    return {**kept, "HOME": str(home), "PATH": f"{python}:{os.environ['PATH']}", "LANG": "C.UTF-8", **(more or {})}
