"""From exec to the first whole response, as a client sees it that tries again and again; the floor shows what process
start and this method take by themselves."""

import os
import socket
import statistics
import subprocess
import tempfile
import pathlib
import time

from harness import servers
from .scenario import Scenario

FILE_BYTES = 1024
START_MS_MAX = 20
GIVE_UP_SECONDS = 10


def add_arguments(parser):
    parser.add_argument("--files", type=int, default=1, help="files in the tree, a hundred a directory; default: %(default)s")


def first_response_ms(server, tree, path):
    with tempfile.TemporaryDirectory(prefix=f"bench.{server.name}.") as run:
        pathlib.Path(run).chmod(0o755)
        port = servers.free_port()
        command = servers.prepared_command(server, port, tree.root, path, pathlib.Path(run))
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            while time.perf_counter() < began + GIVE_UP_SECONDS:
                try:
                    with socket.create_connection(("127.0.0.1", port), 1) as connection:
                        connection.sendall(request)
                        response = b"".join(iter(lambda: connection.recv(65536), b""))
                    elapsed = time.perf_counter() - began
                    if response.startswith(b"HTTP/1.1 200") and response.endswith(tree.pattern[:FILE_BYTES]):
                        return elapsed * 1e3
                    raise SystemExit(f"{server.name}: unexpected first response: {response[:80]!r}")
                except OSError:
                    time.sleep(0.0002)
            raise SystemExit(f"{server.name} did not answer within {GIVE_UP_SECONDS} s")
        finally:
            servers.stop(process)


def run(bench):
    os.sched_setaffinity(0, {0, 1} & os.sched_getaffinity(0))
    path = bench.tree.add("1k.html", FILE_BYTES)
    for number in range(1, bench.arguments.files):
        bench.tree.add(f"{number // 100}/{number}.html", FILE_BYTES)
    print(f"\nexec to first response, {bench.arguments.rounds} starts of each, ms")
    results = {server.name: [] for server in bench.servers}
    for number in range(bench.arguments.rounds):
        for server in bench.servers if number % 2 == 0 else reversed(bench.servers):
            results[server.name].append(first_response_ms(server, bench.tree, path))
    for name, times in results.items():
        print(f"  {name:15} {statistics.median(times):7.1f} ({min(times):.1f}-{max(times):.1f})")
    bench.report.add_part("start", results)
    bench.report.add_figures("start", "exec to first response", "ms", results)
    if servers.OURS in results:
        bench.report.mark("start to first response, ms", statistics.median(results[servers.OURS]), START_MS_MAX)


START = Scenario("start", "time from exec to the first response", run, rounds=30, add_arguments=add_arguments, enters_peer_root=False,
                 servers=("floor", "tailcoat", "nginx", "h2o", "lighttpd", "apache"))
