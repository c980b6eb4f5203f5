"""A page of 20 files on a new connection over a line of 50 ms: from the first packet to the last byte. Over HTTP/2 beside peers, and
over HTTP/2 and HTTP/3 of ours where the line loses packets.

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
# Share of lost packets -> the multiple of the time over HTTP/2 that HTTP/3 may need at most.
LOSSES = {0: 1.0, 0.02: None, 0.1: 0.7}
OURS_HTTP3 = "tailcoat-http3"


def page_ms(server, urls, loss=0):
    """Time that one page takes."""
    line = [client.compiled(client.CLIENTS / "line.c"), ROUND_TRIP_MS / 2, BITS_PER_SECOND, loss, network.DEFAULT]
    version = "--http3" if server.name == OURS_HTTP3 else "--http2"
    words = [version, "--insecure", "--connections", 1, "--streams", FILES, "--requests", FILES, "--warm-up", "0s", "--timeout", "60s",
             "--expect-length", FILE_BYTES, "--urls", urls]
    command = ["taskset", "-c", client.CLIENT_CORE, *line, client.tailor(), "bench", "--quiet", "--no-calibration", "--json", "-", *words,
               f"https://10.99.0.1:{server.port}/"]
    process = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if not process.stdout:
        raise SystemExit(f"no page from {server.name}: {process.stderr}")
    result = json.loads(process.stdout)
    if result["served"] != FILES:
        raise SystemExit(f"{server.name}: {result['served']} of {FILES} files: {result['failures']}")
    return result["duration_seconds"] * 1e3


@contextlib.contextmanager
def started(bench, config):
    """The servers, and the file with the paths of the page."""
    paths = [bench.tree.add(f"{number}.bin", FILE_BYTES, number * 997) for number in range(FILES)]
    urls = bench.tree.root.parent / "urls"
    urls.write_text("".join(f"{path}\n" for path in paths))
    listed = [dataclasses.replace(servers.configured(server, config), fill={"address": "0.0.0.0"}) for server in bench.servers]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(servers.running(server, bench.tree, paths[0])) for server in listed], urls


def measure(bench, running, urls, loss=0):
    """Times of all servers, in turns: name -> milliseconds."""
    times = {server.name: [] for server in running}
    for slot in range(bench.arguments.slots + 1):
        for server in running if slot % 2 == 0 else reversed(running):
            taken_ms = page_ms(server, urls, loss)
            if slot > 0:  # The first warms up.
                times[server.name].append(taken_ms)
    lost = f", {loss:.0%} of the packets lost" if loss else ""
    print(f"\n{FILES} files of {FILE_BYTES >> 10} KiB, round trip {ROUND_TRIP_MS} ms, {BITS_PER_SECOND / 1e6:g} Mbit/s{lost}: ms to the last byte")
    for name, taken in times.items():
        print(f"  {name:15} {statistics.median(taken):7.1f} ({{:.1f}}-{{:.1f}})".format(*report.quartiles(taken)))
    return times


def run(bench):
    with started(bench, "tailcoat-tls.kdl") as (running, urls):
        times = measure(bench, running, urls)
    bench.report.add_part("page", times)
    bench.report.add_figures("page", "time to the last byte", "ms", times)
    bench.report.check_control("page", times)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    peers = [medians[name] for name in PEERS if name in medians]
    if peers and servers.OURS in medians:
        bench.report.mark("page: tailcoat / best peer", medians[servers.OURS] / min(peers), ABOVE_BEST_PEER_MAX)
    if {servers.OURS, servers.OURS_AGAIN} <= medians.keys():
        print(f"  control: tailcoat-again / tailcoat {medians[servers.OURS_AGAIN] / medians[servers.OURS]:.3f}")


def run_lossy(bench):
    [ours] = servers.named([servers.OURS], bench.arguments.tailcoat)
    listed = bench.servers
    bench.servers = [dataclasses.replace(ours, name=name) for name in (servers.OURS_HTTP2, OURS_HTTP3)]
    with started(bench, "tailcoat-http3.kdl") as (running, urls):
        for loss, limit in LOSSES.items():
            part = f"loss-{loss * 100:g}"
            times = measure(bench, running, urls, loss)
            bench.report.add_part(part, times)
            bench.report.add_figures(part, "time to the last byte", "ms", times)
            ratio = statistics.median(times[OURS_HTTP3]) / statistics.median(times[servers.OURS_HTTP2])
            if limit is not None:
                bench.report.mark(f"{part}: HTTP/3 / HTTP/2", ratio, limit)
    bench.servers = listed


PAGE = Scenario("page", "20 files over HTTP/2, cold connection, line of 50 ms", run, rounds=1, slots=20,
                servers=("tailcoat", "nginx-tls", "h2o-tls", "tailcoat-again"))
PAGE_LOSS = Scenario("page-loss", "20 files over HTTP/2 and HTTP/3, cold connection, line of 50 ms that loses packets", run_lossy, rounds=1, slots=30,
                     servers=("tailcoat",))
