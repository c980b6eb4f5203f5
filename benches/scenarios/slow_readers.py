"""5,000 slow readers of a 1 MiB file beside fast clients of a 1 KiB file.

The fast clients are an open loop, so their latency runs from when a request was due. The slow readers take CPU time of
the kernel and of the client's core, whatever server they are at; the control shows how much: there they are at the
floor, a process of its own on the server's core, while the fast clients are at the server.
"""

import statistics
import time

from harness import client, servers
from .scenario import Scenario

FAST_BYTES, SLOW_BYTES = 1024, 1 << 20
READ_BYTES, INTERVAL_MS = 1024, 1000
SETTLE_SECONDS = 1
DISTURBED_MAX, MEMORY_BYTES_MAX = 1.2, 2048


def add_arguments(parser):
    parser.add_argument("--readers", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=20000, help="requests a second of the fast clients; default: %(default)s")


def fast_p99_us(bench, running, plan, load):
    result = client.run(running, plan, bench.tree, load)
    errors = sum(result["errors"].values())
    if errors or result["unanswered"]:
        bench.report.void(f"{running.name}: {errors} wrong, {result['unanswered']} unanswered requests of the fast clients")
    return result["latency_us"]["p99"]


def measure(bench, server, floor, fast_path, slow_path):
    plan = [client.RequestKind(fast_path, FAST_BYTES)]
    load = client.Load(seconds=bench.arguments.seconds, rate=bench.arguments.rate)
    readers = bench.arguments.readers
    with servers.running(server, bench.tree, fast_path) as running:
        result = {"undisturbed_us": fast_p99_us(bench, running, plan, load)}
        with servers.running(floor, bench.tree, slow_path) as elsewhere:
            with client.Held(elsewhere, slow_path, readers, READ_BYTES, INTERVAL_MS):
                time.sleep(SETTLE_SECONDS)
                result["control_us"] = fast_p99_us(bench, running, plan, load)
        before = running.user_memory_bytes()
        with client.Held(running, slow_path, readers, READ_BYTES, INTERVAL_MS) as held:
            time.sleep(SETTLE_SECONDS)
            result["disturbed_us"] = fast_p99_us(bench, running, plan, load)
            result["memory_bytes"] = (running.user_memory_bytes() - before) / readers
            closed = held.release()["closed_by_server"]
    if closed:
        bench.report.note(f"{server.name} closed {closed} of {readers} slow readers")
    return result


def run(bench):
    fast_path, slow_path = bench.tree.add("1k.html", FAST_BYTES), bench.tree.add("1m.bin", SLOW_BYTES)
    [floor] = servers.named(["floor"], None)
    print(f"\n{bench.arguments.readers} readers of 1 MiB at {READ_BYTES * 1000 // INTERVAL_MS} bytes/s beside "
          f"{bench.arguments.rate:.0f} requests/s of 1 KiB; 99th percentiles in us")
    results = {}
    for server in bench.servers:
        rounds = [measure(bench, server, floor, fast_path, slow_path) for _ in range(bench.arguments.rounds)]
        results[server.name] = rounds
        ratios = [one["disturbed_us"] / one["undisturbed_us"] for one in rounds]
        median = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        print(f"  {server.name:15} undisturbed {median['undisturbed_us']:7.0f}  disturbed {median['disturbed_us']:7.0f}"
              f"  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
              f"  control {median['control_us']:7.0f}  user memory a reader {median['memory_bytes']:.0f} bytes")
        if server.name == servers.OURS:
            bench.report.mark("99th percentile disturbed / undisturbed", statistics.median(ratios), DISTURBED_MAX)
            bench.report.mark("user memory a slow reader, bytes", median["memory_bytes"], MEMORY_BYTES_MAX)
    bench.report.add_part("slow readers", results)


SLOW_READERS = Scenario("slow-readers", "5,000 slow readers of 1 MiB beside fast clients", run, rounds=3, seconds=5,
                        servers=("tailcoat", "nginx", "h2o", "lighttpd"), add_arguments=add_arguments)
