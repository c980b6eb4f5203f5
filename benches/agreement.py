#!/usr/bin/env python3
"""Measures whether tailor agrees with wrk, wrk2, ab, h2load, httperf, oha, vegeta and k6 on the same server.

    benches/agreement.py                                 all loads, with the optimized build
    benches/agreement.py nginx-8 --rounds 20             one of them, for longer
    benches/agreement.py --wrk2 ~/wrk2/wrk               the path of wrk2, whose program is also called wrk

Server on core 0, client on core 1. The clients take turns of about a second, forwards and backwards (A B B A). The figure is
the median of the ratios tailor / other within a turn, in brackets their quartiles. `!` marks ratios more than 5 % off. The
control is tailor again: if it is more than 3 % off, the load is void. Ends with status 1 if anything is marked.
`cpu` is the client's own CPU time per response, in microseconds; there agreement is not the aim.

There are three servers. The true latencies of `delays` are known (peers/delays.c). nginx is the usual server. Tailcoat is
faster than the clients, so that all clients are busy and their CPU time per request can be compared.
wrk2's timers tick in milliseconds, so that it starts a request up to 2 ms late and counts that as latency. Its latencies are
not compared where nginx's are shorter than that.
The server has to wake a client that sleeps. So nginx serves fewer requests of a cheap client than of one that is always
busy, such as h2load. One load keeps tailor awake, too.
oha, vegeta and k6 cost more than nginx, so they load `delays` only. k6 measures from the sending of a request, like httperf.
Clients that are not installed are left out and named.
"""

import argparse
import csv
import dataclasses
import json
import pathlib
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

from harness import client, machine, servers, tree

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / "target/programs"
KEYS = ("rate", "mean", "p50", "p90", "p99", "cpu")
# Requests a second, above which only a server can answer whose latencies are below the resolution of wrk2.
WRK2_LATENCY_RATE_MAX = 10_000
UNITS_US = {"us": 1, "ms": 1e3, "s": 1e6}
AGAIN = "tailor-again"
TOLERANCE = 0.05
CONTROL_TOLERANCE = 0.03


@dataclasses.dataclass
class Work:
    """Work of the clients."""

    server: str
    connections: int
    clients: list
    """Clients other than tailor."""
    seconds: int = 1
    """A turn."""
    rate: int | None = None
    """Requests a second; none for a closed loop."""
    requests_per_connection: int = 0
    streams: int = 0
    """Of HTTP/2, requests under way on a connection; none for HTTP/1."""
    spin: str | None = None
    """Time that tailor stays awake before it sleeps."""


LOADS = {
    "delays-1": Work("delays", 1, ["wrk", "h2load", "httperf"], seconds=2),
    "delays-16": Work("delays", 16, ["wrk", "ab", "h2load", "oha", "vegeta", "k6"]),
    "delays-open": Work("delays 4", 64, ["wrk2", "oha", "vegeta", "k6"], seconds=4, rate=500),
    "delays-sessions": Work("delays", 64, ["httperf"], seconds=2, rate=400, requests_per_connection=1),
    "nginx-8": Work("nginx", 8, ["wrk", "ab", "h2load"]),
    "nginx-64": Work("nginx", 64, ["wrk", "ab", "h2load"]),
    "nginx-64-awake": Work("nginx", 64, ["h2load"], spin="100us"),
    "nginx-open": Work("nginx", 64, ["wrk2"], seconds=4, rate=20_000),
    "tailcoat-64": Work("tailcoat", 64, ["wrk", "ab", "h2load"]),
    "h2o-8x64": Work("h2o", 8, ["h2load"], streams=64),
    "h2o-64x1": Work("h2o", 64, ["h2load"], streams=1),
}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {' '.join(LOADS)}; all, if none is named")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each client; default: %(default)s")
    parser.add_argument("--tailor", default=PROGRAMS / "tailor", help="default: the optimized build")
    parser.add_argument("--wrk2", default="wrk2", help="wrk2's program; default: %(default)s")
    arguments = parser.parse_args()
    programs = {"tailor": arguments.tailor, AGAIN: arguments.tailor, "wrk2": arguments.wrk2}
    described = machine.describe()
    print(f"{described['kernel']}, {described['cpu']}, {described['cores']} cores, loopback; {arguments.rounds} rounds")
    with tree.temporary() as files:
        path = files.add("1KiB.html", 1024)
        disagreements = [measure(name, files, path, arguments.rounds, programs) for name in arguments.loads or LOADS]
    sys.exit(any(disagreements))


def measure(name, files, path, rounds, programs):
    """Measures and prints one load; whether tailor disagrees with another."""
    work = LOADS[name]
    there = [other for other in work.clients if shutil.which(programs.get(other, other))]
    for missing in sorted(set(work.clients) - set(there)):
        print(f"{name}: {missing} is not installed")
    if work.server.startswith("delays"):
        program = client.compiled(servers.PEERS / "delays.c")
        server = servers.Server("delays", f"{program} {{port}} {work.server.removeprefix('delays')}")
    else:
        server = servers.named([work.server], str(PROGRAMS / "tailcoat"))[0]
    clients = ["tailor", *there, AGAIN]
    samples = {each: [] for each in clients}
    with servers.running(server, files, path) as running, tempfile.TemporaryDirectory() as scratch:
        load = Load(f"http://127.0.0.1:{running.port}{path}", work, scratch, programs)
        for number in range(rounds + 1):
            for each in clients if number % 2 == 0 else reversed(clients):
                sample = load.sample("tailor" if each == AGAIN else each)
                if number > 0:  # The first round warms up.
                    samples[each].append(sample)
    return report(name, clients, samples)


def report(name, clients, samples):
    print(f"\n{name:16}" + "".join(f"{key:>22}" for key in KEYS))
    disagrees = False
    for each in clients:
        medians = [statistics.median(sample[key] for sample in samples[each]) if key in samples[each][0] else None for key in KEYS]
        cells = ["-" if value is None else described(key, value) for key, value in zip(KEYS, medians)]
        print(f"  {each:14}" + "".join(f"{cell:>22}" for cell in cells))
        if each == "tailor":
            continue
        cells = []
        for key in KEYS:
            if key not in samples[each][0]:
                cells.append("-")
                continue
            ratios = [ours[key] / other[key] for ours, other in zip(samples["tailor"], samples[each])]
            low, middle, high = statistics.quantiles(ratios, n=4)
            is_off = key != "cpu" and abs(middle - 1) > TOLERANCE
            disagrees |= is_off
            cells.append(f"{'! ' if is_off else ''}{middle:.3f} ({low:.2f} - {high:.2f})")
        print(f"  {'':14}" + "".join(f"{cell:>22}" for cell in cells))
    control = statistics.median(ours["rate"] / again["rate"] for ours, again in zip(samples["tailor"], samples[AGAIN]))
    if abs(control - 1) > CONTROL_TOLERANCE:
        print(f"  void: tailor against itself is {control:.3f}")
    sys.stdout.flush()
    return disagrees


def described(key, value):
    return f"{value:,.0f}/s" if key == "rate" else f"{value:,.2f} us" if key == "cpu" else f"{value:,.0f} us"


class Load:
    """A load in the words of each client. Each method runs a client and returns its sample: `rate` per second, and `mean` and
    percentiles of the latency in microseconds, if the client reports them. A failed response ends the run."""

    def __init__(self, url, work, scratch, programs):
        self.url, self.work, self.scratch, self.programs = url, work, scratch, programs

    def sample(self, name):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        sample = getattr(self, name)()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {**sample, "cpu": seconds * 1e6 / (sample["rate"] * self.work.seconds)}

    def run(self, *words):
        words = [self.programs.get(words[0], words[0]), *words[1:]]
        command = ["taskset", "-c", client.CLIENT_CORE, *map(str, words)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        return result.stdout

    def tailor(self):
        options = ["-R", self.work.rate] if self.work.rate else []
        options += ["--requests-per-connection", self.work.requests_per_connection] if self.work.requests_per_connection else []
        options += ["--spin", self.work.spin] if self.work.spin else []
        options += ["--http2", "--streams", self.work.streams] if self.work.streams else []
        # A calibration would count as the client's CPU time.
        output = self.run("tailor", "bench", "-q", "--no-calibration", "--json", "-", "-c", self.work.connections, "-d", self.work.seconds, *options, "--require", "failures=0", self.url)
        report = json.loads(output)
        # httperf measures from the sending of a request; all others as we do.
        latency = report["latency_uncorrected" if self.work.requests_per_connection else "latency"]
        # Percentiles end with the greatest value.
        percentile = lambda at: next(point["nanos"] / 1e3 for point in latency["percentiles"] if point["percentile"] >= at)
        return {"rate": report["served_per_second"], "mean": latency["mean_nanos"] / 1e3,
                **{f"p{at}": percentile(at) for at in (50, 90, 99)}}

    def wrk(self):
        output = self.run("wrk", "--latency", "-t1", "-c", self.work.connections, "-d", f"{self.work.seconds}s", self.url)
        return {"rate": float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1]), **wrk_latencies(output)}

    def wrk2(self):
        output = self.run("wrk2", "--latency", "-t1", "-c", self.work.connections, "-R", self.work.rate, "-d", f"{self.work.seconds}s", self.url)
        is_comparable = self.work.rate < WRK2_LATENCY_RATE_MAX
        return {"rate": float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1]), **(wrk_latencies(output) if is_comparable else {})}

    def ab(self):
        spectrum = pathlib.Path(self.scratch, "ab.csv")
        output = self.run("ab", "-q", "-k", "-c", self.work.connections, "-t", self.work.seconds, "-n", 10_000_000, "-e", spectrum, self.url)
        assert re.search(r"Failed requests:\s+0\n", output), output
        percentiles = {row[0]: float(row[1]) * 1e3 for row in csv.reader(spectrum.open()) if row[0].isdigit()}
        return {"rate": float(re.search(r"Requests per second:\s+([\d.]+)", output)[1]),
                "mean": float(re.search(r"Time per request:\s+([\d.]+) \[ms\] \(mean\)", output)[1]) * 1e3,
                **{f"p{at}": percentiles[str(at)] for at in (50, 90, 99)}}

    def h2load(self):
        if self.work.streams:
            # A log of all latencies would cost it about as much as asking; it tells their mean without.
            output = self.run("h2load", "-m", self.work.streams, "-t1", "-c", self.work.connections, "-D", self.work.seconds, self.url)
            assert re.search(r"0 failed, 0 errored", output), output
            value, unit = re.search(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)", output).groups()
            return {"rate": float(re.search(r"([\d.]+) req/s", output)[1]), "mean": float(value) * UNITS_US[unit]}
        log = pathlib.Path(self.scratch, "h2load.log")
        output = self.run("h2load", "--h1", "-t1", "-c", self.work.connections, "-D", self.work.seconds, f"--log-file={log}", self.url)
        assert re.search(r"0 failed, 0 errored", output), output
        times = sorted(int(line.rsplit("\t", 1)[1]) for line in log.open())
        log.unlink()
        return {"rate": float(re.search(r"([\d.]+) req/s", output)[1]), "mean": statistics.fmean(times),
                **{f"p{at}": times[len(times) * at // 100] for at in (50, 90, 99)}}

    def oha(self):
        pace = ["-q", self.work.rate, "--latency-correction"] if self.work.rate else []
        output = self.run("oha", "--no-tui", "--output-format", "json", "-c", self.work.connections, "-z", f"{self.work.seconds}s", *pace, self.url)
        report = json.loads(output)
        assert set(report["statusCodeDistribution"]) == {"200"}, output
        assert set(report["statusCodeDistribution"]) == {"200"}, output
        percentiles = report["latencyPercentiles"]
        return {"rate": report["summary"]["requestsPerSec"], "mean": report["summary"]["average"] * 1e6,
                **{f"p{at}": percentiles[f"p{at}"] * 1e6 for at in (50, 90, 99)}}

    def vegeta(self):
        targets, results = pathlib.Path(self.scratch, "targets"), pathlib.Path(self.scratch, "results")
        targets.write_text(f"GET {self.url}\n")
        workers = ["-workers", self.work.connections, "-max-workers", self.work.connections, "-connections", self.work.connections]
        self.run("vegeta", "attack", "-rate", self.work.rate or 0, "-duration", f"{self.work.seconds}s", *workers, "-targets", targets, "-output", results)
        report = json.loads(self.run("vegeta", "report", "-type", "json", results))
        assert report["success"] == 1, report
        return {"rate": report["throughput"], "mean": report["latencies"]["mean"] / 1e3,
                **{f"p{at}": report["latencies"][f"{at}th"] / 1e3 for at in (50, 90, 99)}}

    def k6(self):
        script, summary = pathlib.Path(self.scratch, "load.js"), pathlib.Path(self.scratch, "summary.json")
        duration = f"{self.work.seconds}s"
        scenario = {"executor": "constant-vus", "vus": self.work.connections, "duration": duration, "gracefulStop": "1s"}
        if self.work.rate:
            scenario = {"executor": "constant-arrival-rate", "rate": self.work.rate, "duration": duration,
                        "preAllocatedVUs": self.work.connections}
        options = {"scenarios": {"load": scenario}, "summaryTrendStats": ["avg", "p(50)", "p(90)", "p(99)"]}
        script.write_text(f"import http from 'k6/http';\nexport const options = {json.dumps(options)};\n"
                          f"export default () => {{ http.get('{self.url}'); }};\n")
        self.run("k6", "run", "--quiet", "--no-usage-report", f"--summary-export={summary}", script)
        metrics = json.loads(summary.read_text())["metrics"]
        assert metrics["http_req_failed"]["value"] == 0, metrics
        duration = metrics["http_req_duration"]
        return {"rate": metrics["http_reqs"]["count"] / self.work.seconds, "mean": duration["avg"] * 1e3,
                **{f"p{at}": duration[f"p({at})"] * 1e3 for at in (50, 90, 99)}}

    def httperf(self):
        host, port, path = re.match(r"http://([^:]+):(\d+)(.*)", self.url).groups()
        if self.work.rate:
            amount = ["--rate", self.work.rate, "--num-conns", self.work.rate * self.work.seconds]
        else:
            amount = ["--num-conns", 1, "--num-calls", self.work.seconds * 80]  # As many as it answers in this time.
        output = self.run("httperf", "--hog", "--server", host, "--port", port, "--uri", path, *amount)
        assert re.search(r"Errors: total 0 ", output), output
        return {"rate": float(re.search(r"Request rate: ([\d.]+)", output)[1]),
                "mean": float(re.search(r"Reply time \[ms\]: response ([\d.]+)", output)[1]) * 1e3}


def wrk_latencies(output):
    assert "Non-2xx" not in output and "Socket errors" not in output, output
    latencies = {}
    for name, pattern in (("mean", r"Latency"), ("p50", r"50(?:\.000)?%"), ("p90", r"90(?:\.000)?%"), ("p99", r"99(?:\.000)?%")):
        value, unit = re.search(rf"(?m)^\s+{pattern}\s+([\d.]+)(us|ms|s)", output).groups()
        latencies[name] = float(value) * UNITS_US[unit]
    return latencies


if __name__ == "__main__":
    main()
