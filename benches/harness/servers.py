"""The servers: how each is started, with what config, and how it is stopped again."""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import pathlib
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from . import accounting, client

PEERS = pathlib.Path(__file__).resolve().parent.parent / "peers"
SERVER_CORE, CLIENT_CORE = 0, 1
PRIORITY = -20  # Of all servers alike, so that other work on the machine disturbs the least.

# Name -> config file below peers/, command, the command that prints its version.
KNOWN_PEERS = {
    "nginx": ("nginx.conf", "nginx -c {config} -g 'daemon off;'", "nginx -v"),
    "h2o": ("h2o.conf", "h2o -c {config}", "h2o -v"),
    "lighttpd": ("lighttpd.conf", "lighttpd -D -f {config}", "lighttpd -v"),
    "apache": ("apache.conf", "apache2 -f {config} -DFOREGROUND", "apache2 -v"),
    "nginx-proxy": ("nginx-proxy.conf", "nginx -c {config} -g 'daemon off;'", "nginx -v"),
    "nginx-fastcgi": ("nginx-fastcgi.conf", "nginx -c {config} -g 'daemon off;'", "nginx -v"),
    "apache-fastcgi": ("apache-fastcgi.conf", "apache2 -f {config} -DFOREGROUND", "apache2 -v"),
    "apache-cgi": ("apache-cgi.conf", "apache2 -f {config} -DFOREGROUND", "apache2 -v"),
    "haproxy": ("haproxy.cfg", "haproxy -db -f {config}", "haproxy -v"),
    "nginx-tls": ("nginx-tls.conf", "nginx -c {config} -g 'daemon off;'", "nginx -v"),
    "h2o-tls": ("h2o-tls.conf", "h2o -c {config}", "h2o -v"),
    "nginx-php": ("nginx-web99.conf", "nginx -c {config} -g 'daemon off;'", "nginx -v"),
    "nginx-fastcgi-c": ("nginx-web99.conf", "nginx -c {config} -g 'daemon off;'", "nginx -v"),
    "haproxy-unlogged": ("haproxy.cfg", "haproxy -db -f {config}", "haproxy -v"),
}
_numbers = itertools.count()

OURS, OURS_AGAIN = "tailcoat", "tailcoat-again"
TAILCOAT_OPTIONS = "serve {root} --listen 127.0.0.1:{port} --workers 1 --access-log {run}/tailcoat.log"
TAILCOAT_CONFIG_OPTIONS = "run -c {config}"
HAPROXY_LOG = {"haproxy": "log global\n  option httplog", "haproxy-unlogged": ""}


@dataclasses.dataclass
class Server:
    """A server that can be started. The braces of `command` are filled in: port, root, path, run, config."""

    name: str
    command: str
    config: str | None = None
    version: str = ""
    fill: dict = dataclasses.field(default_factory=dict)
    """Further values for braces and config."""
    files: dict = dataclasses.field(default_factory=dict)
    """Further files for its directory, by name, filled in like config."""

    def program_hash(self):
        """Which build it is: runs of different ones are not put together."""
        program = shutil.which(shlex.split(self.command)[0])
        return hashlib.sha256(pathlib.Path(program).read_bytes()).hexdigest() if program else "unknown"


# What uploads go to.
SINK = Server("sink", f"{sys.executable} {PEERS / 'sink.py'} {{port}}")


@dataclasses.dataclass
class RunningServer:
    name: str
    port: int
    group: accounting.ControlGroup
    process: subprocess.Popen
    run: pathlib.Path
    """Its directory for configs, logs and the like."""

    def user_memory_bytes(self):
        return accounting.user_memory_bytes(self.group.process_ids())


def named(names, tailcoat_command):
    """The servers, in this order. `NAME=COMMAND` is any other server, or another build of ours. A server that is not
    installed is an error, not left out silently."""
    return [_named(*name.partition("=")[::2], tailcoat_command) for name in names]


def _named(name, command, tailcoat_command):
    if name in (OURS, OURS_AGAIN) or command:
        command = command or tailcoat_command
        program = shlex.split(command)[0]
        client.require(program, f"the program of `{name}`; `cargo build --release` makes ours")
        if "{port}" not in command:
            command = f"{command} {TAILCOAT_OPTIONS}"
        return Server(name, command, version=first_line(f"{program} --version"))
    if name == "floor":
        return Server(name, f"{client.compiled(PEERS / 'floor.c')} {{port}} {{root}}{{path}}", version="benches/peers/floor.c")
    if name not in KNOWN_PEERS:
        raise SystemExit(f"unknown server `{name}`; known: {OURS} {OURS_AGAIN} floor {' '.join(KNOWN_PEERS)}, or NAME=COMMAND")
    config, command, version_command = KNOWN_PEERS[name]
    client.require(shlex.split(command)[0], f"the server `{name}` is not installed (leave it out with --servers)")
    return Server(name, command, (PEERS / config).read_text(), first_line(version_command))


def before(server, backend_port, our_config="tailcoat-proxy.kdl"):
    """The server as a proxy before a back end; ours with this config below peers/."""
    fill = {"backend_port": backend_port, "log": HAPROXY_LOG.get(server.name, "")}
    return dataclasses.replace(configured(server, our_config), fill=fill)


def configured(server, config):
    """The server with this config, if it is Tailcoat without one; any other has its own."""
    if not server.command.endswith(TAILCOAT_OPTIONS):
        return server
    command = server.command.removesuffix(TAILCOAT_OPTIONS) + TAILCOAT_CONFIG_OPTIONS
    return dataclasses.replace(server, command=command, config=(PEERS / config).read_text())


def first_line(command):
    try:
        result = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = (result.stdout + result.stderr).splitlines()
    return lines[0] if lines else "unknown"


@contextlib.contextmanager
def running(server, tree, path, read_bytes_per_second=None, core=SERVER_CORE):
    """Starts the server on a free port, pinned and accounted; stops it and removes its traces at the end.
    `path` is what the floor answers with, whatever it is asked for."""
    with tempfile.TemporaryDirectory(prefix=f"bench.{server.name}.") as run_name:
        run = pathlib.Path(run_name)
        run.chmod(0o755)  # Peers that drop privileges look through it.
        port = free_port()
        command = prepared_command(server, port, tree.root, path, run)
        group = accounting.ControlGroup(f"tailcoat-bench-{os.getpid()}-{next(_numbers)}-{server.name}")
        try:
            if read_bytes_per_second:
                group.throttle_reads(tree.root, read_bytes_per_second)
            process = start(command, group, run, core)
            try:
                wait_until_answers(process, port, run)
                yield RunningServer(server.name, port, group, process, run)
            finally:
                stop(process)
        finally:
            group.remove()


def prepared_command(server, port, root, path, run):
    if "@RUN@/certificate.pem" in (server.config or ""):
        make_certificate(run)
    fill = {"port": port, "root": root, "path": path, "run": run, "config": run / "server.conf", "address": "127.0.0.1",
            **server.fill}
    # As root, nginx would serve as another user, who may not read the tree.
    values = {**fill, "user": f"user {pwd.getpwuid(os.getuid()).pw_name};" if os.getuid() == 0 else ""}
    for name, text in {"server.conf": server.config or "", **server.files}.items():
        for key, value in values.items():
            text = text.replace(f"@{key.upper()}@", str(value))
        (run / name).write_text(text)
    return shlex.split(server.command.format(**fill))


def make_certificate(run):
    """A certificate of its own for a server, ECDSA with P-256 as is usual."""
    client.require("openssl", "the servers need a certificate")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                    "-subj", "/CN=localhost", "-keyout", run / "key.pem", "-out", run / "certificate.pem"],
                   check=True, stderr=subprocess.DEVNULL)


def start(command, group, run, core):
    def prepare():
        os.setsid()
        os.sched_setaffinity(0, {core})
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        group.join()

    with open(run / "output", "wb") as output:
        return subprocess.Popen(command, preexec_fn=prepare, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def stop(process):
    """Ends the server's whole process group; politely first."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(3)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_answers(process, port, run, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.02)
    raise SystemExit(f"{' '.join(process.args)}\ndoes not listen on port {port}; it said:\n{(run / 'output').read_text(errors='replace')}")
