"""The patterns of strings match completely, so that invalid strings in an untrusted spec are rejected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from repro_env.schema import text

VALID: list[tuple[Any, str]] = [
    (text.Digest, "sha256:" + "0" * 64),
    (text.Name, "scikit-learn"),
    (text.Version, "2.1.0+cpu"),
    (text.WheelName, "torch-2.1.0+cpu-cp311-cp311-linux_x86_64.whl"),
    (text.AbsPath, "/home/ann/my project/größe"),
    (text.RelPath, "lib/python3.11/site-packages"),
    (text.RelPath, "a..b/.c"),
    (text.FromHere, "."),
    (text.FromHere, ".."),
    (text.FromHere, "../../src/a..b"),
    (text.FromHere, "src"),
    (text.FileNote, f"program 12 {'0' * 64}"),
    (text.FileNote, "link ../a b"),
    (text.EnvName, "OMP_NUM_THREADS"),
    (text.Line, "anything: 'goes' $HERE"),
    (text.Url, "https://files.example.org/a/b%20c.whl?x=1"),
]
INVALID: list[tuple[Any, str]] = [
    (text.Digest, "sha256:" + "0" * 63),
    (text.Digest, "sha256:" + "0" * 64 + "\n"),
    (text.Digest, "sha256:" + "A" * 64),
    (text.Digest, "md5:" + "0" * 64),
    (text.Name, "Not_Normal"),
    (text.Name, "../x"),
    (text.Name, "x\n"),
    (text.Version, "1.0;rm -rf /"),
    (text.Version, "1.0 && id"),
    (text.Version, ""),
    (text.WheelName, "a/b.whl"),
    (text.WheelName, "x.whl\nRUN id"),
    (text.AbsPath, "/"),
    (text.AbsPath, "relative"),
    (text.AbsPath, "/a/../b"),
    (text.AbsPath, "/a/./b"),
    (text.AbsPath, "/a//b"),
    (text.AbsPath, "/a/"),
    (text.AbsPath, "/a\nRUN id"),
    (text.RelPath, "/absolute"),
    (text.RelPath, "../up"),
    (text.RelPath, "a/.."),
    (text.RelPath, ""),
    (text.FromHere, "/absolute"),
    (text.FromHere, "a/../b"),
    (text.FromHere, "../"),
    (text.FromHere, "a\n"),
    (text.FromHere, ""),
    (text.FileNote, f"file -1 {'0' * 64}"),
    (text.FileNote, f"file 1 {'0' * 63}"),
    (text.FileNote, "link a\n"),
    (text.EnvName, "A=B"),
    (text.EnvName, "1A"),
    (text.EnvName, "A\n"),
    (text.Line, "two\nlines"),
    (text.Line, "\x1b[31m"),
    (text.Line, "\0"),
    (text.Url, "https://user:secret@example.org/x"),
    (text.Url, "file:///etc/passwd"),
    (text.Url, "ftp://example.org/x"),
    (text.Url, "https://example.org/a b"),
]


@pytest.mark.parametrize(("kind", "value"), VALID)
def test_valid_strings_are_accepted(kind: Any, value: str) -> None:
    assert msgspec.convert(value, kind) == value


@pytest.mark.parametrize(("kind", "value"), INVALID)
def test_invalid_strings_are_rejected(kind: Any, value: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, kind)
