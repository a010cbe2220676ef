"""`repro-env ci`: the choice of the runner, and the text for GitHub. tests/e2e/test_action.py runs the command."""

from __future__ import annotations

import re

import pytest

from repro_env.api.doctor import Diagnosis
from repro_env.cli import ci
from repro_env.cli import exec as exec_command
from repro_env.cli.ui import github
from repro_env.sandbox.doctor import Directory, Finding, Observations, State
from repro_env.schema.errors import SandboxError, UsageError
from repro_env.schema.runners import RunnerName


def diagnosis(state: State, *others: RunnerName) -> Diagnosis:
    directory = Directory(path="/x", kind="ext4", size=1, errno=0)
    return Diagnosis(
        works=state != "blocked",
        findings=(Finding(name="user namespace", state=state, text="AppArmor refuses it", fix="sysctl -w x=0"),),
        observations=Observations(
            kernel="6.8", admin=False, seccomp=0, userns_clone=None, max_user_namespaces=1, apparmor=1,
            store=directory, runs=directory, tried={}
        ),
        alternatives=(),
        runners=others,
    )  # fmt: skip


def test_ci_uses_docker_if_the_embedded_runner_is_blocked(capsys: pytest.CaptureFixture[str]) -> None:
    assert ci.runner(diagnosis("fallback", "docker")) is None
    assert ci.runner(diagnosis("blocked", "docker")) == "docker"
    assert "using --runner docker: user namespace: AppArmor refuses it" in capsys.readouterr().err


def test_ci_reports_the_fix_if_no_runner_works() -> None:
    with pytest.raises(SandboxError, match="AppArmor refuses it") as caught:
        ci.runner(diagnosis("blocked"))
    assert caught.value.hint == "sysctl -w x=0"


def test_an_annotation_is_one_line_with_escaped_properties() -> None:
    line = github.annotation("50%\r\nmore\x1b", title="a:b,c", file="x\n::error::y,z.py")
    assert line == "::error file=x%0A%3A%3Aerror%3A%3Ay%2Cz.py,title=a%3Ab%2Cc::50%25\\r\\nmore\\x1b"


def test_the_value_of_an_output_cannot_set_another_output() -> None:
    text = github.outputs({"a": "1\nb=2\nEOF\nc<<EOF\n", "d": ""})
    match = re.fullmatch(r"a<<(\w{32})\n1\nb=2\nEOF\nc<<EOF\n\n\1\nd<<(\w{32})\n\n\2\n", text)
    assert match
    assert match[1] != match[2]


def test_a_summary_is_one_html_block_below_the_size_limit_of_github() -> None:
    rows = [["\n\n# <b>'\"&" * 1000] * 4] * 5000
    text = github.summary("x", "y\n\nz", [(("a", "b", "c", "d"), rows), (("none",), ())], "")
    assert "\n\n" not in text.strip("\n")
    assert "<b>" not in text
    assert "and 4,900 more" in text
    assert "none" not in text
    assert len(text.encode()) < 1 << 20


def test_annotations_and_summaries_contain_no_secrets() -> None:
    url = "https://ann:s3cret-pass@index.example.com/simple"
    assert "s3cret-pass" not in github.annotation(url, title="x") + github.summary(url, url, [((url,), [[url]])], url)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.py 'x", "cannot be split into words"),
        ("--seed 7", "does not name a command"),
        ("--help train.py", "does not name a command"),
        ("--sed 7 train.py", "no such option: --sed"),
    ],
)
def test_ci_refuses_invalid_words_for_exec(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ci.parse_exec(text, verify=False)


def test_ci_parses_the_words_for_exec() -> None:
    context = ci.parse_exec("--runs '/my runs' --env A=1 --env B --network train.py 'two words' --help", verify=True)
    assert exec_command.words(context) == ("train.py", "two words", "--help")
    assert ci._verify_options(context.params) == ["--runs=/my runs", "--env=A=1", "--env=B", "--network"]
    assert ci.parse_exec("", verify=False) is None
    with pytest.raises(UsageError, match="--verify requires --exec"):
        ci.parse_exec("", verify=True)
