"""Hot requests while cold files are read from a slow disk.

The cold files are dropped from the page cache, and the server's control group throttles its reads from the disk. Some
clients request cold files in a closed loop. Hot requests are due at a fixed rate; the figure is their p99 with and without
the cold requests. Each turn starts a new server, so that reads of an earlier turn slow no request down."""

import contextlib
import os
import statistics
import time

from harness import client, report, servers
from .scenario import Scenario

HOT_BYTES, COLD_BYTES, COLD_FILES = 1024, 1 << 20, 400
COLD_CONNECTIONS = 16
DISTURBED_MAX = 2


def add_arguments(parser):
    parser.add_argument("--rate", type=float, default=2000, help="hot requests a second; default: %(default)s")
    parser.add_argument("--disk-mib", type=float, default=20, help="MiB a second that the disk gives; default: %(default)s")


def put_out_of_page_cache(root):
    """Leaves none of the files' pages in memory."""
    os.sync()
    for file in root.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextlib.contextmanager
def cold_requests(bench, running, plan, seconds):
    """Asks for cold files in the background."""
    load = client.Load(connections=COLD_CONNECTIONS, seconds=seconds, warmup_seconds=0)
    process = client.begin(running, plan, bench.tree, load, seed=2)
    outcome = {}
    try:
        yield outcome
        outcome.update(client.finish(process))
    finally:
        process.kill()
        process.wait()


def hot_requests(bench, running, plan, seed):
    load = client.Load(seconds=bench.arguments.seconds, rate=bench.arguments.rate)
    return checked(bench, running, client.run(running, plan, bench.tree, load, seed))


def checked(bench, running, result):
    if any(result["errors"].values()):
        bench.report.void(f"{running.name}: {result['errors']}")
    return result


def measure(bench, server, hot_plan, cold_plan, cold_root):
    """A slot alone and a slot beside cold requests."""
    put_out_of_page_cache(cold_root)
    disk_bytes_per_second = bench.arguments.disk_mib * (1 << 20)
    with servers.running(server, bench.tree, hot_plan[0].path, disk_bytes_per_second) as running:
        hot_requests(bench, running, hot_plan, 0)
        alone = hot_requests(bench, running, hot_plan, 1)
        with cold_requests(bench, running, cold_plan, bench.arguments.seconds + 1) as cold:
            time.sleep(0.5)
            beside = hot_requests(bench, running, hot_plan, 2)
        checked(bench, running, cold)
    return {"alone_us": alone["latency_us"]["p99"], "beside_us": beside["latency_us"]["p99"],
            "unanswered": beside["unanswered"], "cold_bytes_per_second": cold["body_bytes"] / cold["seconds"]}


def run(bench):
    hot_plan = [client.RequestKind(bench.tree.add("hot.html", HOT_BYTES), HOT_BYTES)]
    cold_plan = [client.RequestKind(bench.tree.add(f"cold/{number}.bin", COLD_BYTES, number), COLD_BYTES, pattern_offset=number)
                 for number in range(COLD_FILES)]
    print(f"\n{bench.arguments.rate:.0f} hot requests/s alone and beside {COLD_CONNECTIONS} clients of cold files, disk at "
          f"{bench.arguments.disk_mib:g} MiB/s; median 99th percentiles in us")
    results = {server.name: [] for server in bench.servers}
    for number in range(bench.arguments.slots):
        for server in bench.servers if number % 2 == 0 else reversed(bench.servers):
            results[server.name].append(measure(bench, server, hot_plan, cold_plan, bench.tree.root / "cold"))
    bench.report.add_part("cold disk", results)
    bench.report.add_figures("cold disk", "p99 beside cold files / p99 without them", "x",
                             {name: [one["beside_us"] / one["alone_us"] for one in slots] for name, slots in results.items()})
    for name, slots in results.items():
        ratios = [one["beside_us"] / one["alone_us"] for one in slots]
        lower, upper = report.quartiles(ratios)
        median = {key: statistics.median(one[key] for one in slots) for key in slots[0]}
        print(f"  {name:15} alone {median['alone_us']:7.0f}  beside {median['beside_us']:9.0f}  paired ratio {statistics.median(ratios):.2f}"
              f" (quartiles {lower:.2f}-{upper:.2f})  cold files {median['cold_bytes_per_second'] / (1 << 20):.1f} MiB/s"
              f"  unanswered {median['unanswered']:.0f}")
        if name == servers.OURS:
            bench.report.mark("99th percentile of hot requests beside / alone", statistics.median(ratios), DISTURBED_MAX)


COLD_DISK = Scenario("cold-disk", "hot requests while cold files come from a slow disk", run, rounds=1, slots=6, seconds=1.5,
                     servers=("tailcoat", "nginx"), add_arguments=add_arguments)
