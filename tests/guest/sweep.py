"""Write random files of tensors, each twice and once with a change, and compare them: `python sweep.py INSIDE DIRECTORY SEED COUNT`.

Runs in an environment with torch, NumPy and safetensors. Prints a JSON list: for each pair the case, the expected difference
(computed with NumPy and torch only), and the answers of the reader with and without NumPy.
"""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import importlib
import json
import os
import pathlib
import pickle
import random
import sys
import warnings
from typing import Any

sys.path.insert(0, sys.argv[1])
import numpy
import torch
from safetensors.torch import save_file

compare = importlib.import_module("tensors.pairs").compare
joblib = importlib.import_module("joblib")

warnings.simplefilter("ignore")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
PAIRS = [torch.complex64, torch.complex128, torch.complex32]
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-310, 1e-42, 6e-8, 1e300, -1e300, 1.0]


@dataclasses.dataclass
class Config:
    lr: Any = 0.1
    more: Any = None


class Colour(enum.Enum):
    red = 1
    blue = 2


class Mine(torch.Tensor):  # type: ignore[misc]
    pass


class Frame(dict[Any, Any]):
    """A dict with attributes."""


class Builder:
    """An object built from a seed. With `change`, the leaf of this number differs."""

    def __init__(self, seed: int, change: int = -1) -> None:
        self.rng = random.Random(seed)
        self.change = change
        self.leaves = 0
        self.expected: dict[str, Any] = {}

    def changed(self) -> bool:
        self.leaves += 1
        return self.leaves - 1 == self.change

    def expect(self, **difference: Any) -> None:
        assert not self.expected
        self.expected = difference

    def bits(self, kind: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """Random elements, including NaN, infinities and subnormal numbers."""
        count = int(numpy.prod(shape, dtype=int))
        if kind == torch.bool:
            return torch.tensor([self.rng.random() < 0.5 for _ in range(count)], dtype=kind).reshape(shape)
        values = [self.rng.gauss(0, 1) if self.rng.random() < 0.9 else self.rng.choice(SPECIAL) for _ in range(count)]
        if kind in WHOLE:
            data = bytes(self.rng.getrandbits(8) for _ in range(count * kind.itemsize))
            return (
                torch.from_numpy(numpy.frombuffer(data, "u1").copy()).view(kind).reshape(shape)
                if count
                else torch.empty(shape, dtype=kind)
            )
        if kind in PAIRS:
            other = [self.rng.gauss(0, 1) for _ in range(count)]
            return (
                torch.complex(torch.tensor(values, dtype=torch.float64), torch.tensor(other, dtype=torch.float64))
                .to(kind)
                .reshape(shape)
            )
        if kind in SMALL:
            values = [abs(value) if value == value and abs(value) < 1e4 else 1.0 for value in values]
        return torch.tensor(values, dtype=torch.float64).to(kind).reshape(shape)

    def shape(self) -> tuple[int, ...]:
        return tuple(
            self.rng.choice([1, 2, 3, 5, 0] if self.rng.random() < 0.1 else [1, 2, 3, 4]) for _ in range(self.rng.randrange(4))
        )

    def tensor(self, *, plain: bool = False) -> torch.Tensor:
        rng = self.rng
        kind = rng.choice([*FLOATS, *FLOATS, *SMALL, *WHOLE, torch.bool, *([] if plain else PAIRS)])
        shape = self.shape()
        tensor = self.bits(kind, shape)
        layout = rng.randrange(8)
        index = tuple(rng.randrange(size) for size in shape) if tensor.numel() else None
        how, coin = rng.randrange(4), bool(rng.randrange(2))
        if self.changed():
            tensor = self.change_tensor(tensor, index, how)
        # The memory layout is chosen last, so that the changed element is an element of the view.
        if plain or kind in SMALL:
            return tensor.contiguous()
        if layout == 1 and tensor.dim() > 1:
            tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
        elif layout == 2:
            wide = torch.zeros((*tensor.shape, 3), dtype=tensor.dtype)
            wide[..., 1] = tensor
            tensor = wide[..., 1]
        elif layout == 3:
            storage = torch.cat([torch.zeros_like(tensor).reshape(-1), tensor.reshape(-1)])
            tensor = storage[tensor.numel() :].view(tensor.shape)
        elif layout == 4 and kind in FLOATS:
            tensor = torch.nn.Parameter(tensor, requires_grad=coin and tensor.is_floating_point())
        elif layout == 5 and tensor.dtype in (torch.complex64, torch.complex128):
            tensor = tensor.conj().resolve_conj().conj()
        elif layout == 7 and tensor.dim() == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        return tensor

    def change_tensor(self, tensor: torch.Tensor, index: tuple[int, ...] | None, how: int) -> torch.Tensor:
        kind = tensor.dtype
        if index is None or how == 3:
            if how % 2 and tensor.dim():
                self.expect(level="different", shape=True)
                return tensor.reshape(*tensor.shape, 1)
            self.expect(level="different", shape=True)
            return tensor.to(torch.int64 if kind != torch.int64 else torch.int32) if not kind.is_complex else tensor.real.clone()
        tensor = tensor.clone()
        if kind in PAIRS:
            if kind == torch.complex32:  # torch cannot assign to its real and imaginary parts
                raw = torch.view_as_real(tensor).clone()
                raw.view(torch.int16)[(*index, 0)] ^= 1
                self.expect(level="some", differing=1, at=list(index))
                return torch.view_as_complex(raw)
            real = torch.view_as_real(tensor)
            before = real[(*index, 1)].item()
            real[(*index, 1)] = torch.nextafter(real[(*index, 1)], torch.tensor(9.0, dtype=real.dtype))
            self.expect(level="some", differing=1, at=list(index), ulp=1, absolute=abs(real[(*index, 1)].item() - before))
            return tensor
        before = tensor[index].to(torch.float64).item() if kind != torch.bool else None
        if kind in FLOATS and before is not None and before == before and abs(before) < 1e30:
            steps = 1 + 7 * how
            value = tensor[index].clone()
            for _ in range(steps):
                value = torch.nextafter(value, torch.tensor(float("inf"), dtype=kind))
            tensor[index] = value
            after = value.to(torch.float64).item()
            self.expect(level="some", differing=1, at=list(index), ulp=steps, absolute=abs(after - before))
            return tensor
        if kind in SMALL:
            table = torch.arange(256, dtype=torch.uint8).view(kind).to(torch.float64)
            order = sorted({v for v in table.tolist() if v == v and abs(v) != float("inf")})
            number = order.index(before) if before in order else 0
            if before not in order or number == len(order) - 1:
                self.expect(level="some", differing=1)
                tensor.view(torch.uint8)[index] ^= 1
                return tensor
            tensor[index] = torch.tensor(order[number + 1], dtype=torch.float64).to(kind)
            self.expect(level="some", differing=1, at=list(index), ulp=1, absolute=order[number + 1] - before)
            return tensor
        if kind == torch.bool:
            tensor[index] = ~tensor[index]
            self.expect(level="different", differing=1, at=list(index), ulp=-1, absolute=1.0)
            return tensor
        if kind in WHOLE:
            then = int(tensor[index].item())
            now = then + 1 if then < torch.iinfo(kind).max else then - 1
            tensor[index] = torch.tensor(now, dtype=kind)
            self.expect(level="different", differing=1, at=list(index), ulp=-1, absolute=1.0)
            return tensor
        raw = tensor.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[kind.itemsize])
        raw[index] ^= 1  # changes the payload of a NaN, or the last place
        self.expect(level="some", differing=1, at=list(index))
        return tensor

    def array(self) -> Any:
        rng = self.rng
        kind = rng.choice(
            [
                "f8",
                "f4",
                "f2",
                "i8",
                "i4",
                "u2",
                "u1",
                "b1",
                "c16",
                "c8",
                ">f4",
                ">i8",
                ">c16",
                "M8[s]",
                "m8[D]",
                "S5",
                "U3",
                "O",
                "s",
                "V4",
            ]
        )
        shape = self.shape()
        count = int(numpy.prod(shape, dtype=int))
        dtype = numpy.dtype([("a", "<f4"), ("b", ">i2"), ("c", "S3")]) if kind == "s" else numpy.dtype(kind)
        if kind == "O":
            array = numpy.empty(count, object)
            array[:] = [rng.choice([1, 2.5, "a", None]) for _ in range(count)]
        elif kind == "U3":
            array = numpy.array(["".join(rng.choice("abc") for _ in range(3)) for _ in range(count)], dtype)
        elif kind == "b1":
            array = numpy.array([rng.random() < 0.5 for _ in range(count)], dtype)
        else:
            array = numpy.frombuffer(bytes(rng.getrandbits(8) for _ in range(count * dtype.itemsize)), dtype).copy()
        array = array.reshape(shape)
        layout, index = rng.randrange(5), tuple(rng.randrange(size) for size in shape) if count else None
        if self.changed():
            if index is None:
                array = numpy.zeros((*shape, 2), dtype)
                self.expect(level="different")
            elif kind == "O":
                array[index] = "b"
                self.expect(level="different")
            elif kind == "U3":
                array[index] = "zzz"
                self.expect(level="different")
            elif kind == "b1":
                array[index] = not array[index]
                self.expect(level="different", differing=1, at=list(index), absolute=1.0)
            elif kind == "f4" and numpy.isfinite(array[index]) and abs(array[index]) < 1e38:
                before = array[index]
                array[index] = numpy.nextafter(array[index], numpy.float32(numpy.inf))
                self.expect(level="some", differing=1, at=list(index), ulp=1, absolute=float(array[index]) - float(before))
            else:
                flat = array.copy()
                raw = flat.reshape(-1).view("u1").reshape(count, -1)
                raw[numpy.ravel_multi_index(index, shape) if shape else 0, 0] ^= 1
                array = flat.reshape(shape)
                self.expect(
                    level="some", **({"at": list(index)} if kind in ("f8", "f2", "i8", "i4", "u2", "u1", ">f4", ">i8") else {})
                )
        if layout == 1 and array.ndim:
            array = numpy.asfortranarray(array)
        elif layout == 2 and array.ndim:
            array = numpy.ascontiguousarray(array[::-1])[::-1]
        elif layout == 3 and array.ndim > 1:
            array = numpy.ascontiguousarray(array.T).T
        elif layout == 4 and not shape and kind in ("f8", "f4", "i8", "u1", "M8[s]"):
            return array[()]
        return array

    def value(self) -> Any:
        rng = self.rng
        which = rng.randrange(16)
        number = rng.randrange(100)
        change = self.changed()
        if change:
            self.expect(level="different")
        if which == 0:
            return number + change
        if which == 1:
            return number + 0.5 + change
        if which == 2:
            return f"word {number} {'other' * change}"
        if which == 3:
            return "None" if change else None
        if which == 4:
            return str(number) if change else number
        if which == 5:
            return float(number) if change else number
        if which == 6:
            return bytes([number, change])
        if which == 7:
            return {number, "a", (1, "b" if change else "c")}
        if which == 8:
            return frozenset([frozenset([number + change])])
        if which == 9:
            return Config(lr=number, more=(1, {"deep": change}))
        if which == 10:
            return {Colour.red: Colour.blue if change else Colour.red}
        if which == 11:
            return {Colour.red if change else Colour.blue: number}
        if which == 12:
            return decimal.Decimal(number) + change
        if which == 13:
            return {decimal.Decimal(number + change), 5}
        if which == 14:
            return {numpy.int64(number + change): 1, numpy.int64(-1): 2}
        return "x" * 6000 + ("b" if change else "a") + "y" * 6000

    def key(self, number: int) -> Any:
        rng = self.rng
        which = rng.randrange(12)
        change = rng.random() < 0.3 and self.changed()
        if change:
            self.expect(level="different")
        if which == 0:
            return f"{number}" if change else number
        if which == 1:
            return (number, None if change else "a")
        if which == 2:
            return number + 0.5 + change
        if which == 3:
            return numpy.int64(number + 1000 * (1 + change))
        if which == 4:
            return None if change else f"none{number}"
        if which == 5:
            return f"bytes{number}".encode() if change else f"bytes{number}"
        return f"k{number}{'x' * change}"

    def node(self, depth: int) -> Any:
        rng = self.rng
        which = rng.randrange(12)
        if depth > 2 or which < 6:
            kind = rng.randrange(6)
            if kind < 3:
                return self.tensor() if kind < 2 or depth > 3 else self.unusual_tensor()
            return self.array() if kind == 3 else self.value()
        count = rng.randrange(4)
        if which < 9:
            items: Any = rng.choice([dict, collections.OrderedDict, dict, Frame])()
            for number in range(count):
                items[self.key(number)] = self.node(depth + 1)
            return items
        if which == 9:
            return [self.node(depth + 1) for _ in range(count)]
        if which == 10:
            return tuple(self.node(depth + 1) for _ in range(count))
        return Config(self.node(depth + 1), self.node(depth + 1))

    def unusual_tensor(self) -> Any:
        rng = self.rng
        which = rng.randrange(7)
        change = self.changed()
        if which == 0:
            dense = torch.zeros(4, 5)
            dense[1, rng.randrange(5)] = 1.5 + change
            if change:
                self.expect(level="different")
            return dense.to_sparse()
        if which == 1:
            dense = torch.eye(3) * (2 + 2 * change)
            if change:
                self.expect(level="different")
            return dense.to_sparse_csr()
        if which == 2:
            if change:
                self.expect(level="some")
            return torch.quantize_per_tensor(torch.ones(3), 0.5 if not change else 0.25, 1, torch.qint8)
        if which == 3:
            tensor = torch.ones(2, 3) * (1 + 2 * change)
            if change:
                self.expect(level="different")
            return tensor.as_subclass(Mine)
        if which == 4:
            tensor = torch.ones(3)
            tensor.note = "b" if change else "a"
            if change:
                self.expect(level="different")
            return tensor
        if which == 5:
            tensor = torch.tensor([1 + 2j, 3 - 1j])
            if change:
                self.expect(level="different")
            return tensor if change else tensor.conj()
        tensor = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
        if change:
            self.expect(level="different")
            return torch._neg_view(tensor)
        return tensor


def write(form: str, root: Any, path: str) -> None:
    if form.startswith("torch"):
        torch.save(root, path, pickle_protocol=int(form[5:]))
    elif form == "older":
        torch.save(root, path, _use_new_zipfile_serialization=False)
    elif form.startswith("pickle"):
        with pathlib.Path(path).open("wb") as file:
            pickle.dump(root, file, int(form[6:]))
            pickle.dump("after it", file)
    elif form.startswith("joblib"):
        joblib.dump(root, path, compress=int(form[6:]))
    elif form == "safetensors":
        save_file(root, path, {"a": "b"})
    elif form == "npy":
        with pathlib.Path(path).open("wb") as file:
            for array in root:
                numpy.save(file, array)
    else:
        (numpy.savez if form == "npz" else numpy.savez_compressed)(path, **root)


def build(form: str, seed: int, change: int = -1) -> tuple[Any, Builder]:
    builder = Builder(seed, change)
    count = builder.rng.randrange(1, 6)
    if form == "safetensors":
        root: Any = {f"t{n}": builder.tensor(plain=True) for n in range(count)}
    elif form == "npy":
        root = [builder.array() for _ in range(count)]
        root = [numpy.asarray(array) for array in root]
    elif form.startswith("npz"):
        root = {f"t{n}": builder.array() for n in range(count)}
    else:
        root = {"state": builder.node(0), "other": [builder.node(1) for _ in range(count)]}
    return root, builder


FORMS = [
    "torch2",
    "torch2",
    "torch4",
    "torch5",
    "older",
    "pickle0",
    "pickle1",
    "pickle2",
    "pickle3",
    "pickle4",
    "pickle5",
    "safetensors",
    "npy",
    "npz",
    "npzc",
    "joblib0",
    "joblib3",
]
ENDS = {
    "torch": ".pt",
    "older": ".ckpt",
    "pickl": ".pkl",
    "jobli": ".joblib",
    "safet": ".safetensors",
    "npy": ".npy",
    "npz": ".npz",
    "npzc": ".npz",
}


def main() -> None:
    directory, seed, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.chdir(directory)
    results: list[dict[str, Any]] = []
    same: dict[str, Any] = {"level": "bitwise"}
    for number in range(seed, seed + count):
        form = FORMS[number % len(FORMS)]
        end = ENDS.get(form[:5], ENDS.get(form, ""))
        root, builder = build(form, number)
        change = random.Random(number).randrange(builder.leaves) if builder.leaves else -1
        try:
            write(form, root, "l" + end)
        except (TypeError, NotImplementedError, RuntimeError, pickle.PicklingError) as error:
            results.append({"case": [number, form], "skipped": f"{type(error).__name__}: {error}"[:200]})
            continue
        write(form, build(form, number)[0], "r" + end)
        root, builder = build(form, number, change)
        write(form, root, "c" + end)
        for pair, expected in (("lr", same), ("lc", builder.expected if change >= 0 else None)):
            if not expected:
                continue
            answers = [compare(pair[0] + end, pair[1] + end, module) for module in (numpy, None)]
            results.append({"case": [number, form, change], "expected": expected, "answers": answers})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
