"""Run the real commands in a project with planted secrets, then search every byte that they wrote or printed."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import wheels
from tests.fakes.index import Index
from tests.secrets import ground as grounds
from tests.secrets import habits
from tests.secrets.ground import Echo, Ground, leaks
from tests.secrets.planted import HEXMARK, MARK, Mint, jwt, search, service_account


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    directory, mint = tmp_path_factory.mktemp("secrets"), Mint()
    auth = (mint.draw("index user", "lab{a:12}"), mint.draw("index password", "{a:24}"))
    with Index(directory / "index", auth=auth) as index:
        result = grounds.make(directory, mint, index)
        result.capture("--json")
        yield result


def written(ground: Ground) -> list[Path]:
    return [ground.project / "repro", ground.project / "runs", ground.directory / "store", ground.directory / "out"]


def test_a_capture_writes_no_secrets(ground: Ground) -> None:
    """The secrets are in variables, pip's configuration, netrc, proxies, direct_url.json, remotes, `.env` and output of Python."""
    planted = b"".join(
        path.read_bytes() for path in sorted(ground.directory.rglob("*")) if path.is_file() and path.stat().st_size < 1 << 20
    )
    assert planted.count(MARK.encode()) + planted.count(HEXMARK.encode()) >= 15
    assert len(ground.mint.all) > 60
    assert all(MARK in value or HEXMARK in value or len(value) < 24 for value in ground.mint.all.values())
    ground.capture()
    ground.capture("--json")
    spec = json.loads((ground.project / "repro" / "spec.json").read_text())
    assert {"WANDB_API_KEY", "MY_PLAIN", "AWS_SECRET_ACCESS_KEY"} <= set(spec["observed"]["variables"]["named"])
    assert any(distribution["direct_url"] for distribution in spec["observed"]["distributions"])
    assert spec["observed"]["source"]["git"]["remote"].startswith("https://git.example.org/")
    assert not leaks(written(ground), ground.outputs, ground.mint)


def test_runs_record_no_secrets(ground: Ground) -> None:
    mint = ground.mint
    ground.run("rebuild")
    value = mint.draw("--env value", "{a:22}")
    (ground.directory / "given.env").write_text(f"SERVICE_TOKEN={mint.draw('--env-file value', '{a:22}')}\n")
    (ground.directory / "out").mkdir()
    secret_arguments = [
        ["--token", mint.draw("--token x", "{a:30}2a")],
        [f"--api-key={mint.draw('--api-key=x', '{a:20}')}"],
        ["--header", f"Authorization: Bearer {mint.draw('bearer on a command line', '{a:32}')}"],
        [f"--data-url=https://ann:{mint.draw('userinfo on a command line', '{a:12}')}@data.example.net/x.tar"],
        [f"https://storage.googleapis.com/b/o?X-Goog-Signature={mint.draw('GCS signature', '{h:128}')}"],
        [f"https://lab.blob.core.windows.net/c/o?sv=2024&se=x&sr=b&sp=r&sig={mint.draw('Azure SAS', '{a:43}')}%3D"],
        [f"https://d1.cloudfront.net/o?Expires=1&Signature={mint.draw('CloudFront', '{a:60}')}&Key-Pair-Id=K1"],
        ["--password", mint.draw("--password x", "{a:14}")],
        ["-u", f"ann:{mint.draw('-u user:password', '{a:14}')}"],
        ["--proxy", f"ann:{mint.draw('proxy without scheme', '{a:14}')}@proxy.example.net:3128"],
        ["--wandb", ground.env["WANDB_API_KEY"]],
        [f"hf={ground.env['HF_TOKEN']}"],
        [f"--hook={ground.env['SLACK_WEBHOOK']}"],
        [ground.env["MLFLOW_TRACKING_PASSWORD"]],
    ]
    for arguments in secret_arguments:
        ground.run("exec", "--json", "train.py", *arguments)
    env_file = ground.directory / "given.env"
    ground.run("exec", "--env", f"LAB_TOKEN={value}", "--env", "HF_TOKEN", "--env-file", env_file, "train.py", value)
    ground.run("exec", "-c", f"password = '{mint.draw('in -c code', '{a:16}')}'")
    ground.run("exec", "fails.py", "--secret", mint.draw("of a failing run", "{a:24}9"), code=3)
    ground.run("exec", "no-such-program", f"--password={mint.draw('of a missing program', '{a:20}')}", code=127)
    ground.run("exec", f"missing-{mint.draw('in the program name', 'ghp_{a:36}')}", code=127)
    ground.run("exec", "sh", "-c", f"TOKEN={mint.draw('in a shell line', '{a:30}1')} true")
    for command in (
        ["runs", "list"],
        ["runs", "list", "--json"],
        ["runs", "show", "latest"],
        ["runs", "show", "latest", "--json"],
    ):
        ground.run(*command)
    records = sorted((ground.project / "runs").glob("*/start.json"))
    assert len(records) >= len(secret_arguments) + 4
    assert sum("<redacted>" in path.read_text() for path in records) >= len(secret_arguments)
    assert not leaks(written(ground), ground.outputs, ground.mint)


@pytest.mark.parametrize(
    "command",
    [("show",), ("show", "--json"), ("check",), ("check", "--json"), ("check", "--project"), ("diff", "repro", "repro")],
)
def test_the_output_of_a_command_contains_no_secrets(ground: Ground, command: tuple[str, ...]) -> None:
    python = ["--python", str(ground.python)] if command[0] == "check" and "--project" not in command else []
    output = ground.run(*command, *python, code=None)
    assert output.strip(), "it printed nothing"
    assert not search(output.encode())


# -- errors -------------------------------------------------------------------------------------------------------


def test_errors_contain_no_secrets(ground: Ground) -> None:
    mint = ground.mint
    before = len(ground.outputs)
    echo = Echo()
    index = f"http://lab:{mint.draw('of an index that echoes', '{a:20}')}@{echo.address}/simple"
    proxy = f"http://ann:{mint.draw('of a dead proxy', '{a:20}')}@127.0.0.1:1"
    try:
        fresh = {"REPRO_ENV_STORE": str(ground.directory / "other-store"), "PIP_CONFIG_FILE": "/dev/null", "PIP_PROXY": ""}
        output = ground.capture("--output", "never", code=10, env={**fresh, "PIP_INDEX_URL": index})
        assert "credentials" in output
        output = ground.capture(
            "--output", "never", code=10, env={**fresh, "PIP_INDEX_URL": f"http://{grounds.HOST}/s", "PIP_PROXY": proxy}
        )
        assert "proxy" in output
        unknown = f"http://u:{mint.draw('of an unknown host', '{a:20}')}@nowhere.invalid/simple"
        ground.capture("--output", "never", code=10, env={**fresh, "PIP_INDEX_URL": unknown})
    finally:
        echo.close()
    secret = mint.draw("where it does not belong", "hf_{a:34}")
    (ground.directory / "bad.env").write_text(f"{secret} = no name\n")
    ground.run("exec", "--env-file", ground.directory / "bad.env", "train.py", code=2)
    ground.run("exec", "--env", f"a b={secret}", "train.py", code=2)
    ground.run("exec", "--seed", secret, "train.py", code=2)
    ground.run("exec", "--data", f"https://ann:{secret}@example.org/x", "train.py", code=2)
    ground.run("exec", f"--tokn={secret}", "train.py", code=2)
    ground.run("capture", f"--tokn={secret}", code=2)
    ground.run("capture", "--source", f"/nowhere/{secret}", code=2)
    ground.run("capture", secret, code=2)
    ground.run("rebuild", f"/nowhere/{secret}/spec.json", code=None)
    ground.run("runs", "show", secret, code=None)
    assert len(ground.outputs) - before == 13
    for command, output in ground.outputs[before:]:
        assert output.strip(), f"`{command.partition(' ')[0]}` printed nothing"
    assert not leaks([*written(ground), ground.directory / "other-store"], ground.outputs[before:], mint)


# -- refusals -----------------------------------------------------------------------------------------------------

Plant = Callable[[Ground, Mint, str], str]
"""Returns the text of a file with a new secret."""


def docker_config(ground: Ground, mint: Mint, name: str) -> str:
    auth = base64.b64encode(f"lab:{mint.draw(name, '{a:24}')}".encode()).decode()
    return json.dumps({"auths": {"registry.example.org": {"auth": auth}}})


def kubeconfig(ground: Ground, mint: Mint, name: str) -> str:
    key = base64.b64encode(mint.key(name, "RSA").encode()).decode()
    return f"apiVersion: v1\nusers:\n- name: ann\n  user:\n    client-key-data: {key}\n"


def notebook(where: str) -> Plant:
    def plant(ground: Ground, mint: Mint, name: str) -> str:
        secret = mint.draw(name, "ghp_{a:36}")
        source = [f"login('{secret}')\n"] if where == "source" else ["login()\n"]
        text = [f"logged in\nwith {secret}\n"] if where == "output" else []
        outputs = [{"output_type": "stream", "name": "stdout", "text": text}]
        cell = {"cell_type": "code", "source": source, "outputs": outputs, "metadata": {}, "execution_count": 1}
        return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})

    return plant


def shaped(text: str, *shapes: str) -> Plant:
    """Return a function for a file in which each `§` is a secret of the next shape."""

    def plant(ground: Ground, mint: Mint, name: str) -> str:
        parts = text.split("§")
        secrets = [mint.draw(f"{name} {number}", shape) for number, shape in enumerate(shapes)]
        return "".join(part + secret for part, secret in zip(parts, [*secrets, ""], strict=True))

    return plant


SOURCES: dict[str, Plant] = {
    "settings.py": shaped("KEY = '§'\n", "sk-ant-api03-{a:93}"),
    "login.py": shaped("import wandb\nwandb.login(key='§')\n", "{h:40}"),
    "conf/wandb.yaml": shaped("wandb_api_key: §\n", "{h:40}"),
    "notes.ipynb": notebook("source"),
    "outputs.ipynb": notebook("output"),
    "long.log": shaped("a line of the log\n" * 200_000 + "hf token §\n", "hf_{a:34}"),
    "id_ed25519": lambda ground, mint, name: mint.key(name, "OPENSSH"),
    "server.pem": lambda ground, mint, name: mint.key(name, "EC"),
    "pgp.asc": lambda ground, mint, name: mint.key(name, "PGP").replace("KEY-----", "KEY BLOCK-----"),
    "gcp.json": lambda ground, mint, name: service_account(mint, name),
    "kubeconfig": kubeconfig,
    ".docker/config.json": docker_config,
    ".npmrc": shaped("//registry.example.org/:_authToken=§\n", "npm_{a:36}"),
    ".npmrc2": shaped("//registry.example.org/:_auth=§\n", "{a:40}"),
    ".pypirc": shaped("[pypi]\nusername = __token__\npassword = §\n", "pypi-AgEIcHlwaS5vcmc{a:100}"),
    ".netrc": shaped("machine api.north.org\n  login ann\n  password §\n", "{a:20}"),
    "aws/credentials": shaped("[default]\naws_access_key_id = §\naws_secret_access_key = §\n", "AKIA{A:16}", "{a:40}"),
    "session.sh": shaped("export AWS_SESSION_TOKEN=§\n", "IQoJb3JpZ2luX2Vj{a:300}"),
    "pyproject.toml": shaped("[[tool.uv.index]]\nname = 'lab'\nurl = 'https://ci:§@packages.north.org/simple'\n", "{a:20}"),
    "requirements.txt": shaped("--index-url https://ci:§@packages.north.org/simple\nnumpy\n", "{a:20}"),
    ".gitmodules": shaped('[submodule "lib"]\n  url = https://oauth2:§@git.north.org/lib.git\n', "glpat-{a:20}"),
    "environment.yml": shaped("channels:\n  - https://conda.north.org/t/§/lab\n", "ch-{h:8}-{h:16}-{h:12}"),
    "slack.py": shaped("HOOK = 'https://hooks.slack.com/services/T0AB12CD3/B0AB12CD3/§'\n", "{a:24}"),
    "discord.py": shaped("HOOK = 'https://discord.com/api/webhooks/112233445566778899/§'\n", "{a:68}"),
    "telegram.py": shaped("BOT = '§'\n", "{d:10}:AA{a:33}"),
    "azure.cfg": shaped("DefaultEndpointsProtocol=https;AccountName=lab;AccountKey=§==;EndpointSuffix=core\n", "{a:86}"),
    "token.txt": lambda ground, mint, name: jwt(mint, name) + "\n",
    "s3.txt": shaped("https://b.s3.amazonaws.com/w.pt?X-Amz-Date=1&X-Amz-Signature=§\n", "{h:64}"),
    "gcs.txt": shaped("https://storage.googleapis.com/b/w.pt?X-Goog-Signature=§\n", "{h:256}"),
    "sas.txt": shaped("https://lab.blob.core.windows.net/c/w.pt?sv=2024-01-01&sp=r&sig=§%3D\n", "{a:43}"),
    "cloudfront.txt": shaped("https://d1.cloudfront.net/w.pt?Expires=1&Signature=§&Key-Pair-Id=K12345\n", "{a:60}"),
    "ngc.ini": shaped("[CURRENT]\napikey = §\n", "nvapi-{a:64}"),
    "db.py": shaped("URL = 'mongodb+srv://ann:§@cluster.north.org/runs'\n", "{a:16}"),
    "kaggle.json": shaped('{"username":"ann","key":"§"}\n', "{h:32}"),
    "sendgrid.js": shaped("const key = '§'\n", "SG.{a:22}.{a:43}"),
    "curl.sh": shaped("curl -H 'Authorization: Basic §' https://api.north.org\n", "{a:40}"),
    "client.yaml": shaped("client_secret: §\n", "{a:40}"),
    "google.ts": shaped("secret: '§'\n", "GOCSPX-{a:28}"),
    "windows.txt": shaped("token §\n", "glpat-{a:20}"),
}


def test_all_secrets_in_the_source_are_listed_in_one_error(ground: Ground) -> None:
    """The error lists each file with the kind of its secret and the options for it, but not the secret itself."""
    texts = {path: plant(ground, ground.mint, f"source {path}") for path, plant in SOURCES.items()}
    sources = {path: text.encode("utf-16" if path == "windows.txt" else "utf-8") for path, text in texts.items()}
    planted = {f"zz-planted/{path}": data for path, data in habits.planted(ground.mint).items()}
    clean = {f"clean/{path}": data for path, data in habits.clean(ground.mint).items()}
    try:
        for path, data in {**sources, **planted, **clean}.items():
            file = ground.project / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        output = ground.capture("--output", "never", code=8)
    finally:
        for path in sources:
            (ground.project / path).unlink(missing_ok=True)
        shutil.rmtree(ground.project / "zz-planted")
        shutil.rmtree(ground.project / "clean")
    for path in SOURCES:
        assert re.search(
            rf"^ +{re.escape(path)}: .*; --exclude '{re.escape(path)}' or --not-secret '{re.escape(path)}'$", output, re.MULTILINE
        )
    assert "settings.py: API key (line 1);" in output
    count = re.search(r"(\d+) files contain a secret", output)
    assert count is not None
    assert int(count[1]) > len(sources) + len(planted) - 10
    assert "clean/" not in output
    assert not search(output.encode())
    assert not (ground.project / "never").exists()


def in_site_packages(name: str) -> Callable[[Ground], Path]:
    return lambda ground: ground.site / name


ENVIRONMENT: dict[str, tuple[Callable[[Ground], Path], Plant]] = {
    "an edited file": (in_site_packages("beta.py"), shaped("NAME = 'beta'\nTOKEN = '§'\n", "hf_{a:34}")),
    "a stray module": (in_site_packages("stray.py"), shaped("KEY = '§'\n", "sk-proj-{a:48}")),
    "sitecustomize": (
        in_site_packages("usercustomize.py"),
        shaped("import os\nos.environ['GITHUB_TOKEN'] = '§'\n", "ghp_{a:36}"),
    ),
    "a .pth line": (in_site_packages("auth.pth"), shaped("import os; os.environ.setdefault('WANDB_API_KEY', '§')\n", "{h:40}")),
    "an activation script": (
        lambda ground: ground.project / ".venv" / "bin" / "activate",
        shaped("export NGC_API_KEY=§\n", "nvapi-{a:64}"),
    ),
    "pip.conf": (
        lambda ground: ground.project / ".venv" / "pip.conf",
        shaped("[global]\nextra-index-url = https://ci:§@packages.north.org/simple\n", "{a:20}"),
    ),
    "METADATA of a local package": (
        in_site_packages("delta-1.0.dist-info/METADATA"),
        shaped("Metadata-Version: 2.1\nName: delta\nVersion: 1.0\nHome-page: https://ci:§@git.north.org/delta\n", "{a:20}"),
    ),
    "a module of a local package": (in_site_packages("delta.py"), shaped("VALUE = '§'\n", "glpat-{a:20}")),
    "a key among data": (in_site_packages("certs/client.key"), lambda ground, mint, name: mint.key(name, "RSA")),
}


def test_all_secrets_in_bundled_files_are_listed_in_one_error(ground: Ground) -> None:
    files = {place: where(ground) for place, (where, _) in ENVIRONMENT.items()}
    before = {place: file.read_bytes() if file.exists() else None for place, file in files.items()}
    for place, (_, plant) in ENVIRONMENT.items():
        files[place].parent.mkdir(exist_ok=True)
        files[place].write_text(plant(ground, ground.mint, f"environment {place}"))
    try:
        output = ground.capture("--output", "never", code=7)
    finally:
        for place, file in files.items():
            data = before[place]
            if data is None:
                file.unlink()
            else:
                file.write_bytes(data)
    for file in files.values():
        assert f"{file}: " in output
        assert f"--not-secret '{file}'" in output
    assert not search(output.encode())
    assert not leaks(written(ground), [("capture", output)], ground.mint)


def test_a_secret_outside_the_environment_is_refused(ground: Ground) -> None:
    """The secret is in a directory on PYTHONPATH, or in the target of a symlink of the environment."""
    external = ground.directory / "external"
    external.mkdir()
    (external / "helper.py").write_text(f"KEY = '{ground.mint.draw('on PYTHONPATH', 'ghp_{a:36}')}'\n")
    output = ground.capture("--output", "never", code=7, env={"PYTHONPATH": str(external)})
    assert str(external / "helper.py") in output
    link = ground.site / "linked.py"
    link.symlink_to(external / "helper.py")
    try:
        output += ground.capture("--output", "never", code=7)
    finally:
        link.unlink()
    assert not search(output.encode())


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_secret_in_a_local_wheel_is_refused(ground: Ground, tmp_path: Path, is_edited: bool) -> None:
    """The package was installed from a local file that still exists, so the capture would bundle that file.

    The installed files may have the secret no more.
    """
    import subprocess
    import sys

    secret = ground.mint.draw(f"in a local wheel {is_edited}", "hf_{a:34}")
    wheel = wheels.make(tmp_path, "local", files={"local/__init__.py": b"", "local/auth.py": f"TOKEN = '{secret}'\n".encode()})
    pip = [sys.executable, "-m", "pip", "--python", str(ground.python)]
    subprocess.run([*pip, "install", "-qq", "--no-deps", "--no-index", str(wheel)], check=True)
    if is_edited:
        (ground.site / "local" / "auth.py").write_text("TOKEN = ''\n")
    try:
        output = ground.capture("--output", "never", code=7)
    finally:
        subprocess.run([*pip, "uninstall", "-qq", "-y", "local"], check=True)
    assert wheel.name in output
    assert "local/auth.py" in output
    assert not search(output.encode())


def test_a_declared_false_alarm_is_included_and_noted(ground: Ground) -> None:
    """A key for tests is accepted with --not-secret. The capture succeeds, and the spec has a note."""
    mint = Mint(9)
    (ground.site / "certs").mkdir(exist_ok=True)
    (ground.site / "certs" / "test.key").write_text(mint.key("a test's key", "RSA"))
    (ground.project / "fixture.pem").write_text(mint.key("another", "EC"))
    try:
        output = ground.capture("--output", "declared", "--not-secret", "test.key", "--not-secret", "fixture.pem")
        notes = json.loads((ground.project / "declared" / "spec.json").read_text())["observed"]["remarks"]
    finally:
        (ground.site / "certs" / "test.key").unlink()
        (ground.site / "certs").rmdir()
        (ground.project / "fixture.pem").unlink()
    assert sum("--not-secret" in note for note in notes) == 2
    assert str(ground.site / "certs" / "test.key") in output
