"""Connections that are closed after one request or ten."""

import functools

from harness import client, paired
from .scenario import Scenario

FILE, FILE_BYTES = "1k.html", 1024

# A connection that was closed keeps its port for a minute; 64 source addresses have some 1.8 million ports.
SOURCES = 64


def run(bench, requests_per_connection):
    path = bench.tree.add(FILE, FILE_BYTES)
    plan = [client.RequestKind(path, FILE_BYTES)]

    def measure(server, seconds, seed):
        load = client.Load(seconds=seconds, requests_per_connection=requests_per_connection, sources=SOURCES)
        return client.run(server, plan, bench.tree, load, seed)

    comparison = paired.compare(bench, path, measure)
    part = f"{requests_per_connection} a connection, 64 connections at a time"
    bench.report.add_comparison(part, comparison)
    bench.report.mark_ratio(part, comparison, "nginx", "tailcoat", 1.2, at_least=True)


CLOSE = Scenario("close", "1 KiB, one request a connection", functools.partial(run, requests_per_connection=1))
TEN = Scenario("ten", "1 KiB, ten requests a connection", functools.partial(run, requests_per_connection=10))
