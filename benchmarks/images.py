"""The image, sent: to an OCI layout, into the engine, to a registry, each against another way to the same end in the same run.

`python benchmarks/images.py [--count N] [--small] [--cuda]` prints every ratio, writes benchmarks/results/images.json and the
table in benchmarks/README.md. Needs a container engine and `docker-registry`. `--small`: three tiny packages in place of sixty
with torch, to try it; nothing is written. `--cuda`: an environment of PyTorch's CUDA build instead, once, each step by itself,
into benchmarks/results/images-cuda.json (some GB from the index; 25 GB of room).
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import parts

from tests.fakes import wheels as fakes
from tests.registries import registry

PACKAGES = [
    "accelerate",
    "annotated-doc",
    "anyio",
    "attrs",
    "certifi",
    "charset-normalizer",
    "click",
    "cloudpickle",
    "contourpy",
    "cycler",
    "filelock",
    "fonttools",
    "fsspec",
    "h11",
    "hf-xet",
    "httpcore",
    "httpx",
    "huggingface-hub",
    "idna",
    "jinja2",
    "joblib",
    "kiwisolver",
    "lightgbm",
    "lightning-utilities",
    "markdown-it-py",
    "markupsafe",
    "matplotlib",
    "mdurl",
    "mpmath",
    "narwhals",
    "networkx",
    "numpy",
    "packaging",
    "pandas",
    "patsy",
    "pillow",
    "psutil",
    "pyarrow",
    "pygments",
    "pyparsing",
    "python-dateutil",
    "pyyaml",
    "regex",
    "requests",
    "rich",
    "safetensors",
    "scikit-learn",
    "scipy",
    "setuptools",
    "shellingham",
    "six",
    "sniffio",
    "statsmodels",
    "sympy",
    "threadpoolctl",
    "tokenizers",
    "torchmetrics",
    "tqdm",
    "transformers",
    "typer",
    "typing-extensions",
    "tzdata",
    "urllib3",
]
"""Of lockfiles/ml185.txt; and torch for the CPU."""
TORCH = "torch==2.13.0"
CUDA = "torch==2.14.1"
CHANGED = "scipy==1.17.0"
SMALL = ("packaging==26.3", "mdurl==0.1.2", "pygments==2.21.0")
SMALL_CHANGED = "pygments==2.20.0"
SPECS = 10
NAME = "repro-env-bench"
START, END = "<!-- images: written by benchmarks/images.py -->", "<!-- end of images -->"
NOWHERE = {name: str(parts.BUILD / "no-caches" / name.lower()) for name in ("PIP_CACHE_DIR", "UV_CACHE_DIR", "XDG_CACHE_HOME")}
"""Caches that hold nothing: what is on this machine is what is said."""


class Cost(NamedTuple):
    seconds: float
    cpu: float
    """Of the process and all that it waited for, user and system."""


def main() -> None:
    parser = parts.parser(__doc__)
    parser.set_defaults(count=3)
    parser.add_argument("--small", action="store_true", help="three tiny packages, to try it; nothing is written")
    parser.add_argument("--cuda", action="store_true", help="PyTorch's CUDA build instead")
    options = parser.parse_args()
    bench = Bench(small=options.small)
    if options.cuda:
        steps = bench.cuda()
        for step in steps:
            print(step)
        print("written to", parts.write([], "images-cuda", steps=steps).relative_to(parts.ROOT))
        return
    rows = bench.rows(options.count)
    parts.report(rows)
    if not options.small:
        print("written to", parts.write(rows, "images", wheels=bench.wheels).relative_to(parts.ROOT))
        written(rows)


class Bench:
    """One environment, captured; its wheels in a store; a base with its interpreter in the engine and in an image layout."""

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.home = parts.BUILD / ("images-small" if small else "images")
        self.directory = self.home / "project"
        self.bare = self.home / "bare"
        self.wheels: list[str] = []
        self.docker = _docker()

    def rows(self, count: int) -> list[parts.Row]:
        self._prepare()
        what = f"{len(self.wheels)} wheels" + ("" if self.small else " with torch for the CPU")
        return [*self._layout(count, what), *self._engine(count, what), *self._shared(), self._memory(what)]

    # --- what is measured

    def _layout(self, count: int, what: str) -> list[parts.Row]:
        """To an image layout: cold, known, unchanged, one package changed; the processor's time against gzip."""
        cold, known, built = [], [], []
        for turn in range(count + 1):  # the first does not count: it fills the page cache, and sends the engine its context
            self._only_wheels()
            self._only_base()
            first = self._send()
            self._only_base()
            second = self._send()
            third = self._docker_build()
            if turn:
                cold.append(first)
                known.append(second)
                built.append(third)
        mine, again = _median(cold), _median(known)
        theirs = statistics.median(built)
        warm = parts.median(max(count, 5), lambda: self._send().seconds)
        changed = parts.median(count, self._change, before=self._unchanged)
        squeezed = _median([self._gzip() for _ in range(count)])
        ours, other = (json.loads((path / "repro" / "spec.json").read_text())["identity"] for path in (self.directory, self.bare))
        base = "base and interpreter are" if ours["base"] == other["base"] else "the interpreter is"
        rest = f"{base} there before, on both sides"
        return [
            _row(
                f"{what} to an OCI layout, a store that knows the wheels' bytes and nothing else, all proven; against `docker build` "
                f"of the same wheels with uv into the local engine ({rest}; its context is there too)",
                mine.seconds,
                theirs,
                "at most 0.33",
                mine.seconds <= theirs / 3,
            ),
            _row(
                "processor time of the same (the whole command) against GNU gzip -6 of the layers' tars alone",
                mine.cpu,
                squeezed.cpu,
                "at most 0.17",
                mine.cpu <= squeezed.cpu / 6,
            ),
            _row(
                "the same with the layers' digests known, into a new layout, against cold",
                again.seconds,
                mine.seconds,
                "at most 0.50",
                again.seconds <= mine.seconds / 2,
            ),
            _row("the same again, nothing changed, against 0.2 s", warm, 0.2, "under 1.0", warm < 0.2),
            _row(
                f"one package changed ({SMALL_CHANGED if self.small else CHANGED}; its wheel is there), into the same layout, against 1.5 s",
                changed,
                1.5,
                "under 1.0",
                changed < 1.5,
            ),
        ]

    def _engine(self, count: int, what: str) -> list[parts.Row]:
        """Into the local engine, which has what it builds from: the image can be run at the end, on both sides."""
        ours, theirs = [], []
        for turn in range(count + 1):
            self._only_wheels()
            self._forget(f"{NAME}:ours")
            first = self._send(f"docker:{NAME}:ours").seconds
            second = self._docker_build()
            if turn:
                ours.append(first)
                theirs.append(second)
        mine, other = statistics.median(ours), statistics.median(theirs)
        self._forget(f"{NAME}:ours")
        return [
            _row(
                f"{what} into the local engine, cold, against `docker build` of the same wheels with uv",
                mine,
                other,
                "at most 1.0",
                mine <= other,
            )
        ]

    def _shared(self) -> list[parts.Row]:
        """Ten specs that differ in one small package: what the store (unpacked) and a registry grow to."""
        links = parts.fresh(self.home / "links")
        specs = []
        for number in range(SPECS):
            self._pip(fakes.make(links / str(number), "own", "1.0", {"own.py": b"NUMBER = %d\n" % number}))
            self._capture(self.directory)
            specs.append(shutil.copytree(self.directory / "repro", parts.fresh(self.home / f"spec-{number}")))
        self._pip_remove("own")
        store = self.home / "shared-store"
        sizes: dict[str, list[int]] = {"store": [], "registry": []}
        with registry(parts.fresh(self.home / "registry")) as host:
            parts.fresh(store)
            shutil.copytree(self.seed / "blobs", store / "blobs", copy_function=os.link)
            for spec in specs:
                parts.run([parts.TOOL, "rebuild", spec], env=self._env(store), cwd=self.directory)
                parts.run([parts.TOOL, "rebuild", spec, "--output", f"{host}/{NAME}/{spec.name}:1"], env=self._env(store))
                sizes["store"].append(_disk(store))
                sizes["registry"].append(_disk(self.home / "registry" / "data"))
        parts.fresh(store)
        rows = []
        for name, grown in sizes.items():
            ratio = grown[-1] / grown[0]
            what = f"{SPECS} specs that share all but one small package: bytes of the {name} against those of one"
            single, all_ = f"{grown[0] / 1e6:,.0f} MB", f"{grown[-1] / 1e6:,.0f} MB"
            rows.append(parts.Row(what, all_, single, ratio, "at most 1.3", ratio <= 1.3))
        return rows

    def _memory(self, what: str) -> parts.Row:
        self._only_wheels()
        self._only_base()
        most = parts.peak([parts.TOOL, "rebuild", "--output", self._out], env=self._env(), cwd=self.directory)
        name = f"peak memory of {what} to an OCI layout, cold, all processes together"
        return parts.Row(name, f"{most / 1e6:.0f} MB", "300 MB", most / 300e6, "under 1.0", most < 300e6)

    def cuda(self) -> list[dict[str, Any]]:
        """PyTorch with CUDA: each step once; its time, what it wrote, the most that all of it took on the disk."""
        home = parts.BUILD / "images-cuda"
        directory = home / "project"
        if not (directory / ".venv").is_dir():
            _venv(directory)
            self._install(directory, [CUDA], dependencies=True)
        store, out = parts.fresh(home / "store"), parts.fresh(home / "out")
        env = self._env(store)
        steps = []
        with registry(parts.fresh(home / "registry")) as host:
            for what, words in (
                ("capture", ["capture", "--python", directory / ".venv"]),
                ("rebuild --output oci:, cold: wheels come from the index", ["rebuild", "--output", f"oci:{out}"]),
                ("rebuild --output oci:, nothing changed", ["rebuild", "--output", f"oci:{out}"]),
                ("rebuild --output to a registry on this machine", ["rebuild", "--output", f"{host}/{NAME}/cuda:1"]),
                ("rebuild into the store", ["rebuild"]),
            ):
                if words == ["rebuild"]:  # what is there twice now would only take room
                    parts.fresh(home / "registry")
                    parts.fresh(out)
                before = _disk(home)
                with _watched(home) as seen:
                    took = parts.run([parts.TOOL, *words], env=env, cwd=directory)
                steps.append(
                    {
                        "step": what,
                        "seconds": round(took, 2),
                        "kept MB": round((_disk(home) - before) / 1e6),
                        "peak MB": round((max(seen) - before) / 1e6),
                        "layout MB": round(_disk(out) / 1e6) if out.exists() else 0,
                    }
                )
        for path in (store, out, home / "registry"):
            parts.fresh(path)
        return steps

    # --- how it is made

    @property
    def seed(self) -> Path:
        """A store that made the image once: it has the wheels."""
        return self.home / "seed"

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def layout(self) -> Path:
        return self.home / "layout"

    @property
    def _out(self) -> str:
        return f"oci:{self.layout}"

    def _env(self, store: Path | None = None) -> dict[str, str]:
        return parts.environ(store or self.store, NOWHERE)

    def _prepare(self) -> None:
        wanted = [*SMALL] if self.small else [TORCH, *_pins(PACKAGES)]
        stamp = self.home / "stamp"
        if not stamp.is_file() or stamp.read_text() != "\n".join(wanted):
            parts.fresh(self.home).mkdir(parents=True)
            for directory in (self.directory, self.bare):
                _venv(directory)
            self._install(self.directory, wanted)
            stamp.write_text("\n".join(wanted))
        parts.fresh(self.seed)
        self._capture(self.bare)
        self._capture(self.directory)
        spec = json.loads((self.directory / "repro" / "spec.json").read_text())
        self.wheels = [wheel["filename"] for wheel in spec["identity"]["distributions"]]
        self._fetch(self.directory / "repro")
        before = shutil.copytree(self.directory / "repro", parts.fresh(self.home / "before"))
        self._install(self.directory, [SMALL_CHANGED if self.small else CHANGED])
        self._capture(self.directory)
        after = shutil.copytree(self.directory / "repro", parts.fresh(self.home / "after"))
        self._fetch(after)
        self._install(
            self.directory,
            [next(name for name in wanted if name.startswith((SMALL_CHANGED if self.small else CHANGED).split("=")[0]))],
        )
        self._capture(self.directory)
        digests = [json.loads((path / "spec.json").read_text())["identity"] for path in (before, self.directory / "repro", after)]
        if digests[0] != digests[1] or digests[0] == digests[2]:
            sys.exit("the environment did not come back after one package was changed, or the change was none")
        self._context(spec)
        self._only_wheels()
        parts.run([parts.TOOL, "rebuild", self.bare / "repro", "--output", f"docker:{NAME}:base"], env=self._env())

    def _fetch(self, spec: Path) -> None:
        """Send an image once, away from the environment: its wheels are then in the seed."""
        hidden = self.directory / ".venv-hidden"
        (self.directory / ".venv").rename(hidden)
        try:
            parts.run(
                [parts.TOOL, "rebuild", spec, "--output", f"oci:{parts.fresh(self.home / 'scratch')}"], env=self._env(self.seed)
            )
        finally:
            hidden.rename(self.directory / ".venv")
        parts.fresh(self.home / "scratch")

    def _context(self, spec: Any) -> None:
        """What `docker build` gets: the same wheels, uv, and one step that installs them."""
        context = parts.fresh(self.home / "context")
        (context / "wheels").mkdir(parents=True)
        for wheel in spec["identity"]["distributions"]:
            digest = wheel["sha256"].removeprefix("sha256:")
            held = [self.seed / "blobs" / digest, self.directory / "repro" / "blobs" / digest]
            shutil.copy(next(path for path in held if path.is_file()), context / "wheels" / wheel["filename"])
        shutil.copy(parts.TOOL.with_name("uv"), context / "uv")
        python = spec["identity"]["interpreter"]["executable"]
        words = ["/context/uv", "pip", "install", "--quiet", "--offline", "--no-cache", "--no-deps", "--no-index"]
        words += ["--python", python, "--target", "/opt/site"]
        words += [f"/context/wheels/{name}" for name in self.wheels]
        (context / "Dockerfile").write_text(
            f"FROM {NAME}:base\nWORKDIR /opt/temporary\nENV TMPDIR=/opt/temporary\n"
            f"RUN --mount=type=bind,target=/context {json.dumps(words)}\n"
        )

    def _docker_build(self) -> float:
        """Seconds from the start of `docker build`, nothing of the result cached, until the engine has the image."""
        words: list[str | Path] = [
            self.docker,
            "build",
            "--no-cache",
            "--network",
            "none",
            "--tag",
            f"{NAME}:theirs",
            self.home / "context",
        ]
        took = parts.run(words, env={**os.environ, "DOCKER_BUILDKIT": "1"})
        self._forget(f"{NAME}:theirs")
        return took

    def _forget(self, name: str) -> None:
        subprocess.run([self.docker, "image", "rm", "--force", name], capture_output=True, check=False)

    def _send(self, where: str = "") -> Cost:
        return _cost([parts.TOOL, "rebuild", "--output", where or self._out], env=self._env(), cwd=self.directory)

    def _only_wheels(self) -> None:
        """A store of wheels: no layer, no image, no fact."""
        parts.fresh(self.store).mkdir(parents=True)
        shutil.copytree(self.seed / "blobs", self.store / "blobs", copy_function=os.link)

    def _only_base(self) -> None:
        """An image layout with base and interpreter: as after a pull."""
        parts.fresh(self.layout)
        parts.run([parts.TOOL, "rebuild", self.bare / "repro", "--output", f"{self._out}:base"], env=self._env())

    def _unchanged(self) -> None:
        """A layout with the image from before the change, and a store that knows that one alone."""
        self._only_wheels()
        self._only_base()
        self._send()

    def _change(self) -> float:
        return parts.run([parts.TOOL, "rebuild", self.home / "after", "--output", self._out], env=self._env())

    def _gzip(self) -> Cost:
        """GNU gzip -6 of each layer's tar that is not of the base, one after the other."""
        index = json.loads((self.layout / "index.json").read_text())
        tars = parts.fresh(self.home / "tars")
        tars.mkdir()
        blobs = self.layout / "blobs" / "sha256"
        manifests = [json.loads((blobs / entry["digest"].partition(":")[2]).read_text()) for entry in index["manifests"]]
        layers = [layer["digest"] for layer in max(manifests, key=lambda entry: len(entry["layers"]))["layers"]]
        base = [layer["digest"] for layer in min(manifests, key=lambda entry: len(entry["layers"]))["layers"]]
        for digest in layers:
            if digest not in base:
                with (tars / digest.partition(":")[2]).open("wb") as file:
                    subprocess.run(["gzip", "-dc", blobs / digest.partition(":")[2]], stdout=file, check=True)
        cost = _cost(["gzip", "-6", *sorted(tars.iterdir())], env=dict(os.environ), cwd=tars)
        parts.fresh(tars)
        return cost

    def _capture(self, directory: Path) -> None:
        parts.run([parts.TOOL, "capture", "--python", directory / ".venv"], env=self._env(self.seed), cwd=directory)

    def _install(self, directory: Path, wanted: Iterable[str], *, dependencies: bool = False) -> None:
        pip: list[str | Path] = [
            directory / ".venv" / "bin" / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "-qq",
            "--no-compile",
        ]
        parts.run([*pip, *([] if dependencies else ["--no-deps"]), *wanted], env=parts.environ())

    def _pip(self, wheel: Path) -> None:
        self._install(self.directory, ["--no-index", "--force-reinstall", str(wheel)])

    def _pip_remove(self, name: str) -> None:
        parts.run([self.directory / ".venv" / "bin" / "python", "-m", "pip", "uninstall", "-qq", "--yes", name])


@contextmanager
def _watched(directory: Path) -> Iterator[list[int]]:
    """The bytes that a directory takes on the disk while something runs, looked at ten times a second."""
    seen, over = [_disk(directory)], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            seen.append(_disk(directory))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def _disk(directory: Path) -> int:
    """Bytes of the blocks of all files below; of several links to one file, once."""
    total, seen = 0, set()
    for root, _, files in os.walk(directory):
        for name in files:
            try:
                facts = os.lstat(f"{root}/{name}")
            except OSError:
                continue
            if facts.st_ino not in seen:
                seen.add(facts.st_ino)
                total += facts.st_blocks * 512
    return total


def _cost(words: Sequence[str | Path], *, env: dict[str, str], cwd: Path) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = parts.run(words, env=env, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(entry.seconds for entry in costs), statistics.median(entry.cpu for entry in costs))


def _row(what: str, ours: float, theirs: float, goal: str, good: bool) -> parts.Row:
    return parts.Row(what, f"{ours:.2f} s", f"{theirs:.2f} s", ours / theirs, goal, good)


def _pins(names: Iterable[str]) -> list[str]:
    """As lockfiles/ml185.txt pins them."""
    wanted = set(names)
    lines = (parts.ROOT / "lockfiles" / "ml185.txt").read_text().splitlines()
    pins = [line.split()[0] for line in lines if "==" in line and line.partition("==")[0] in wanted]
    if len(pins) != len(wanted):
        sys.exit(f"lockfiles/ml185.txt does not pin {sorted(wanted - {pin.partition('==')[0] for pin in pins})}")
    return pins


def _venv(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "train.py").write_text("print('trained')\n")
    subprocess.run([sys.executable, "-m", "venv", directory / ".venv"], check=True)


def _docker() -> str:
    """A client that builds through BuildKit: newer ones need a plugin for it that need not be there."""
    for client in ("docker", "/usr/bin/docker"):
        found = shutil.which(client)
        if found is None:
            continue
        env = {**os.environ, "DOCKER_BUILDKIT": "1"}
        tried = subprocess.run(
            [found, "build", "--quiet", "-"], input=b"FROM scratch\nLABEL tried=1\n", env=env, capture_output=True, check=False
        )
        if tried.returncode == 0:
            subprocess.run([found, "image", "rm", tried.stdout.decode().strip()], capture_output=True, check=False)
            return found
    sys.exit("no docker client here builds through BuildKit: start the engine, or install docker.io")


def written(rows: Sequence[parts.Row]) -> None:
    """Put the table into benchmarks/README.md."""
    path = parts.ROOT / "benchmarks" / "README.md"
    text = path.read_text()
    facts = parts.machine()
    where = f"{facts['os']}, {facts['cores']} cores of {facts['cpu']}, Python {facts['python']}"
    said = f"{facts['date']}, {where}, load {float(facts['load at start']):.1f} at the end."
    table = "\n".join([START, said, "", parts.HEAD, *(row.line for row in rows), END])
    before, start, rest = text.partition(START)
    if not start:
        sys.exit(f"benchmarks/README.md has no line {START}")
    path.write_text(before + table + rest.partition(END)[2])


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s in all")
