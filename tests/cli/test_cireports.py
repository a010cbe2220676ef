"""The files of `repro-env ci --junit` and `--sarif`: every value of a hostile repository stays text, and the bytes are stable."""

from __future__ import annotations

import json
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pytest

from repro_env.cli.ui import cireports
from repro_env.cli.ui.cireports import Difference, Report
from repro_env.version import __version__

HOSTILE = (
    "a\n::error title=theirs::x.py",
    "</failure><testcase name='theirs'/>]]>&amp;.py",
    "[click](https://evil.example.com/) {0} \\[x].py",
    "\x1b]0;theirs\x07\u202e\ufffe\uffff\x00.py",
    "déjà vu 😀.py",
    "bytes \udcff.py",
    "https://ann:s3cret-pass@index.example.com/simple",
    "x" * 5000,
)


def drifted(*names: str) -> Report:
    report = Report()
    report.spec = "sub dir/repro/spec.json"
    report.differences += [Difference("drift", name, "old", "new", file=f"src/{name}") for name in names]
    report.differences.append(Difference("not-compared", "wheels", why="not compared: no index"))
    report.steps.append(("check", "2 differences"))
    report.conclude("drifted", "The code changed since the capture.", "Capture again.")
    return report


def error() -> Report:
    report = Report()
    report.steps.append(("check", "unchanged since the capture"))
    report.conclude("error", "x: the base was not found", "Push it.")
    return report


def passed() -> Report:
    report = Report()
    report.steps += [("check", "unchanged"), ("exec", f"exit code 0: {HOSTILE[1]}")]
    report.conclude("ran", "The command ended with exit code 0.")
    return report


CASES = ((drifted(*HOSTILE), 1), (error(), 11), (passed(), 0))


@pytest.mark.parametrize(("report", "code"), CASES)
def test_junit_has_the_steps_and_true_counts(report: Report, code: int) -> None:
    data = cireports.junit(report, code)
    assert data == cireports.junit(report, code)
    suites = ElementTree.fromstring(data)
    (suite,) = suites
    assert (suites.tag, suite.tag, suite.attrib["name"]) == ("testsuites", "testsuite", "repro-env")
    cases = suite.findall("testcase")
    assert cases == list(suite)
    for level in (suites, suite):
        counts = {name: int(level.attrib[name]) for name in ("tests", "failures", "errors")}
        assert counts == {
            "tests": len(cases),
            "failures": len(suite.findall("testcase/failure")),
            "errors": len(suite.findall("testcase/error")),
        }
        assert counts["failures"] + counts["errors"] == (code != 0)
    for case in cases:
        assert case.attrib.keys() == {"classname", "name"}
        (below,) = case
        assert below.tag in ("failure", "error", "system-out")
        assert len(below) == 0, "a name became an element"
    assert [case.attrib["name"] for case in cases][: len(report.steps)] == [name for name, _ in report.steps]
    assert b"s3cret-pass" not in data


def test_junit_lists_each_difference_in_a_line() -> None:
    report, code = CASES[0]
    failure = ElementTree.fromstring(cireports.junit(report, code)).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.attrib == {"message": "The code changed since the capture. Capture again.", "type": "drifted"}
    lines = (failure.text or "").split("\n")
    assert len(lines) == len(HOSTILE) + 1
    assert lines[0] == "a\\n::error title=theirs::x.py: old -> new"
    assert lines[-1] == "wheels: not compared: no index"


@pytest.mark.parametrize(("report", "code"), CASES)
def test_sarif_keeps_the_schema(report: Report, code: int) -> None:
    """What SARIF 2.1.0 requires of each object that we write, and no key that it does not know."""
    data = cireports.sarif(report, code)
    assert data == cireports.sarif(report, code)
    log = json.loads(data)
    assert log.keys() == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run.keys() == {"tool", "invocations", "results"}
    driver = run["tool"]["driver"]
    assert driver.keys() == {"name", "version", "rules"}
    assert (driver["name"], driver["version"]) == ("repro-env", __version__)
    assert run["invocations"] == [{"executionSuccessful": report.verdict != "error", "exitCode": code}]
    for rule in driver["rules"]:
        assert rule.keys() == {"id", "shortDescription", "defaultConfiguration"}
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    for result in run["results"]:
        assert result.keys() == {"ruleId", "ruleIndex", "level", "message", "locations"}
        rule = driver["rules"][result["ruleIndex"]]
        assert (rule["id"], rule["defaultConfiguration"]["level"]) == (result["ruleId"], result["level"])
        assert result["message"].keys() == {"text"}
        assert 0 < len(result["message"]["text"]) <= 2000
        for location in result["locations"]:
            assert location.keys() == {"physicalLocation"}
            assert location["physicalLocation"].keys() == {"artifactLocation", "region"}
            assert location["physicalLocation"]["region"] == {"startLine": 1}
            uri = location["physicalLocation"]["artifactLocation"]["uri"]
            assert uri.isascii()
            assert not uri.startswith("/")
            assert not set(uri) & set(" :?#[]\\\n")
    assert len(run["results"]) == (len(report.differences) or int(code != 0))
    assert b"s3cret-pass" not in json.dumps([result["message"] for result in run["results"]]).encode()


def test_sarif_locates_each_difference() -> None:
    results = json.loads(cireports.sarif(*CASES[0]))["runs"][0]["results"]
    uris = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    names = [unquote_to_bytes(uri).decode(errors="surrogateescape") for uri in uris]
    assert names == [*(f"src/{name}" for name in HOSTILE), "sub dir/repro/spec.json"]
    assert [result["level"] for result in results] == ["error"] * len(HOSTILE) + ["warning"]
    assert json.loads(cireports.sarif(*CASES[1]))["runs"][0]["results"][0]["locations"] == []


def test_sarif_has_no_links_or_placeholders_of_a_file_name() -> None:
    report, code = CASES[0]
    text = json.loads(cireports.sarif(report, code))["runs"][0]["results"][2]["message"]["text"]
    assert text == r"\[click\](https://evil.example.com/) {{0}} \\\[x\].py: old -> new"
