"""Differences that were put in are found, with their level and place; what differs each time and means nothing is not one.

The files are those that real training leaves: checkpoints, tensors, tables, logs, Lightning's, W&B's, Hydra's own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro_env.verify.outputs import Sameness
from tests.fakes.tensors import Tensor, checkpoint, events, npy, npz, safetensors
from tests.verify import sides

_rng = random.Random(1)
WEIGHT = Tensor([_rng.gauss(0, 1) for _ in range(24)], (4, 6))
BIAS = Tensor([_rng.gauss(0, 0.1) for _ in range(4)])
COUNT = Tensor([320], (), "I64")
STATE = {"conv.weight": WEIGHT, "conv.bias": BIAS, "bn.num_batches_tracked": COUNT}
NOISE = {name: one.next(1, 3) if one.dtype == "F32" else one for name, one in STATE.items()}
OTHER = {
    name: Tensor([_rng.gauss(0, 1) for _ in one.values], one.shape) if one.dtype == "F32" else one for name, one in STATE.items()
}
Files = dict[str, bytes]


def saved(
    state: dict[str, Tensor], *, best: str = "ck/epoch=3.ckpt", lr: float = 1e-3, seed: int = 7, name: str = "last"
) -> bytes:
    """As Lightning saves: weights, optimizer, callbacks, loops, hyperparameters."""
    moments = {0: {"step": Tensor([20.0], ()), "exp_avg": state["conv.weight"]}}
    value = {
        "epoch": 3,
        "state_dict": state,
        "optimizer_states": [{"state": moments, "param_groups": [{"lr": lr, "betas": (0.9, 0.999), "params": [0]}]}],
        "callbacks": {
            "ModelCheckpoint{'monitor': 'val_loss'}": {"best_model_path": best, "best_model_score": Tensor([0.25], ())}
        },
        "hyper_parameters": {"seed": seed, "lr": lr, "layers": [16, 32]},
    }
    return checkpoint(value, name=name)


def metrics(**more: Any) -> bytes:
    return json.dumps({"loss": 0.12345678901, "accuracy": 0.975, "steps": 320, "confusion": [[5, 1], [0, 6]], **more}).encode()


TABLE = b"step,loss,lr\n1,0.5,0.001\n2,0.25,0.001\n3,0.125,0.0005\n"
LOG = b"[2026-07-01 10:15:30,123][root][INFO] - epoch 1 loss 0.5 (12.3 s, 341.2 samples/s)\n"
LOSSES = [(1, "loss", 0.5), (2, "loss", 0.25)]


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


PLANTED: dict[str, tuple[Files, Files, Sameness, str]] = {
    "one weight by one ULP, safetensors": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(STATE | {"conv.weight": WEIGHT.next(8)})},
        "numeric",
        "conv.weight (1 of 24 elements from [1, 2], up to ",
    ),
    "one weight by one ULP, torch": (
        {"ck/last.ckpt": saved(STATE)},
        {"ck/last.ckpt": saved(STATE | {"conv.bias": BIAS.next(3, -1)})},
        "numeric",
        "state_dict.conv.bias (1 of 4 elements from [3], up to ",
    ),
    "one weight by one ULP, npz": (
        {"w.npz": npz(STATE)},
        {"w.npz": npz(STATE | {"conv.bias": BIAS.next(0)})},
        "numeric",
        "1 ULP",
    ),
    "one number by one ULP, npy": ({"p.npy": npy(WEIGHT)}, {"p.npy": npy(WEIGHT.next(23))}, "numeric", "from [3, 5]"),
    "another number of threads: noise in every tensor": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(NOISE)},
        "numeric",
        "2 of 3 tensors differ",
    ),
    "another seed": ({"w.safetensors": safetensors(STATE)}, {"w.safetensors": safetensors(OTHER)}, "different", "2 of 3 tensors"),
    "another seed, torch": ({"w.pt": saved(STATE)}, {"w.pt": saved(OTHER)}, "different", "state_dict.conv."),
    "another order of operations: one tensor far off": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(STATE | {"conv.weight": WEIGHT.changed(5, WEIGHT.values[5] * 3 + 1)})},
        "different",
        "conv.weight (1 of 24",
    ),
    "a counter of batches": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(STATE | {"bn.num_batches_tracked": Tensor([321], (), "I64")})},
        "different",
        "bn.num_batches_tracked",
    ),
    "not a number": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(STATE | {"conv.bias": BIAS.changed(2, float("nan"))})},
        "different",
        "no number on one side",
    ),
    "minus zero": (
        {"w.npy": npy(Tensor([0.0, 1.0]))},
        {"w.npy": npy(Tensor([-0.0, 1.0]))},
        "numeric",
        "1 of 2 elements from [0], up to 0 and 0 ULP",
    ),
    "half the precision": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(STATE | {"conv.bias": Tensor(BIAS.values, dtype="F16")})},
        "different",
        "conv.bias F32[4] -> F16[4]",
    ),
    "another shape": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(STATE | {"conv.weight": Tensor(WEIGHT.values, (6, 4))})},
        "different",
        "conv.weight F32[4, 6] -> F32[6, 4]",
    ),
    "a tensor is missing": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors({name: one for name, one in STATE.items() if name != "conv.bias"})},
        "different",
        "conv.bias missing",
    ),
    "a tensor is new": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(STATE | {"ema": BIAS})},
        "different",
        "ema new",
    ),
    "a learning rate in the optimizer": (
        {"w.pt": saved(STATE)},
        {"w.pt": saved(STATE, lr=2e-3)},
        "different",
        "optimizer_states.0.param_groups.0.lr",
    ),
    "a seed in the hyperparameters that looks like a moment": (
        {"w.pt": saved(STATE, seed=1782900930)},
        {"w.pt": saved(STATE, seed=1782900931)},
        "different",
        "all 6 tensors bitwise; hyper_parameters.seed differs",
    ),
    "the best checkpoint is another epoch's": (
        {"w.pt": saved(STATE, best="ck/epoch=3.ckpt")},
        {"w.pt": saved(STATE, best="ck/epoch=4.ckpt")},
        "different",
        "all 6 tensors bitwise; callbacks.ModelCheckpoint{'monitor': 'val_loss'}.best_model_path differs",
    ),
    "the score of one of the best, by path": (
        {"w.ckpt": checkpoint({"best_k_models": {"/p/2026-07-01/10-15-30/epoch=3.ckpt": Tensor([0.25], ())}})},
        {"w.ckpt": checkpoint({"best_k_models": {"/p/2026-07-02/23-01-02/epoch=3.ckpt": Tensor([0.35], ())}})},
        "different",
        "best_k_models./p/2026-07-01/10-15-30/epoch=3.ckpt (1 of 1",
    ),
    "a missing output": ({"w.npy": npy(BIAS), "p.csv": TABLE}, {"w.npy": npy(BIAS)}, "different", "p.csv: it is missing now"),
    "a new output": ({"w.npy": npy(BIAS)}, {"w.npy": npy(BIAS), "p.csv": TABLE}, "different", "p.csv: it was not there then"),
    "another epoch in a name": (
        {"ck/epoch=3-step=64.pt": saved(STATE)},
        {"ck/epoch=4-step=80.pt": saved(STATE)},
        "different",
        "it is missing now",
    ),
    "an empty output": ({"w.npy": npy(BIAS)}, {"w.npy": b""}, "different", "cannot be looked into"),
    "a truncated output": ({"w.npy": npy(BIAS)}, {"w.npy": npy(BIAS)[:-1]}, "different", "is cut off"),
    "a truncated checkpoint": ({"w.pt": saved(STATE)}, {"w.pt": saved(STATE)[:-300]}, "different", "cannot be looked into"),
    "a loss in the ninth place": (
        {"m.json": metrics()},
        {"m.json": metrics(loss=0.12345678902)},
        "numeric",
        "loss: 0.12345678901 -> 0.12345678902",
    ),
    "an accuracy": ({"m.json": metrics()}, {"m.json": metrics(accuracy=0.98)}, "different", "accuracy: 0.975 -> 0.98"),
    "a count": ({"m.json": metrics()}, {"m.json": metrics(steps=321)}, "different", "steps: 320 -> 321"),
    "one cell of a confusion matrix": (
        {"m.json": metrics()},
        {"m.json": metrics(confusion=[[5, 1], [1, 5]])},
        "different",
        "confusion.1.0, confusion.1.1 differ",
    ),
    "a metric is gone": (
        {"m.json": metrics(f1=0.5)},
        {"m.json": metrics()},
        "different",
        "f1",
    ),
    "a line of JSON lines": (
        {"m.jsonl": b'{"loss": 0.5}\n{"loss": 0.25}\n'},
        {"m.jsonl": b'{"loss": 0.5}\n{"loss": 0.35}\n'},
        "different",
        "1.loss: 0.25 -> 0.35",
    ),
    "a cell of a table": (
        {"m.csv": TABLE},
        {"m.csv": changed(TABLE, b"0.125", b"0.135")},
        "different",
        "loss in 1 of 3 lines",
    ),
    "rounding in a table": (
        {"m.csv": changed(TABLE, b"0.125", b"0.12500001")},
        {"m.csv": changed(TABLE, b"0.125", b"0.12500002")},
        "numeric",
        "loss in 1 of 3 lines",
    ),
    "a line more in a table": ({"m.csv": TABLE}, {"m.csv": TABLE + b"4,0.1,0.0005\n"}, "different", "there are 5 now"),
    "a data byte in a picture": ({"a.png": b"\x89PNG\xff\x00"}, {"a.png": b"\x89PNG\xff\x01"}, "different", "its bytes differ"),
    "a word in a text": ({"out.txt": b"class: cat\n"}, {"out.txt": b"class: dog\n"}, "different", "from line 1"),
    "a package version in a text": ({"env.txt": b"numpy 2.1.0\n"}, {"env.txt": b"numpy 2.1.1\n"}, "different", "from line 1"),
    "a number in a text that looks like a date": (
        {"n.txt": b"found 20260701\n"},
        {"n.txt": b"found 20260702\n"},
        "different",
        "line 1",
    ),
    "layers that look like a time": ({"n.txt": b"mlp 10-20-30\n"}, {"n.txt": b"mlp 10-20-40\n"}, "different", "line 1"),
    "a parameter in a YAML file": ({"hparams.yaml": b"lr: 0.1\n"}, {"hparams.yaml": b"lr: 0.2\n"}, "different", "line 1"),
    "predicted times in JSON": (
        {"p.json": b'[{"start_time": 1.25, "duration": 0.5}]'},
        {"p.json": b'[{"start_time": 1.25, "duration": 0.75}]'},
        "different",
        "0.duration: 0.5 -> 0.75",
    ),
    "predicted dates in a table": (
        {"p.csv": b"date,y\nday 5,1\n"},
        {"p.csv": b"date,y\nday 6,1\n"},
        "different",
        "date in 1 of 1 lines",
    ),
    "the time of a subtitle": (
        {"p.srt": b"1\n00:00:03,400 --> 00:00:05,100\nhello\n"},
        {"p.srt": b"1\n00:00:03,500 --> 00:00:05,100\nhello\n"},
        "different",
        "from line 2",
    ),
    "two swapped outputs": (
        {"fold_0/w.npy": npy(BIAS), "fold_1/w.npy": npy(BIAS.changed(0, 5.0))},
        {"fold_0/w.npy": npy(BIAS.changed(0, 5.0)), "fold_1/w.npy": npy(BIAS)},
        "different",
        "both results differ",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found(name: str, tmp_path: Path) -> None:
    left, right, level, place = PLANTED[name]
    found = sides.judged(tmp_path, left, right)
    assert (found.level, found.same) == (level, False), found.sentence
    assert place in found.sentence
    assert found.sentence.startswith(f"{level}: ")
    # The other way round it is as different, and nothing is the same for being named a result.
    back = sides.judged(tmp_path, right, left)
    assert (back.level, back.same) == (level, False), back.sentence
    strict = sides.judged(tmp_path, left, right, results=("*",))
    assert not strict.same


def run_dir(day: str, clock: str, wandb: str) -> str:
    return f"wandb/offline-run-{day}_{clock}-{wandb}"


def wandb(day: str, clock: str, run: str, seconds: float) -> Files:
    """What W&B leaves, offline."""
    folder = run_dir(day, clock, run)
    return {
        f"{folder}/run-{run}.wandb": bytes(str(seconds), "ascii") * 20,
        f"{folder}/files/wandb-metadata.json": json.dumps({"startedAt": f"{day}T{clock}Z", "host": f"h{seconds}"}).encode(),
        f"{folder}/files/wandb-summary.json": json.dumps(
            {"loss": 0.25, "_runtime": seconds, "_timestamp": 1782900930.5 + seconds, "_wandb": {"runtime": int(seconds)}}
        ).encode(),
        f"{folder}/files/config.yaml": f"_wandb:\n  value:\n    start_time: {1782900930 + seconds}\n".encode(),
        f"{folder}/files/output.log": f"loss 0.25 in {seconds} s\n".encode(),
        f"{folder}/logs/debug.log": f"{seconds}".encode(),
    }


def trainer_state(runtime: float) -> bytes:
    """As Hugging Face's Trainer writes it."""
    last = {"train_runtime": runtime, "train_samples_per_second": 100 / runtime, "train_steps_per_second": 9 / runtime}
    return json.dumps(
        {"global_step": 9, "log_history": [{"loss": 0.5, "step": 9}, {"train_loss": 0.5, "step": 9, **last}]}
    ).encode()


EVENTS = "events.out.tfevents"
SVG = "<svg><clipPath id='p{0}'/><use clip-path='url(#p{0})'/><date>{1}</date></svg>\n"
EQUAL: dict[str, tuple[Files, Files]] = {
    "the same bytes": ({"w.pt": saved(STATE)}, {"w.pt": saved(STATE)}),
    "a checkpoint in a folder of its date": (
        {"out/20260701-101530/w.pt": saved(STATE)},
        {"out/20260702-091011/w.pt": saved(STATE)},
    ),
    "Hydra's folders": (
        {"outputs/2026-07-01/10-15-30/w.pt": saved(STATE), "outputs/2026-07-01/10-15-30/.hydra/config.yaml": b"lr: 0.1\n"},
        {"outputs/2026-07-02/23-01-02/w.pt": saved(STATE), "outputs/2026-07-02/23-01-02/.hydra/config.yaml": b"lr: 0.1\n"},
    ),
    "Hydra's own record of its folder": (
        {"outputs/2026-07-01/10-15-30/.hydra/hydra.yaml": b"runtime:\n  output_dir: /p/outputs/2026-07-01/10-15-30\n"},
        {"outputs/2026-07-02/23-01-02/.hydra/hydra.yaml": b"runtime:\n  output_dir: /p/outputs/2026-07-02/23-01-02\n"},
    ),
    "Hydra's log beside a result": (
        {"w.npy": npy(BIAS), "outputs/2026-07-01/10-15-30/train.log": LOG},
        {
            "w.npy": npy(BIAS),
            "outputs/2026-07-02/23-01-02/train.log": changed(LOG, b"2026-07-01 10:15:30,123", b"2026-07-02 23:01:02,456"),
        },
    ),
    "Lightning's version counter": (
        {
            "lightning_logs/version_0/checkpoints/epoch=3-step=64.ckpt": saved(STATE),
            "lightning_logs/version_0/metrics.csv": TABLE,
        },
        {
            "lightning_logs/version_1/checkpoints/epoch=3-step=64.ckpt": saved(STATE),
            "lightning_logs/version_1/metrics.csv": TABLE,
        },
    ),
    "Lightning's path of the best checkpoint": (
        {"w.ckpt": saved(STATE, best="/p/lightning_logs/version_0/checkpoints/epoch=3.ckpt")},
        {"w.ckpt": saved(STATE, best="/p/lightning_logs/version_1/checkpoints/epoch=3.ckpt")},
    ),
    "a path of the best checkpoint with a date": (
        {"w.ckpt": saved(STATE, best="/p/outputs/2026-07-01/10-15-30/epoch=3.ckpt")},
        {"w.ckpt": saved(STATE, best="/p/outputs/2026-07-02/23-01-02/epoch=3.ckpt")},
    ),
    "Lightning's list of the best, by path": (
        {"w.ckpt": checkpoint({"best_k_models": {"/p/2026-07-01/10-15-30/epoch=3.ckpt": Tensor([0.25], ())}})},
        {"w.ckpt": checkpoint({"best_k_models": {"/p/2026-07-02/23-01-02/epoch=3.ckpt": Tensor([0.25], ())}})},
    ),
    "scalars that are times": (
        {"w.npy": npy(BIAS), f"{EVENTS}.1782900930.host.123.0": events([*LOSSES, (2, "train/train_runtime", 12.5)], at=1.0)},
        {"w.npy": npy(BIAS), f"{EVENTS}.1782987330.host.124.0": events([*LOSSES, (2, "train/train_runtime", 13.5)], at=2.0)},
    ),
    "Lightning's event files": (
        {"w.npy": npy(BIAS), f"lightning_logs/version_0/{EVENTS}.1782900930.host.123.0": events(LOSSES, at=1782900930.0)},
        {"w.npy": npy(BIAS), f"lightning_logs/version_0/{EVENTS}.1782987330.other.77.0": events(LOSSES, at=1782987330.0)},
    ),
    "TensorBoard's folder with a host": (
        {"w.npy": npy(BIAS), f"runs/Jul01_10-15-30_host/{EVENTS}.1782900930.host.123.0": events(LOSSES, at=1782900930.0)},
        {"w.npy": npy(BIAS), f"runs/Jul02_23-01-02_other/{EVENTS}.1782987330.other.77.0": events(LOSSES, at=1782987330.0)},
    ),
    "W&B's own files": (
        {"w.npy": npy(BIAS)} | wandb("20260701", "101530", "abc12def", 12.5),
        {"w.npy": npy(BIAS)} | wandb("20260702", "230102", "9z8y7x6w", 13.25),
    ),
    "a Trainer's times": ({"trainer_state.json": trainer_state(12.5)}, {"trainer_state.json": trainer_state(13.25)}),
    "scikit-learn's times": (
        {"cv.csv": b"mean_fit_time,score\n0.51,0.9\n0.52,0.8\n"},
        {"cv.csv": b"mean_fit_time,score\n0.61,0.9\n0.42,0.8\n"},
    ),
    "a time in JSON": ({"m.json": metrics(created_at="x1", runtime=1.5)}, {"m.json": metrics(created_at="x2", runtime=2.5)}),
    "a date as text in JSON": ({"m.json": metrics(on="2026-07-01")}, {"m.json": metrics(on="2026-07-02")}),
    "a time in JSON lines": (
        {"m.jsonl": b'{"loss": 0.5, "time": 1.5}\n'},
        {"m.jsonl": b'{"loss": 0.5, "time": 2.5}\n'},
    ),
    "the order of keys": ({"m.json": b'{"a": 1, "b": 2}'}, {"m.json": b'{"b": 2,\n "a": 1}'}),
    "not a number in JSON": ({"m.json": b'{"a": NaN, "time": 1}'}, {"m.json": b'{"a": NaN, "time": 2}'}),
    "spans in a text": ({"r.txt": b"accuracy 0.97, took 12.3 s\n"}, {"r.txt": b"accuracy 0.97, took 9.81 s\n"}),
    "speeds in a text": ({"r.txt": b"loss 0.5 (341.2 samples/s)\n"}, {"r.txt": b"loss 0.5 (299.9 samples/s)\n"}),
    "process, host and address in a text": (
        {"r.txt": b"pid=123 host: a <Model at 0x7f12ab34cd56>\n"},
        {"r.txt": b"pid=456 host: b <Model at 0x7f99ab34cd00>\n"},
    ),
    "a name by uuid": (
        {"run-6ba7b810-9dad-11d1-80b4-00c04fd430c8/w.npy": npy(BIAS)},
        {"run-1b4e28ba-2fa1-11d2-883f-0016d3cca427/w.npy": npy(BIAS)},
    ),
    "a temporary name in a text": ({"r.txt": b"cache /tmp/tmpab12cd_x\n"}, {"r.txt": b"cache /tmp/tmp9z8y7x6w\n"}),
    "dates as words": ({"r.txt": b"on Wed Jul  1 10:15:30 2026\n"}, {"r.txt": b"on Thu Jul  2 23:01:02 2026\n"}),
    "a picture's names": (
        {"a.svg": SVG.format("0123456789", "2026-07-01T10:15:30").encode()},
        {"a.svg": SVG.format("abcdef0123", "2026-07-02T23:01:02").encode()},
    ),
    "a PDF's date": (
        {"a.pdf": b"%PDF\xff /CreationDate (D:20260701101530Z) \xfe"},
        {"a.pdf": b"%PDF\xff /CreationDate (D:20260702230102Z) \xfe"},
    ),
    "MLflow's metrics": (
        {"mlruns/0/0123456789abcdef0123456789abcdef/metrics/loss": b"1782900930123 0.5 1\n"},
        {"mlruns/0/fedcba9876543210fedcba9876543210/metrics/loss": b"1782987330456 0.5 1\n"},
    ),
    "a zip with its time, npz": (
        {"w.npz": npz(STATE, when=(2026, 7, 1, 10, 15, 30))},
        {"w.npz": npz(STATE, when=(2026, 7, 2, 23, 1, 2))},
    ),
    "an archive named after its file": ({"w.pt": saved(STATE, name="a")}, {"w.pt": saved(STATE, name="b")}),
    "tensors in another order in the file": (
        {"w.safetensors": safetensors(STATE)},
        {"w.safetensors": safetensors(dict(reversed(STATE.items())))},
    ),
    "a checkpoint of ours": (
        {
            "000001-step-9/manifest.json": b'{"run": "a"}',
            "000001-step-9/SHA256SUMS": b"a",
            "000001-step-9/m.safetensors": safetensors(STATE),
        },
        {
            "000001-step-9/manifest.json": b'{"run": "b"}',
            "000001-step-9/SHA256SUMS": b"b",
            "000001-step-9/m.safetensors": safetensors(STATE),
        },
    ),
    "process numbers and profiles": (
        {"w.npy": npy(BIAS), "a.pid": b"1", "b.prof": b"2"},
        {"w.npy": npy(BIAS), "a.pid": b"3", "b.prof": b"4"},
    ),
    "line ends": ({"r.txt": b"a\r\nb\r\n"}, {"r.txt": b"a\nb\n"}),
    "three runs of one script, each in a folder of its time": (
        {f"out/2026-07-01_10-15-3{n}/w.npy": npy(BIAS.changed(0, n)) for n in range(3)},
        {f"out/2026-07-02_23-01-0{n}/w.npy": npy(BIAS.changed(0, n)) for n in range(3)},
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_what_means_nothing_is_no_difference_and_is_told(name: str, tmp_path: Path) -> None:
    left, right = EQUAL[name]
    found = sides.judged(tmp_path, left, right)
    assert (found.level, found.same) == ("bitwise", True), [
        found.sentence,
        *(one for one in found.files if one.level != "bitwise"),
    ]
    for one in found.files:
        if one.kind != "volatile" and one.path in left and left[one.path] != right[one.now]:
            assert one.apart, f"{one.path}: other bytes, and nothing said"


def test_there_are_enough_cases() -> None:
    assert len(PLANTED) >= 30
    assert len(EQUAL) >= 30


def numbered(make: Callable[[int], bytes], count: int) -> Files:
    return {f"w{number}.npy": make(number) for number in range(count)}


def test_every_weight_of_a_file_counts(tmp_path: Path) -> None:
    """One element after the other, by one ULP up or down: none is overlooked."""
    for at in range(len(WEIGHT.values)):
        for dtype in ("F32", "F64", "F16"):
            one = Tensor(WEIGHT.values, WEIGHT.shape, dtype)
            (tmp_path / "l.npy").write_bytes(npy(one))
            (tmp_path / "r.npy").write_bytes(npy(one.next(at, (-1) ** at)))
            (answer,) = sides.look([(tmp_path / "l.npy", tmp_path / "r.npy")])
            (found,) = answer.different
            assert (found.differing, found.ulp, found.at) == (1, 1, (at // 6, at % 6))
