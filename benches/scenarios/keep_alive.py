"""A small file on keep-alive connections: one request at a time, and 16 pipelined requests."""

from harness import client, paired
from .scenario import Scenario

FILE, FILE_BYTES = "1k.html", 1024
PIPELINE = 16

# Multiple of our CPU time per request that each peer must need at least.
PEER_MARKS = {"nginx": 1.5, "h2o": 1.2, "lighttpd": 1.2, "apache": 5}


def add_arguments(parser):
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 512], help="default: 64 and 512")
    parser.add_argument("--client", choices=["tailor", "wrk"], default="tailor", help="wrk is a second opinion")


def run_keep_alive(bench):
    path = bench.tree.add(FILE, FILE_BYTES)
    plan = [client.RequestKind(path, FILE_BYTES)]
    for connections in bench.arguments.connections:

        def measure(server, seconds, seed):
            load = client.Load(connections=connections, seconds=seconds)
            if bench.arguments.client == "wrk":
                return client.run_wrk(server, path, load)
            return client.run(server, plan, bench.tree, load, seed)

        part = f"{connections} connections"
        comparison = paired.compare(bench, path, measure)
        bench.report.add_comparison(part, comparison)
        bench.report.mark_ratio(part, comparison, "tailcoat", "floor", 1.08)
        for peer, least in PEER_MARKS.items():
            bench.report.mark_ratio(part, comparison, peer, "tailcoat", least, at_least=True)


def run_pipelined(bench):
    path = bench.tree.add(FILE, FILE_BYTES)
    plan = [client.RequestKind(path, FILE_BYTES)]

    def measure(server, seconds, seed):
        return client.run(server, plan, bench.tree, client.Load(seconds=seconds, pipeline=PIPELINE), seed)

    comparison = paired.compare(bench, path, measure)
    part = f"pipelined by {PIPELINE}, 64 connections"
    bench.report.add_comparison(part, comparison)
    bench.report.mark_ratio(part, comparison, "nginx", "tailcoat", 6, at_least=True)


KEEP_ALIVE = Scenario("keepalive-1k", "1 KiB, keep-alive, 64 and 512 connections", run_keep_alive, add_arguments=add_arguments)
PIPELINED = Scenario("pipelined", "1 KiB, pipelined by 16, 64 connections", run_pipelined)
