"""Versions as libraries say them."""

from __future__ import annotations

from repro_env.inside.numeric.versions import cudnn_version, dotted


def test_numbers_become_versions() -> None:
    assert [cudnn_version(number) for number in (92600, 90000, 8902, 7605)] == ["9.26.0", "9.0.0", "8.9.2", "7.6.5"]
    assert dotted(60443484, 10000000, 100000, 1) == "6.4.43484"
