"""The results of `repro-env ci`, and the files that show them: JUnit (a test case for each step) and SARIF 2.1.0.

Both are written without times, so the same results give the same bytes. Texts come from a repository that may be hostile:
they are shortened, and without secrets, control characters and links.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple
from urllib.parse import quote

from repro_env.cli.ui.github import SENTENCE, shorten
from repro_env.version import __version__

_RULES = {
    "drift": ("error", "The code differs from the captured code."),
    "not-compared": ("warning", "Something could not be compared with the spec."),
    "result": ("error", "Two runs of the same command have different results."),
    "policy": ("error", "A rule of the project's policy is broken."),
    "job": ("error", "A step of the job failed."),
}
"""The ID of each SARIF rule -> its level and description."""
_NOT_IN_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}
"""Characters that XML 1.0 excludes and that `shorten` keeps."""
_NOT_IN_SARIF = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})
"""Brackets of links and placeholders (SARIF 2.1.0, 3.11.5 and 3.11.6)."""


class Difference(NamedTuple):
    """Something that differs, or that was not compared."""

    rule: str
    """In `_RULES`."""
    name: str
    captured: str = ""
    now: str = ""
    why: str = ""
    file: str = ""
    """Path relative to the repository; empty if it is not one of its files."""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.why or f'{self.captured} -> {self.now}'}"


class Report:
    """The results of the steps so far."""

    def __init__(self) -> None:
        self.verdict = "error"
        """A word for programs."""
        self.sentence = ""
        self.advice = ""
        """What to do next."""
        self.outputs: dict[str, str] = {}
        self.steps: list[tuple[str, str]] = []
        """The name and the result of each step that ended."""
        self.differences: list[Difference] = []
        self.spec = ""
        """Path of the spec relative to the repository; empty if it is not in it."""

    def conclude(self, verdict: str, sentence: str, advice: str = "") -> None:
        self.verdict, self.sentence, self.advice = verdict, sentence, advice

    @property
    def text(self) -> str:
        return f"{self.sentence.rstrip('.')}. {self.advice}".strip()

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """For tables: the name, the captured value, the value now, and the reason."""
        return [difference[1:5] for difference in self.differences]


def junit(report: Report, code: int) -> bytes:
    """A test suite with a case for each step. `code`: the exit code of the job; the last case fails unless it is 0.

    An error of repro-env has a case of its own, because the step that it ended has no result.
    """
    from xml.etree import ElementTree  # slow to import

    is_error = report.verdict == "error"
    steps = [*report.steps, ("error", "")] if is_error else report.steps
    counts = {"tests": str(len(steps)), "failures": str(int(code != 0 and not is_error)), "errors": str(int(is_error))}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "repro-env", **counts})
    for name, result in steps:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "repro-env", "name": name})
        if code and (name, result) == steps[-1]:
            problem = ElementTree.SubElement(case, "error" if is_error else "failure", {"message": _xml(report.text)})
            problem.attrib["type"] = report.verdict
            problem.text = "\n".join(_xml(difference.text) for difference in report.differences)
        else:
            ElementTree.SubElement(case, "system-out").text = _xml(result)
    ElementTree.indent(suites)
    text: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def sarif(report: Report, code: int) -> bytes:
    """A result for each difference; if there is none and the job failed, a result for its failure.

    A result that is about no file of the repository is located at the spec.
    """
    results = [_result(difference.rule, difference.text, difference.file or report.spec) for difference in report.differences]
    if code and not results:
        results = [_result("job", report.text, report.spec)]
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}
        for name, (level, text) in _RULES.items()
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "repro-env", "version": __version__, "rules": rules}},
                "invocations": [{"executionSuccessful": report.verdict != "error", "exitCode": code}],
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=2).encode() + b"\n"


def _result(rule: str, text: str, file: str) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": quote(os.fsencode(file)), "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 1}}
    return {
        "ruleId": rule,
        "ruleIndex": [*_RULES].index(rule),
        "level": _RULES[rule][0],
        "message": {"text": shorten(text, SENTENCE).translate(_NOT_IN_SARIF)},
        "locations": [{"physicalLocation": place}] if file else [],
    }


def _xml(text: str) -> str:
    return shorten(text, SENTENCE).translate(_NOT_IN_XML)
