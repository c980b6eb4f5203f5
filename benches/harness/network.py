"""The network that is measured on: loopback, in a network namespace of its own, with a known congestion control.

Not every machine has the kernel's default (cubic). With bbr, the kernel sends large responses from timers. Their
CPU time counts for the process that runs then, or for none: a server that sleeps more often seems to need less."""

import os
import shutil
import socket
import sys

DEFAULT, SYSTEM = "cubic", "system"
_INSIDE = "TAILCOAT_BENCH_NETWORK"


def enter(congestion):
    """Starts this program again in a namespace where connections on loopback have this congestion control; returns there.
    With SYSTEM everything stays as it is."""
    if congestion == SYSTEM or _INSIDE in os.environ:
        return
    for tool in ("unshare", "ip"):
        if not shutil.which(tool):
            raise SystemExit(f"`{tool}` is not there (packages util-linux, iproute2); without it: --congestion {SYSTEM}")
    os.environ[_INSIDE] = congestion
    os.execvp("unshare", ["unshare", "--net", sys.executable, "-c", _SET_UP, congestion, sys.executable, *sys.argv])


_SET_UP = """
import os, subprocess, sys
congestion, *command = sys.argv[1:]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
for addresses in ("127.0.0.0/8", "127.0.0.1"):
    subprocess.run(["ip", "route", "replace", "local", addresses, "dev", "lo", "table", "local", "proto", "kernel",
                    "scope", "host", "src", "127.0.0.1", "congctl", congestion], check=True)
os.execv(command[0], command)
"""


def congestion_control():
    """Congestion control of connections on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as connection:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
