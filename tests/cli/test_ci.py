"""`repro-env ci`: which runner it takes, and what it writes for GitHub. The whole command: tests/e2e/test_action.py."""

from __future__ import annotations

import re

import pytest

from repro_env.cli import ci, github
from repro_env.flows.doctor import Diagnosis
from repro_env.model.errors import SandboxError
from repro_env.run.diagnosis import Finding, State
from repro_env.run.engines import Met
from repro_env.run.observations import Folder, Observations


def found(state: State, *engines: Met) -> Diagnosis:
    folder = Folder(path="/x", kind="ext4", size=1, inodes=1, errno=0)
    return Diagnosis(
        works=state != "blocked",
        findings=(Finding(name="user namespace", state=state, text="AppArmor refuses it", fix="sysctl -w x=0"),),
        observations=Observations(
            kernel="6.8", uid=1, admin=False, seccomp=0, userns_clone=None, max_user_namespaces=1, apparmor=1,
            store=folder, runs=folder, tried=()
        ),
        alternatives=(),
        engines=engines,
    )  # fmt: skip


ENGINE = Met(address="unix:///run/docker.sock", product="Docker", version="27.0")


def test_a_runner_that_refuses_namespaces_takes_docker_or_says_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert ci.runner(found("fallback", ENGINE)) == []
    assert ci.runner(found("blocked", ENGINE)) == ["--runner", "docker"]
    assert "using --runner docker: user namespace: AppArmor refuses it" in capsys.readouterr().err
    for engines in ((), (Met(address="unix:///run/docker.sock", problem="no permission"),)):
        with pytest.raises(SandboxError, match="AppArmor refuses it") as caught:
            ci.runner(found("blocked", *engines))
        assert caught.value.hint == "sysctl -w x=0"


def test_an_annotation_is_one_line_that_ends_no_property() -> None:
    line = github.annotation("50%\r\nmore\x1b", title="a:b,c", file="x\n::error::y,z.py")
    assert line == "::error file=x%0A%3A%3Aerror%3A%3Ay%2Cz.py,title=a%3Ab%2Cc::50%25\\r\\nmore\\x1b"


def test_an_output_cannot_set_another() -> None:
    written = github.outputs({"a": "1\nb=2\nEOF\nc<<EOF\n", "d": ""})
    match = re.fullmatch(r"a<<(\w{32})\n1\nb=2\nEOF\nc<<EOF\n\n\1\nd<<(\w{32})\n\n\2\n", written)
    assert match
    assert match[1] != match[2]


def test_a_summary_is_one_block_of_html_below_the_limit_of_github() -> None:
    rows = [["\n\n# <b>'\"&" * 1000] * 4] * 5000
    text = github.summary("x", "y\n\nz", [(("a", "b", "c", "d"), rows), (("none",), ())], "")
    assert "\n\n" not in text.strip("\n")
    assert "<b>" not in text
    assert "and 4,900 more" in text
    assert "none" not in text
    assert len(text.encode()) < 1 << 20


def test_secrets_are_in_no_annotation_and_no_summary() -> None:
    url = "https://ann:s3cret-pass@index.example.com/simple"
    assert "s3cret-pass" not in github.annotation(url, title="x") + github.summary(url, url, [((url,), [[url]])], url)
