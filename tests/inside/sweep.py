"""Random files of tensors, each written twice and once with one change: `python sweep.py INSIDE FOLDER SEED COUNT`.

Runs in an environment with torch, NumPy and safetensors. Prints a JSON list: for each pair what was done to it, what has to be
found (computed with NumPy and torch alone), and the answers of the look with and without NumPy.
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


class Made:
    """One object, built from a seed; with `change` one of its leaves, that number, is another."""

    def __init__(self, seed: int, change: int = -1) -> None:
        self.rng = random.Random(seed)
        self.change = change
        self.leaves = 0
        self.expected: dict[str, Any] = {}

    def changed(self) -> bool:
        self.leaves += 1
        return self.leaves - 1 == self.change

    def expect(self, **what: Any) -> None:
        assert not self.expected
        self.expected = what

    def bits(self, kind: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """Random elements, special ones among them."""
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
            values = [abs(one) if one == one and abs(one) < 1e4 else 1.0 for one in values]
        return torch.tensor(values, dtype=torch.float64).to(kind).reshape(shape)

    def shape(self) -> tuple[int, ...]:
        return tuple(
            self.rng.choice([1, 2, 3, 5, 0] if self.rng.random() < 0.1 else [1, 2, 3, 4]) for _ in range(self.rng.randrange(4))
        )

    def tensor(self, *, plain: bool = False) -> torch.Tensor:
        rng = self.rng
        kind = rng.choice([*FLOATS, *FLOATS, *SMALL, *WHOLE, torch.bool, *([] if plain else PAIRS)])
        shape = self.shape()
        one = self.bits(kind, shape)
        layout = rng.randrange(8)
        place = tuple(rng.randrange(size) for size in shape) if one.numel() else None
        how, coin = rng.randrange(4), bool(rng.randrange(2))
        if self.changed():
            one = self.change_tensor(one, place, how)
        # Values are laid out last, so that a change is one element of what is seen.
        if plain or kind in SMALL:
            return one.contiguous()
        if layout == 1 and one.dim() > 1:
            one = one.transpose(0, 1).contiguous().transpose(0, 1)
        elif layout == 2:
            wide = torch.zeros((*one.shape, 3), dtype=one.dtype)
            wide[..., 1] = one
            one = wide[..., 1]
        elif layout == 3:
            whole = torch.cat([torch.zeros_like(one).reshape(-1), one.reshape(-1)])
            one = whole[one.numel() :].view(one.shape)
        elif layout == 4 and kind in FLOATS:
            one = torch.nn.Parameter(one, requires_grad=coin and one.is_floating_point())
        elif layout == 5 and one.dtype in (torch.complex64, torch.complex128):
            one = one.conj().resolve_conj().conj()
        elif layout == 7 and one.dim() == 4:
            one = one.to(memory_format=torch.channels_last)
        return one

    def change_tensor(self, one: torch.Tensor, place: tuple[int, ...] | None, how: int) -> torch.Tensor:
        kind = one.dtype
        if place is None or how == 3:
            if how % 2 and one.dim():
                self.expect(level="different", shape=True)
                return one.reshape(*one.shape, 1)
            self.expect(level="different", shape=True)
            return one.to(torch.int64 if kind != torch.int64 else torch.int32) if not kind.is_complex else one.real.clone()
        one = one.clone()
        if kind in PAIRS:
            if kind == torch.complex32:  # its halves cannot be assigned
                raw = torch.view_as_real(one).clone()
                raw.view(torch.int16)[(*place, 0)] ^= 1
                self.expect(level="some", differing=1, at=list(place))
                return torch.view_as_complex(raw)
            real = torch.view_as_real(one)
            before = real[(*place, 1)].item()
            real[(*place, 1)] = torch.nextafter(real[(*place, 1)], torch.tensor(9.0, dtype=real.dtype))
            self.expect(level="some", differing=1, at=list(place), ulp=1, absolute=abs(real[(*place, 1)].item() - before))
            return one
        before = one[place].to(torch.float64).item() if kind != torch.bool else None
        if kind in FLOATS and before is not None and before == before and abs(before) < 1e30:
            steps = 1 + 7 * how
            value = one[place].clone()
            for _ in range(steps):
                value = torch.nextafter(value, torch.tensor(float("inf"), dtype=kind))
            one[place] = value
            after = value.to(torch.float64).item()
            self.expect(level="some", differing=1, at=list(place), ulp=steps, absolute=abs(after - before))
            return one
        if kind in SMALL:
            table = torch.arange(256, dtype=torch.uint8).view(kind).to(torch.float64)
            order = sorted({v for v in table.tolist() if v == v and abs(v) != float("inf")})
            number = order.index(before) if before in order else 0
            if before not in order or number == len(order) - 1:
                self.expect(level="some", differing=1)
                one.view(torch.uint8)[place] ^= 1
                return one
            one[place] = torch.tensor(order[number + 1], dtype=torch.float64).to(kind)
            self.expect(level="some", differing=1, at=list(place), ulp=1, absolute=order[number + 1] - before)
            return one
        if kind == torch.bool:
            one[place] = ~one[place]
            self.expect(level="different", differing=1, at=list(place), ulp=-1, absolute=1.0)
            return one
        if kind in WHOLE:
            then = int(one[place].item())
            now = then + 1 if then < torch.iinfo(kind).max else then - 1
            one[place] = torch.tensor(now, dtype=kind)
            self.expect(level="different", differing=1, at=list(place), ulp=-1, absolute=1.0)
            return one
        raw = one.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[kind.itemsize])
        raw[place] ^= 1  # of a NaN its payload, else its last place
        self.expect(level="some", differing=1, at=list(place))
        return one

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
            one = numpy.empty(count, object)
            one[:] = [rng.choice([1, 2.5, "a", None]) for _ in range(count)]
        elif kind == "U3":
            one = numpy.array(["".join(rng.choice("abc") for _ in range(3)) for _ in range(count)], dtype)
        elif kind == "b1":
            one = numpy.array([rng.random() < 0.5 for _ in range(count)], dtype)
        else:
            one = numpy.frombuffer(bytes(rng.getrandbits(8) for _ in range(count * dtype.itemsize)), dtype).copy()
        one = one.reshape(shape)
        layout, place = rng.randrange(5), tuple(rng.randrange(size) for size in shape) if count else None
        if self.changed():
            if place is None:
                one = numpy.zeros((*shape, 2), dtype)
                self.expect(level="different")
            elif kind == "O":
                one[place] = "b"
                self.expect(level="different")
            elif kind == "U3":
                one[place] = "zzz"
                self.expect(level="different")
            elif kind == "b1":
                one[place] = not one[place]
                self.expect(level="different", differing=1, at=list(place), absolute=1.0)
            elif kind == "f4" and numpy.isfinite(one[place]) and abs(one[place]) < 1e38:
                before = one[place]
                one[place] = numpy.nextafter(one[place], numpy.float32(numpy.inf))
                self.expect(level="some", differing=1, at=list(place), ulp=1, absolute=float(one[place]) - float(before))
            else:
                flat = one.copy()
                raw = flat.reshape(-1).view("u1").reshape(count, -1)
                raw[numpy.ravel_multi_index(place, shape) if shape else 0, 0] ^= 1
                one = flat.reshape(shape)
                self.expect(
                    level="some", **({"at": list(place)} if kind in ("f8", "f2", "i8", "i4", "u2", "u1", ">f4", ">i8") else {})
                )
        if layout == 1 and one.ndim:
            one = numpy.asfortranarray(one)
        elif layout == 2 and one.ndim:
            one = numpy.ascontiguousarray(one[::-1])[::-1]
        elif layout == 3 and one.ndim > 1:
            one = numpy.ascontiguousarray(one.T).T
        elif layout == 4 and not shape and kind in ("f8", "f4", "i8", "u1", "M8[s]"):
            return one[()]
        return one

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
                return self.tensor() if kind < 2 or depth > 3 else self.odd_tensor()
            return self.array() if kind == 3 else self.value()
        count = rng.randrange(4)
        if which < 9:
            made: Any = rng.choice([dict, collections.OrderedDict, dict, Frame])()
            for number in range(count):
                made[self.key(number)] = self.node(depth + 1)
            return made
        if which == 9:
            return [self.node(depth + 1) for _ in range(count)]
        if which == 10:
            return tuple(self.node(depth + 1) for _ in range(count))
        return Config(self.node(depth + 1), self.node(depth + 1))

    def odd_tensor(self) -> Any:
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
            one = torch.ones(2, 3) * (1 + 2 * change)
            if change:
                self.expect(level="different")
            return one.as_subclass(Mine)
        if which == 4:
            one = torch.ones(3)
            one.note = "b" if change else "a"
            if change:
                self.expect(level="different")
            return one
        if which == 5:
            one = torch.tensor([1 + 2j, 3 - 1j])
            if change:
                self.expect(level="different")
            return one if change else one.conj()
        one = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
        if change:
            self.expect(level="different")
            return torch._neg_view(one)
        return one


def written(form: str, root: Any, path: str) -> None:
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
            for one in root:
                numpy.save(file, one)
    else:
        (numpy.savez if form == "npz" else numpy.savez_compressed)(path, **root)


def built(form: str, seed: int, change: int = -1) -> tuple[Any, Made]:
    made = Made(seed, change)
    count = made.rng.randrange(1, 6)
    if form == "safetensors":
        root: Any = {f"t{n}": made.tensor(plain=True) for n in range(count)}
    elif form == "npy":
        root = [made.array() for _ in range(count)]
        root = [numpy.asarray(one) for one in root]
    elif form.startswith("npz"):
        root = {f"t{n}": made.array() for n in range(count)}
    else:
        root = {"state": made.node(0), "other": [made.node(1) for _ in range(count)]}
    return root, made


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
    folder, seed, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.chdir(folder)
    found: list[dict[str, Any]] = []
    same: dict[str, Any] = {"level": "bitwise"}
    for number in range(seed, seed + count):
        form = FORMS[number % len(FORMS)]
        end = ENDS.get(form[:5], ENDS.get(form, ""))
        root, made = built(form, number)
        change = random.Random(number).randrange(made.leaves) if made.leaves else -1
        try:
            written(form, root, "l" + end)
        except (TypeError, NotImplementedError, RuntimeError, pickle.PicklingError) as error:
            found.append({"case": [number, form], "skipped": f"{type(error).__name__}: {error}"[:200]})
            continue
        written(form, built(form, number)[0], "r" + end)
        root, made = built(form, number, change)
        written(form, root, "c" + end)
        for pair, expected in (("lr", same), ("lc", made.expected if change >= 0 else None)):
            if not expected:
                continue
            ways = [compare(pair[0] + end, pair[1] + end, module) for module in (numpy, None)]
            found.append({"case": [number, form, change], "expected": expected, "answers": ways})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
