from __future__ import annotations

import random
from pathlib import Path

import pytest

from repro_env.runs.records import parameters
from repro_env.sandbox import outputs
from repro_env.schema import codec


def collect(directory: Path, files: dict[str, str]) -> parameters.Collected:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return parameters.collect(directory, outputs.collect(directory).outputs)


def values(directory: Path, text: str, name: str = ".hydra/config.yaml") -> dict[str, str]:
    found = collect(directory, {name: text})
    assert found.unparsed == ()
    return {parameter.name: parameter.value for parameter in found.parameters}


def test_values_stay_as_they_are_written(tmp_path: Path) -> None:
    text = """
optimizer:
  lr: 1e-3
  betas: [0.9, 0.999]
  nesterov: no
  name: 'Adam W'
data:
- path: a
- path: b
empty: {}
none: null
tilde: ~
reference: ${optimizer.lr}
"""
    assert values(tmp_path, text) == {
        "optimizer.lr": "1e-3",
        "optimizer.betas": "[0.9, 0.999]",
        "optimizer.nesterov": "no",
        "optimizer.name": "Adam W",
        "data.0.path": "a",
        "data.1.path": "b",
        "empty": "{}",
        "none": "null",
        "tilde": "~",
        "reference": "${optimizer.lr}",
    }


def test_yaml_tags_create_no_objects(tmp_path: Path) -> None:
    """Lightning writes tuples and enums with Python tags."""
    marker = tmp_path / "made"
    text = f"""
kernel: !!python/tuple [3, 3]
kind: !!python/object/apply:my.Enum [fast]
evil: !!python/object/apply:os.system ["touch {marker}"]
"""
    found = values(tmp_path, text, "lightning_logs/version_0/hparams.yaml")
    assert (found["kernel"], found["kind"]) == ("[3, 3]", "[fast]")
    assert not marker.exists()


def test_secrets_are_redacted_by_name_and_by_value(tmp_path: Path) -> None:
    found = values(tmp_path, "wandb: {api_key: abcdefgh12345678}\nhub: hf_" + "aB3" * 12 + "\nmax_tokens: 512\n")
    assert found == {"wandb.api_key": "<redacted>", "hub": "<redacted>", "max_tokens": "512"}


def test_only_configurations_are_read(tmp_path: Path) -> None:
    found = collect(tmp_path, {"a/config.yaml": "x: 1", "a/data.yaml": "x: 2", "hydra.yaml": "x: 3"})
    assert [(parameter.file, parameter.value) for parameter in found.parameters] == [("a/config.yaml", "1")]


LAUGHS = "\n".join(["a0: &a0 [x, {y: z}]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 5000, "nested too deeply"),
        ("a: &a [*a, {b: c}]", "not valid YAML"),
        (LAUGHS, "more than"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("a: [", "not valid YAML"),
        ("a: *b", "not valid YAML"),
        ("- 1\n", "it is not a mapping"),
        ("", "it is not a mapping"),
        ("\n".join(f"k{n}: 1" for n in range(parameters.PARAMETERS + 1)), "more than 2000 values"),
        ("x" * (parameters.LARGEST + 1), "bytes"),
        ("a: \x00", "not valid YAML"),
        ("k" * 600 + ": 1", "characters"),
    ],
)
def test_hostile_configurations_are_reported(tmp_path: Path, text: str, why: str) -> None:
    found = collect(tmp_path, {"config.yaml": text})
    assert found.parameters == ()
    assert why in found.unparsed[0]
    assert found.unparsed[0].startswith("config.yaml (")


def test_random_bytes_raise_no_error(tmp_path: Path) -> None:
    generator = random.Random(7)
    good = b"a: &x {b: [1, 2], c: !!python/tuple [3]}\n<<: *x\nd: '${a.b}'\n? [k]\n: v\n"
    for _ in range(200):
        data = bytearray(good)
        for _ in range(4):
            data[generator.randrange(len(data))] = generator.choice(b"\x00\xff:{}[]&*!|>'\"%@` \n\t-?<")
        (tmp_path / "config.yaml").write_bytes(data)
        codec.canonical(parameters.collect(tmp_path, outputs.collect(tmp_path).outputs))
