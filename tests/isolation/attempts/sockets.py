"""Reach sockets and the network of the host."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import Any, Callable, Optional

from .base import HINTS, Absent, add, attempt, descriptors, each, is_the_hosts, read, secret_in, target


def talk(near: socket.socket, address: Any) -> Optional[str]:
    near.settimeout(0.4)
    with near:
        near.connect(address)
        near.sendall(b"probe")
        return secret_in(near.recv(200), f"listener {address!r}") or f"connected to {address!r}"


def unix(address: str) -> Optional[str]:
    return talk(socket.socket(socket.AF_UNIX), address)


add("abstract_socket_of_the_host", "sockets", lambda: unix("\0" + HINTS["abstract"]))
add("socket_in_the_data", "sockets", lambda: unix(HINTS["data"] + "/socket"))
add("socket_in_the_checkpoints", "sockets", lambda: unix(HINTS["checkpoints"] + "/socket"))
add("socket_in_the_project", "sockets", lambda: unix(HINTS["project"] + "/socket"))
add("socket_in_tmp", "sockets", lambda: unix(HINTS["tmp_socket"]))
for _path in (
    "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/dev/log", "/run/systemd/notify",
    "/tmp/.X11-unix/X0", "/run/nscd/socket", "/run/udev/control", "/run/user/0/bus", "/run/snapd.socket",
):  # fmt: skip

    def _at(path: str = _path) -> Optional[str]:
        if not os.path.lexists(path):
            raise Absent("no such socket")
        near = socket.socket(socket.AF_UNIX)
        near.settimeout(0.4)
        try:
            near.connect(path)
        except OSError as failed:
            if failed.errno != errno.EPROTOTYPE:  # a datagram socket exists there
                raise
        return f"{path} answers"

    add(f"socket_{_path[1:].replace('/', '_').replace('.', '_')}", "sockets", _at)


@attempt("sockets")
def docker_socket_by_the_first_process() -> Optional[str]:
    """Use its root and every descriptor, because paths below /proc lead out of the mount namespace."""
    roots = [f"/proc/{target()}/root", *descriptors(target())]
    paths = [f"{root}/{up}{name}" for root in roots for up in ("", "../" * 12) for name in (HINTS["tmp_socket"].lstrip("/"),)]
    return each(unix, paths)


@attempt("sockets")
def agent_of_the_caller() -> Optional[str]:
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        raise Absent("SSH_AUTH_SOCK is not set")
    return unix(path)


def tcp(address: str) -> Optional[str]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return talk(socket.socket(family), (address, HINTS["port"]))


add("tcp_to_loopback_of_the_host", "sockets", tcp, "127.0.0.1")
add("tcp_to_any_address", "sockets", tcp, "0.0.0.0")
add("tcp_to_ipv6_loopback_of_the_host", "sockets", tcp, "::1")
add("tcp_to_ipv4_in_ipv6", "sockets", tcp, "::ffff:127.0.0.1")
for _index, _address in enumerate((HINTS["addresses"] + ["192.0.2.1"] * 2)[:2]):
    add(f"tcp_to_another_address_of_the_host_{_index + 1}", "sockets", tcp, _address)


@attempt("sockets")
def udp_to_loopback_of_the_host() -> Optional[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        near.settimeout(0.4)
        near.connect(("127.0.0.1", HINTS["udp"]))
        near.send(b"probe")
        return secret_in(near.recv(200), "a datagram")


@attempt("sockets", disturbs=True)
def metadata_service() -> Optional[str]:
    with socket.socket() as near:
        near.settimeout(0.4)
        near.connect(("169.254.169.254", 80))
        return "connected"


@attempt("sockets", disturbs=True)
def name_server() -> Optional[str]:
    with open("/etc/resolv.conf") as file:
        servers = [line.split()[1] for line in file if line.startswith("nameserver") and len(line.split()) > 1]
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\x07example\x03com\x00\x00\x01\x00\x01"
    for server in [*servers[:1], "127.0.0.53"]:
        with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as near:
            near.settimeout(0.4)
            with contextlib.suppress(OSError):
                near.connect((server, 53))
                near.send(query)
                return f"{server} answers {len(near.recv(512))} bytes"
    return None


@attempt("sockets")
def route_to_the_outside() -> Optional[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        near.connect(("192.0.2.1", 9))  # sends nothing
        return f"from {near.getsockname()[0]}"


@attempt("sockets")
def interfaces_of_the_host() -> Optional[str]:
    found = [name for _, name in socket.if_nameindex() if name in HINTS["interfaces"] and name != "lo"]
    return f"{found}" if found else None


@attempt("sockets")
def addresses_of_interfaces_in_sys() -> Optional[str]:
    found = [name for name in os.listdir("/sys/class/net") if name in HINTS["interfaces"] and name != "lo"]
    return f"{found}" if found else None


@attempt("sockets")
def unix_sockets_of_the_host_by_name() -> Optional[str]:
    found = [line for line in read("/proc/net/unix", 1 << 20).splitlines() if HINTS["abstract"].encode() in line]
    return f"{len(found)} lines" if found else None


def a_socket(family: int, kind: int, protocol: int = 0) -> Optional[str]:
    socket.socket(family, kind, protocol).close()
    return "the socket opens"


def in_host_network(call: Callable[..., Optional[str]], *words: Any) -> Optional[str]:
    """A raw or packet socket only counts if the run has the host's network."""
    found = call(*words)
    return found if is_the_hosts("net") else None


add("socket_raw", "sockets", in_host_network, a_socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
add("socket_packet", "sockets", in_host_network, a_socket, 17, socket.SOCK_RAW, 0x300)
add("socket_vsock", "sockets", a_socket, 40, socket.SOCK_STREAM)
add("socket_kernel_crypto", "sockets", a_socket, 38, socket.SOCK_SEQPACKET)
add("socket_bluetooth", "sockets", a_socket, 31, socket.SOCK_RAW, 1)
add("socket_tipc", "sockets", a_socket, 30, socket.SOCK_STREAM)
add("socket_rds", "sockets", a_socket, 21, socket.SOCK_SEQPACKET)
add("socket_can", "sockets", a_socket, 29, socket.SOCK_RAW, 1)
add("socket_x25", "sockets", a_socket, 9, socket.SOCK_SEQPACKET)
add("socket_ax25", "sockets", a_socket, 3, socket.SOCK_DGRAM)
add("socket_smc", "sockets", a_socket, 43, socket.SOCK_STREAM)
add("socket_xdp", "sockets", in_host_network, a_socket, 44, socket.SOCK_RAW)
add("netlink_audit", "sockets", in_host_network, a_socket, socket.AF_NETLINK, socket.SOCK_RAW, 9)


@attempt("sockets")
def netlink_events_of_devices() -> Optional[str]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as near:
        near.bind((0, 1))
    return "device events can be received" if is_the_hosts("net") else None


@attempt("sockets")
def netlink_change_of_the_network() -> Optional[str]:
    """RTM_NEWLINK for an interface that does not exist fails with ENODEV after the permission check."""
    if not is_the_hosts("net"):
        raise Absent("the network is the run's own")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as near:
        near.settimeout(0.4)
        near.send(struct.pack("IHHII", 32, 16, 5, 1, 0) + struct.pack("BxHiII", 0, 0, 99999, 0, 0))
        answer = struct.unpack("i", near.recv(200)[16:20])[0]
    if answer in (-errno.EPERM, -errno.EACCES):
        raise OSError(-answer, os.strerror(-answer))
    return f"permitted: {answer}"
