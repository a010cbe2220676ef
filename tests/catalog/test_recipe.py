from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from repro_env.catalog import outputs, recipe
from repro_env.model import codec
from repro_env.model.errors import UsageError


def parameters(folder: Path, files: dict[str, str]) -> recipe.Read:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return recipe.parameters(folder, outputs.collect(folder).outputs)


def values(folder: Path, text: str, name: str = ".hydra/config.yaml") -> dict[str, str]:
    found = parameters(folder, {name: text})
    assert found.unread == ()
    return {one.name: one.value for one in found.parameters}


def test_named_files_are_told_as_typed_and_folders_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "a.yaml").write_text("a")
    (tmp_path / "conf" / "model" / "b.yaml").write_text("b")
    (tmp_path / "conf" / "link").symlink_to("a.yaml")
    (tmp_path / "link.yaml").symlink_to("conf/a.yaml")
    found = recipe.files(["link.yaml", "conf/", "conf/a.yaml"], tmp_path)
    assert [one.path for one in found] == ["conf/a.yaml", "conf/model/b.yaml", "link.yaml"]
    assert found[0].sha256 == found[2].sha256 == "sha256:" + hashlib.sha256(b"a").hexdigest()


def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "round").symlink_to("round")
    for word in ("no.yaml", "empty", "round"):
        with pytest.raises(UsageError) as caught:
            recipe.files([word], tmp_path)
        assert f"--recipe {word}" in str(caught.value)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        recipe.files(["pipe"], tmp_path)


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
        "tilde": "null",
    }


def test_hydras_references_are_followed_and_its_resolvers_stay(tmp_path: Path) -> None:
    text = """
width: 64
model: {in: '${width}', out: '${.in}', up: {x: '${..in}'}, name: 'net-${width}-${now:%Y}', all: '${model}', far: '${.....a}'}
a: ${b}
b: ${a}
"""
    found = values(tmp_path, text)
    assert (found["model.in"], found["model.out"], found["model.up.x"]) == ("64", "64", "64")
    assert found["model.name"] == "net-64-${now:%Y}"
    assert (found["model.all"], found["model.far"]) == ("${model}", "${.....a}")
    assert values(tmp_path / "else", text, "config.yaml")["model.in"] == "${width}"


def test_tags_make_no_objects(tmp_path: Path) -> None:
    """Lightning writes tuples and enums with tags of Python."""
    marker = tmp_path / "made"
    text = f"""
kernel: !!python/tuple [3, 3]
kind: !!python/object/apply:my.Enum [fast]
evil: !!python/object/apply:os.system ["touch {marker}"]
"""
    found = values(tmp_path, text, "lightning_logs/version_0/hparams.yaml")
    assert (found["kernel"], found["kind"]) == ("[3, 3]", "[fast]")
    assert not marker.exists()


def test_merged_values_give_way_to_own_ones(tmp_path: Path) -> None:
    text = "base: &base {lr: 1, wd: 2}\nother: &other {lr: 3, mom: 4}\nrun: {lr: 5, <<: [*base, *other]}\nrun2: {<<: [*base, *other]}\n"
    found = values(tmp_path, text)
    assert (found["run.lr"], found["run.wd"], found["run.mom"], found["run2.lr"]) == ("5", "2", "4", "1")


def test_secrets_are_taken_out_by_their_name_too(tmp_path: Path) -> None:
    found = values(tmp_path, "wandb: {api_key: abcdefgh12345678}\nhub: hf_" + "aB3" * 12 + "\nmax_tokens: 512\n")
    assert found == {"wandb.api_key": "<redacted>", "hub": "<redacted>", "max_tokens": "512"}


def test_only_configurations_are_read(tmp_path: Path) -> None:
    found = parameters(tmp_path, {"a/config.yaml": "x: 1", "a/data.yaml": "x: 2", "hydra.yaml": "x: 3"})
    assert [(one.file, one.value) for one in found.parameters] == [("a/config.yaml", "1")]


LAUGHS = "\n".join(["a0: &a0 [x, {y: z}]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))])
MERGES = "\n".join(["a0: &a0 {y: z}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 5000, "nested too deep"),
        ("a: &a [*a, {b: c}]", "nested too deep"),
        (LAUGHS, "over"),
        (MERGES, "over"),
        ("a: 1\n---\nb: 2\n", "no YAML"),
        ("a: [", "no YAML"),
        ("a: *b", "no YAML"),
        ("- 1\n", "it is no mapping"),
        ("", "it is no mapping"),
        ("\n".join(f"k{n}: 1" for n in range(recipe.PARAMETERS + 1)), "over 2000 values"),
        ("x" * (recipe.LARGEST + 1), "bytes"),
        ("a: \x00", "no YAML"),
        ("k" * 600 + ": 1", "characters"),
    ],
)
def test_hostile_configurations_are_named(tmp_path: Path, text: str, why: str) -> None:
    found = parameters(tmp_path, {"config.yaml": text})
    assert found.parameters == ()
    assert why in found.unread[0]
    assert found.unread[0].startswith("config.yaml (")


def test_references_do_not_grow_without_end(tmp_path: Path) -> None:
    text = "a0: " + "x" * 50 + "\n" + "\n".join(f"a{n}: {f'${{a{n - 1}}}' * 30}" for n in range(1, 8))
    assert max(map(len, values(tmp_path, text).values())) < 5000


def test_any_bytes_give_an_answer(tmp_path: Path) -> None:
    generator = random.Random(7)
    good = b"a: &x {b: [1, 2], c: !!python/tuple [3]}\n<<: *x\nd: '${a.b}'\n? [k]\n: v\n"
    for _ in range(200):
        data = bytearray(good)
        for _ in range(4):
            data[generator.randrange(len(data))] = generator.choice(b"\x00\xff:{}[]&*!|>'\"%@` \n\t-?<")
        (tmp_path / "config.yaml").write_bytes(data)
        codec.canonical(recipe.parameters(tmp_path, outputs.collect(tmp_path).outputs))
