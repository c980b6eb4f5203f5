"""5,000 slow readers of a 1 MiB file beside fast clients of a 1 KiB file.

The fast clients are an open loop, so that their latency runs from the time a request was due. Three slots take turns:
undisturbed, on a server of its own; disturbed, on the server with the slow readers; and a control. Slow readers cost CPU time
of the kernel and the client's core on any server. In the control slot they read from a floor on the client's core, while
the fast clients use the undisturbed server.
"""

import contextlib
import statistics
import time

from harness import client, report, servers
from .scenario import Scenario

FAST_BYTES, SLOW_BYTES = 1024, 1 << 20
READ_BITS_PER_SECOND = 8192
SETTLE_SECONDS = 1
DISTURBED_MAX, MEMORY_BYTES_MAX = 1.2, 2048


def add_arguments(parser):
    parser.add_argument("--readers", type=int, default=5000, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=20000, help="requests a second of the fast clients; default: %(default)s")


def fast_p99_us(bench, running, plan, seed):
    load = client.Load(seconds=bench.arguments.seconds, rate=bench.arguments.rate)
    result = client.run(running, plan, bench.tree, load, seed)
    errors = sum(result["errors"].values())
    if errors or result["unanswered"]:
        bench.report.void(f"{running.name}: {errors} wrong, {result['unanswered']} unanswered requests of the fast clients")
    return result["latency_us"]["p99"]


def measure(bench, server, floor, fast_path, slow_path):
    """A round of one server: 99th percentiles of each slot, and the memory of a slow reader."""
    plan = [client.RequestKind(fast_path, FAST_BYTES)]
    readers = bench.arguments.readers
    with contextlib.ExitStack() as stack:
        undisturbed, disturbed = (stack.enter_context(servers.running(server, bench.tree, fast_path)) for _ in range(2))
        elsewhere = stack.enter_context(servers.running(floor, bench.tree, slow_path, core=servers.CLIENT_CORE))
        for running in (undisturbed, disturbed):
            fast_p99_us(bench, running, plan, 0)
        memory_before = disturbed.user_memory_bytes()
        held = stack.enter_context(client.Held(disturbed, slow_path, readers, READ_BITS_PER_SECOND))
        control = stack.enter_context(client.Held(elsewhere, slow_path, readers, READ_BITS_PER_SECOND))
        time.sleep(SETTLE_SECONDS)
        held.pause(), control.pause()
        slots = []
        for number in range(bench.arguments.slots):
            kinds = {"undisturbed": (undisturbed, None), "control": (undisturbed, control), "disturbed": (disturbed, held)}
            slot = {}
            for kind, (running, readers_at) in kinds.items() if number % 2 == 0 else reversed(kinds.items()):
                if readers_at:
                    readers_at.resume()
                    time.sleep(0.1)
                slot[f"{kind}_us"] = fast_p99_us(bench, running, plan, number + 1)
                if readers_at:
                    readers_at.pause()
            slots.append(slot)
        memory_bytes = (disturbed.user_memory_bytes() - memory_before) / readers
        closed = held.release()
    if closed:
        bench.report.note(f"{server.name} closed {closed} of {readers} slow readers")
    return {"slots": slots, "memory_bytes": memory_bytes}


def run(bench):
    fast_path, slow_path = bench.tree.add("1k.html", FAST_BYTES), bench.tree.add("1m.bin", SLOW_BYTES)
    [floor] = servers.named(["floor"], None)
    print(f"\n{bench.arguments.readers} readers of 1 MiB at {READ_BITS_PER_SECOND // 8} bytes/s beside "
          f"{bench.arguments.rate:.0f} requests/s of 1 KiB; median 99th percentiles in us")
    results = {}
    for server in bench.servers:
        rounds = [measure(bench, server, floor, fast_path, slow_path) for _ in range(bench.arguments.rounds)]
        results[server.name] = rounds
        slots = [slot for one in rounds for slot in one["slots"]]
        p99 = {kind: statistics.median(slot[kind] for slot in slots) for kind in slots[0]}
        ratios = [slot["disturbed_us"] / slot["undisturbed_us"] for slot in slots]
        lower, upper = report.quartiles(ratios)
        memory_bytes = statistics.median(one["memory_bytes"] for one in rounds)
        print(f"  {server.name:15} undisturbed {p99['undisturbed_us']:6.0f}  control {p99['control_us']:6.0f}"
              f"  disturbed {p99['disturbed_us']:6.0f}  paired ratio {statistics.median(ratios):.2f} (quartiles {lower:.2f}-{upper:.2f})"
              f"  user memory a reader {memory_bytes:.0f} bytes")
        if server.name == servers.OURS:
            bench.report.mark("99th percentile disturbed / undisturbed", statistics.median(ratios), DISTURBED_MAX)
            bench.report.mark("user memory a slow reader, bytes", memory_bytes, MEMORY_BYTES_MAX)
    bench.report.add_part("slow readers", results)
    slots = {name: [slot for one in rounds for slot in one["slots"]] for name, rounds in results.items()}
    bench.report.add_figures("latency", "p99 beside slow readers / p99 without them", "x",
                             {name: [slot["disturbed_us"] / slot["undisturbed_us"] for slot in each] for name, each in slots.items()})
    bench.report.add_figures("memory", "user memory of a slow reader", "bytes",
                             {name: [one["memory_bytes"] for one in rounds] for name, rounds in results.items()})


SLOW_READERS = Scenario("slow-readers", "5,000 slow readers of 1 MiB beside fast clients", run, rounds=1, slots=10, seconds=0.7,
                        servers=("tailcoat", "nginx", "h2o", "lighttpd"), add_arguments=add_arguments)
