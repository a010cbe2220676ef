"""What a run reaches of the host, by name of the attempt, with the reason and the modes: the rows of the table in SECURITY.md.

Modes: "root" and "user" are the embedded runner started by root and by a plain user, "docker root" and "docker user" the
Docker runner.
"""

from __future__ import annotations

from typing import NamedTuple

DOCKER = frozenset({"docker root", "docker user"})
EMBEDDED = frozenset({"root", "user"})
ALL = EMBEDDED | DOCKER


class Reason(NamedTuple):
    text: str
    modes: frozenset[str] = ALL


ALLOWED = {
    "socket_in_the_data": Reason("A Unix socket in --data connects to whoever listens there: the option names it."),
    "socket_in_the_checkpoints": Reason("A Unix socket in --checkpoints connects to whoever listens there: the option names it."),
    "receive_a_descriptor_from_a_socket_of_the_data": Reason("Whoever listens on such a socket may pass more."),
    "leave_a_symlink_to_a_host_file_in_checkpoints": Reason(
        "--checkpoints holds whatever a run writes; do not follow its links."
    ),
    "leave_a_named_pipe_in_checkpoints": Reason("--checkpoints holds whatever a run writes; do not follow its links."),
    "leave_a_symlink_to_a_host_file_in_outputs": Reason(
        "Outputs hold whatever a run writes, also outside the project (`outside/`, up to a bound); "
        "repro-env follows no link in them and opens plain files only."
    ),
    "leave_a_named_pipe_in_outputs": Reason(
        "Outputs hold whatever a run writes, also outside the project (`outside/`, up to a bound); "
        "repro-env follows no link in them and opens plain files only."
    ),
    "stdin_is_a_file_or_terminal_of_the_caller": Reason(
        "A file that standard input is redirected from can be read and, if its mode allows, rewritten.", EMBEDDED
    ),
    "be_in_the_cgroup_namespace_of_the_host": Reason(
        "Control groups are shown read-only, by their names on the machine.", EMBEDDED
    ),
    "control_group_of_the_host": Reason("Control groups are shown read-only, by their names on the machine.", EMBEDDED),
    "writable_host_file_systems": Reason(
        "Engines mount what is writable with devices and set-user-ID; the engine and the filter refuse both.", DOCKER
    ),
    "writable_mounts_with_setuid": Reason(
        "Engines mount what is writable with devices and set-user-ID; the engine and the filter refuse both.", DOCKER
    ),
    **{
        attempt: Reason(
            "Of the run's own first process, root may change the memory score and clear page references.",
            frozenset({"docker root"}),
        )
        for attempt in (
            "clear_page_references_of_the_first_process",
            "lower_out_of_memory_score_of_the_first_process",
            "first_process_is_dumpable",
        )
    },
    "be_in_the_user_namespace_of_the_host": Reason("The engine decides on it (userns-remap, rootless).", DOCKER),
    "be_root_of_the_host": Reason("The engine decides on it (userns-remap, rootless).", DOCKER),
    "be_in_the_time_namespace_of_the_host": Reason("The clock can be read, not set."),
    "boot_id": Reason("Linux has one for all namespaces."),
    "kernel_command_line": Reason("Linux has one for all namespaces."),
    "disks_of_the_host": Reason("Names and sizes of disks; Linux has one list for all namespaces."),
    "paths_of_the_host_in_mountinfo": Reason("The kernel prints where each mount comes from."),
}
