"""A project surrounded by planted secrets, the command that runs in it, and a search for leaks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import zstandard

from tests import commands
from tests.commands import COMMAND
from tests.fakes import wheels
from tests.fakes.index import Index
from tests.parts import BASE_PYTHON, need
from tests.secrets.planted import Mint, forms, jwt, search, service_account

HOST = "mirror.example.org"
"""A public host name, which is reached through the index's proxy."""


@dataclass
class Ground:
    directory: Path
    mint: Mint
    index: Index
    env: dict[str, str] = field(default_factory=dict)
    outputs: list[tuple[str, str]] = field(default_factory=list)
    """(command line, complete output)."""

    @property
    def project(self) -> Path:
        return self.directory / "project"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def python(self) -> Path:
        return self.project / ".venv" / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = (self.project / ".venv" / "lib").glob("python3*/site-packages")
        return found

    def run(self, *args: str | Path, code: int | None = 0, env: Mapping[str, str] | None = None) -> str:
        """Run `repro-env ARGS` in the project. Returns its output, stdout and stderr."""
        need(COMMAND.is_file(), f"{COMMAND} is missing: run the tests by `make test`, which installs the command")
        done = commands.run(args, cwd=self.project, env={**self.env, **(env or {})}, timeout=400)
        output = done.out + done.err
        self.outputs.append((" ".join(map(str, args))[:60], output))
        if code is not None:
            assert done.code == code, f"{args[0]} -> {done.code}: {output}"
        assert "Traceback (most recent call last):\n  File" not in output or "repro_env" not in output, output
        return output

    def capture(self, *args: str | Path, code: int | None = 0, env: Mapping[str, str] | None = None) -> str:
        return self.run("capture", "--python", self.python, *args, code=code, env=env)


def make(directory: Path, mint: Mint, index: Index) -> Ground:
    """Create the project, its environment and its surroundings. Tests plant secrets in the source files later."""
    ground = Ground(directory, mint, index)
    ground.project.mkdir(parents=True)
    ground.home.mkdir()
    user, password = index.auth or ("", "")
    ground.env = {
        "PATH": os.environ["PATH"],
        "HOME": str(ground.home),
        "LANG": "C.UTF-8",
        "REPRO_ENV_STORE": str(directory / "store"),
        "PIP_CACHE_DIR": str(directory / "pip-cache"),
        "PIP_CONFIG_FILE": str(ground.home / "pip.conf"),
        "PIP_PROXY": index.proxy.replace(
            "://", f"://{mint.draw('proxy user', 'ann{a:12}')}:{mint.draw('proxy password', '{a:20}')}@"
        ),
        "PIP_RETRIES": "0",
        "PIP_TRUSTED_HOST": HOST,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **_variables(mint),
    }
    index_url = f"http://{user}:{password}@{HOST}/simple"
    extra = f"http://tok:{mint.draw('extra index token', '{a:32}')}@{HOST}/extra"
    (ground.home / "pip.conf").write_text(f"[global]\nindex-url = {index_url}\nextra-index-url = {extra}\n")
    (ground.home / ".netrc").write_text(
        f"machine other.example.org login ann password {mint.draw('.netrc password', '{a:18}')}\n"
    )
    (directory / "netrc").write_text(f"machine {HOST} login {user} password {mint.draw('NETRC password', '{a:18}')}\n")
    ground.env["NETRC"] = str(directory / "netrc")
    channel = mint.draw("conda channel token", "ch-{h:8}-{h:16}-{h:12}")
    (ground.home / ".condarc").write_text(f"channels:\n  - https://conda.example.org/t/{channel}/lab\n")
    _environment(ground, index_url)
    _repository(ground)
    (ground.project / "train.py").write_text("import sys\nprint('trained', len(sys.argv))\n")
    (ground.project / "fails.py").write_text("import os\nraise SystemExit(3)\n")
    (ground.project / ".env").write_text(f"SERVICE_PASSWORD={mint.draw('.env password', '{a:22}')}\n")
    return ground


def _variables(mint: Mint) -> dict[str, str]:
    plain = {
        "WANDB_API_KEY": "{h:40}",
        "HF_TOKEN": "hf_{a:34}",
        "AWS_ACCESS_KEY_ID": "AKIA{A:16}",
        "AWS_SECRET_ACCESS_KEY": "{a:40}",
        "AWS_SESSION_TOKEN": "IQoJb3JpZ2luX2Vj{a:300}",
        "OPENAI_API_KEY": "sk-proj-{a:48}",
        "ANTHROPIC_API_KEY": "sk-ant-api03-{a:93}",
        "NGC_API_KEY": "nvapi-{a:64}",
        "GITHUB_TOKEN": "ghp_{a:36}",
        "GH_PAT": "github_pat_{a:22}_{a:59}",
        "CI_JOB_TOKEN": "glpat-{a:20}",
        "MY_PLAIN": "hunter2{a:9}",
        "SLACK_BOT_TOKEN": "xoxb-{d:12}-{d:13}-{a:24}",
        "SLACK_WEBHOOK": "https://hooks.slack.com/services/T{A:8}/B{A:8}/{a:24}",
        "DISCORD_WEBHOOK": "https://discord.com/api/webhooks/{d:18}/{a:68}",
        "TELEGRAM_BOT": "{d:10}:AA{a:33}",
        "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=https;AccountName=lab;AccountKey={a:86}==;EndpointSuffix=core.windows.net",
        "COMET_API_KEY": "{a:25}",
        "NEPTUNE_API_TOKEN": "eyJhcGlfYWRkcmVzcyI6{a:80}",
        "KAGGLE_KEY": "{h:32}",
        "CLEARML_API_SECRET_KEY": "{a:50}",
        "MLFLOW_TRACKING_PASSWORD": "{a:16}",
        "PGPASSWORD": "{a:14}",
        "NPM_TOKEN": "npm_{a:36}",
        "TWINE_PASSWORD": "pypi-AgEIcHlwaS5vcmc{a:120}",
        "UV_INDEX_LAB_PASSWORD": "{a:20}",
        "DOCKER_AUTH": "dckr_pat_{a:27}",
        "DATABASE_URL": "postgresql://ann:{a:16}@db.north.example.net:5432/runs",
        "http_proxy": "",
        "SENDGRID": "SG.{a:22}.{a:43}",
        "VAULT_ADDR_TOKEN": "hvs.{a:24}",
        "DATABRICKS_TOKEN": "dapi{h:32}",
        "REPLICATE_API_TOKEN": "r8_{a:37}",
        "GROQ_API_KEY": "gsk_{a:52}",
        # Names on the list, but with secret values.
        "TORCH_LOGS_OUT": "https://lab:{a:12}@logs.example.net/x",
        "OMP_DISPLAY_TAG": "hf_{a:34}",
        "NCCL_NET_PLUGIN": "plugin?token={a:30}",
        "PYTHONBREAKPOINT": "https://u:{a:16}@debug.example.net/hook",
        "XLA_FLAGS": "--xla_dump_to=https://bucket.example.net/x?X-Amz-Signature={h:64}",
    }
    values = {name: mint.draw(f"${name}", shape) for name, shape in plain.items() if shape}
    values["LAB_JWT"] = jwt(mint, "$LAB_JWT")
    values["DEPLOY"] = mint.key("$DEPLOY", "OPENSSH")
    values["GOOGLE_CREDENTIALS"] = service_account(mint, "$GOOGLE_CREDENTIALS")
    return values


def _environment(ground: Ground, index_url: str) -> None:
    """Create a venv with wheels of the index, one with a signed URL, one that was edited, and one that no index has."""
    mint = ground.mint
    for name in ("alpha", "beta", "gamma"):
        wheels.make(ground.index.directory, name)
    wheels.make(ground.directory / "private", "delta", files={"delta.py": b"VALUE = 4\n"})
    base = BASE_PYTHON
    subprocess.run([base, "-m", "venv", "--without-pip", str(ground.project / ".venv")], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(ground.python), "install", "-qq", "--no-deps"]
    clean = {name: value for name, value in ground.env.items() if name in ("PATH", "HOME", "PIP_CACHE_DIR", "PIP_PROXY")}
    arguments = [
        "--index-url",
        index_url,
        "--trusted-host",
        HOST,
        "alpha==1.0",
        "beta==1.0",
        "gamma==1.0",
        str(ground.directory / "private" / "delta-1.0-py3-none-any.whl"),
    ]
    subprocess.run([*pip, *arguments], check=True, env={**clean, "PIP_CONFIG_FILE": os.devnull})
    origins = {
        "alpha": f"https://ann:{mint.draw('direct_url userinfo', '{a:18}')}@{HOST}/files/alpha-1.0-py3-none-any.whl",
        "beta": f"https://bucket.s3.amazonaws.com/beta-1.0-py3-none-any.whl?X-Amz-Credential=x&X-Amz-Signature={mint.draw('S3 signature', '{h:64}')}",
        "gamma": f"https://oauth2:{mint.draw('direct_url VCS token', 'glpat-{a:20}')}@git.example.org/lab/gamma.git",
    }
    for name, url in origins.items():
        direct_url: dict[str, Any] = {"url": url}
        if name == "gamma":
            direct_url["vcs_info"] = {"vcs": "git", "commit_id": "0" * 40}
        (ground.site / f"{name}-1.0.dist-info" / "direct_url.json").write_text(json.dumps(direct_url))
    (ground.site / "gamma.py").write_text("NAME = 'edited'\n")
    start = mint.draw("printed at start", "{a:24}")
    # Python prints these secrets at its start, but they are not in the environment.
    (ground.directory / "vault").write_text(f"password={start}\nAuthorization: Bearer {mint.draw('bearer printed', '{a:40}')}\n")
    (ground.site / "sitecustomize.py").write_text(
        f"import os, sys\nprint(open({str(ground.directory / 'vault')!r}).read())\nprint(dict(os.environ), file=sys.stderr)\n"
        "sys.stderr.write('KeyError: no ' + os.environ.get('MY_PLAIN', '') + '\\n')\n"
    )
    (ground.site / "odd.pth").write_text("import os; print('pth says', os.environ.get('DATABASE_URL'))\n")


def _repository(ground: Ground) -> None:
    mint = ground.mint

    def git(*args: str) -> None:
        subprocess.run(["git", *args], cwd=ground.project, check=True, capture_output=True, env={"PATH": os.environ["PATH"]})

    git("init", "-q")
    git("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "commit", "-q", "--allow-empty", "-m", "first")
    git(
        "remote",
        "add",
        "origin",
        f"https://x-access-token:{mint.draw('git remote token', 'ghs_{a:36}')}@git.example.org/lab/train.git",
    )
    git("remote", "add", "backup", f"https://lab:{mint.draw('second remote password', '{a:20}')}@git.example.org/b.git")
    git("config", "http.extraheader", f"AUTHORIZATION: basic {mint.draw('http.extraheader', '{a:40}')}")
    git("config", "submodule.lib.url", f"https://u:{mint.draw('submodule url', '{a:20}')}@git.example.org/lib.git")


# -- searching ----------------------------------------------------------------------------------------------------


def unpacked(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of a file, and of everything that is packed or compressed in it."""
    yield name, data
    if data[:4] == b"\x28\xb5\x2f\xfd":
        yield from unpacked(f"{name} (zstd)", zstandard.ZstdDecompressor().decompressobj().decompress(data))
    elif data[:2] == b"\x1f\x8b":
        plain, remaining = b"", data
        while remaining:
            inflater = zlib.decompressobj(31)
            plain += inflater.decompress(remaining)
            remaining = inflater.unused_data
        yield from unpacked(f"{name} (gzip)", plain)
    elif data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for filename in archive.namelist():
                yield from unpacked(f"{name}: {filename}", archive.read(filename))
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                yield f"{name}: {member.name}", json.dumps([member.name, member.linkname, member.pax_headers]).encode()
                if file is not None:
                    yield from unpacked(f"{name}: {member.name}", file.read())
    else:
        head, newline, body = data.partition(b"\n")
        for packed in (body.partition(b"\n")[2], body) if newline and len(head) < 300 else ():
            with contextlib.suppress(zlib.error):  # a cached page: a line with facts, then the compressed body
                yield f"{name} (deflate)", zlib.decompress(packed)


_SEARCHED: set[tuple[str, int, int]] = set()
"""(path, inode, time) of files that were searched before. Layers and blobs do not change."""


def leaks(directories: list[Path], outputs: list[tuple[str, str]], mint: Mint) -> list[str]:
    """Return the location of every secret in the files below the directories, in their names, and in the outputs."""
    found = []
    encoded = [form for secret in mint.all.values() for form in forms(secret)]
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            facts = path.lstat()
            key = (str(path), facts.st_ino, facts.st_mtime_ns)
            if key in _SEARCHED:
                continue
            _SEARCHED.add(key)
            if hit := search(os.fsencode(path)):
                found.append(f"{path}: in its name: {hit}")
            if path.is_symlink():
                found += [f"{path}: in its target: {hit}"] if (hit := search(os.fsencode(path.readlink()))) else []
            elif path.is_file():
                for name, data in unpacked(str(path), path.read_bytes()):
                    if hit := search(data):
                        found.append(f"{name}: {hit}")
                    if path.suffix in (".json", ".txt", ".toml") or "facts" in path.parts:
                        found += [f"{name}: contains {form!r}" for form in encoded if form in data]
    assert len(_SEARCHED) > 50, "nothing was searched"
    for command, output in outputs:
        if hit := search(output.encode()):
            found.append(f"printed by `{command}`: {hit}")
    return found


class Echo:
    """A server that refuses all credentials, with an error page that repeats them."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

            def do_GET(self) -> None:
                import base64

                header = self.headers.get("Authorization", "")
                plain = base64.b64decode(header.partition(" ")[2]).decode() if header.startswith("Basic ") else header
                body = f"<html><a href='/x'>refused: {header} {plain} {self.path}</a></html>".encode()
                self.send_response(401)
                self.send_header("WWW-Authenticate", f'Basic realm="{plain or "lab"}"')
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
