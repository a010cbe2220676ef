"""The digits and torch examples: the environment in the image is the captured one, and trainings write the same bytes there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts

FACTS = Path(__file__).with_name("facts.py")


def trained(project: parts.Project, to: Path, *options: str, script: tuple[str, ...] = ("train.py",)) -> dict[str, str]:
    project.run("exec", *options, *script)
    project.run("runs", "get", "latest", "--to", to)
    shutil.rmtree(project.directory / "outputs", ignore_errors=True)  # on the host a script writes where it stands
    answer = parts.digests(to)
    assert answer, "the training wrote nothing"
    return answer


def both(project: parts.Project) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts on the host and inside."""
    (project.directory / "facts.py").write_text(FACTS.read_text())
    plain = subprocess.run(
        [project.python, "facts.py"],
        cwd=project.directory,
        env=parts.environ(project.store),
        capture_output=True,
        text=True,
        check=True,
    )
    inside = project.run("exec", "facts.py").out
    return json.loads(plain.stdout), json.loads(inside)


def test_the_environment_is_the_captured_one(digits: parts.Project) -> None:
    """Version, paths, C library, OpenSSL, locale, certificates, extension modules, scripts, and every file."""
    host, inside = both(digits)
    assert len(host["files"]) > 3000
    assert host["certificates"] > 0
    different = {name for name in host if host[name] != inside[name]}
    assert not different, {name: (str(host[name])[:2000], str(inside[name])[:2000]) for name in different}


def test_digits_are_trained_equally_on_the_host_and_in_the_image_and_the_record_says_what_happened(
    digits: parts.Project, tmp_path: Path
) -> None:
    host = trained(digits, tmp_path / "host", "--runner", "host")
    assert trained(digits, tmp_path / "image") == host
    assert {Path(path).name for path in host} >= {"metrics.json", "predictions.csv", "forest.joblib", "network.joblib"}
    record = json.loads(digits.run("runs", "show", "--json").out)
    text = json.dumps(record)
    spec = json.loads((digits.directory / "repro" / "spec.json").read_text())
    assert spec["expected"]["image_id"] in text
    assert "outputs/metrics.json" in text
    assert "numpy" in text, "the unseeded that were filled are named"
    listed = json.loads(digits.run("runs", "list", "--json").out)
    assert listed["runs"][0]["id"] == record["start"]["id"]
    copy = tmp_path / "forest.joblib"
    copy.write_bytes((digits.directory / "runs/latest/files/outputs/forest.joblib").read_bytes())
    answer = json.loads(digits.run("lineage", copy, "--json").out)
    assert record["start"]["id"] in [origin["run"]["id"] for origin in answer["origins"]]
    assert answer["run"]["start"]["image"] == spec["expected"]["image_id"]


@pytest.mark.soak
def test_digits_are_trained_equally_in_docker(digits: parts.Project, tmp_path: Path) -> None:
    with parts.in_docker(digits):
        assert trained(digits, tmp_path / "docker", "--runner", "docker") == trained(digits, tmp_path / "embedded")


@pytest.mark.soak  # as `test_same_numbers` says of two scripts
def test_another_seed_gives_another_training(digits: parts.Project, tmp_path: Path) -> None:
    """Else the two above would be equal for a reason that has nothing to do with seeds."""
    first, two = trained(digits, tmp_path / "one"), trained(digits, tmp_path / "two", "--seed", "8")
    different = {Path(path).name for path in first if first[path] != two[path]}
    assert different >= {"metrics.json", "forest.joblib", "network.joblib"}


@pytest.mark.soak
def test_without_repro_env_each_training_differs(digits: parts.Project, tmp_path: Path) -> None:
    """The script really seeds nothing."""
    results = []
    for name in ("one", "two"):
        words = [str(digits.python), "train.py", "--out", str(tmp_path / name)]
        subprocess.run(words, cwd=digits.directory, env=parts.environ(digits.store), check=True, capture_output=True)
        results.append(parts.digests(tmp_path / name))
    assert results[0] != results[1]


def test_a_run_that_fails_has_a_record_and_its_files(digits: parts.Project) -> None:
    code = "open('before.txt', 'w').write('x'); raise SystemExit(3)"
    digits.run("exec", "python", "-c", code, code=3)
    shown = digits.run("runs", "show", "latest", "--json").out
    assert "before.txt" in shown
    assert '"exit_code": 3' in shown or '"exit_code":3' in shown


@pytest.mark.slow
def test_torch_trains_equally_on_the_host_and_in_the_image(torch: parts.Project, tmp_path: Path) -> None:
    """Loader workers, dropout, batch norm and a scheduler; weights and the whole checkpoint file."""
    host = trained(torch, tmp_path / "host", "--runner", "host")
    assert {Path(path).name for path in host} == {"weights.pt", "checkpoint.pt"}
    assert trained(torch, tmp_path / "image") == host


@pytest.mark.soak
def test_torch_trains_differently_with_another_seed(torch: parts.Project, tmp_path: Path) -> None:
    first = trained(torch, tmp_path / "one")
    two = trained(torch, tmp_path / "two", "--seed", "5")
    assert all(first[path] != two[path] for path in first)


@pytest.mark.soak
def test_torch_and_matplotlib_work_inside(torch: parts.Project) -> None:
    """As the uid that runs this: the user's name, fonts and caches, the compiler's import, a process group over gloo."""
    code = (
        "import getpass; getpass.getuser()\n"
        "import matplotlib; matplotlib.use('Agg')\n"
        "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.title('x'); plt.savefig('plot.png')\n"
        "import torch, torch._inductor, torch._inductor.compile_fx\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method='tcp://localhost:29511', rank=0, world_size=1)\n"
        "x = torch.ones(3); dist.all_reduce(x); print(x.sum().item()); dist.destroy_process_group()"
    )
    assert torch.python_says(code) == "3.0\n"


@pytest.mark.soak
def test_torchrun_is_found(torch: parts.Project) -> None:
    (torch.directory / "ranks.py").write_text(
        "import os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "os.write(1, f'rank {dist.get_rank()} of {dist.get_world_size()}\\n'.encode())  # at once: two ranks share the stream\n"
        "dist.destroy_process_group()\n"
    )
    output = torch.run("exec", "torchrun", "--standalone", "--nproc-per-node", "2", "ranks.py").out
    assert sorted(output.split("\n")[:2]) == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.soak
def test_every_file_of_a_large_environment_is_rebuilt(torch: parts.Project) -> None:
    host, inside = both(torch)
    different = {name for name in host if host[name] != inside[name]}
    assert not different, {name: (str(host[name])[:2000], str(inside[name])[:2000]) for name in different}
