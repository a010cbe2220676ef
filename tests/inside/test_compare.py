"""Looking into files of tensors: the readers against the libraries that write them, and against files that lie."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from repro_env.inside.tensors import pairs
from repro_env.verify.answers import answers
from tests.fakes.looks import changes
from tests.fakes.tensors import Tensor, checkpoint, npy, npz, safetensors
from tests.parts import need
from tests.verify.sides import INSIDE

LIBRARIES = """
import json, os, pickle, random, sys
sys.path.insert(0, sys.argv[1])
import numpy, torch
from tensors.files import read as read_file
from tensors.leaves import Flat, shown
from tensors.pairs import compare
os.chdir(sys.argv[2])
from safetensors.torch import save_file
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(net.parameters())
net(torch.randn(2, 3, 8, 8)).sum().backward(); optimizer.step()
plain = {str(kind).split(".")[1]: torch.tensor([[1, 0, 1], [1, 1, 0]]).to(kind) for kind in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)}
views = {"turned": torch.arange(12.0).reshape(3, 4).T, "part": torch.arange(12.0)[3:9:2], "wide": torch.ones(1, 3).expand(2, 3),
         "empty": torch.empty(0, 3), "one": torch.tensor(5.0), "complex": torch.complex(torch.ones(2, 3), torch.ones(2, 3)).T}
state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "plain": plain, "views": views,
         "random": torch.get_rng_state(), "numpy": numpy.random.get_state(), "python": random.getstate(),
         "array": numpy.arange(6.0).reshape(2, 3), "turned": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
         "parameter": torch.nn.Parameter(torch.ones(2)), "text": "a", "number": 1.5, "set": {"a", "b"}, "size": torch.Size([1])}
torch.save(state, "l.pt")
said = {}

# Every tensor has the bytes that torch itself gives.
read, values = ({shown(place): one for place, one in some.items()} for some in (lambda found: (found.tensors, found.values))(Flat(read_file("l.pt"))))
def bytes_of(one):
    one = one.detach().contiguous().reshape(-1)
    return one.view(torch.uint8).numpy().tobytes() if one.numel() else b""
expected = {f"{part}.{name}": one for part in ("net", "plain", "views") for name, one in state[part].items()}
said["wrong"] = [name for name, one in expected.items() if bytes(read[name].data) != bytes_of(one)]
said["shapes"] = [name for name, one in expected.items() if read[name].shape != tuple(one.shape)]
said["arrays"] = [bytes(read["array"].data) == state["array"].tobytes(), bytes(read["turned"].data) == state["turned"].tobytes()]
said["names"] = sorted(name for name in read if not name.startswith(("net", "plain", "views", "optimizer")))
said["values"] = [values["optimizer.param_groups.0.lr"], values["text"], values["number"], values["set"]]

# One unit in the last place, in each float kind and layout, by both ways of computing.
found = {}
for name in ["net.0.weight", "net.1.running_mean", *(f"plain.{kind}" for kind in plain), "views.turned", "views.complex"]:
    part, _, key = name.partition(".")
    other = {**state, part: {**state[part], key: state[part][key].clone()}}
    flat = other[part][key]
    place = tuple(size - 1 for size in flat.shape)
    if flat.dtype.is_floating_point:
        raw = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[flat.element_size()]
        flat.view(raw)[place] += 1
    elif flat.dtype.is_complex:
        flat[place] += 0.5
    else:
        flat[place] = 1 - flat[place] if flat.dtype != torch.bool else ~flat[place]
    torch.save(other, "r.pt")
    both = [compare("l.pt", "r.pt", module) for module in (numpy, None)]
    (one,), (same,) = (answer["different"] for answer in both)
    found[name] = [one["name"], one["at"], one["differing"], one["ulp"], one["absolute"], list(place)]
    if {k: v for k, v in one.items() if k not in ("left2", "diff2")} != {k: v for k, v in same.items() if k not in ("left2", "diff2")}:
        found[name].append("two ways, two answers")
said["found"] = found

# Noise in large tensors: sums over several pieces agree.
big = {"w": torch.randn(3, 700001), "b": torch.randn(9)}
noisy = {name: one * (1 + 1e-6 * torch.randn_like(one)) for name, one in big.items()}
save_file(big, "l.safetensors"); save_file(noisy, "r.safetensors")
answer = compare("l.safetensors", "r.safetensors", numpy)
relative = [((big[n] - noisy[n]).double().norm() / big[n].double().norm()).item() for n in ("b", "w")]
said["relative"] = [abs((one["diff2"] / one["left2"]) ** 0.5 / want - 1) < 1e-6 for one, want in zip(sorted(answer["different"], key=lambda one: one["name"]), relative)]

torch.save(net.state_dict(), "old.pt", _use_new_zipfile_serialization=False)
torch.save(net.state_dict(), "new.pt")
older = compare("new.pt", "old.pt", numpy)
said["older"] = [older["problem"], older["unequal"], older["gone"], older["tensors"]]
torch.jit.script(torch.nn.Linear(2, 2)).save("script.pt")
said["script"] = compare("script.pt", "script.pt", numpy)["problem"]
pickle.dump({"a": numpy.float32(3), "b": torch.ones(2).numpy()}, open("p.pkl", "wb"))
pickle.dump({"a": numpy.float32(4), "b": torch.ones(2).numpy()}, open("q.pkl", "wb"))
other = compare("p.pkl", "q.pkl", numpy)
said["pickles"] = [other["problem"], other["unequal"], other["other"]]

# What is no element is a value as well.
def rows(make):
    found = []
    for one in (False, True):
        os.makedirs(str(one), exist_ok=True)
        torch.manual_seed(0)
        torch.save(make(one), "%s/m.pt" % one)
    answer = compare("False/m.pt", "True/m.pt", numpy)
    assert not answer["problem"] and not answer["unequal"], answer
    return answer["others"]
def network(one):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net[1].weight.data.copy_(net[0].weight.data)
    return net
def tied(one):
    net = network(one)
    if one:
        net[1].weight = net[0].weight
    return net.state_dict()
def frozen(one):
    net = network(one)
    net[0].bias.requires_grad_(not one)
    return net
def noted(one):
    tensor = torch.nn.Parameter(torch.ones(2))
    if one:
        tensor.note = "a"
    return tensor
images = torch.arange(48.0).reshape(2, 3, 2, 4)
said["facts"] = [
    rows(tied), rows(frozen), rows(noted),
    rows(lambda one: {"w": torch.nn.Parameter(torch.ones(2), requires_grad=False) if one else torch.ones(2)}),
    rows(lambda one: {"w": images.to(memory_format=torch.channels_last) if one else images}),
    rows(lambda one: {"w": torch.ones(2).numpy()[0] if one else torch.ones(2).numpy()[:1].reshape(())}),
]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the readers say of files that the real libraries wrote, in one process."""
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(python, "no environment with torch, NumPy and safetensors: `make trainers`, and name it in REPRO_ENV_TEST_TRAINERS")
    place = tmp_path_factory.mktemp("files")
    ended = subprocess.run(
        [python, "-W", "ignore", "-c", LIBRARIES, str(INSIDE.parent), str(place)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


def test_every_tensor_is_read_as_torch_and_numpy_have_it(said: Any) -> None:
    assert (said["wrong"], said["shapes"], said["arrays"]) == ([], [], [True, True])
    assert said["names"] == ["array", "numpy.1", "parameter", "random", "turned"]
    assert said["values"] == [0.001, "a", 1.5, "{a, b}"]


def test_the_least_difference_is_found_in_every_kind(said: Any) -> None:
    for name, (found, at, differing, ulp, absolute, place, *more) in said["found"].items():
        assert (found, at, differing, more) == (name, place, 1, [])
        kind = name.rpartition(".")[2]
        if "int" in kind or kind == "bool":
            assert (ulp, absolute) == (-1, 1.0), name
        elif "complex" not in kind:
            assert ulp == 1, name
            assert 0 < absolute < 0.3, name


def test_sums_over_pieces_are_right(said: Any) -> None:
    assert said["relative"] == [True, True]


def test_older_formats_scripts_and_pickles(said: Any) -> None:
    assert said["older"] == ["", 0, 0, 7]
    assert said["script"] == ""
    assert said["pickles"] == ["", 1, 0]


def test_what_torch_keeps_beside_the_elements_is_compared(said: Any) -> None:
    assert said["facts"] == [
        [["1.weight (storage)", None, "shares its storage with 0.weight"]],
        [["_modules.0._parameters.bias (requires_grad)", "True", "False"]],
        [["(state).note", None, "a"]],
        [["w (class)", "torch.Tensor", "torch.nn.parameter.Parameter"]],
        [["w (strides)", None, "(24, 1, 12, 3)"]],
        [["w (class)", None, "numpy scalar"]],
    ]


class Bomb:
    """Its pickle asks whoever loads it to run a command."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __reduce__(self) -> Any:
        return os.system, (self.word,)


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "l.pkl").write_bytes(pickle.dumps({"w": 1, "evil": Bomb(f"touch {mark}")}))
    (tmp_path / "r.pkl").write_bytes(pickle.dumps({"w": 2, "evil": Bomb(f"touch {mark}x")}))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", (tmp_path / "l.pkl").read_bytes())
    (tmp_path / "l.pt").write_bytes(made.getvalue())
    answer = pairs.compare(str(tmp_path / "l.pkl"), str(tmp_path / "r.pkl"), None)
    assert answer["problem"] == ""
    assert [name for name, *_ in answer["others"]] == ["w", "evil"]
    assert pairs.compare(str(tmp_path / "l.pt"), str(tmp_path / "l.pt"), None)["problem"] == ""
    assert not mark.exists()


def endless() -> bytes:
    """A list that holds itself."""
    one: list[Any] = []
    one.append(one)
    return pickle.dumps(one)


def deep() -> bytes:
    return b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."


BAD = {
    "empty.safetensors": b"",
    "short.safetensors": b"\xff" * 7,
    "long.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
    "outside.safetensors": safetensors({"a": Tensor([1, 2])})[:-4],
    "list.safetensors": struct.pack("<Q", 2) + b"[]",
    "deep.safetensors": struct.pack("<Q", 60000) + b"[" * 60000,
    "cut.npy": npy(Tensor([1, 2]))[:-1],
    "code.npy": b"\x93NUMPY\x01\x00\x20\x00" + b"__import__('os').system('false')".ljust(32),
    "negative.npy": npy(Tensor([1, 2])).replace(b"(2,)", b"(-2,)"),
    "cut.npz": npz({"a": Tensor([1, 2])})[:-40],
    "cut.pt": checkpoint({"a": Tensor([1, 2])})[:200],
    "none.pt": b"",
    "text.pt": b"hello",
    "deep.pkl": deep(),
    "cut.pkl": pickle.dumps([1, 2, 3])[:-3],
    "strange.pkl": b"\x80\x04\x8c\x01a\x8c\x01b\x93)\x81}b0.",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(BAD[name])
    good = tmp_path / f"good{Path(name).suffix}"
    good.write_bytes(npy(Tensor([1])))
    for pair in ((tmp_path / name, good), (tmp_path / name, tmp_path / name)):
        answer = pairs.compare(str(pair[0]), str(pair[1]), None)
        assert answer["problem"], answer
        assert len(answer["problem"]) <= 500
        json.dumps(answer)


def test_what_holds_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "l.pkl").write_bytes(endless())
    assert pairs.compare(str(tmp_path / "l.pkl"), str(tmp_path / "l.pkl"), None)["problem"] == ""


def test_a_storage_cannot_be_left(tmp_path: Path) -> None:
    """A tensor that says it is larger than what is there."""
    data = checkpoint({"a": Tensor([1, 2, 3, 4], (2, 2))})
    lying = data.replace(b"K\x02K\x02", b"K\x02K\x7f")
    assert lying != data
    (tmp_path / "l.pt").write_bytes(lying)
    assert "larger than its storage" in pairs.compare(str(tmp_path / "l.pt"), str(tmp_path / "l.pt"), None)["problem"]


def test_many_differences_are_counted_and_the_worst_named(tmp_path: Path) -> None:
    state = {f"t{number}": Tensor([1.0, 2.0]) for number in range(150)}
    other = {name: one.next(0) for name, one in state.items()} | {"t149": Tensor([9.0, 2.0])}
    (tmp_path / "l.safetensors").write_bytes(safetensors(state))
    (tmp_path / "r.safetensors").write_bytes(safetensors(other))
    answer = pairs.compare(str(tmp_path / "l.safetensors"), str(tmp_path / "r.safetensors"), None)
    assert (answer["unequal"], len(answer["different"]), answer["far"]) == (150, 100, 1)
    assert answer["different"][-1]["name"] == "t149"


def test_it_is_a_program_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "l.npy").write_bytes(npy(Tensor([1, 2])))
    (tmp_path / "r.npy").write_bytes(npy(Tensor([1, 3])))
    (tmp_path / "wanted").write_text(json.dumps([[str(tmp_path / "l.npy"), str(tmp_path / "r.npy")]]))
    subprocess.run([sys.executable, "-I", str(INSIDE), tmp_path / "wanted", tmp_path / "out"], check=True)
    (answer,) = json.loads((tmp_path / "out").read_text())
    assert answer["different"][0]["at"] == [1]
    for path in (INSIDE, *(INSIDE.parent / "tensors").iterdir()):
        if path.suffix == ".py":
            ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("kind", ["safetensors", "npy", "npz", "pt"])
def test_no_flipped_byte_of_a_tensor_is_overlooked_and_none_breaks_the_answer(kind: str, tmp_path: Path) -> None:
    state = {"a": Tensor([1.5, -2.25, 3.0]), "b": Tensor([7, 8], dtype="I64")}
    make: Any = {"safetensors": safetensors, "npz": npz, "pt": checkpoint, "npy": lambda some: npy(some["a"])}[kind]
    data = make(state)
    left, right = tmp_path / f"l.{kind}", tmp_path / f"r.{kind}"
    left.write_bytes(data)
    parts = [state["a"].data] if kind == "npy" else [one.data for one in state.values()]
    inside = {at for part in parts for at in range(data.index(part), data.index(part) + len(part))}
    for at in range(0, len(data), 1 if len(data) < 400 else 3):
        for place in {at, *(one for one in inside if at <= one < at + 3)}:
            right.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
            (answer,) = answers(json.dumps([pairs.compare(str(left), str(right), None)]).encode(), 1)
            assert "gave no answer" not in answer.problem, place
            if place in inside:
                assert changes(answer), place
