"""The search for secrets, measured: how many planted ones are found, what it finds in real public projects, and how fast.

`python benchmarks/secretscan.py [NAME...]` downloads the source distributions of the projects with pip (from whatever index
pip is configured for) and prints every finding, for a person to judge, and a JSON summary as the last line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from repro_env.environment.secrets import scanner
from repro_env.io.files import Found, chunks_of, walk
from tests.secrets import habits
from tests.secrets.planted import Mint

PROJECTS = (
    "accelerate",
    "boto3",
    "celery",
    "datasets",
    "django",
    "fastapi",
    "flask",
    "hydra-core",
    "keras",
    "lightning",
    "mlflow",
    "optuna",
    "requests",
    "scrapy",
    "transformers",
)


def search(root: Path, files: Iterable[Found]) -> list[scanner.Secret]:
    return list(scanner.in_files(files, lambda file: chunks_of(root / file.path)))


def planted(directory: Path) -> tuple[int, list[str]]:
    """How many were planted, and the paths of those that are missed."""
    made = habits.planted(Mint(5))
    for path, data in made.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    found = {secret.path for secret in search(directory, walk(directory))}
    return len(made), sorted(path for path in made if not any(path == one or path.startswith(f"{one}/") for one in found))


def project(name: str, directory: Path) -> tuple[list[scanner.Secret], int, float]:
    """The findings in a project's source distribution, its bytes, and the seconds of processor time that it took."""
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", ":all:", "--dest", str(directory), name]
    subprocess.run(pip, check=True)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(directory / "src", filter="data")
    found = list(walk(directory / "src"))
    start = time.process_time()
    hits = search(directory / "src", found)
    return hits, sum(one.size for one in found), time.process_time() - start


def main(names: list[str]) -> None:
    size, seconds, files = 0, 0.0, {}
    with tempfile.TemporaryDirectory() as scratch:
        count, missed = planted(Path(scratch, "planted"))
        print(f"{count} planted, {len(missed)} missed: {', '.join(missed)}")
        for name in names or PROJECTS:
            directory = Path(scratch, name)
            directory.mkdir()
            hits, read, spent = project(name, directory)
            size, seconds = size + read, seconds + spent
            files[name] = len({one.path for one in hits})
            print(f"{name}: {files[name]} files with findings")
            for one in hits:
                print(f"  {one.path}, line {one.line}: {one.kind}")
    summary = {"planted": count, "missed": len(missed), "files": files, "bytes": size, "seconds": round(seconds, 2)}
    print(json.dumps(summary))


if __name__ == "__main__":
    main(sys.argv[1:])
