"""The readers of tensor files against the libraries that write them, and against damaged and malicious files."""

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

from repro_env.compare.outputs.tensors import answers
from repro_env.guest.tensors import pairs
from tests.compare.outputs.sides import COMPARE
from tests.fakes.looks import changes
from tests.fakes.tensors import Tensor, checkpoint, npy, npz, safetensors
from tests.parts import need

LIBRARIES = """
import json, os, pickle, random, sys
sys.path.insert(0, sys.argv[1])
import numpy, torch
from tensors.files import read as read_file
from tensors.leaves import Flat, name_of
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
result = {}

# Every tensor has the same bytes as in torch.
read, values = ({name_of(place): value for place, value in part.items()} for part in (lambda flat: (flat.tensors, flat.values))(Flat(read_file("l.pt"))))
def bytes_of(tensor):
    tensor = tensor.detach().contiguous().reshape(-1)
    return tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
expected = {f"{part}.{name}": tensor for part in ("net", "plain", "views") for name, tensor in state[part].items()}
result["wrong"] = [name for name, tensor in expected.items() if bytes(read[name].data) != bytes_of(tensor)]
result["shapes"] = [name for name, tensor in expected.items() if read[name].shape != tuple(tensor.shape)]
result["arrays"] = [bytes(read["array"].data) == state["array"].tobytes(), bytes(read["turned"].data) == state["turned"].tobytes()]
result["names"] = sorted(name for name in read if not name.startswith(("net", "plain", "views", "optimizer")))
result["values"] = [values["optimizer.param_groups.0.lr"], values["text"], values["number"], values["set"]]

# A difference of one unit in the last place, for each dtype and layout, with and without NumPy.
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
    (fast,), (plain_python,) = (answer["different"] for answer in both)
    found[name] = [fast[key] for key in ("name", "at", "differing", "ulp", "absolute")] + [list(place)]
    if any(fast[key] != plain_python[key] for key in fast if key not in ("left2", "diff2")):
        found[name].append("the answers with and without NumPy differ")
result["found"] = found

# Noise in large tensors: sums over several pieces agree.
big = {"w": torch.randn(3, 700001), "b": torch.randn(9)}
noisy = {name: tensor * (1 + 1e-6 * torch.randn_like(tensor)) for name, tensor in big.items()}
save_file(big, "l.safetensors"); save_file(noisy, "r.safetensors")
answer = compare("l.safetensors", "r.safetensors", numpy)
relative = [((big[n] - noisy[n]).double().norm() / big[n].double().norm()).item() for n in ("b", "w")]
result["relative"] = [abs((found["diff2"] / found["left2"]) ** 0.5 / want - 1) < 1e-6 for found, want in zip(sorted(answer["different"], key=lambda found: found["name"]), relative)]

torch.save(net.state_dict(), "old.pt", _use_new_zipfile_serialization=False)
torch.save(net.state_dict(), "new.pt")
older = compare("new.pt", "old.pt", numpy)
result["older"] = [older["problem"], older["unequal"], older["gone"], older["tensors"]]
torch.jit.script(torch.nn.Linear(2, 2)).save("script.pt")
result["script"] = compare("script.pt", "script.pt", numpy)["problem"]
pickle.dump({"a": numpy.float32(3), "b": torch.ones(2).numpy()}, open("p.pkl", "wb"))
pickle.dump({"a": numpy.float32(4), "b": torch.ones(2).numpy()}, open("q.pkl", "wb"))
other = compare("p.pkl", "q.pkl", numpy)
result["pickles"] = [other["problem"], other["unequal"], other["other"]]

# All properties except the elements of a tensor are values.
def rows(make):
    found = []
    for changed in (False, True):
        os.makedirs(str(changed), exist_ok=True)
        torch.manual_seed(0)
        torch.save(make(changed), "%s/m.pt" % changed)
    answer = compare("False/m.pt", "True/m.pt", numpy)
    assert not answer["problem"] and not answer["unequal"], answer
    return answer["others"]
def network(changed):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net[1].weight.data.copy_(net[0].weight.data)
    return net
def tied(changed):
    net = network(changed)
    if changed:
        net[1].weight = net[0].weight
    return net.state_dict()
def frozen(changed):
    net = network(changed)
    net[0].bias.requires_grad_(not changed)
    return net
def noted(changed):
    tensor = torch.nn.Parameter(torch.ones(2))
    if changed:
        tensor.note = "a"
    return tensor
images = torch.arange(48.0).reshape(2, 3, 2, 4)
result["facts"] = [
    rows(tied), rows(frozen), rows(noted),
    rows(lambda changed: {"w": torch.nn.Parameter(torch.ones(2), requires_grad=False) if changed else torch.ones(2)}),
    rows(lambda changed: {"w": images.to(memory_format=torch.channels_last) if changed else images}),
    rows(lambda changed: {"w": torch.ones(2).numpy()[0] if changed else torch.ones(2).numpy()[:1].reshape(())}),
]
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The answers about files that the real libraries wrote, from one process."""
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(python, "no environment with torch, NumPy and safetensors: `make trainers`, and name it in REPRO_ENV_TEST_TRAINERS")
    directory = tmp_path_factory.mktemp("files")
    done = subprocess.run(
        [python, "-W", "ignore", "-c", LIBRARIES, str(COMPARE.parent), str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_tensor_is_read_as_torch_and_numpy_read_it(answer: Any) -> None:
    assert (answer["wrong"], answer["shapes"], answer["arrays"]) == ([], [], [True, True])
    assert answer["names"] == ["array", "numpy.1", "parameter", "random", "turned"]
    assert answer["values"] == [0.001, "a", 1.5, "{'a', 'b'}"]


def test_a_difference_of_one_ulp_is_found_in_every_dtype(answer: Any) -> None:
    assert {"net.0.weight", "views.turned", "views.complex"} < set(answer["found"])
    for name, (found, at, differing, ulp, absolute, place, *more) in answer["found"].items():
        assert (found, at, differing, more) == (name, place, 1, [])
        kind = name.rpartition(".")[2]
        if "int" in kind or kind == "bool":
            assert (ulp, absolute) == (-1, 1.0), name
        elif "complex" not in kind:
            assert ulp == 1, name
            assert 0 < absolute < 0.3, name


def test_sums_over_several_pieces_are_right(answer: Any) -> None:
    assert answer["relative"] == [True, True]


def test_the_older_format_torchscript_and_pickles_are_read(answer: Any) -> None:
    assert answer["older"] == ["", 0, 0, 7]
    assert answer["script"] == ""
    assert answer["pickles"] == ["", 1, 0]


def test_properties_of_tensors_are_compared(answer: Any) -> None:
    assert answer["facts"] == [
        [["1.weight (storage)", None, "shares its storage with 0.weight"]],
        [["_modules.0._parameters.bias (requires_grad)", "True", "False"]],
        [["(state).note", None, "a"]],
        [["w (class)", "torch.Tensor", "torch.nn.parameter.Parameter"]],
        [["w (strides)", None, "(24, 1, 12, 3)"]],
        [["w (class)", None, "numpy scalar"]],
    ]


class Bomb:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __reduce__(self) -> Any:
        return os.system, (self.word,)


def test_no_function_in_a_pickle_is_called(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "l.pkl").write_bytes(pickle.dumps({"w": 1, "evil": Bomb(f"touch {marker}")}))
    (tmp_path / "r.pkl").write_bytes(pickle.dumps({"w": 2, "evil": Bomb(f"touch {marker}x")}))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", (tmp_path / "l.pkl").read_bytes())
    (tmp_path / "l.pt").write_bytes(buffer.getvalue())
    answer = pairs.compare(str(tmp_path / "l.pkl"), str(tmp_path / "r.pkl"), None)
    assert answer["problem"] == ""
    assert [name for name, *_ in answer["others"]] == ["w", "evil"]
    assert pairs.compare(str(tmp_path / "l.pt"), str(tmp_path / "l.pt"), None)["problem"] == ""
    assert not marker.exists()


def endless() -> bytes:
    """A list that contains itself."""
    items: list[Any] = []
    items.append(items)
    return pickle.dumps(items)


def deep() -> bytes:
    return b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."


DAMAGED = {
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


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_gives_a_problem(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    good = tmp_path / f"good{Path(name).suffix}"
    good.write_bytes(npy(Tensor([1])))
    for pair in ((tmp_path / name, good), (tmp_path / name, tmp_path / name)):
        answer = pairs.compare(str(pair[0]), str(pair[1]), None)
        assert answer["problem"], answer
        assert len(answer["problem"]) <= 500
        json.dumps(answer)


def test_a_list_that_contains_itself_is_read(tmp_path: Path) -> None:
    (tmp_path / "l.pkl").write_bytes(endless())
    assert pairs.compare(str(tmp_path / "l.pkl"), str(tmp_path / "l.pkl"), None)["problem"] == ""


def test_a_tensor_larger_than_its_storage_gives_a_problem(tmp_path: Path) -> None:
    data = checkpoint({"a": Tensor([1, 2, 3, 4], (2, 2))})
    larger = data.replace(b"K\x02K\x02", b"K\x02K\x7f")
    assert larger != data
    (tmp_path / "l.pt").write_bytes(larger)
    assert "larger than its storage" in pairs.compare(str(tmp_path / "l.pt"), str(tmp_path / "l.pt"), None)["problem"]


def test_many_differences_are_counted_and_the_largest_named(tmp_path: Path) -> None:
    state = {f"t{number}": Tensor([1.0, 2.0]) for number in range(150)}
    other = {name: tensor.next(0) for name, tensor in state.items()} | {"t149": Tensor([9.5, 2.0])}
    (tmp_path / "l.safetensors").write_bytes(safetensors(state))
    (tmp_path / "r.safetensors").write_bytes(safetensors(other))
    answer = pairs.compare(str(tmp_path / "l.safetensors"), str(tmp_path / "r.safetensors"), None)
    assert (answer["unequal"], len(answer["different"]), answer["far"]) == (150, 100, 1)
    assert answer["different"][-1]["name"] == "t149"


def test_compare_runs_as_a_script_with_syntax_of_python_3_8(tmp_path: Path) -> None:
    (tmp_path / "l.npy").write_bytes(npy(Tensor([1, 2])))
    (tmp_path / "r.npy").write_bytes(npy(Tensor([1, 3])))
    (tmp_path / "wanted").write_text(json.dumps([[str(tmp_path / "l.npy"), str(tmp_path / "r.npy")]]))
    subprocess.run([sys.executable, "-I", str(COMPARE), tmp_path / "wanted", tmp_path / "out"], check=True)
    (answer,) = json.loads((tmp_path / "out").read_text())
    assert answer["different"][0]["at"] == [1]
    for path in (COMPARE, *(COMPARE.parent / "tensors").iterdir()):
        if path.suffix == ".py":
            ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("kind", ["safetensors", "npy", "npz", "pt"])
def test_every_flipped_bit_in_a_tensor_is_found_and_every_other_gives_a_valid_answer(kind: str, tmp_path: Path) -> None:
    state = {"a": Tensor([1.5, -2.25, 3.0]), "b": Tensor([7, 8], dtype="I64")}
    make: Any = {"safetensors": safetensors, "npz": npz, "pt": checkpoint, "npy": lambda tensors: npy(tensors["a"])}[kind]
    data = make(state)
    left, right = tmp_path / f"l.{kind}", tmp_path / f"r.{kind}"
    left.write_bytes(data)
    parts = [state["a"].data] if kind == "npy" else [tensor.data for tensor in state.values()]
    inside = {at for part in parts for at in range(data.index(part), data.index(part) + len(part))}
    for at in range(0, len(data), 1 if len(data) < 400 else 3):
        for place in {at, *(byte for byte in inside if at <= byte < at + 3)}:
            right.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
            (answer,) = answers(json.dumps([pairs.compare(str(left), str(right), None)]).encode(), 1)
            assert "gave no answer" not in answer.problem, place
            if place in inside:
                assert changes(answer), place
