"""The commands of docs/hpc.md through the installed command, as on a node of a cluster."""

from __future__ import annotations

import json

from tests.e2e import parts


def test_a_run_with_charliecloud_has_the_record_of_an_embedded_one_and_is_verified(small: parts.Project) -> None:
    assert "charliecloud" in small.run("doctor", "--for", small.directory).out
    seen = {}
    for runner in ("charliecloud", "embedded"):
        assert small.run("exec", "--runner", runner, "--seed", "5", "hello.py").out.startswith("hello from ")
        seen[runner] = json.loads(small.run("runs", "show", "--json").out)
        if runner == "charliecloud":
            assert "bitwise: " in small.run("verify").out
    ours, theirs = seen["charliecloud"], seen["embedded"]
    assert (ours["start"]["runner"], ours["end"]["outcome"]["isolation"]) == ("charliecloud", "charliecloud")
    assert ours["end"]["outcome"]["means"][0].startswith("ch-run ")
    assert ours["end"]["outputs"] == theirs["end"]["outputs"] != []
    same = ("command", "cwd", "data", "given", "host", "image", "network", "seed", "source", "spec")
    assert {name: ours["start"][name] for name in same} == {name: theirs["start"][name] for name in same}
    assert "apptainer is not on the PATH" in parts.one_sentence(small.run("exec", "--runner", "apptainer", "hello.py", code=15))
