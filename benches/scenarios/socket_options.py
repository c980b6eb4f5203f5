"""Socket options, each with a value that is not its default, beside the default: one request per connection.

For Fast Open, which is off by default, the clients use it too, and the kernel is set to allow it."""

import dataclasses
import pathlib

from harness import client, paired, servers
from .closing import FILE, FILE_BYTES, SOURCES
from .scenario import Scenario

FAST_OPEN = "fast-open-queue 256"
# Name on the command line -> the option.
OPTIONS = {
    "defer-accept": "defer-accept off",
    "tcp-nodelay": "tcp-nodelay off",
    "listen-backlog": "listen-backlog 128",
    "fast-open-queue": FAST_OPEN,
}
FAST_OPEN_SETTING = pathlib.Path("/proc/sys/net/ipv4/tcp_fastopen")
CLIENTS_AND_SERVERS = "3"


def add_arguments(parser):
    parser.add_argument("--option", nargs="+", choices=OPTIONS, default=list(OPTIONS), help=f"default: {' '.join(OPTIONS)}")
    parser.add_argument("--connections", type=int, default=64, help="default: %(default)s")


def run(bench):
    path = bench.tree.add(FILE, FILE_BYTES)
    plan = [client.RequestKind(path, FILE_BYTES)]
    FAST_OPEN_SETTING.write_text(CLIENTS_AND_SERVERS)
    [ours] = servers.named([servers.OURS], bench.arguments.tailcoat)
    ours = servers.configured(ours, "tailcoat-option.kdl")
    for name in bench.arguments.option:
        changed = dataclasses.replace(ours, name="changed", fill={"option": OPTIONS[name]})
        default, again = (dataclasses.replace(ours, name=which, fill={"option": ""}) for which in (servers.OURS, servers.OURS_AGAIN))
        bench.servers = [default, changed, again]

        def measure(server, seconds, seed):
            load = client.Load(connections=bench.arguments.connections, seconds=seconds, requests_per_connection=1, sources=SOURCES,
                               has_fast_open=OPTIONS[name] == FAST_OPEN and server.name == "changed")
            return client.run(server, plan, bench.tree, load, seed)

        comparison = paired.compare(bench, path, measure)
        bench.report.add_comparison(f"{OPTIONS[name]}, one request a connection, {bench.arguments.connections} at a time", comparison)


SOCKET_OPTIONS = Scenario("socket-options", "options of sockets beside their defaults", run, rounds=2, add_arguments=add_arguments,
                          servers=("tailcoat",))
