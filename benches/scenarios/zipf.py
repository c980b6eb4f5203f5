"""A tree of 100,000 files, accessed by Zipf's law (alpha 1): CPU a request, and how often a file had to be opened.

Servers report their hit ratios differently, so it is counted from outside: a request that opens no file is a hit. Opening
a file without reading it (O_PATH) does not count. This is a run of its own, because strace slows the server down."""

import random
import re
import subprocess
import time

from harness import client, paired, servers
from .scenario import Scenario

SMALLEST_BYTES, LARGEST_BYTES = 512, 32 << 10
FILES_PER_DIRECTORY = 100
WARMUP_SECONDS, TRACED_SECONDS = 3, 3
TRACED_CALLS = "open,openat,openat2"


def add_arguments(parser):
    parser.add_argument("--files", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--alpha", type=float, default=1, help="exponent of the popularity; default: %(default)s")
    parser.add_argument("--no-trace", action="store_true", help="leave the hit ratio out")


def make_plan(bench):
    """Files whose sizes are spread evenly over the powers of two. Their popularity does not depend on place or size."""
    chance = random.Random(19990101)
    ranks = list(range(1, bench.arguments.files + 1))
    chance.shuffle(ranks)
    plan = []
    for number, rank in enumerate(ranks):
        size = int(SMALLEST_BYTES * (LARGEST_BYTES / SMALLEST_BYTES) ** chance.random())
        path = bench.tree.add(f"{number // FILES_PER_DIRECTORY}/{number}.html", size, number)
        plan.append(client.RequestKind(path, size, pattern_offset=number % 65521, weight=rank ** -bench.arguments.alpha))
    return plan


def hit_ratio(bench, server, plan):
    """Share of requests that opened no file, after a warm-up; None if strace can't say."""
    load = client.Load(seconds=WARMUP_SECONDS)
    with servers.running(server, bench.tree, plan[0].path) as running:
        client.run(running, plan, bench.tree, load, seed=1)
        process_ids = ",".join(map(str, running.group.process_ids()))
        trace_file = running.run / "trace"
        trace = subprocess.Popen(["strace", "-f", "-qq", "-e", f"trace={TRACED_CALLS}", "-o", trace_file, "-p", process_ids], stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        result = client.run(running, plan, bench.tree, client.Load(seconds=TRACED_SECONDS, warmup_seconds=0), seed=2)
        trace.terminate()
        trace.wait()
        calls = re.findall(r"(?m)^\d+ +open\w*\(.*", trace_file.read_text(errors="replace"))
        opens = sum("O_PATH" not in call for call in calls)
    return max(0, 1 - opens / max(result["responses"], 1))  # A server may open a file twice for a request.


def run(bench):
    plan = make_plan(bench)
    total_mib = sum(kind.body_bytes for kind in plan) / (1 << 20)

    def measure(server, seconds, seed):
        return client.run(server, plan, bench.tree, client.Load(seconds=seconds), seed)

    comparison = paired.compare(bench, plan[0].path, measure, warm_up_seconds=WARMUP_SECONDS)
    part = f"{len(plan)} files, {total_mib:.0f} MiB, Zipf {bench.arguments.alpha:g}, 64 connections"
    bench.report.add_comparison(part, comparison)
    if bench.arguments.no_trace:
        return
    client.require("strace", "needed for the hit ratio (leave it out with --no-trace)")
    ratios = {server.name: hit_ratio(bench, server, plan) for server in bench.servers if server.name != servers.OURS_AGAIN}
    bench.report.add_part("hit ratio", ratios)
    bench.report.add_figures("hit ratio", "requests that open no file", "of 1", {name: [ratio] for name, ratio in ratios.items()}, at_least=True)
    for name, ratio in ratios.items():
        print(f"  {name:15} {ratio:6.1%} of requests opened no file")


ZIPF = Scenario("zipf-tree", "100,000 files, Zipf access", run, rounds=2, slots=10, add_arguments=add_arguments,
                servers=("tailcoat", "nginx", "h2o", "tailcoat-again"))
