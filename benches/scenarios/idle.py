"""User memory of an idle keep-alive connection, without TLS and with: the slope between 2,000 and 12,000 connections, each
of which has had one response. The kernel's memory for a socket is the same for all and not counted."""

import functools
import statistics
import time

from harness import client, servers
from .scenario import Scenario

FILE, FILE_BYTES = "1k.html", 1024
FEW, MANY = 2_000, 12_000
SETTLE_SECONDS = 0.5
BYTES_MAX, TLS_BYTES_MAX = 500, 8 << 10
# Multiple of our memory that nginx must need with TLS at least.
TLS_PEER_MARK = 2


def bytes_per_connection(server, tree, path, has_tls):
    with servers.running(server, tree, path) as running:
        with client.Held(running, path, FEW, has_tls=has_tls) as few:
            time.sleep(SETTLE_SECONDS)
            before = running.user_memory_bytes()
            with client.Held(running, path, MANY - FEW, has_tls=has_tls) as many:
                time.sleep(SETTLE_SECONDS)
                slope = (running.user_memory_bytes() - before) / (MANY - FEW)
                lost = many.release() + few.release()
    if lost:
        raise client.ClientError(f"{server.name} closed {lost} of {MANY} idle connections")
    return slope, before


def run(bench, has_tls):
    if has_tls:
        bench.servers = [servers.configured(server, "tailcoat-tls.kdl") for server in bench.servers]
    path = bench.tree.add(FILE, FILE_BYTES)
    results = {}
    print(f"\nuser memory an idle connection, {FEW} to {MANY} connections")
    for server in bench.servers:
        try:
            measured = [bytes_per_connection(server, bench.tree, path, has_tls) for _ in range(bench.arguments.rounds)]
        except client.ClientError as error:
            bench.report.note(f"not comparable: {error}")
            if server.name == servers.OURS:
                bench.report.void(str(error))
            continue
        slopes = [slope for slope, _ in measured]
        results[server.name] = {"bytes": slopes, "user_memory_bytes_at_2000": [before for _, before in measured]}
        print(f"  {server.name:15} {statistics.median(slopes):8.0f} bytes ({min(slopes):.0f}-{max(slopes):.0f}),"
              f" {statistics.median(before for _, before in measured) / (1 << 20):7.1f} MiB at {FEW}")
    bench.report.add_part("idle", results)
    bench.report.add_figures("idle", "user memory of an idle connection", "bytes", {name: one["bytes"] for name, one in results.items()})
    medians = {name: statistics.median(measured["bytes"]) for name, measured in results.items()}
    if servers.OURS in medians:
        bytes_max = TLS_BYTES_MAX if has_tls else BYTES_MAX
        bench.report.mark("user memory an idle connection, bytes", medians[servers.OURS], bytes_max)
    if has_tls and {servers.OURS, "nginx-tls"} <= medians.keys():
        ratio = medians["nginx-tls"] / medians[servers.OURS]
        bench.report.mark("user memory an idle connection: nginx-tls / tailcoat", ratio, TLS_PEER_MARK, at_least=True)


IDLE = Scenario("idle", "user memory an idle keep-alive connection", functools.partial(run, has_tls=False), rounds=3,
                servers=("floor", "tailcoat", "nginx", "h2o", "lighttpd", "apache", "caddy"))
IDLE_TLS = Scenario("idle-tls", "the same with TLS", functools.partial(run, has_tls=True), rounds=3,
                    servers=("tailcoat", "nginx-tls", "h2o-tls", "caddy-tls"))
