"""A page of 20 files over HTTP/2, on a cold connection behind a line of 50 ms: from the first packet to the last byte.

The line is between two networks (clients/line.c): packets are carried from one to the other as late as the line would have them, so
that the kernel's TCP begins as slowly as it would out there. All files are asked for at once when the handshake is done."""

import json
import statistics
import subprocess

from harness import client, network, report, servers
from .scenario import Scenario

FILES, FILE_BYTES = 20, 16 << 10
ROUND_TRIP_MS, BITS_PER_SECOND = 50, 20e6
PEERS = ("nginx-tls", "h2o-tls")
# What can be told apart: a file more or less takes 6 ms on this line.
ABOVE_BEST_PEER_MAX = 1.01


def page_ms(bench, server, urls):
    """How long one page takes."""
    line = [client.compiled(client.CLIENTS / "line.c"), ROUND_TRIP_MS / 2, BITS_PER_SECOND, network.DEFAULT]
    words = ["--http2", "--insecure", "--connections", 1, "--streams", FILES, "--requests", FILES, "--warm-up", "0s",
             "--expect-length", FILE_BYTES, "--urls", urls]
    command = ["taskset", "-c", client.CLIENT_CORE, *line, bench.arguments.tailor, "bench", "--quiet", "--json", "-", *words,
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
    for server in bench.servers:
        server = servers.configured(server, "tailcoat-tls.kdl")
        server.fill["address"] = "0.0.0.0"
        with servers.running(server, bench.tree, paths[0]) as running:
            page_ms(bench, running, urls)
            times[server.name] = [page_ms(bench, running, urls) for _ in range(bench.arguments.slots)]
    print(f"\n{FILES} files of {FILE_BYTES >> 10} KiB, round trip {ROUND_TRIP_MS} ms, {BITS_PER_SECOND / 1e6:g} Mbit/s: ms to the last byte")
    for name, taken in times.items():
        print(f"  {name:15} {statistics.median(taken):7.1f} ({{:.1f}}-{{:.1f}})".format(*report.quartiles(taken)))
    bench.report.add_part("page", times)
    peers = [statistics.median(times[name]) for name in PEERS if name in times]
    if peers and servers.OURS in times:
        bench.report.mark("page: tailcoat / best peer", statistics.median(times[servers.OURS]) / min(peers), ABOVE_BEST_PEER_MAX)


PAGE = Scenario("page", "20 files over HTTP/2, cold connection, line of 50 ms", run, rounds=1, slots=20, add_arguments=client.add_tailor_argument,
                servers=("tailcoat", "nginx-tls", "h2o-tls", "tailcoat-again"))
