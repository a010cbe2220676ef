"""The embedded runner: exit codes, errors for missing files, memory limits, streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from repro_env.schema.run import Mount
from tests.fakes import rootfs
from tests.parts import need
from tests.sandbox.conftest import Place, open_place
from tests.sandbox.memory import check_memory_limit


def test_missing_data_is_an_error(place: Place) -> None:
    result = place.run("ls", mounts=[Mount(kind="data", source="/no/such/data", target="/data")])
    assert (result.answer.error, "/no/such/data" in result.answer.message) == ("DataError", True)


def test_a_missing_layer_is_an_error(place: Place) -> None:
    result = place.run("ls", layers=(rootfs.digest(1), rootfs.digest(404)))
    assert (result.answer.error, rootfs.digest(404) in result.answer.message) == ("StoreError", True)


def test_running_out_of_memory_is_detected_in_a_control_group(stores: Callable[[int], Path]) -> None:
    need(os.getuid() == 0, "uid 0, to make a control group")
    with open_place(stores(0), 0) as place:
        check_memory_limit(place)


def test_streams_can_be_opened_by_name_and_files_are_appended_to(place: Place) -> None:
    """Scripts use `tee /dev/stderr`. A run must not be able to read or overwrite the existing contents of a log."""
    log = place.runs / "log"
    log.write_text("before\n")
    place.own(log)
    kinds = "import os, stat; print([stat.S_ISREG(os.fstat(stream).st_mode) for stream in (1, 2)])"
    script = f"echo one; echo two > /dev/stderr; python -c '{kinds}'; echo three > /dev/stdout"
    result = place.sh(script, before=["sh", "-c", f'exec "$@" >> "{log}" 2>&1', "sh"])
    assert result.outcome.exit_code == 0
    assert log.read_text().splitlines() == ["before", "one", "two", "[False, False]", "three"]
    result = place.sh("echo out > /dev/stdout; echo error > /dev/stderr", before=["sh", "-c", '"$@" 2>&1 | cat', "sh"])
    assert result.stdout == "out\nerror\n"


def test_root_in_a_run_can_unpack_archives_with_other_owners(place: Place) -> None:
    result = place.python("import os; open('file', 'w').close(); os.chown('file', 12345, 12345)")
    assert (result.outcome.exit_code == 0) == (place.uid == 0), "only root may, as on the host"
