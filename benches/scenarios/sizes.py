"""Larger files, from memory at the floor, as each server likes best elsewhere."""

import re
import time

from harness import client, paired
from .scenario import Scenario

DEFAULT_SIZES = ["16KiB", "100KiB", "1MiB", "100MiB"]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
PEERS = ("nginx", "h2o", "lighttpd", "apache", "caddy")
ABOVE_BEST_PEER_MAX = 1.03

# Files that were just written may be written on, and a server may treat them with more care.
SETTLE_SECONDS = 11


def add_arguments(parser):
    parser.add_argument("--size", nargs="+", default=DEFAULT_SIZES, help=f"default: {' '.join(DEFAULT_SIZES)}")
    parser.add_argument("--connections", type=int, help="default: 64; 8 from 10 MiB on")


def size_bytes(text):
    match = re.fullmatch(r"(\d+)(KiB|MiB)", text)
    if not match:
        raise SystemExit(f"`{text}` is no size: write 16KiB or 1MiB")
    return int(match[1]) * UNITS[match[2]]


def run(bench):
    paths = {size: bench.tree.add(f"{size}.bin", size_bytes(size)) for size in bench.arguments.size}
    time.sleep(SETTLE_SECONDS)
    for size, path in paths.items():
        body_bytes = size_bytes(size)
        plan = [client.RequestKind(path, body_bytes)]
        connections = bench.arguments.connections or (64 if body_bytes < 10 << 20 else 8)

        def measure(server, seconds, seed):
            return client.run(server, plan, bench.tree, client.Load(connections=connections, seconds=seconds), seed)

        comparison = paired.compare(bench, path, measure, body_bytes)
        part = f"{size}, {connections} connections"
        bench.report.add_comparison(part, comparison)
        peers = [name for name in PEERS if name in comparison.samples]
        if peers:
            best = min(peers, key=lambda name: comparison.median(name, "cpu_us"))
            bench.report.mark_ratio(part, comparison, "tailcoat", best, ABOVE_BEST_PEER_MAX)


SIZES = Scenario("sizes", "16 KiB, 100 KiB, 1 MiB, 100 MiB", run, add_arguments=add_arguments)
