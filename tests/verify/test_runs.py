from __future__ import annotations

import msgspec

from repro_env.model.environment import Variable
from repro_env.model.run import Count, End, Fact, Metric, Outcome, Output, Parameter, Seeded, Start
from repro_env.verify import runs
from repro_env.verify.judge import Judge
from tests.catalog.test_records import end, start
from tests.verify.test_pairing import NOW, THEN

A, B = ("sha256:" + letter * 64 for letter in "ab")


def ended(outputs: dict[str, str], *, others: tuple[str, ...] = (), **more: object) -> End:
    made = tuple(Output(path=path, sha256=digest, size=1) for path, digest in sorted(outputs.items()))
    return msgspec.structs.replace(end("x"), outputs=made, others=others, **more)


def told(found: tuple[runs.Fact, ...]) -> list[tuple[str, str, str, str]]:
    return [(one.part, one.what, one.left, one.right) for one in found]


def test_what_was_asked_otherwise_in_the_order_of_its_parts() -> None:
    one = start("x")
    other: Start = msgspec.structs.replace(
        one,
        command=("train.py", "--lr", "1"),
        seed=7,
        determinism="strict",
        threads=(Variable(name="OMP_NUM_THREADS", value="2"),),
        host=("cores 4",),
    )
    assert runs.begun(one, one) == ()
    assert told(runs.begun(one, other)) == [
        ("command", "command", "train.py", "train.py --lr 1"),
        ("seeds", "seed", "0", "7"),
        ("numbers", "deterministic", "off", "strict"),
        ("numbers", "OMP_NUM_THREADS (asked)", "", "2"),
        ("machine", "cores", "", "4"),
    ]


def test_what_came_of_it_otherwise() -> None:
    one = ended({}, holes=("numpy default_rng at a.py:1",), effective=(Fact(name="threads", value="2"),))
    other = ended(
        {},
        effective=(Fact(name="threads", value="1"),),
        operations=(Count(what="put_", count=3, file="a.py", line=7),),
        seeded=tuple(Seeded(library="torch", what="torch.manual_seed", value=str(n), file="a.py", line=2) for n in (1, 2)),
        outcome=Outcome(exit_code=137, signal=9, out_of_memory=False, isolation="none", means=()),
    )
    assert told(runs.ended(one, other, runs.Outputs())) == [
        ("seeds", "numpy default_rng at a.py:1", "seeded by repro-env", ""),
        ("seeds", "torch.manual_seed at a.py:2", "", "1, 2"),
        ("numbers", "threads", "2", "1"),
        ("numbers", "put_ at a.py:7", "", "3 times"),
        ("end", "exit code", "0", "137"),
        ("end", "signal", "none", "9"),
    ]


def test_what_a_runner_used_is_set_beside_what_the_other_used() -> None:
    def used(*means: str) -> End:
        return ended({}, outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="none", means=means))

    left, right = used("root: overlay", "bytecode: none yet"), used("root: overlay", "bytecode: kept", "plain")
    assert told(runs.ended(left, right, runs.Outputs())) == [
        ("machine", "bytecode", "none yet", "kept"),
        ("machine", "plain", "", "used"),
    ]


def test_parameters_are_of_the_same_file_where_the_outputs_are_a_pair() -> None:
    def of(path: str, value: str) -> Parameter:
        return Parameter(name="lr", value=value, file=path)

    left, right = (f"outputs/2026-07-0{day}/10-15-30/.hydra/config.yaml" for day in (1, 2))
    one, other = ended({}, parameters=(of(left, "1"),)), ended({}, parameters=(of(right, "2"),))
    found = runs.ended(one, other, runs.Outputs(pairs=(runs.Pair(left, right, False),)))
    assert [(fact.what, fact.of, fact.left, fact.right) for fact in found] == [("lr", left, "1", "2")]
    found = runs.ended(one, other, runs.Outputs())
    assert [(fact.of, fact.left, fact.right) for fact in found] == [(left, "1", ""), (right, "", "2")]
    two = (of("logs/version_0/hparams.yaml", "1"), of("logs/version_1/hparams.yaml", "3"))
    other = ended({}, parameters=(two[0], of("logs/version_1/hparams.yaml", "4")))
    found = runs.ended(ended({}, parameters=two), other, runs.Outputs())
    assert [(fact.of, fact.left, fact.right) for fact in found] == [("logs/version_1/hparams.yaml", "3", "4")]


def test_outputs_are_the_same_only_when_there_are_some_and_all_of_them_are() -> None:
    assert not runs.outputs(ended({}), ended({})).same
    assert runs.outputs(ended({"a": A}), ended({"a": A})).same
    assert not runs.outputs(ended({"a": A}), ended({"a": B})).same
    assert not runs.outputs(ended({"a": A, "b": A}), ended({"a": A})).same
    assert not runs.outputs(ended({"a": A}), ended({"a": A, "b": A})).same
    one, other = ended({"o/2026-07-01/10-15-30/a": A}), ended({"o/2026-07-02/11-00-00/a": A})
    assert runs.outputs(one, other, pair_names=Judge(THEN, NOW).pair_names).same
    assert not runs.outputs(one, other).same
    assert not runs.outputs(ended({"a": A}), ended({"a": A}, removed=("b",))).same


def test_links_count_by_where_they_lead_and_what_was_not_read_is_never_the_same() -> None:
    def both(one: str, other: str) -> runs.Outputs:
        return runs.outputs(ended({"a": A}, others=(one,)), ended({"a": A}, others=(other,)))

    assert both("l -> a", "l -> a").same
    assert not both("l -> a", "l -> b").same
    assert both("p (pipe)", "p (pipe)").same
    found = both("x (Permission denied)", "x (Permission denied)")
    assert not found.same
    assert found.unread == ("x (Permission denied)",)
    assert not both("(the outputs are not complete: x)", "(the outputs are not complete: x)").same


def test_metrics_are_beside_each_other_by_their_paired_files() -> None:
    def of(path: str, name: str, last: float, count: int = 1) -> Metric:
        return Metric(name=name, file=path, count=count, last=last, least=0.0, most=9.0)

    left, right = (f"runs/Jul0{n}_10-15-30_a/events.out.tfevents.{1782814530 + n * 86400}.a.7.0" for n in (1, 2))
    one, other = ended({left: A, "m.json": A}), ended({right: B, "m.json": A})
    files = runs.outputs(one, other, pair_names=Judge(THEN, NOW).pair_names)
    found = runs.metrics(
        [of("m.json", "acc", 0.5), of(left, "loss", 2.0), of(left, "old", 1.0)],
        [of("m.json", "acc", 0.5), of(right, "loss", 1.5), of("n.json", "new", 1.0)],
        files,
    )
    assert [(one.name, one.same, one.change) for one in found] == [
        ("acc", True, 0.0),
        ("new", False, None),
        ("loss", False, -0.5),
        ("old", False, None),
    ]
    again = runs.metrics([of("m.json", "acc", 0.5, 2)], [of("m.json", "acc", 0.5, 3)], files)
    assert not again[0].same
