#!/usr/bin/env python3
"""FTP beside vsftpd, ProFTPD and Pure-FTPd: CPU time of the whole server, with all of its processes, per operation.

  benches/ftp.py compare                     Login, 1 KiB, 1 MiB, idle sessions; alternating rounds and an A/A control.
  benches/ftp.py compare --rounds 1 --seconds 1     A short look.
  benches/ftp.py sessions [--count 10000]    Memory, processes and time of many idle sessions of Tailcoat.
  benches/ftp.py reloads [--count 100]       Reloads during transfers of Tailcoat, which must all be complete.
  benches/ftp.py calls                       System calls of Tailcoat per login and per 1 KiB, counted by strace.

`compare` needs root, for a control group of each server, and a user `ftp` with a home, whose files Pure-FTPd serves. `--peers DIRECTORY` takes the other
servers from a directory with Debian's packages unpacked. Marks: vsftpd needs at least 3 x Tailcoat's CPU
time for a small file, 20 x for a login, 3 x for 1 MiB. Clients log in anonymously, and use EPSV.
"""

import argparse
import contextlib
import os
import pathlib
import pwd
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time

from harness.accounting import ControlGroup, user_memory_bytes

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENTS = 8
IDLE_SESSIONS = 100
FILES_AGE_SECONDS = 11
MARKS = {"login": 20, "1 KiB": 3, "1 MiB": 3}
SIZES = {"1 KiB": ("small.bin", 1 << 10), "1 MiB": ("large.bin", 1 << 20)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Session:
    """Control connection of a client."""

    def __init__(self, port, source=None):
        self.source = (source, 0) if source else None
        self.socket = socket.create_connection(("127.0.0.1", port), 60, self.source)
        self.unread = b""
        self.expect(b"220")

    def expect(self, code):
        """Reads a reply, and its last line must begin with the code, or one of them."""
        while True:
            line, newline, rest = self.unread.partition(b"\n")
            if newline:
                self.unread = rest
                if line[3:4] == b" " and line[:3].isdigit():
                    if not line.startswith(code):
                        raise SystemExit(f"{line!r} instead of {code!r}")
                    return line
                continue
            received = self.socket.recv(4096)
            if not received:
                raise SystemExit(f"the server closed the connection instead of {code!r}")
            self.unread += received

    def send(self, line):
        self.socket.sendall(line + b"\r\n")

    def log_in(self):
        self.send(b"USER anonymous")
        # Pure-FTPd asks for no password.
        if self.expect((b"331", b"230")).startswith(b"331"):
            self.send(b"PASS bench@")
            self.expect(b"230")
        self.send(b"TYPE I")
        self.expect(b"200")
        return self

    def retrieve(self, name, length):
        self.send(b"EPSV")
        port = int(self.expect(b"229").split(b"|")[3])
        self.send(b"RETR " + name)
        with socket.create_connection(("127.0.0.1", port), 60, self.source) as data:
            self.expect(b"150")
            received = 0
            while piece := data.recv(1 << 16):
                received += len(piece)
        if received != length:
            raise SystemExit(f"{received} of {length} bytes")
        self.expect(b"226")

    def quit(self):
        self.send(b"QUIT")
        self.expect(b"221")
        self.socket.close()


class Server:
    """A server process in a control group."""

    def __init__(self, name, command, port, environment=None):
        self.name, self.port = name, port
        self.group = ControlGroup(f"ftp-bench-{os.getpid()}-{name}")
        self.process = subprocess.Popen(
            command, env={**os.environ, **(environment or {})}, preexec_fn=self.group.join,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
                if probe.recv(3) == b"220":
                    return
            if time.monotonic() > until or self.process.poll() is not None:
                raise SystemExit(f"{name} does not start: {' '.join(map(str, command))}")
            time.sleep(0.05)

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.group.remove()


def tailcoat_config(directory, files, port, options=""):
    path = directory / f"tailcoat-{port}.kdl"
    path.write_text(
        f'server {{\n workers 1\n control-socket "{directory}/control-{port}.sock"\n}}\n'
        "limits {\n connections-per-client-max 100000\n connections-per-network-max 100000\n connections-max 100000\n}\n"
        f'site {{\n ftp "127.0.0.1:{port}" {{\n root "{files}"\n session-idle-timeout "1h"\n {options}\n}}\n}}\n'
    )
    return path


def start(name, arguments, directory, files):
    """Starts a server by name; None if it is not installed."""
    port = free_port()
    if name.startswith("tailcoat"):
        config = tailcoat_config(directory, files, port)
        return Server(name, [arguments.tailcoat, "run", "-c", config], port)
    binary, library = find(name, arguments.peers)
    if not binary:
        print(f"{name}: not installed, left out")
        return None
    environment = {"LD_LIBRARY_PATH": library} if library else {}
    if name == "vsftpd":
        config = directory / "vsftpd.conf"
        config.write_text(
            f"listen=YES\nlisten_port={port}\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={files}\n"
            "ftp_username=ftp\nnopriv_user=nobody\nsecure_chroot_dir=/var/empty\nxferlog_enable=NO\nmax_per_ip=0\n"
        )
        pathlib.Path("/var/empty").mkdir(exist_ok=True)
        return Server(name, [binary, config], port, environment)
    if name == "proftpd":
        config = directory / "proftpd.conf"
        config.write_text(
            f"ServerType standalone\nPort {port}\nDefaultAddress 127.0.0.1\nUser nobody\nGroup nogroup\nMaxInstances none\n"
            "UseReverseDNS off\nUseIPv6 off\nWtmpLog off\nTransferLog none\nSystemLog none\n"
            f"ScoreboardFile {directory}/scoreboard\nPidFile {directory}/proftpd.pid\nDelayEngine off\n"
            f"<Anonymous {files}>\n User nobody\n Group nogroup\n UserAlias anonymous nobody\n RequireValidShell off\n"
            "</Anonymous>\n"
        )
        return Server(name, [binary, "-n", "-q", "-c", config], port, environment)
    command = [binary, "-S", f"127.0.0.1,{port}", "-e", "-i", "-c", "1000", "-C", "1000", "-H", "-Z", "-I", "60", "-p", "30000:60000"]
    # Serves the home of the user `ftp`.
    home = pathlib.Path(pwd.getpwnam("ftp").pw_dir)
    for file in files.iterdir():
        shutil.copy(file, home / file.name)
    return Server(name, command, port, environment)


def find(name, peers):
    if peers:
        for place in ["usr/sbin", "usr/bin", "sbin"]:
            binary = peers / place / name
            if binary.exists():
                return str(binary), str(peers / "usr/lib/x86_64-linux-gnu")
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin"), None


def measure(server, operate, seconds):
    """CPU time of an operation in microseconds. Each client is a thread."""
    stop, counts = threading.Event(), [0] * CLIENTS

    def work(number):
        client = operate(server.port)
        next(client)
        ready.wait()
        while not stop.is_set():
            next(client)
            counts[number] += 1

    ready = threading.Barrier(CLIENTS + 1)
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.wait(60)
    before = server.group.cpu_us()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    # Processes of sessions end with their clients.
    time.sleep(0.2)
    return (server.group.cpu_us() - before) / sum(counts)


def logins(port):
    yield
    while True:
        Session(port).log_in().quit()
        yield


def transfers(name, length):
    def run(port):
        session = Session(port).log_in()
        session.retrieve(name.encode(), length)
        yield
        while True:
            session.retrieve(name.encode(), length)
            yield

    return run


def compare(arguments, directory, files):
    kinds = {"login": logins, **{kind: transfers(*SIZES[kind]) for kind in SIZES}}
    names = ["tailcoat", "vsftpd", "proftpd", "pure-ftpd", "tailcoat-again"]
    results = {name: {kind: [] for kind in kinds} for name in names}
    idle = {}
    for number in range(arguments.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            server = start(name, arguments, directory, files)
            if not server:
                continue
            try:
                for kind, operate in kinds.items():
                    results[name][kind].append(measure(server, operate, arguments.seconds))
                if number == 0:
                    before, processes = user_memory_bytes(server.group.process_ids()), len(server.group.process_ids())
                    sessions = [Session(server.port).log_in() for _ in range(IDLE_SESSIONS)]
                    grown = user_memory_bytes(server.group.process_ids()) - before
                    idle[name] = (grown / IDLE_SESSIONS, len(server.group.process_ids()) - processes)
                    for session in sessions:
                        session.socket.close()
            finally:
                server.end()
    print(f"CPU time per operation in us, median of {arguments.rounds} rounds; x Tailcoat's")
    for kind in kinds:
        base = statistics.median(results["tailcoat"][kind])
        for name in names:
            if results[name][kind]:
                median = statistics.median(results[name][kind])
                mark = f"   mark {MARKS[kind]}" if name == "vsftpd" else ""
                print(f"{kind:<8} {name:<15} {median:10.1f} {median / base:7.2f} x{mark}")
    for name, (size, processes) in idle.items():
        print(f"idle     {name:<15} {size / 1024:10.2f} KiB a session, {processes} processes for {IDLE_SESSIONS}")


def open_sessions(arguments, directory, files):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit of file descriptors of a process may be below two for each session, so clients have theirs.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = start("tailcoat", arguments, directory, files)
    try:
        first = [Session(server.port).log_in() for _ in range(100)]
        before, processes = user_memory_bytes(server.group.process_ids()), server.group.process_ids()
        sessions, begin = [], time.monotonic()
        for number in range(arguments.count):
            sessions.append(Session(server.port, f"127.0.{number % 250}.{1 + number // 250 % 250}").log_in())
        seconds = time.monotonic() - begin
        grown = user_memory_bytes(server.group.process_ids()) - before
        assert server.group.process_ids() == processes, "no process for a session"
        sessions[-1].retrieve(b"small.bin", 1 << 10)
        print(f"{len(sessions)} sessions in {seconds:.1f} s: {grown / len(sessions) / 1024:.2f} KiB a session; mark: 4 KiB")
        del first
    finally:
        server.end()


def reload_during_transfers(arguments, directory, files):
    server = start("tailcoat", arguments, directory, files)
    failed, complete, stop = [], [0], threading.Event()

    def work():
        session = Session(server.port).log_in()
        while not stop.is_set():
            try:
                session.retrieve(b"large.bin", 1 << 20)
                complete[0] += 1
            except (SystemExit, OSError) as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    try:
        for thread in threads:
            thread.start()
        for number in range(arguments.count):
            tailcoat_config(directory, files, server.port, f'data-timeout "{10 + number % 20}s"')
            order = [arguments.tailcoat, "reload", "--socket", directory / f"control-{server.port}.sock"]
            subprocess.run(order, check=True, stdout=subprocess.DEVNULL)
        stop.set()
        for thread in threads:
            thread.join()
        print(f"{arguments.count} reloads, {complete[0]} transfers complete, {len(failed)} failed; mark: 0")
        return 1 if failed else 0
    finally:
        stop.set()
        server.end()


def count_calls(arguments, directory, files):
    server = start("tailcoat", arguments, directory, files)
    try:
        Session(server.port).log_in().retrieve(b"small.bin", 1 << 10)
        for kind, operate in {"login": logins, "1 KiB": transfers(*SIZES["1 KiB"])}.items():
            client = operate(server.port)
            next(client)
            counts = directory / "calls"
            strace = subprocess.Popen(
                ["strace", "-f", "-c", "-o", counts, "-p", str(server.process.pid)], stderr=subprocess.DEVNULL
            )
            time.sleep(1)
            for _ in range(200):
                next(client)
            strace.send_signal(signal.SIGINT)
            strace.wait()
            print(f"{kind}: system calls per operation")
            for line in counts.read_text().splitlines():
                fields = line.split()
                if len(fields) >= 5 and re.fullmatch(r"\d+", fields[3]) and int(fields[3]) >= 20:
                    print(f"  {int(fields[3]) / 200:6.2f} {fields[-1]}")
    finally:
        server.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compare", "sessions", "reloads", "calls"])
    parser.add_argument("--tailcoat", default=ROOT / "target/release/tailcoat", type=pathlib.Path)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--count", type=int)
    arguments = parser.parse_args()
    arguments.count = arguments.count or {"sessions": 10_000, "reloads": 100}.get(arguments.what)
    with tempfile.TemporaryDirectory() as made:
        directory = pathlib.Path(made)
        directory.chmod(0o755)
        files = directory / "files"
        files.mkdir(mode=0o755)
        for name, length in SIZES.values():
            (files / name).write_bytes(os.urandom(length))
        # Tailcoat copies files that were changed just now, instead of sendfile.
        time.sleep(FILES_AGE_SECONDS)
        run = {"compare": compare, "sessions": open_sessions, "reloads": reload_during_transfers, "calls": count_calls}
        return run[arguments.what](arguments, directory, files)


if __name__ == "__main__":
    raise SystemExit(main())
