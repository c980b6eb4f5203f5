"""The clients: `tailor` and others, started on the client's core, their results read back."""

import atexit
import dataclasses
import functools
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

CLIENTS = pathlib.Path(__file__).resolve().parent.parent / "clients"
CLIENT_CORE = "1"


@dataclasses.dataclass
class RequestKind:
    """A line of a plan: how often, what, and what must come back."""

    path: str
    body_bytes: int
    status: int = 200
    pattern_offset: int = 0
    """Offset in the repeated pattern at which the body begins; -1: not compared."""
    fields: tuple = ()
    weight: float = 1

    def is_plain(self):
        """True if its weight and its path say all about the request."""
        return not self.fields and self.status == 200

    def scenario(self, number):
        """A scenario of one request. Weights are whole numbers."""
        fields = "".join(f" header {quoted(name)} {quoted(value.strip())};" for name, value in (field.split(":", 1) for field in self.fields))
        expected = f"status={self.status} length={self.body_bytes}"
        return (f'scenario "{number}" weight={max(round(self.weight * 1000), 1)} {{ cookies off; '
                f"get {quoted(self.path)} {{{fields} expect {expected} }} }}\n")


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclasses.dataclass
class Load:
    """Work of `tailor` in addition to its plan."""

    connections: int = 64
    seconds: float = 3
    warmup_seconds: float = 0.1
    rate: float | None = None
    pipeline: int = 1
    requests_per_connection: int = 0
    sources: int = 1
    """Source addresses 127.0.0.1 to 127.0.0.N, so that ports in TIME_WAIT do not run out."""
    tls_groups: str | None = None
    """TLS with these groups; None: without TLS."""
    resumes: bool = False
    has_fast_open: bool = False


class ClientError(Exception):
    """A client could not do its part, mostly for a fault or limit of the server."""


def require(tool, why):
    if not shutil.which(tool):
        raise SystemExit(f"`{tool}` is not there: {why}")


@functools.cache
def _build_directory():
    directory = tempfile.mkdtemp(prefix="bench.build.")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return pathlib.Path(directory)


@functools.cache
def compiled(source, name=None, options=(), libraries=()):
    """Path of the program made from a C file; one compiler run a benchmark run."""
    require("cc", "a C compiler is needed for the floor and the clients")
    program = _build_directory() / (name or source.stem)
    subprocess.run(["cc", "-O2", *options, "-o", program, source, *libraries], check=True)
    return program


_tailor = str(pathlib.Path(__file__).resolve().parent.parent.parent / "target/programs/tailor")
"""Program of the load generator; default: that of the last build as for a release."""


def use_tailor(program):
    """Takes another program as the load generator."""
    global _tailor
    _tailor = str(pathlib.Path(program).resolve())


def tailor():
    """Path of the load generator."""
    require(_tailor, "`cargo xtask release --programs` makes it")
    return _tailor


def begin(server, plan, tree, load, seed=1):
    """Starts `tailor` and returns its process; `finish` has the result."""
    scheme = "https" if load.tls_groups else "http"
    address = f"{scheme}://127.0.0.1:{server.port}"
    words = ["--connections", load.connections, "--seed", seed, *_requests(server, plan, tree, address, seed)]
    words += ["--pipeline", load.pipeline] if load.pipeline > 1 else []
    words += ["--rate", load.rate] if load.rate else []
    words += ["--requests-per-connection", load.requests_per_connection] if load.requests_per_connection else []
    words += ["--source", ",".join(f"127.0.0.{number + 1}" for number in range(load.sources))] if load.sources > 1 else []
    words += ["--insecure", "--tls-groups", load.tls_groups, "--tls-ciphers", "TLS_AES_128_GCM_SHA256"] if load.tls_groups else []
    words += ["--resume"] if load.resumes else []
    words += ["--fast-open"] if load.has_fast_open else []
    return begin_tailor(server, words, load.seconds, load.warmup_seconds, is_open=load.rate is not None)


def _requests(server, plan, tree, address, seed):
    """Options of `tailor bench` for a plan: requests, checks, and at the end the URL."""
    if len(plan) == 1 and plan[0].is_plain():
        [kind] = plan
        words = ["--expect-status", 200, "--expect-length", kind.body_bytes]
        if kind.pattern_offset >= 0:
            expected = server.run / "expected"
            expected.write_bytes(tree.content(kind.body_bytes, kind.pattern_offset))
            words += ["--expect-body", expected]
        return [*words, address + kind.path]
    if all(kind.is_plain() for kind in plan):
        urls = server.run / f"urls{seed}"
        urls.write_text("".join(f"{kind.weight:.9f} {kind.path}\n" for kind in plan))
        return ["--expect-status", 200, "--urls", urls, address + "/"]
    scenarios = server.run / f"scenarios{seed}.kdl"
    scenarios.write_text("".join(kind.scenario(number) for number, kind in enumerate(plan)))
    return ["--scenario", scenarios, address + "/"]


def begin_tailor(server, words, seconds, warmup_seconds, is_open=False):
    """Starts `tailor` with these options of `tailor bench`; `finish` has the result."""
    # Other work on its core disturbs it as little as the servers; in an open loop it must be on time.
    priority = ["chrt", "--fifo", "10"] if is_open else ["nice", "-n", "-20"]
    groups = [word for directory in server.group.statistics_directories() for word in ("--watch-group", directory)]
    command = [*priority, tailor(), "bench", "--quiet", "--no-calibration", "--json", "-", "--cpus", CLIENT_CORE, *groups,
               "--duration", f"{seconds}s", "--warm-up", f"{warmup_seconds}s", *words]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """The result of `tailor`, from its report."""
    output, faults = process.communicate()
    if not output:
        raise SystemExit(f"tailor ended with {process.returncode}: {faults}")
    report = json.loads(output)
    used, latency = report["server"], report["latency"]
    # Failures rank last among the percentiles; these are of the requests that were served.
    served_part = latency["count"] / max(latency["count"] + latency.get("failed", 0), 1)

    def percentile_us(percentile):
        points = (point["nanos"] for point in latency["percentiles"] if point["percentile"] >= percentile * served_part)
        return next(points, latency["max_nanos"]) / 1e3

    return {"responses": report["served"], "body_bytes": report["bytes_received"], "seconds": report["duration_seconds"],
            "latency_us": {name: percentile_us(percentile) for name, percentile in PERCENTILES.items()},
            "server_cpu_us": (used["user_seconds"] + used["system_seconds"]) * 1e6,
            "client_cpu_us": report["client"]["processor_micros_per_request"] * report["served"],
            "connects": report["connections"], "resumed": (report["handshakes"] or {}).get("resumed", 0),
            "early": (report["handshakes"] or {}).get("early", 0),
            "unanswered": report["unfinished"], "errors": report["failures"]}


PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9}


def run(server, plan, tree, load, seed=1):
    process = begin(server, plan, tree, load, seed)
    try:
        return finish(process)
    finally:
        process.kill()


def run_tailor(server, url, words, seconds, warmup_seconds=0.15):
    """Result of `tailor` with these options of `tailor bench`, including checks: a response that fails them is an error."""
    process = begin_tailor(server, [*words, url], seconds, warmup_seconds)
    try:
        return finish(process)
    finally:
        process.kill()


def run_wrk(server, path, load, upload_bytes=0):
    """Result of wrk, as a second opinion or for uploads. wrk checks statuses, and lengths only by framing."""
    require("wrk", "needed for --client wrk (package wrk)")
    command = ["nice", "-n", "-20", "taskset", "-c", CLIENT_CORE, "wrk", "--latency", "-t1", "-c", str(load.connections)]
    if upload_bytes:
        script = server.run / "upload.lua"
        script.write_text(f'wrk.method = "PUT"\nwrk.body = string.rep("x", {upload_bytes})\n')
        command += ["-s", str(script)]
    url = f"http://127.0.0.1:{server.port}{path}"
    before_us = server.group.cpu_us()
    output = subprocess.run([*command, "-d", str(max(round(load.seconds), 1)), url], capture_output=True, text=True, check=True).stdout
    errors = sum(map(int, re.findall(r"(?:Non-2xx or 3xx responses:|connect|read|write|timeout) (\d+)", output)))
    p99, unit = re.search(r"(?m)^\s+99%\s+([\d.]+)(us|ms|s)", output).groups()
    done, seconds = re.search(r"(\d+) requests in ([\d.]+)s", output).groups()
    return {"responses": int(done), "seconds": float(seconds), "server_cpu_us": server.group.cpu_us() - before_us,
            "latency_us": {"p99": float(p99) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]}, "errors": {"wrk": errors}}


FIRST_BYTES = 1024
"""Mean of the bytes that slow clients have when they are ready."""


class Held:
    """Connections that `tailor` holds open; a context manager. Each has had its response and is idle, or receives it at
    `bits_per_second`."""

    def __init__(self, server, path, connections, bits_per_second=None, has_tls=False):
        self._connections, self._is_slow = connections, bits_per_second is not None
        scenarios = server.run / f"held{connections}.kdl"
        scenarios.write_text(f'scenario "held" {{ cookies off; get {quoted(path)}; think "24h" }}\n')
        words = ["--connections", connections, "--timeout", "24h", "--interval", "100ms", "--intervals", "-", "--duration", "24h"]
        words += ["--insecure", "--tls-groups", "X25519"] if has_tls else []
        words += ["--line", bits_per_second] if self._is_slow else []
        url = f"{'https' if has_tls else 'http'}://127.0.0.1:{server.port}/"
        command = [tailor(), "bench", "--quiet", "--no-calibration", "--json", "-", "--cpus", CLIENT_CORE, *words, "--scenario", scenarios, url]
        self._process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._wait(server)

    def _wait(self, server):
        """Waits until each connection has its response, or of a slow one the first bytes."""
        served = received_bytes = 0
        for line in self._process.stderr:
            interval = json.loads(line) if line.startswith("{") else sys.exit(f"tailor: {line}")
            if any(interval["failures"].values()):
                self._process.kill()
                raise ClientError(f"{server.name} did not take {self._connections} connections")
            served, received_bytes = served + interval["served"], received_bytes + interval["bytes_received"]
            if received_bytes >= FIRST_BYTES * self._connections if self._is_slow else served >= self._connections:
                break
        self._drain = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._drain.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self.release()

    def pause(self):
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def release(self):
        """Closes all; returns how many connections the server had closed."""
        self.resume()
        self._process.send_signal(signal.SIGINT)
        output = self._process.stdout.read()
        self._process.wait()
        return sum(json.loads(output)["failures"].values())
