"""A reverse proxy that asks an authentication server about each request.

Upstream and authentication server are floors on the client's core, both with keep-alive: only the proxy counts. HAProxy has no
such option without a script."""

import dataclasses

from harness import client, paired, servers
from .forwarding import ABOVE_BEST_PEER_MAX, SMALL_BYTES, before
from .scenario import Scenario

PEERS = ("nginx-auth", "caddy-auth")
DECISION_BYTES = 2


def run(bench):
    path = bench.tree.add("1k.html", SMALL_BYTES)
    decision = bench.tree.add("decision.txt", DECISION_BYTES)
    plan = [client.RequestKind(path, SMALL_BYTES)]
    [floor] = servers.named(["floor"], None)

    def measure(server, seconds, seed):
        return client.run(server, plan, bench.tree, client.Load(seconds=seconds), seed)

    with servers.running(floor, bench.tree, decision, core=servers.CLIENT_CORE) as auth, before(bench, floor, path, "tailcoat-auth.kdl"):
        bench.servers = [dataclasses.replace(server, fill={**server.fill, "auth_port": auth.port}) for server in bench.servers]
        asked_us = auth.group.cpu_us()
        comparison = paired.compare(bench, path, measure)
        if auth.group.cpu_us() == asked_us:
            bench.report.void("the authentication server was not asked")
    part = "64 connections"
    bench.report.add_comparison(part, comparison)
    peers = [name for name in PEERS if name in comparison.samples]
    if peers:
        best = min(peers, key=lambda name: comparison.median(name, "cpu_us"))
        bench.report.mark_ratio(part, comparison, servers.OURS, best, ABOVE_BEST_PEER_MAX)


FORWARD_AUTH = Scenario("forward-auth", "a proxy that asks an authentication server about each request of 1 KiB", run, rounds=2,
                        servers=("tailcoat", *PEERS, "tailcoat-again"))
