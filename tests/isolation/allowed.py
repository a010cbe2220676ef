"""The attempts of a run that may reach the host, with the reason and the modes: the entries of the list in SECURITY.md.

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
    "socket_in_the_data": Reason("A run can connect to a Unix socket in --data, because the option names it."),
    "socket_in_the_checkpoints": Reason("A run can connect to a Unix socket in --checkpoints, because the option names it."),
    "receive_a_descriptor_from_a_socket_of_the_data": Reason("The server of such a socket can pass more descriptors."),
    "leave_a_symlink_to_a_host_file_in_checkpoints": Reason(
        "--checkpoints has everything that a run writes there; do not follow its links."
    ),
    "leave_a_named_pipe_in_checkpoints": Reason("--checkpoints has everything that a run writes there; do not follow its links."),
    "leave_a_symlink_to_a_host_file_in_outputs": Reason(
        "Outputs are everything that a run writes, also outside the project (`outside/`). "
        "repro-env follows no links in them and opens only regular files."
    ),
    "leave_a_named_pipe_in_outputs": Reason(
        "Outputs are everything that a run writes, also outside the project (`outside/`). "
        "repro-env follows no links in them and opens only regular files."
    ),
    "stdin_is_a_file_or_terminal_of_the_caller": Reason(
        "A file that standard input is redirected from can be read and, if its mode allows, overwritten.", EMBEDDED
    ),
    "be_in_the_cgroup_namespace_of_the_host": Reason(
        "Control groups are visible read-only, with their names on the host.", EMBEDDED
    ),
    "control_group_of_the_host": Reason("Control groups are visible read-only, with their names on the host.", EMBEDDED),
    "writable_host_file_systems": Reason(
        "Engines mount writable directories without nodev and nosuid; the engine and the filter refuse devices and set-user-ID programs.",
        DOCKER,
    ),
    "writable_mounts_with_setuid": Reason(
        "Engines mount writable directories without nodev and nosuid; the engine and the filter refuse devices and set-user-ID programs.",
        DOCKER,
    ),
    **{
        attempt: Reason(
            "Root may change the out-of-memory score of the run's first process and clear its page references.",
            frozenset({"docker root"}),
        )
        for attempt in (
            "clear_page_references_of_the_first_process",
            "lower_out_of_memory_score_of_the_first_process",
            "first_process_is_dumpable",
        )
    },
    "be_in_the_user_namespace_of_the_host": Reason("The engine decides this (userns-remap, rootless).", DOCKER),
    "be_root_of_the_host": Reason("The engine decides this (userns-remap, rootless).", DOCKER),
    "be_in_the_time_namespace_of_the_host": Reason("The clock can be read, not set."),
    "boot_id": Reason("Linux has one for all namespaces."),
    "kernel_command_line": Reason("Linux has one for all namespaces."),
    "disks_of_the_host": Reason("Names and sizes of disks can be read, because Linux has one list for all namespaces."),
    "paths_of_the_host_in_mountinfo": Reason("The kernel prints the source of each mount."),
}
