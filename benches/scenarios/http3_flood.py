"""HTTP/3 under a flood of first packets. Connected clients go on at a fixed rate, while another program begins handshakes from many
addresses, as fast as the kernel takes its datagrams. Needs aioquic, which makes the packets.

The flood has the lowest priority on the clients' core, and gets what they leave. The server has the other core."""

import contextlib
import statistics
import subprocess
import sys
import time

from harness import client, servers
from .scenario import Scenario

FILE_BYTES = 1 << 10
RATE, CONNECTIONS = 2_000, 16
INITIALS, ADDRESSES = 2_000, 256
# The clients connect before the flood begins, and the warm-up ends after that.
CONNECT_SECONDS, WARM_UP_SECONDS = 0.4, 0.8
CALM, FLOODED = "calm", "flooded"
P99_MAX, MEMORY_MAX_MIB = 2.0, 32
# Prints datagrams, each after its length: the first flight of clients of their own.
MAKE = """
import sys, time
sys.path.insert(0, "/usr/local/lib/aioquic")
from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
for _ in range(int(sys.argv[1])):
    one = QuicConnection(configuration=QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost", verify_mode=False))
    one.connect(("127.0.0.1", 443), now=time.time())
    for data, _ in one.datagrams_to_send(now=time.time()):
        sys.stdout.buffer.write(len(data).to_bytes(2, "big") + data)
"""


@contextlib.contextmanager
def flood(initials, port):
    program = client.compiled(client.CLIENTS / "datagrams.c")
    command = ["chrt", "--idle", "0", "taskset", "-c", client.CLIENT_CORE, program, initials, port, ADDRESSES]
    process = subprocess.Popen([str(word) for word in command])
    try:
        yield
        if process.poll() is not None:
            raise SystemExit("the flood ended")
    finally:
        process.kill()
        process.wait()


def dropped_datagrams(port):
    """Datagrams that arrived at the sockets of a UDP port and were dropped because the buffer was full, for each that dropped some."""
    with open("/proc/net/udp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    dropped = [int(row[-1]) for row in rows if int(row[1].split(":")[1], 16) == port]
    return [count for count in dropped if count]


def run(bench):
    initials = bench.tree.root.parent / "initials"
    with open(initials, "wb") as out:
        subprocess.run([sys.executable, "-c", MAKE, str(INITIALS)], stdout=out, check=True)
    path = bench.tree.add("flood.bin", FILE_BYTES)
    listed = [servers.configured(server, "tailcoat-http3.kdl") for server in bench.servers]
    words = ["--http3", "--connections", CONNECTIONS, "--rate", RATE, "--arrivals", "poisson", "--insecure", "--timeout", "10s"]
    measured = {}
    for server in listed:
        p99, cpu_share = {CALM: [], FLOODED: []}, {CALM: [], FLOODED: []}
        with servers.running(server, bench.tree, path) as running:
            url = f"https://127.0.0.1:{running.port}{path}"

            def measure(is_flooded):
                process = client.begin_tailor(running, [*words, url], bench.arguments.seconds, WARM_UP_SECONDS, is_open=True)
                time.sleep(CONNECT_SECONDS)
                with flood(initials, running.port) if is_flooded else contextlib.nullcontext():
                    result = client.finish(process)
                if sum(result["errors"].values()):
                    bench.report.void(f"{server.name}: {result['errors']}")
                return result["latency_us"]["p99"] / 1e3, result["server_cpu_us"] / 1e6 / result["seconds"]

            measure(False)
            before, grown_mib = running.user_memory_bytes(), 0
            for _ in range(bench.arguments.slots):
                for name in (CALM, FLOODED):
                    latency_ms, share = measure(name == FLOODED)
                    p99[name].append(latency_ms)
                    cpu_share[name].append(share)
                grown_mib = max(grown_mib, (running.user_memory_bytes() - before) / (1 << 20))
            dropped = dropped_datagrams(running.port)
        measured[server.name] = p99
        medians, shares = ({name: statistics.median(values) for name, values in of.items()} for of in (p99, cpu_share))
        print(f"\n{server.name}: p99 {medians[CALM]:.2f} ms, in the flood {medians[FLOODED]:.2f} ms; CPU {shares[CALM]:.0%}, "
              f"in the flood {shares[FLOODED]:.0%}; memory +{grown_mib:.1f} MiB; {sum(dropped):,} datagrams dropped by {len(dropped)} sockets")
        if server.name == servers.OURS:
            bench.report.mark("p99 in the flood / before", medians[FLOODED] / medians[CALM], P99_MAX)
            bench.report.mark("user memory in the flood, MiB more", grown_mib, MEMORY_MAX_MIB)
    for name in (CALM, FLOODED):
        of_servers = {server: p99[name] for server, p99 in measured.items()}
        bench.report.add_part(name, of_servers)
        bench.report.add_figures(name, "p99", "ms", of_servers)


HTTP3_FLOOD = Scenario("http3-flood", "HTTP/3 clients while others begin handshakes from many addresses, as fast as they can", run, rounds=1, slots=5, seconds=2.0,
                       servers=("tailcoat", "nginx-http3"))
