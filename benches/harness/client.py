"""The clients: compiled once a run, started on the client's core, their result read back."""

import atexit
import dataclasses
import functools
import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

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

    def line(self):
        fields = "|".join(self.fields) or "-"
        return f"{self.weight:.9g}\t{self.status}\t{self.body_bytes}\t{self.pattern_offset}\t{self.path}\t{fields}\n"


@dataclasses.dataclass
class Load:
    """Work of a load generator in addition to its plan; see clients/load.c."""

    connections: int = 64
    seconds: float = 3
    warmup_seconds: float = 0.1
    rate: float | None = None
    pipeline: int = 1
    requests_per_connection: int = 0
    sources: int = 1
    verify_every: int = 16
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


def compiled_for(source, has_tls):
    """A client. Only one that speaks TLS needs OpenSSL (package libssl-dev)."""
    return compiled(source, f"{source.stem}-tls", ("-DWITH_TLS",), ("-lssl", "-lcrypto")) if has_tls else compiled(source)


def begin(server, plan, tree, load, seed=1):
    """Starts a load generator and returns its process; `finish` has the result."""
    require("taskset", "client and server are pinned to cores (package util-linux)")
    plan_file = server.run / f"plan{seed}"
    plan_file.write_text("".join(kind.line() for kind in plan))
    # Other work on its core disturbs it as little as the servers; in an open loop it must be on time.
    priority = ["chrt", "--fifo", "10"] if load.rate else ["nice", "-n", "-20"]
    command = [*priority, "taskset", "-c", CLIENT_CORE, compiled_for(CLIENTS / "load.c", load.tls_groups), "--port", server.port, "--plan", plan_file,
               "--pattern", tree.pattern_file, "--usage", server.group.cpu_usage_file, "--seed", seed,
               "--connections", load.connections, "--seconds", load.seconds, "--warmup", load.warmup_seconds,
               "--pipeline", load.pipeline, "--requests-per-connection", load.requests_per_connection,
               "--sources", load.sources, "--verify-every", load.verify_every]
    command += ["--rate", load.rate] if load.rate else []
    command += ["--tls", load.tls_groups] if load.tls_groups else []
    command += ["--resume"] if load.resumes else []
    command += ["--fast-open"] if load.has_fast_open else []
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)


def finish(process):
    """The result of a load generator: the JSON object that load.c prints."""
    output, _ = process.communicate()
    if not output:
        raise SystemExit(f"the load generator ended with {process.returncode}")
    return json.loads(output)


def run(server, plan, tree, load, seed=1):
    process = begin(server, plan, tree, load, seed)
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


DEFAULT_TAILOR = str(pathlib.Path(__file__).resolve().parent.parent.parent / "target/optimized/tailor")


def add_tailor_argument(parser):
    parser.add_argument("--tailor", default=DEFAULT_TAILOR, metavar="PROGRAM", help="default: the optimized build")


def run_tailor(program, server, url, words, seconds, warmup_seconds=0.15):
    """Result of tailor, for protocols that load.c does not have. `words` are options of `tailor bench`, including checks: a
    response that fails them is an error."""
    require(program, "`cargo build --profile optimized --package tailor` makes it")
    groups = [word for directory in server.group.statistics_directories() for word in ("--watch-group", directory)]
    command = ["nice", "-n", "-20", program, "bench", "--quiet", "--json", "-", "--cpus", CLIENT_CORE, *groups,
               "--duration", f"{seconds}s", "--warm-up", f"{warmup_seconds}s", *words, url]
    process = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if not process.stdout:
        raise SystemExit(f"tailor ended with {process.returncode}: {process.stderr}")
    report = json.loads(process.stdout)
    used, percentiles = report["server"], report["latency"]["percentiles"]
    # Failures rank last among the percentiles; this is one of the requests that were served.
    latency = report["latency"]
    served_part = latency["count"] / max(latency["count"] + latency.get("failed", 0), 1)
    p99_ns = next((point["nanos"] for point in percentiles if point["percentile"] >= 99 * served_part), latency["max_nanos"])
    return {"responses": report["served"], "body_bytes": report["bytes_received"], "seconds": report["duration_seconds"], "latency_us": {"p99": p99_ns / 1e3},
            "server_cpu_us": (used["user_seconds"] + used["system_seconds"]) * 1e6,
            "client_cpu_us": report["client"]["processor_micros_per_request"] * report["served"], "errors": report["failures"]}


class Held:
    """Connections held open by clients/hold.c; a context manager."""

    def __init__(self, server, path, connections, read_bytes=None, interval_ms=None, has_tls=False):
        words = [compiled_for(CLIENTS / "hold.c", has_tls), server.port, path, connections]
        words += [read_bytes, interval_ms] if read_bytes else []
        self._process = subprocess.Popen(["taskset", "-c", CLIENT_CORE, *map(str, words)], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            raise ClientError(f"{server.name} did not take {connections} connections")

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
        """Closes all; returns what was seen: connections, closed_by_server, bytes_read."""
        self.resume()
        output, _ = self._process.communicate()
        return json.loads(output) if output else {}
