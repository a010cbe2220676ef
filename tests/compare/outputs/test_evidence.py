"""Values of a run in a text, and values that only look like them."""

from __future__ import annotations

import re

import pytest

from repro_env.compare.outputs.evidence import Evidence, explain, occurrences
from repro_env.schema.fingerprints import digest_of_id, digest_of_name

RUN = Evidence(
    started=1772615702.125,  # 2026-03-04T09:15:02.125Z
    ended=1772617651.5,
    zones=(0, 19800),
    names=(("0198f0d2-run", "the run's id"),),
    pids=(4711,),
    drawn={digest_of_id("e69aa03c15a64c6fbc8f7c1c8f1b7db2"): "an id, number 0", digest_of_id("e69aa03c"): "an id, number 0"},
    hidden={digest_of_name("node-17"): "the host's name"},
)


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-04T09:15:02.125Z",
        "2026-03-04 09:15:02,125 - x",
        "outputs/2026-03-04/09-15-02/x.json",
        "2026-03-04@09:15:02",
        "run-20260304_091502-x",
        "2026-03-04_09-15-02_125001.log",
        "(D:20260304091502+00'00')",
        "Wed Mar  4 09:15:02 2026",
        "Mar04_09-15-02_x",
        "04/Mar/2026:09:15:02 +0000",
        "Wed, 04 Mar 2026 09:15:02 GMT",
        "03/04/2026 09:15:02",
        "2026-03-04T14:45:02+05:30",
        "2026-03-04T14:45:02",
        "2026-03-04 09:15",
        "1772615702",
        "1772615702.125",
        "1772615702125",
        "events.out.tfevents.1772615703.x",
        "e69aa03c-15a6-4c6f-bc8f-7c1c8f1b7db2",
        "E69AA03C15A64C6FBC8F7C1C8F1B7DB2",
        "run-e69aa03c/w",
        "5pqgPBWmTG-8j3wcjxt9sg",
        "0198f0d2-run/x",
        "pid 4711",
        "at node-17: done",
    ],
)
def test_a_value_of_the_run_is_found(text: str) -> None:
    assert len(occurrences(text, RUN)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-04",
        "09:15:02",
        "2026-03-04 09:14",
        "2026-03-04 09:48",
        "2026-03-04 09:20:00 EST",
        "2026-03-04 09:20 PM",
        "2026-03-04T09:15:02+02:00",
        "1772615701",
        "0.1772615702",
        "-1772615702",
        "17726157020",
        "e69aa03c-15a6-4c6f-bc8f-7c1c8f1b7db3",
        "e69aa03d",
        "4711.5",
        "47110",
        "node-18",
        "12.5 s",
        "version_3",
    ],
)
def test_a_value_that_does_not_belong_to_the_run_is_not_found(text: str) -> None:
    assert occurrences(text, RUN) == []


def test_every_difference_of_a_text_needs_evidence() -> None:
    then, now = Evidence(started=1772615702.0, ended=1772615762.0), Evidence(started=1772702102.0, ended=1772702162.0)
    (found,) = explain("at 2026-03-04 09:15:10 loss 0.5", "at 2026-03-05 09:15:10 loss 0.5", then, now)
    assert (found.then, found.now) == ("2026-03-04 09:15:10", "2026-03-05 09:15:10")
    for left, right in (
        ("at 2026-03-04 09:15:10 loss 0.5", "at 2026-03-05 09:15:10 loss 0.6"),
        ("at 2026-03-04 09:15:10", "at 2026-03-04 09:15:11"),
        ("at 2026-03-04 09:15:10", "at 1772702110"),
        ("at 2026-03-04 09:15:10", "at 2026-03-05T09:15:10"),
    ):
        assert explain(left, right, then, now) == []


def test_a_long_text_is_searched() -> None:
    for unit in ("2026-03-04 ", "1772615702 ", "e69aa03c", "Mar ", "a/", "4711,", "09:15:02."):
        assert re.search(r".", unit * 20000)
        occurrences(unit * 20000, RUN)


def evidence_of_host(host: str, home: str, temporary: str) -> Evidence:
    return Evidence(
        hidden={digest_of_name(host): "the host's name"},
        names=((home, "the home directory"), (temporary, "the temporary directory")),
    )


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("vm", "gpu-3"),
        ("runs/Mar04_09-15-02_vm/x", "runs/Mar04_09-15-02_gpu-3/x"),
        ("events.vm.2", "events.gpu-3.2"),
        ("/home/ann/.cache/x", "/home/ben/.cache/x"),
        ("/tmp/job-1/y", "/scratch/y"),
    ],
)
def test_host_names_and_directories_explain_a_difference(then: str, now: str) -> None:
    left = evidence_of_host("vm", "/home/ann", "/tmp/job-1")
    right = evidence_of_host("gpu-3", "/home/ben", "/scratch")
    assert explain(then, now, left, right)
    assert not explain(then, now, right, left)
