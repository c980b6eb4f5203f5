"""Paths without a file: a 404 beside a hit, and a proxied request of a site that looks for a file first."""

import dataclasses
import http.client

from harness import client, paired, servers
from .forwarding import before
from .scenario import Scenario

FILE, FILE_BYTES = "1k.html", 1 << 10
MISSING_PATH = "/missing/page.html"
MISSING, NGINX_MISSING, FALLBACK, NGINX_FALLBACK = "missing", "nginx-missing", "fallback", "nginx-fallback"
MISSING_MAX, NGINX_MISSING_MIN = 1.1, 1.15
FALLBACK_MAX, NGINX_FALLBACK_MIN = 1.05, 1.15


def error_page_bytes(server):
    """Length of the server's own error page, to check each response by."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", MISSING_PATH)
    length = len(connection.getresponse().read())
    connection.close()
    return length


def run_missing(bench):
    path = bench.tree.add(FILE, FILE_BYTES)
    [ours, nginx] = servers.named([servers.OURS, NGINX_MISSING], bench.arguments.tailcoat, bench.arguments.peer_root)
    listed = bench.servers
    bench.servers = [*(dataclasses.replace(ours, name=name) for name in (servers.OURS, MISSING, servers.OURS_AGAIN)), nginx]

    def measure(server, seconds, seed):
        kind = client.RequestKind(path, FILE_BYTES)
        if server.name in (MISSING, NGINX_MISSING):
            kind = client.RequestKind(MISSING_PATH, error_page_bytes(server), status=404, pattern_offset=-1)
        return client.run(server, [kind], bench.tree, client.Load(seconds=seconds), seed)

    comparison = paired.compare(bench, path, measure)
    bench.servers = listed
    bench.report.add_comparison("404", comparison)
    bench.report.mark_ratio("404", comparison, MISSING, servers.OURS, MISSING_MAX)
    bench.report.mark_ratio("404", comparison, NGINX_MISSING, MISSING, NGINX_MISSING_MIN, at_least=True)


def run_fallback(bench):
    """All servers proxy the same path. `fallback` and nginx look for a file below a root first."""
    path = bench.tree.add(FILE, FILE_BYTES)
    [floor] = servers.named(["floor"], None)
    [ours, nginx] = servers.named([servers.OURS, NGINX_FALLBACK], bench.arguments.tailcoat, bench.arguments.peer_root)
    listed = bench.servers
    bench.servers = [ours, dataclasses.replace(ours, name=servers.OURS_AGAIN), nginx]
    plan = [client.RequestKind(MISSING_PATH, FILE_BYTES)]

    def measure(server, seconds, seed):
        return client.run(server, plan, bench.tree, client.Load(seconds=seconds), seed)

    with before(bench, floor, path) as back_end:
        with_files = servers.before(dataclasses.replace(ours, name=FALLBACK), back_end.port, "tailcoat-fallback.kdl")
        bench.servers = [*bench.servers, with_files]
        comparison = paired.compare(bench, MISSING_PATH, measure)
    bench.servers = listed
    bench.report.add_comparison(FALLBACK, comparison)
    bench.report.mark_ratio(FALLBACK, comparison, FALLBACK, servers.OURS, FALLBACK_MAX)
    bench.report.mark_ratio(FALLBACK, comparison, NGINX_FALLBACK, FALLBACK, NGINX_FALLBACK_MIN, at_least=True)


PARTS = {"404": run_missing, FALLBACK: run_fallback}


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help=f"default: {' '.join(PARTS)}")


def run(bench):
    for part in bench.arguments.part:
        PARTS[part](bench)


ABSENT = Scenario("absent", "paths without a file: 404, and the fallback to an upstream", run, servers=("tailcoat", "tailcoat-again"),
                  rounds=2, add_arguments=add_arguments)
