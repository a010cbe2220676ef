"""Text whose bytes differ: line by line."""

from __future__ import annotations

import difflib
import re
from typing import Any

from repro_env.verify import masks
from repro_env.verify.closeness import numbers
from repro_env.verify.compared import SHOWN, File, Sameness, cut, renamed, worse
from repro_env.verify.kinds import Kind

_PDF = re.compile(r"(\(D:|<xmp:[A-Za-z]{1,20}Date>)(?:19|20)\d\d[-0-9TZ:.+']{4,32}")
_PDF_ID = re.compile(r"/ID ?\[ ?<[0-9A-Fa-f]{32}> ?<[0-9A-Fa-f]{32}> ?\]")
_SVG = re.compile(r"((?:id=[\"']|#)(?:[a-z]|image|C[0-9a-f]{1,4}_[0-9a-f]{1,8}_))[0-9a-f]{10}(?![0-9A-Za-z])")
"""matplotlib names clip paths, markers, pictures and the paths of a collection by a random salt."""
_REPORTLAB = re.compile(r"\[<([0-9a-f]{32})><\1>\]")
"""On a line of its own, after `/ID`."""
_STYLED = re.compile(r"((?:id=\"|#)T_)[0-9a-f]{5}(?![0-9A-Za-z])")
"""A table that pandas styled has a random name."""
_MODEL = re.compile(r"(?:model_uuid|model_id|run_id|artifact_path): .*")
"""MLflow's description of a model."""
_MOMENT = re.compile(r"\A\d{10,13}(?= )")
"""MLflow's metrics: a line is a moment, a value, a step."""


def of_text(path: str, now: str, kind: Kind, left: str, right: str, *, masked: bool) -> File:
    """Line by line."""
    one, other = (_lines(text, path) for text in (left, right))
    mask = _mask_of(path, kind) if masked else str
    then, there = [mask(line) for line in one], [mask(line) for line in other]
    level: Sameness = "bitwise"
    count = 0
    if len(then) == len(there):
        for a, b in zip(then, there, strict=True):
            if a != b:
                level = worse(level, numbers(a, b))
                count += 1
    else:
        level = "different"
        count = sum(a != b for a, b in zip(then, there, strict=False)) + abs(len(then) - len(there))
    apart = list(renamed(path, now))
    if level == "bitwise":
        lines = [f"{cut(a)} -> {cut(b)}" for a, b in zip(one, other, strict=True) if a != b]
        apart += (
            [f"{len(lines):,} lines by times and the like, as {lines[0]}" if len(lines) > 1 else lines[0]]
            if lines
            else ["only line ends differ"]
        )
    shown: list[str] = []
    why = ""
    if count:  # as masked: what differs is then what counts
        lines = list(difflib.unified_diff(then[:5000], there[:5000], lineterm="", n=0))[2:] if count < 2000 else []
        shown = [f"{line[0]} {cut(line[1:])}" for line in lines if line[:1] in ("-", "+")]
        where = next((n for n, (a, b) in enumerate(zip(then, there, strict=False), 1) if a != b), min(len(then), len(there)) + 1)
        why = f"{count:,} of {len(then):,} lines differ{'s' * (count == 1)}, from line {where}"
        if len(then) != len(there):
            why += f"; there are {len(there):,} now"
    return File(path=path, now=now, kind=kind, level=level, by="text", why=why, apart=tuple(apart), shown=tuple(shown[:SHOWN]))


def _lines(text: str, path: str) -> list[str]:
    """Only what ends a line in a text file does: a carriage return alone, and all the more any byte of a PDF, is content."""
    lines = text.split("\n") if path.lower().endswith(".pdf") else re.split("\r?\n", text)
    return lines[:-1] if lines and not lines[-1] else lines


def _mask_of(path: str, kind: Kind) -> Any:
    lower = path.lower()
    if lower.endswith(".pdf"):  # the rest of a line may be compressed
        return lambda line: "<id>" if _REPORTLAB.fullmatch(line) else _PDF_ID.sub("<id>", _PDF.sub(r"\1<time>", line))
    if lower.endswith((".html", ".htm")):
        return lambda line: masks.text(_STYLED.sub(r"\1<id>", line))
    if re.fullmatch(r"(?:.*/)?MLmodel", path):
        return lambda line: masks.text(masks.random(line) if _MODEL.fullmatch(line) else line)
    if lower.endswith(".svg"):
        return lambda line: masks.text(_SVG.sub(r"\1<id>", line))
    if re.fullmatch(r"(?:.*/)?mlruns/.*/metrics/.*", path):
        return lambda line: masks.text(_MOMENT.sub("<time>", line))
    return masks.log if kind == "log" else masks.text
