"""Isolation: more than 120 attempts to reach the host from a run, with each runner, as root and as a plain user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.isolation import host
from tests.isolation.allowed import ALLOWED
from tests.parts import need

MIN_ATTEMPTS = 120


@pytest.fixture(scope="module")
def ground() -> Iterator[host.Ground]:
    with host.ground() as place:
        yield place


@pytest.fixture(scope="module")
def user(ground: host.Ground) -> host.Ground:
    need(os.geteuid() == 0, "only root can become another user; for a plain user, the first test checks the same")
    used = {user.pw_uid for user in pwd.getpwall()}
    place = host.for_user(ground, next(number for number in range(20_000, 30_000) if number not in used))
    need(place, "a Python of the same version as the tests' that a plain user can start: apt-get install python3-venv")
    assert place
    return place


def own_mode() -> str:
    return "root" if os.geteuid() == 0 else "user"


def check(found: host.Reached, mode: str, all_categories: bool = True) -> None:
    """Check that all attempts that reached the host are allowed in this mode."""
    assert not found.errors
    names = {attempt["name"] for attempt in found.attempts}
    allowed = {name for name, reason in ALLOWED.items() if mode in reason.modes}
    unlisted = {name: evidence for name, evidence in found.reached.items() if name not in allowed}
    assert not unlisted, f"{mode}: {len(unlisted)} attempts reached something that SECURITY.md does not list:\n" + "\n".join(
        f"  {name}: {evidence}" for name, evidence in unlisted.items()
    )
    if all_categories:
        assert len(names) >= MIN_ATTEMPTS
        assert allowed <= names, f"these attempts do not exist: {sorted(allowed - names)}"


def test_an_embedded_run_reaches_only_listed_objects(ground: host.Ground) -> None:
    check(host.planted_attack(ground, "embedded"), own_mode())


def test_an_embedded_run_reaches_no_file_that_its_output_is_redirected_to(ground: host.Ground) -> None:
    check(host.planted_attack(ground, "embedded", "descriptors", "terminal", plain_files=True), own_mode(), all_categories=False)


def test_a_plain_users_run_reaches_only_listed_objects(user: host.Ground) -> None:
    check(host.planted_attack(user, "embedded"), "user")


def test_a_docker_run_reaches_only_listed_objects(ground: host.Ground) -> None:
    with host.docker(ground) as env:
        check(host.planted_attack(ground, "docker", env=env), "docker root")
        check(
            host.planted_attack(ground, "docker", "descriptors", "terminal", plain_files=True, env=env),
            "docker root",
            all_categories=False,
        )


def test_a_plain_users_docker_run_reaches_only_listed_objects(user: host.Ground) -> None:
    with host.docker(user) as env:
        check(host.planted_attack(user, "docker", env=env), "docker user")


def test_a_plain_users_charliecloud_run_reaches_only_listed_objects(user: host.Ground) -> None:
    check(host.planted_attack(user, "charliecloud"), "user")


def test_the_probe_finds_planted_objects_without_isolation(ground: host.Ground) -> None:
    """Positive control: the same attempts on the host itself."""
    found = host.planted_attack(ground, "control")
    assert not found.errors
    assert len(found.reached) >= (200 if os.geteuid() == 0 else 100)
    by_category: dict[str, int] = {}
    for attempt in found.attempts:
        category = attempt["category"]
        by_category[category] = by_category.get(category, 0) + (attempt["name"] in found.reached)
    assert all(by_category.values()), by_category
    planted = [f"read_canary_in_{place}" for place in ("tmp", "var_tmp", "home", "dev_shm", "runs", "store", "git")]
    planted += ["environment_of_every_process", "arguments_of_every_process", "secret_in_memory_of_the_first_process"]
    planted += [
        "abstract_socket_of_the_host",
        "tcp_to_loopback_of_the_host",
        "shared_memory_of_the_host",
        "inherited_descriptors",
    ]
    planted += ["trace_the_first_process", "signal_the_planted_process_by_its_number", "key_by_number_session"]
    planted += [
        "type_into_the_callers_terminal",
        "change_modes_of_the_callers_terminal",
        "stdin_is_a_file_or_terminal_of_the_caller",
    ]
    assert set(planted) <= set(found.reached), set(planted) - set(found.reached)


def test_security_md_lists_every_allowed_attempt() -> None:
    text = " ".join((Path(__file__).parents[2] / "SECURITY.md").read_text().split())
    assert {reason.text for reason in ALLOWED.values() if reason.text not in text} == set()
