"""Requests of which 10 % are conditional and get status 304, and 10 % ask for a range."""

import http.client

from harness import client, paired
from .keep_alive import FILE, FILE_BYTES, PEER_MARKS
from .scenario import ALL_SERVERS, Scenario

RANGE_FIRST, RANGE_LAST = 100, 299


def entity_tag(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    connection.close()
    tag = response.getheader("ETag")
    if not tag:
        raise SystemExit(f"{server.name} sends no ETag for {path}")
    return tag


def mixed_plan(server, path):
    tag = entity_tag(server, path)
    return [
        client.RequestKind(path, FILE_BYTES, weight=8),
        client.RequestKind(path, 0, status=304, fields=(f"If-None-Match: {tag}",)),
        client.RequestKind(path, RANGE_LAST - RANGE_FIRST + 1, status=206, pattern_offset=RANGE_FIRST,
                           fields=(f"Range: bytes={RANGE_FIRST}-{RANGE_LAST}",)),
    ]


def run(bench):
    path = bench.tree.add(FILE, FILE_BYTES)

    def measure(server, seconds, seed):
        return client.run(server, mixed_plan(server, path), bench.tree, client.Load(seconds=seconds), seed)

    comparison = paired.compare(bench, path, measure)
    part = "80 % whole, 10 % not modified, 10 % ranges, 64 connections"
    bench.report.add_comparison(part, comparison)
    for peer, least in PEER_MARKS.items():
        bench.report.mark_ratio(part, comparison, peer, "tailcoat", least, at_least=True)


MIXED = Scenario("mixed-conditional", "1 KiB, 10 % answered 304, 10 % ranges", run,
                 servers=tuple(name for name in ALL_SERVERS if name != "floor"))
