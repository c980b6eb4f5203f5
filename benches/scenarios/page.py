"""A page of 20 files over HTTP/2, on a new connection over a line of 50 ms: from the first packet to the last byte.

The line is between two networks (clients/line.c). It delays packets as a real line does, so that the kernel's TCP starts
slowly. The client requests all files at once after the handshake."""

import contextlib
import dataclasses
import json
import statistics
import subprocess

from harness import client, network, report, servers
from .scenario import Scenario

FILES, FILE_BYTES = 20, 16 << 10
ROUND_TRIP_MS, BITS_PER_SECOND = 50, 20e6
PEERS = ("nginx-tls", "h2o-tls")
# The resolution: one more file takes 6 ms on this line.
ABOVE_BEST_PEER_MAX = 1.01


def page_ms(bench, server, urls):
    """Time that one page takes."""
    line = [client.compiled(client.CLIENTS / "line.c"), ROUND_TRIP_MS / 2, BITS_PER_SECOND, network.DEFAULT]
    words = ["--http2", "--insecure", "--connections", 1, "--streams", FILES, "--requests", FILES, "--warm-up", "0s",
             "--expect-length", FILE_BYTES, "--urls", urls]
    command = ["taskset", "-c", client.CLIENT_CORE, *line, client.tailor(), "bench", "--quiet", "--json", "-", *words,
               f"https://10.99.0.1:{server.port}/"]
    process = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if not process.stdout:
        raise SystemExit(f"no page from {server.name}: {process.stderr}")
    result = json.loads(process.stdout)
    if result["served"] != FILES:
        raise SystemExit(f"{server.name}: {result['served']} of {FILES} files: {result['failures']}")
    return result["duration_seconds"] * 1e3


def run(bench):
    paths = [bench.tree.add(f"{number}.bin", FILE_BYTES, number * 997) for number in range(FILES)]
    urls = bench.tree.root.parent / "urls"
    urls.write_text("".join(f"{path}\n" for path in paths))
    times = {server.name: [] for server in bench.servers}
    listed = [dataclasses.replace(servers.configured(server, "tailcoat-tls.kdl"), fill={"address": "0.0.0.0"}) for server in bench.servers]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(servers.running(server, bench.tree, paths[0])) for server in listed]
        for slot in range(bench.arguments.slots + 1):
            for running in started if slot % 2 == 0 else reversed(started):
                taken_ms = page_ms(bench, running, urls)
                if slot > 0:  # The first warms up.
                    times[running.name].append(taken_ms)
    print(f"\n{FILES} files of {FILE_BYTES >> 10} KiB, round trip {ROUND_TRIP_MS} ms, {BITS_PER_SECOND / 1e6:g} Mbit/s: ms to the last byte")
    for name, taken in times.items():
        print(f"  {name:15} {statistics.median(taken):7.1f} ({{:.1f}}-{{:.1f}})".format(*report.quartiles(taken)))
    bench.report.add_part("page", times)
    bench.report.add_figures("page", "time to the last byte", "ms", times)
    bench.report.check_control("page", times)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    peers = [medians[name] for name in PEERS if name in medians]
    if peers and servers.OURS in medians:
        bench.report.mark("page: tailcoat / best peer", medians[servers.OURS] / min(peers), ABOVE_BEST_PEER_MAX)
    if {servers.OURS, servers.OURS_AGAIN} <= medians.keys():
        print(f"  control: tailcoat-again / tailcoat {medians[servers.OURS_AGAIN] / medians[servers.OURS]:.3f}")


PAGE = Scenario("page", "20 files over HTTP/2, cold connection, line of 50 ms", run, rounds=1, slots=20,
                servers=("tailcoat", "nginx-tls", "h2o-tls", "tailcoat-again"))
