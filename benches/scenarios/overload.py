"""Twice the capacity for a minute: what is still served, how fast, and how soon all is well again.

Two parts. `static`: a file of 1 KiB, where the server's core is the limit. `proxy`: a back end that works on few requests at a
time (peers/limited.py), where the back end is the limit. The capacity is measured first, in a closed loop. The overload is an
open loop: requests are due whether or not others have been answered, and a request that is not answered within its time-out has
failed. A probe of its own, a new connection every 20 ms, tells when the server is well again.
"""

import dataclasses
import socket
import statistics
import sys
import threading
import time

from harness import client, servers
from .scenario import Scenario

BODY_BYTES, TIMEOUT_SECONDS = 1 << 10, 5
SLOTS, SERVICE_MS = 8, 10
CONFIGS = {"nginx": "nginx-overload.conf", "haproxy": "haproxy-overload.cfg", "h2o": "h2o-overload.conf"}
PROBE_INTERVAL_SECONDS, WELL_PROBES, QUIET_SECONDS = 0.02, 10, 5
GOODPUT_MIN, RECOVERY_SECONDS_MAX = 0.9, 1.0
PARTS = ("static", "proxy")


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--factor", type=float, default=2, help="of the capacity; default: %(default)s")
    parser.add_argument("--connections", type=int, default=2000, help="of the open loop; default: %(default)s")


class Probe(threading.Thread):
    """Requests on new connections, one after another: time, duration, and whether the status was 200."""

    def __init__(self, port, path):
        super().__init__(daemon=True)
        self._address, self._path, self._ends, self.seen = ("127.0.0.1", port), path, threading.Event(), []

    def run(self):
        while not self._ends.wait(PROBE_INTERVAL_SECONDS):
            began = time.monotonic()
            self.seen.append((began, self._ask(), time.monotonic() - began))

    def _ask(self):
        try:
            with socket.create_connection(self._address, 1) as connection:
                connection.settimeout(1)
                connection.sendall(f"GET /{self._path.lstrip('/')} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return connection.recv(64).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False

    def end(self):
        self._ends.set()
        self.join()
        return self.seen


def recovery_seconds(probes, before, ended):
    """From the end of the overload to the first of some probes in a row that were answered as fast as before it, or nearly."""
    usual = statistics.quantiles([seconds for began, is_good, seconds in probes if began < before and is_good], n=20)[-1]
    after = [(began, is_good and seconds <= max(5 * usual, 0.05)) for began, is_good, seconds in probes if began >= ended]
    for index in range(len(after) - WELL_PROBES + 1):
        if all(is_well for _, is_well in after[index:index + WELL_PROBES]):
            return max(after[index][0] - ended, 0)
    return float("inf")


def measure(bench, running, path):
    url = f"http://127.0.0.1:{running.port}/{path.lstrip('/')}"
    closed = client.run_tailor(running, url, ["--connections", 64], QUIET_SECONDS)
    capacity = closed["responses"] / closed["seconds"]
    probe = Probe(running.port, path)
    probe.start()
    time.sleep(QUIET_SECONDS)
    before = time.monotonic()
    words = ["--connections", bench.arguments.connections, "--rate", round(capacity * bench.arguments.factor),
             "--timeout", f"{TIMEOUT_SECONDS}s"]
    result = client.run_tailor(running, url, words, bench.arguments.seconds)
    ended = before + bench.arguments.seconds
    time.sleep(QUIET_SECONDS)
    probes = probe.end()
    during = [is_good for began, is_good, _ in probes if before <= began < ended]
    return {"capacity": capacity, "goodput": result["responses"] / bench.arguments.seconds / capacity,
            "p99_ms": result["latency_us"]["p99"] / 1000, "probes_good": sum(during) / max(len(during), 1),
            "recovery_seconds": recovery_seconds(probes, before, ended), "failures": result["errors"]}


def proxy(server, backend_port):
    """The server as a reverse proxy that gives the upstream only as many requests as it serves at once, if it can."""
    fill = {"backend_port": backend_port, "slots": SLOTS}
    if server.name in CONFIGS:
        return dataclasses.replace(server, config=(servers.PEERS / CONFIGS[server.name]).read_text(), fill=fill)
    return dataclasses.replace(servers.configured(server, "tailcoat-overload.kdl"), fill=fill)


def run_part(bench, part, path):
    results = {}
    print(f"\n{part}: {bench.arguments.factor:g} x capacity for {bench.arguments.seconds:g} s; a request fails after {TIMEOUT_SECONDS} s")
    limited = servers.Server("limited", f"{sys.executable} {servers.PEERS / 'limited.py'} {{port}} {SLOTS} {SERVICE_MS} {BODY_BYTES}")
    for server in bench.servers:
        if part == "static" and server.name == "haproxy":
            continue  # HAProxy has no static files.
        for _ in range(bench.arguments.rounds):
            if part == "static":
                with servers.running(server, bench.tree, path) as running:
                    result = measure(bench, running, path)
            else:
                with (servers.running(limited, bench.tree, path, core=servers.CLIENT_CORE) as backend,
                      servers.running(proxy(server, backend.port), bench.tree, path) as running):
                    result = measure(bench, running, path)
            results.setdefault(server.name, []).append(result)
        of = {key: statistics.median(one[key] for one in results[server.name])
              for key in ("capacity", "goodput", "p99_ms", "probes_good", "recovery_seconds")}
        print(f"  {server.name:15} capacity {of['capacity']:8.0f}/s  goodput {of['goodput']:5.2f}  p99 of served {of['p99_ms']:7.0f} ms"
              f"  probes answered {of['probes_good']:5.2f}  recovery {of['recovery_seconds']:.2f} s")
        if server.name == servers.OURS:
            bench.report.mark(f"{part}: goodput of capacity", of["goodput"], GOODPUT_MIN, at_least=True)
            bench.report.mark(f"{part}: p99 of served, ms", of["p99_ms"], TIMEOUT_SECONDS * 1000)
            bench.report.mark(f"{part}: recovery, s", of["recovery_seconds"], RECOVERY_SECONDS_MAX)
    bench.report.add_part(part, results)
    for key, what, unit in (("goodput", "goodput / capacity", "of 1"), ("p99_ms", "p99 of served requests", "ms"),
                            ("recovery_seconds", "time until latency is normal again", "s")):
        samples = {name: [one[key] for one in rounds] for name, rounds in results.items()}
        bench.report.add_figures(f"{part}: {key}", what, unit, samples, at_least=key == "goodput")


def run(bench):
    path = bench.tree.add("1k.html", BODY_BYTES)
    for part in bench.arguments.part:
        run_part(bench, part, path)


OVERLOAD = Scenario("overload", "2 x capacity for 60 s: goodput, p99 of served requests, recovery", run, rounds=1, slots=1, seconds=60,
                    servers=("tailcoat", "nginx", "haproxy", "h2o"), add_arguments=add_arguments)
