"""The servers: how each is started, with what config, and how it is stopped again."""

import contextlib
import dataclasses
import functools
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

# Name -> config file below peers/, command, the command that prints its version. `{enter}` is empty, or enters the root
# directory of another distribution (`--peer-root`).
NGINX, HAPROXY = "{enter} nginx -c {config} -g 'daemon off;'", "{enter} haproxy -db -f {config}"
APACHE, H2O, CADDY = "{enter} apache2 -f {config} -DFOREGROUND", "{enter} h2o -c {config}", "{enter} caddy run --adapter caddyfile --config {config}"
KNOWN_PEERS = {
    "nginx": ("nginx.conf", NGINX, "nginx -v"),
    "h2o": ("h2o.conf", H2O, "h2o -v"),
    "lighttpd": ("lighttpd.conf", "{enter} lighttpd -D -f {config}", "lighttpd -v"),
    "apache": ("apache.conf", APACHE, "apache2 -v"),
    "caddy": ("caddy.conf", CADDY, "caddy version"),
    "nginx-proxy": ("nginx-proxy.conf", NGINX, "nginx -v"),
    "nginx-fastcgi": ("nginx-fastcgi.conf", NGINX, "nginx -v"),
    "apache-fastcgi": ("apache-fastcgi.conf", APACHE, "apache2 -v"),
    "apache-cgi": ("apache-cgi.conf", APACHE, "apache2 -v"),
    "haproxy": ("haproxy.cfg", HAPROXY, "haproxy -v"),
    "caddy-proxy": ("caddy-proxy.conf", CADDY, "caddy version"),
    "nginx-compression": ("nginx-compression.conf", NGINX, "nginx -v"),
    "haproxy-compression": ("haproxy-compression.cfg", HAPROXY, "haproxy -v"),
    "caddy-compression": ("caddy-compression.conf", CADDY, "caddy version"),
    "nginx-auth": ("nginx-auth.conf", NGINX, "nginx -v"),
    "caddy-auth": ("caddy-auth.conf", CADDY, "caddy version"),
    "nginx-disk-cache": ("nginx-disk-cache.conf", NGINX, "nginx -v"),
    "nginx-missing": ("nginx-missing.conf", NGINX, "nginx -v"),
    "nginx-fallback": ("nginx-fallback.conf", NGINX, "nginx -v"),
    "nginx-tls": ("nginx-tls.conf", NGINX, "nginx -v"),
    "h2o-tls": ("h2o-tls.conf", H2O, "h2o -v"),
    "caddy-tls": ("caddy-tls.conf", CADDY, "caddy version"),
    "nginx-http3": ("nginx-http3.conf", NGINX, "nginx -v"),
    "haproxy-http3": ("haproxy-http3.cfg", HAPROXY, "haproxy -v"),
    "caddy-http3": ("caddy-http3.conf", CADDY, "caddy version"),
    "caddy-fastcgi": ("caddy-fastcgi.conf", CADDY, "caddy version"),
    "nginx-php": ("nginx-web99.conf", NGINX, "nginx -v"),
    "nginx-fastcgi-c": ("nginx-web99.conf", NGINX, "nginx -v"),
    "haproxy-unlogged": ("haproxy.cfg", HAPROXY, "haproxy -v"),
}
IN_ROOT = PEERS / "in-root.sh"
PROGRAM_DIRECTORIES = ("usr/sbin", "usr/bin")
_numbers = itertools.count()

OURS, OURS_AGAIN = "tailcoat", "tailcoat-again"
# Our program, loaded over HTTP/2.
OURS_HTTP2 = "tailcoat-http2"
TAILCOAT_OPTIONS = "serve {root} --listen 127.0.0.1:{port} --workers 1 --access-log {run}/tailcoat.log"
TAILCOAT_CONFIG_OPTIONS = "run -c {config}"
HAPROXY_LOG = dict.fromkeys(("haproxy", "haproxy-compression"), "log global\n  option httplog")


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
    program: str = ""
    """Path of its program."""
    peer_root: pathlib.Path | None = None
    """The root directory it runs in, if not the machine's own."""

    def program_hash(self):
        """Hash of the program: runs of different builds are not pooled."""
        return program_hash(self.program) if self.program else "unknown"

    def enter(self, directories):
        """The words before a command that runs it in its root directory, where it must see these directories."""
        return shlex.join(map(str, [IN_ROOT, self.peer_root, *directories, "--"])) if self.peer_root else ""


@functools.cache
def program_hash(program):
    return hashlib.sha256(pathlib.Path(program).read_bytes()).hexdigest()


# The upstream of uploads.
SINK = Server("sink", f"{sys.executable} {PEERS / 'sink.py'} {{port}}")


@dataclasses.dataclass
class RunningServer:
    name: str
    port: int
    group: accounting.ControlGroup
    process: subprocess.Popen
    run: pathlib.Path
    """Directory for its configs, logs and other files."""

    def user_memory_bytes(self):
        return accounting.user_memory_bytes(self.group.process_ids())


def named(names, tailcoat_command, peer_root=None):
    """The servers, in this order. `NAME=COMMAND` is any other server, or another build of ours. A peer whose program is
    below `peer_root` runs there. A server that is not installed is an error, not left out silently."""
    return [_named(*name.partition("=")[::2], tailcoat_command, peer_root) for name in names]


def _named(name, command, tailcoat_command, peer_root):
    if name in (OURS, OURS_AGAIN, OURS_HTTP2) or command:
        command = command or tailcoat_command
        program = shlex.split(command)[0]
        client.require(program, f"the program of `{name}`; `cargo xtask release --programs` makes ours")
        if "{port}" not in command:
            command = f"{command} {TAILCOAT_OPTIONS}"
        return Server(name, command, version=first_line(f"{program} --version"), program=shutil.which(program))
    if name == "floor":
        program = client.compiled(PEERS / "floor.c")
        return Server(name, f"{program} {{port}} {{root}}{{path}}", version="benches/peers/floor.c", program=str(program))
    if name not in KNOWN_PEERS:
        raise SystemExit(f"unknown server `{name}`; known: {OURS} {OURS_AGAIN} floor {' '.join(KNOWN_PEERS)}, or NAME=COMMAND")
    config, command, version_command = KNOWN_PEERS[name]
    server = Server(name, command, (PEERS / config).read_text())
    server.program, server.peer_root = find_peer(name, shlex.split(version_command)[0], peer_root)
    server.version = first_line(f"{server.enter([])} {version_command}")
    return server


def find_peer(name, program, peer_root):
    """The path of a peer's program, and the root directory that it runs in, if not the machine's."""
    if peer_root:
        root = pathlib.Path(peer_root).resolve()
        for directory in PROGRAM_DIRECTORIES:
            if (root / directory / program).exists():
                return str(root / directory / program), root
    client.require(program, f"the server `{name}` is not installed (leave it out with --servers)")
    return shutil.which(program), None


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
            "enter": server.enter(sorted({run.parent, pathlib.Path(root).parent.parent})), **server.fill}
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


def wait_until_answers(process, port, run, seconds=300):
    # A server that listens only when its modules are compiled takes minutes; one that has failed has ended.
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.02)
    raise SystemExit(f"{' '.join(process.args)}\ndoes not listen on port {port}; it said:\n{(run / 'output').read_text(errors='replace')}")
