from __future__ import annotations

import msgspec

from repro_env.compare import runs
from repro_env.compare.environments.difference import Difference
from repro_env.compare.outputs.comparison import Pair
from repro_env.compare.outputs.judge import Judge
from repro_env.schema.environment import Variable
from repro_env.schema.run import Count, End, Fact, Metric, Outcome, Output, Parameter, Rank, Seeded, Start
from tests.compare.outputs.evidence import NOW, THEN
from tests.runs.records.examples import end, start

A, B = ("sha256:" + letter * 64 for letter in "ab")


def make_end(outputs: dict[str, str], *, others: tuple[str, ...] = (), **more: object) -> End:
    items = tuple(Output(path=path, sha256=digest, size=1) for path, digest in sorted(outputs.items()))
    return msgspec.structs.replace(end("x"), outputs=items, special_files=others, **more)


def rows(differences: tuple[Difference, ...]) -> list[tuple[str, str, str, str]]:
    return [(difference.level, difference.what, difference.left, difference.right) for difference in differences]


def test_settings_that_differ_are_listed_in_the_order_of_levels() -> None:
    left = start("x")
    right: Start = msgspec.structs.replace(
        left,
        command=("train.py", "--lr", "1"),
        seed=7,
        determinism="strict",
        threads=(Variable(name="OMP_NUM_THREADS", value="2"),),
        host=("cores 4",),
    )
    assert runs.compare_starts(left, left) == ()
    assert rows(runs.compare_starts(left, right)) == [
        ("command", "command", "train.py", "train.py --lr 1"),
        ("seeds", "seed", "0", "7"),
        ("numerics", "OMP_NUM_THREADS (requested)", "", "2"),
        ("numerics", "deterministic", "off", "strict"),
        ("observed", "cores", "", "4"),
    ]


def test_how_a_training_is_distributed_comes_before_what_follows_from_it() -> None:
    ranks = [Rank(rank=rank, size=2, backend="gloo", device="cpu", nodes=1, strategy="DDP", accumulation="4") for rank in (0, 1)]
    other = [Rank(rank=0, size=1, backend="gloo", device="cpu", nodes=1, strategy="FSDP", accumulation="1")]
    left = make_end({}, ranks=tuple(ranks), settings=(Fact(name="threads", value="2"),))
    right = make_end({}, ranks=tuple(other), settings=(Fact(name="threads", value="1"),))
    files = runs.outputs(left, right)
    assert rows(runs.compare_ends(left, right, files))[:2] == [
        (
            "config",
            "distributed training",
            "2 ranks, DDP, 1 node, 4 backward passes per optimizer step",
            "1 ranks, FSDP, 1 node, 1 backward pass per optimizer step",
        ),
        ("numerics", "threads", "2", "1"),
    ]
    start_ = start("x")
    shared = msgspec.structs.replace(start_, processes=8)
    assert rows(runs.compare_starts(start_, shared)) == [("command", "processes that share the run", "", "8")]


def test_results_that_differ_are_listed_in_the_order_of_levels() -> None:
    left = make_end({}, auto_seeded=("numpy default_rng at a.py:1",), settings=(Fact(name="threads", value="2"),))
    right = make_end(
        {},
        settings=(Fact(name="threads", value="1"),),
        operations=(Count(what="put_", count=3, file="a.py", line=7),),
        seeded=(
            *(Seeded(library="torch", what="torch.manual_seed", value=str(n), file="a.py", line=2) for n in (1, 2)),
            Seeded(library="repro_env", what="repro_env.seed", value="7", purpose="split", file="a.py", line=1),
        ),
        outcome=Outcome(exit_code=137, signal=9, out_of_memory=False, isolation="none", methods=()),
    )
    assert rows(runs.compare_ends(left, right, runs.Outputs())) == [
        ("seeds", "numpy default_rng at a.py:1", "seeded by repro-env", ""),
        ("seeds", "repro_env.seed at a.py:1", "", "split: 7"),
        ("seeds", "torch.manual_seed at a.py:2", "", "1, 2"),
        ("numerics", "put_ at a.py:7", "", "3 times"),
        ("numerics", "threads", "2", "1"),
        ("end", "exit code", "0", "137"),
        ("end", "signal", "none", "9"),
    ]


def test_the_means_of_runners_are_compared() -> None:
    def with_means(*means: str) -> End:
        return make_end({}, outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="none", methods=means))

    left = with_means("root: overlay", "workspace: overlay")
    right = with_means("root: overlay", "workspace: copy", "plain")
    assert rows(runs.compare_ends(left, right, runs.Outputs())) == [
        ("observed", "plain", "", "used"),
        ("observed", "workspace", "overlay", "copy"),
    ]


def test_parameters_are_compared_by_their_paired_files() -> None:
    def parameter(path: str, value: str) -> Parameter:
        return Parameter(name="lr", value=value, file=path)

    old, new = (f"outputs/2026-07-0{day}/10-15-30/.hydra/config.yaml" for day in (1, 2))
    left, right = make_end({}, parameters=(parameter(old, "1"),)), make_end({}, parameters=(parameter(new, "2"),))
    facts = runs.compare_ends(left, right, runs.Outputs(pairs=(Pair(old, new, False),)))
    assert [(fact.what, fact.of, fact.left, fact.right) for fact in facts] == [("lr", old, "1", "2")]
    facts = runs.compare_ends(left, right, runs.Outputs())
    assert sorted((fact.of, fact.left, fact.right) for fact in facts) == [(old, "1", ""), (new, "", "2")]
    first = parameter("logs/version_0/hparams.yaml", "1")
    left = make_end({}, parameters=(first, parameter("logs/version_1/hparams.yaml", "3")))
    right = make_end({}, parameters=(first, parameter("logs/version_1/hparams.yaml", "4")))
    facts = runs.compare_ends(left, right, runs.Outputs())
    assert [(fact.of, fact.left, fact.right) for fact in facts] == [("logs/version_1/hparams.yaml", "3", "4")]


def test_outputs_are_the_same_if_there_are_any_and_all_are_equal() -> None:
    assert not runs.outputs(make_end({}), make_end({})).same
    assert runs.outputs(make_end({"a": A}), make_end({"a": A})).same
    assert not runs.outputs(make_end({"a": A}), make_end({"a": B})).same
    assert not runs.outputs(make_end({"a": A, "b": A}), make_end({"a": A})).same
    assert not runs.outputs(make_end({"a": A}), make_end({"a": A, "b": A})).same
    left, right = make_end({"o/2026-07-01/10-15-30/a": A}), make_end({"o/2026-07-02/11-00-00/a": A})
    assert runs.outputs(left, right, pair_names=Judge(THEN, NOW).pair_names).same
    assert not runs.outputs(left, right).same
    assert not runs.outputs(make_end({"a": A}), make_end({"a": A}, removed=("b",))).same


def test_links_are_compared_by_their_targets_and_unread_files_are_not_the_same() -> None:
    def compare(left: str, right: str) -> runs.Outputs:
        return runs.outputs(make_end({"a": A}, others=(left,)), make_end({"a": A}, others=(right,)))

    assert compare("l -> a", "l -> a").same
    assert not compare("l -> a", "l -> b").same
    assert compare("p (pipe)", "p (pipe)").same
    found = compare("x (Permission denied)", "x (Permission denied)")
    assert not found.same
    assert found.unread == ("x (Permission denied)",)
    assert not compare("(the outputs are not complete: x)", "(the outputs are not complete: x)").same


def test_metrics_are_compared_by_their_paired_files() -> None:
    def metric(path: str, name: str, last: float, count: int = 1) -> Metric:
        return Metric(name=name, file=path, count=count, last=last, least=0.0, most=9.0)

    old, new = (f"runs/Jul0{n}_10-15-30_a/events.out.tfevents.{1782814530 + n * 86400}.a.7.0" for n in (1, 2))
    left, right = make_end({old: A, "m.json": A}), make_end({new: B, "m.json": A})
    files = runs.outputs(left, right, pair_names=Judge(THEN, NOW).pair_names)
    pairs = runs.metrics(
        [metric("m.json", "acc", 0.5), metric(old, "loss", 2.0), metric(old, "old", 1.0)],
        [metric("m.json", "acc", 0.5), metric(new, "loss", 1.5), metric("n.json", "new", 1.0)],
        files,
    )
    assert [(pair.name, pair.same, pair.change) for pair in pairs] == [
        ("acc", True, 0.0),
        ("new", False, None),
        ("loss", False, -0.5),
        ("old", False, None),
    ]
    (pair,) = runs.metrics([metric("m.json", "acc", 0.5, 2)], [metric("m.json", "acc", 0.5, 3)], files)
    assert not pair.same
