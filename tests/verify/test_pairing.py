from __future__ import annotations

import pytest

from repro_env.verify import masks
from repro_env.verify.pairing import Ambiguous, Pair, pair


def of(*paths: str) -> dict[str, str]:
    """Paths with a digest of their own; `path=x` has the digest x."""
    return {path.partition("=")[0]: path.partition("=")[2] or path for path in paths}


def test_equal_paths_are_pairs_whatever_is_in_them() -> None:
    found = pair(of("a=1", "b=2"), of("a=2", "b=1"))
    assert found.pairs == (Pair("a", "a"), Pair("b", "b"))
    assert not [*found.missing, *found.new, *found.ambiguous]


def test_what_is_left_over_pairs_by_its_masked_path() -> None:
    found = pair(of("out/2026-07-01/10-15-30/w.pt", "gone.csv"), of("out/2026-07-02/11-00-00/w.pt", "new.csv"))
    assert found.pairs == (Pair("out/2026-07-01/10-15-30/w.pt", "out/2026-07-02/11-00-00/w.pt"),)
    assert (found.missing, found.new) == (("gone.csv",), ("new.csv",))


def test_equal_bytes_settle_what_names_leave_open() -> None:
    found = pair(of("version_0/w=1", "version_1/w=2"), of("version_2/w=2", "version_3/w=9"))
    assert found.pairs == (Pair("version_0/w", "version_3/w"), Pair("version_1/w", "version_2/w"))
    assert not found.ambiguous


def test_more_than_one_way_is_named_and_not_guessed() -> None:
    found = pair(of("version_0/w=1", "version_1/w=2"), of("version_2/w=3", "version_3/w=4"))
    assert not found.pairs
    assert found.ambiguous == (Ambiguous("version_<n>/w", ("version_0/w", "version_1/w"), ("version_2/w", "version_3/w")),)


def test_two_then_and_one_now_is_ambiguous_too() -> None:
    found = pair(of("version_0/w=1", "version_1/w=2"), of("version_2/w=3"))
    assert found.ambiguous == (Ambiguous("version_<n>/w", ("version_0/w", "version_1/w"), ("version_2/w",)),)


def test_every_path_is_in_the_answer_once() -> None:
    left = of("a", "x/2026-07-01=1", "x/2026-07-02=2", "run-1/b", "c")
    right = of("a", "x/2026-07-03=1", "x/2026-07-04=3", "run-2/b", "d")
    found = pair(left, right)
    ones = [one.left for one in found.pairs] + list(found.missing) + [path for one in found.ambiguous for path in one.left]
    others = [one.right for one in found.pairs] + list(found.new) + [path for one in found.ambiguous for path in one.right]
    assert sorted(ones) == sorted(left)
    assert sorted(others) == sorted(right)


@pytest.mark.parametrize(
    "path",
    [
        "ck/step_1000.pt",
        "checkpoint-500/model.safetensors",
        "a/epoch=2-val_loss=0.12.ckpt",
        "seed_42/w.pt",
        "fold_3/w.pt",
        "model_1234567890.pt",
        "weights-v2.pt",
        "layer.12.npy",
        "lr0.001/w.pt",
        "20x20/w.pt",
    ],
)
def test_results_in_names_stay(path: str) -> None:
    assert masks.name(path) == path


@pytest.mark.parametrize(
    "line",
    [
        "loss 0.123456789",
        "lr: 0.0005",
        "accuracy 97.5 of 360",
        "steps 1782900930",
        "ratio 1:2:3",
        "version 2.1.0",
        "seed 20260701",
        "shape 10-20-30",
        "5 samples, 3 steps, 12 epochs",
        "node=3 left=4 thread 2",
        "process 12 images",
        "model_version_3",
        "rapid 5",
    ],
)
def test_results_in_text_stay(line: str) -> None:
    assert masks.text(line) == line


def test_a_mask_leaves_nothing_to_mask() -> None:
    for text in ("2026-07-01T10:15:30.5Z pid=12 host: a", "runs/Jul01_10-15-30_h/x", "took 12.5 s", "logs/version_3/w"):
        assert masks.text(masks.text(text)) == masks.text(text)
        assert masks.name(masks.name(text)) == masks.name(text)
