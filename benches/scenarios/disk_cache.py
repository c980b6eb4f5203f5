"""Hits of a response cache on disk: many more responses than Tailcoat may keep in memory.

The upstream is a floor on the client's core. Each server stores every path before it is measured; from then on, none may ask
the upstream. The kernel holds the files in its page cache for all alike. HAProxy has no cache on disk, and Caddy none at all
without a plug-in."""

import contextlib
import http.client
import time

from harness import client, paired, servers
from .forwarding import ABOVE_BEST_PEER_MAX, before
from .scenario import Scenario

PEER = "nginx-disk-cache"
# Part -> bytes of a response. Tailcoat's memory holds 16 MiB of all.
PARTS = {"16KiB": 16 << 10, "64KiB": 64 << 10}
TOTAL_BYTES = 128 << 20
# Closed connections wake the upstream a little.
IDLE_UPSTREAM_CPU_US_MAX = 5_000
FILLS_MAX = 10
# Responses that wait to be written count as memory; a pause lets them be written.
FILL_PAUSE_EVERY, FILL_PAUSE_SECONDS = 32, 0.005


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help=f"default: {' '.join(PARTS)}")


def fill(server, paths, upstream):
    """Requests all paths, until none has to ask the upstream. A server that writes later than it serves may leave some out."""
    for _ in range(FILLS_MAX):
        asked_us = upstream.group.cpu_us()
        request_all(server, paths)
        if upstream.group.cpu_us() - asked_us < IDLE_UPSTREAM_CPU_US_MAX:
            return


def request_all(server, paths):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        for number, path in enumerate(paths):
            if number % FILL_PAUSE_EVERY == 0:
                time.sleep(FILL_PAUSE_SECONDS)
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, (server.name, path, response.status)


def run_part(bench, part, body_bytes):
    path = bench.tree.add(f"{part}.bin", body_bytes)
    paths = [f"/cached/{number}.bin" for number in range(TOTAL_BYTES // body_bytes)]
    plan = [client.RequestKind(path, body_bytes) for path in paths]
    filled = set()
    [floor] = servers.named(["floor"], None)
    with before(bench, floor, path, "tailcoat-disk-cache.kdl") as upstream:

        def measure(server, seconds, seed):
            if server.port not in filled:
                filled.add(server.port)
                fill(server, paths, upstream)
            asked_us = upstream.group.cpu_us()
            result = client.run(server, plan, bench.tree, client.Load(seconds=seconds), seed)
            if upstream.group.cpu_us() - asked_us > IDLE_UPSTREAM_CPU_US_MAX:
                bench.report.void(f"{part}: {server.name} asked the upstream for a cached response")
            return result

        comparison = paired.compare(bench, path, measure)
    bench.report.add_comparison(part, comparison)
    bench.report.mark_ratio(part, comparison, servers.OURS, PEER, ABOVE_BEST_PEER_MAX)


def run(bench):
    for part in bench.arguments.part:
        run_part(bench, part, PARTS[part])


DISK_CACHE = Scenario("disk-cache", "hits of a response cache on disk: 16 KiB, 64 KiB", run, rounds=2, add_arguments=add_arguments,
                      servers=("tailcoat", PEER, "tailcoat-again"))
