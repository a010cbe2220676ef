"""Use devices and what administers the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import stat
import struct
from typing import Any, Callable, Optional

from .base import HINTS, LIBC, Absent, Call, add, any_of, attempt, checked, each, is_the_hosts, opened, read, syscall
from .mounts import permitted
from .writes import special

# Devices

STARTS_SOMETHING = ("watchdog", "snapshot", "autofs", "ptmx")
for _path in (
    "mem", "kmem", "port", "kmsg", "console", "tty0", "tty1", "vcs", "hpet", "nvram", "rtc0", "cpu/0/msr", "sda", "vda", "nvme0n1",
    "loop-control", "loop0", "mapper/control", "fuse", "kvm", "net/tun", "vhost-net", "vhost-vsock", "vsock", "snapshot",
    "uinput", "uhid", "input/event0", "input/mice", "dri/card0", "fb0", "watchdog", "userfaultfd", "cpu_dma_latency", "autofs",
    "btrfs-control", "ppp", "hwrng", "bus/usb/001/001", "sg0", "vfio/vfio", "udmabuf", "nbd0", "ram0", "binder",
):  # fmt: skip

    def _device(path: str = "/dev/" + _path) -> Optional[str]:
        if not os.path.lexists(path):
            raise Absent("no such device")
        if os.major(os.stat(path).st_rdev) == 136:
            raise Absent("a pseudo-terminal")
        if path.rsplit("/", 1)[1] not in STARTS_SOMETHING:
            return opened(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, "not readable")
        return None if os.statvfs(path).f_flag & 4 else f"{path} is readable"

    add(f"device_{_path.replace('/', '_')}", "devices", _device)


def made_device(kind: int, major: int, minor: int) -> Optional[str]:
    directories = [".", "/tmp", "/dev", "/dev/shm", "/var/tmp", os.path.dirname(os.environ.get("REPRO_ENV_REPORTS", "./x"))]
    return each(lambda directory: special(directory, kind, major, minor), directories)


add("make_the_hosts_disk", "devices", made_device, stat.S_IFBLK, *HINTS["disk"], disturbs=True)
add("make_physical_memory", "devices", made_device, stat.S_IFCHR, 1, 1, disturbs=True)
add("make_the_kernel_log", "devices", made_device, stat.S_IFCHR, 1, 11, disturbs=True)
add("make_the_console", "devices", made_device, stat.S_IFCHR, 5, 1, disturbs=True)
add("make_fuse", "devices", made_device, stat.S_IFCHR, 10, 229, disturbs=True)
add("make_an_overlay_whiteout", "devices", made_device, stat.S_IFCHR, 0, 0, disturbs=True)


@attempt("devices")
def device_planted_in_the_data() -> Optional[str]:
    path = HINTS["data"] + "/device"
    if not os.path.lexists(path):
        raise Absent("the caller cannot plant one")
    return opened(path)


# Administration of the kernel

for _path in (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/poweroff_cmd", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/vm/panic_on_oom",
    "/proc/sys/fs/suid_dumpable", "/proc/sys/fs/file-max", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/acpi/wakeup", "/proc/mtrr", "/proc/latency_stats",
    "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run",
    "/sys/kernel/profiling", "/sys/module/printk/parameters/time", "/sys/firmware/efi/vars", "/sys/kernel/oops_count",
):  # fmt: skip
    add(f"write_{_path[1:].replace('/', '_')}", "kernel", lambda path=_path: settable(path))


NAMESPACED = {"hostname": "uts", "ns_last_pid": "pid", "ip_forward": "net", "max_user_namespaces": "user"}


def settable(path: str) -> Optional[str]:
    if not os.path.lexists(path):
        raise Absent(f"no {path}")
    found = opened(path, os.O_WRONLY)
    kind = NAMESPACED.get(os.path.basename(path))
    return found if kind is None or is_the_hosts(kind) else None


def content_of(path: str) -> Optional[str]:
    if not os.path.lexists(path):
        raise Absent(f"no {path}")
    found = read(path, 4096)
    return f"{len(found)} bytes of {path}" if found else None


for _path in ("/proc/kcore", "/proc/kmsg", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/kpagecount", "/proc/pagetypeinfo"):
    add(f"read_{_path[1:].replace('/', '_')}", "kernel", content_of, _path, disturbs=_path == "/proc/kmsg")


@attempt("kernel")
def addresses_of_the_kernel() -> Optional[str]:
    with open("/proc/kallsyms") as file:
        found = file.readline().split()
    return " ".join(found) if found and int(found[0], 16) else None


@attempt("kernel")
def physical_addresses() -> Optional[str]:
    with open("/proc/iomem") as file:
        found = [line for line in file if not line.strip().startswith("00000000-00000000")]
    return found[0].strip() if found else None


@attempt("kernel")
def hidden_file_systems_of_the_kernel() -> Optional[str]:
    found = [path for path in ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf", "/sys/kernel/security", "/sys/fs/pstore")
             if os.path.isdir(path) and os.listdir(path)]  # fmt: skip
    return f"{found}" if found else None


def control_groups(name: str, flags: int) -> Optional[str]:
    found = [f"/sys/fs/cgroup/{name}", *glob.glob(f"/sys/fs/cgroup/*/{name}"), *glob.glob(f"/sys/fs/cgroup/*/*/{name}")]
    if not found:
        raise Absent(f"no {name}")
    return each(lambda path: opened(path, flags), found[:40])


for _name in (
    "release_agent",
    "notify_on_release",
    "cgroup.procs",
    "tasks",
    "devices.allow",
    "memory.limit_in_bytes",
    "cgroup.kill",
):
    add(f"cgroup_write_{_name.replace('.', '_')}", "kernel", control_groups, _name, os.O_WRONLY)


@attempt("kernel")
def control_groups_of_others() -> Optional[str]:
    found = []
    for path in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:40]:
        with contextlib.suppress(OSError), open(path) as file:
            found += [word for word in file.read().split() if word != "0"]
    return f"process numbers of the host: {found[:3]}" if str(HINTS["victim"]) in found else None


@attempt("kernel")
def make_a_control_group() -> Optional[str]:
    def by(path: str) -> Call:
        def make() -> Optional[str]:
            os.mkdir(path + "/probe")
            os.rmdir(path + "/probe")
            return path

        return make

    return any_of(by(path) for path in ["/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*/")])


@attempt("kernel")
def kernel_log() -> Optional[str]:
    buffer = ctypes.create_string_buffer(256)
    return f"{syscall('syslog', 3, buffer, 256)} bytes of the kernel's log"


@attempt("kernel", disturbs=True)
def write_to_the_kernel_log() -> Optional[str]:
    return opened("/dev/kmsg", os.O_WRONLY)


def nothing(*words: Any) -> Callable[[], Any]:
    return lambda: syscall(*words)


NOWHERE = ctypes.c_char_p(b"/no/such/file")
add("reboot", "kernel", permitted, nothing("reboot", 1, 2, 3, None))
add("kexec", "kernel", permitted, nothing("kexec_load", 0, 0, None, 0x7FFFFFF0))
add("load_a_module", "kernel", permitted, nothing("init_module", None, 0, None))
add("load_a_module_by_descriptor", "kernel", permitted, nothing("finit_module", -1, None, 0))
add("unload_a_module", "kernel", permitted, nothing("delete_module", ctypes.c_char_p(b"no_such_module"), 2048))
add("swap_on", "kernel", permitted, lambda: checked(LIBC.swapon(b"/no/such/file", 0)))
add("swap_off", "kernel", permitted, lambda: checked(LIBC.swapoff(b"/no/such/file")))
add("process_accounting", "kernel", permitted, nothing("acct", NOWHERE))
add("ports_of_the_processor", "kernel", permitted, nothing("iopl", 3))
add("handle_every_file_event", "kernel", permitted, nothing("fanotify_init", 0x4, 0))
add("load_a_bpf_program", "kernel", permitted, nothing("bpf", 5, ctypes.create_string_buffer(128), 128))
add("make_a_bpf_map", "kernel", permitted, nothing("bpf", 0, ctypes.create_string_buffer(struct.pack("4I", 2, 4, 4, 1), 64), 64))
add("catch_page_faults_of_the_kernel", "kernel", permitted, nothing("userfaultfd", 0))
add("submit_by_io_uring", "kernel", permitted, nothing("io_uring_setup", 1, ctypes.create_string_buffer(120)))
add("quotas", "kernel", lambda: permitted(nothing("quotactl_fd", os.open(".", os.O_RDONLY), 0x80000200, 0, None), errno.ESRCH))


@attempt("kernel")
def count_events_of_every_process() -> Optional[str]:
    words = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)  # software, processor clock
    return f"perf_event_open of a processor: {syscall('perf_event_open', words, -1, 0, -1, 0)}"


@attempt("kernel")
def count_events_of_the_kernel() -> Optional[str]:
    words = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
    return f"perf_event_open of the kernel: {syscall('perf_event_open', words, 0, -1, -1, 0)}"


@attempt("kernel", disturbs=True)
def set_the_clock() -> Optional[str]:
    buffer = ctypes.create_string_buffer(struct.pack("i", 0x4000), 256)  # ADJ_TICK with a tick of 0
    return permitted(lambda: checked(LIBC.adjtimex(buffer)))


@attempt("kernel")
def set_the_host_name() -> Optional[str]:
    found = permitted(lambda: checked(LIBC.sethostname(b"", ctypes.c_size_t(1 << 20))))
    return found if is_the_hosts("uts") else None
