"""Runs with ch-run that differ from those in other runners. What is the same is tested in tests/sandbox/test_runners.py."""

from __future__ import annotations

from repro_env.schema.run import Mount
from tests.sandbox.conftest import Place


def test_nothing_of_the_image_can_be_written(place: Place) -> None:
    """ch-run itself mounts everything writable."""
    place.engine = "charliecloud"
    result = place.sh(
        "for path in /bin/sh /x /opt/env/note /etc/passwd /dev/x /sys/x; do (echo y > $path) 2>&1 | cat; done; id -u"
    )
    *refused, uid = result.stdout.splitlines()
    assert (len([line for line in refused if "Read-only file system" in line]), uid) == (6, str(place.uid)), result.stdout


def test_a_path_that_ch_run_cannot_mount_is_named(place: Place) -> None:
    place.engine = "charliecloud"
    data = place.root / "a:b"
    data.mkdir()
    result = place.sh(":", mounts=[Mount(kind="data", source=str(data), target="/data")])
    assert result.answer.error == "RunError"
    assert result.answer.message == f"{data}: ch-run cannot mount a path with a colon"


def test_what_ch_run_printed_is_in_the_error(place: Place) -> None:
    place.engine = "charliecloud"
    refusing = "unshare --user --map-root-user sh -c 'echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"' sh"
    result = place.sh(":", before=["sh", "-c", f'exec {refusing} "$@"', "sh"])
    assert result.answer.error == "SandboxError"
    assert "ch-run ended before the command started: " in result.answer.message
    assert "user+mount namespaces" in result.answer.message


def test_a_missing_program_is_an_error_that_says_where_to_get_it(place: Place) -> None:
    place.engine = "charliecloud"
    result = place.sh(":", before=["env", "PATH=/nowhere"])
    assert result.answer.error == "SandboxError"
    assert "apt-get install charliecloud" in result.answer.hint
