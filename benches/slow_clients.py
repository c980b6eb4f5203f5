#!/usr/bin/env python3
"""Slow clients of php-fpm with 4 children and of an upstream with 4 connections: latency of other clients.

  benches/slow_clients.py                                  Tailcoat (optimized build) and nginx, 1,000 of each kind
  benches/slow_clients.py --posts 50 --readers 50 --rounds 1     a short look

For each server and round, other clients send requests for both upstreams at a fixed rate: first undisturbed, then beside slow
clients. `--posts` clients send content at a byte per second, and `--readers` clients read 20 MiB at 20 KiB per second.
Prints the p99 of both, and their ratio. The mark: at most 1.2, or nginx's ratio in the same run. The slow clients come from
250 networks of the loopback. Needs php-fpm8.2, nginx, and 20 GiB of space in --directory.
"""

import argparse
import contextlib
import os
import pathlib
import resource
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHP_FPM = "/usr/sbin/php-fpm8.2"
WORKERS = 4
POST_BYTES = 100_000
READ_BYTES, READ_SECONDS = 20 << 10, 1.0
NETWORKS = 250
MARK = 1.2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


class Upstream:
    """Serves a request a connection, on 4 threads: what a pre-forking application server does."""

    def __init__(self, long_bytes):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.listener.getsockname()[1]
        self.long = b"x" * long_bytes
        for _ in range(WORKERS):
            threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            with contextlib.suppress(OSError), connection:
                self.answer(connection)

    def answer(self, connection):
        received = b""
        while b"\r\n\r\n" not in received:
            piece = connection.recv(65536)
            if not piece:
                return
            received += piece
        head, _, content = received.partition(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        remaining = length - len(content)
        while remaining > 0:
            piece = connection.recv(65536)
            if not piece:
                return
            remaining -= len(piece)
        body = self.long if b" /long" in head else b"hello"
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.sendall(body)


class Slow(threading.Thread):
    """Clients that send or read slowly, until they are stopped."""

    def __init__(self, port, posts, readers):
        super().__init__(daemon=True)
        self.stopping, self.closed, self.connections = False, 0, []
        self.selector = selectors.DefaultSelector()
        for number in range(posts + readers):
            source = f"127.1.{number % NETWORKS}.{number // NETWORKS % 250 + 1}"
            is_post, path = number < posts, ("/app", "/script.php")[number % 2]
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            connection.bind((source, 0))
            connection.connect(("127.0.0.1", port))
            if is_post:
                head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {POST_BYTES}\r\n\r\n" + "x" * 30_000
            else:
                head = f"GET {path.replace('app', 'long').replace('script', 'long')} HTTP/1.1\r\nHost: h\r\n\r\n"
            connection.sendall(head.encode())
            connection.setblocking(False)
            self.connections.append((connection, is_post))
        self.start()

    def run(self):
        while not self.stopping:
            began = time.monotonic()
            for connection, is_post in self.connections:
                try:
                    if is_post:
                        connection.send(b"x")
                    elif not connection.recv(READ_BYTES):
                        self.closed += 1
                except BlockingIOError:
                    pass
                except OSError:
                    self.closed += 1
            time.sleep(max(0.0, READ_SECONDS - (time.monotonic() - began)))

    def stop(self):
        self.stopping = True
        self.join()
        for connection, _ in self.connections:
            connection.close()


def get(port, path):
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.settimeout(30)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer.startswith(b"HTTP/1.1 200 ")


def p99_ms(port, path, seconds, rate):
    """Latencies of an open loop: counted from when a request was due."""
    latencies, failures, lock, threads = [], [0], threading.Lock(), []

    def one(due):
        is_right = False
        with contextlib.suppress(OSError):
            is_right = get(port, path)
        with lock:
            latencies.append(time.monotonic() - due)
            failures[0] += not is_right

    began = time.monotonic()
    for number in range(int(seconds * rate)):
        due = began + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        threads.append(threading.Thread(target=one, args=(due,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return sorted(latencies)[int(len(latencies) * 0.99)] * 1000, failures[0]


def php_fpm(stack, directory, long_bytes):
    port, root = free_port(), directory / "root"
    root.mkdir()
    (root / "script.php").write_text("<?php echo 'hello';")
    (root / "long.php").write_text(f"<?php for ($i = 0; $i < {long_bytes >> 16}; $i++) echo str_repeat('x', 65536);")
    config = directory / "fpm.conf"
    config.write_text(f"[global]\nerror_log = {directory}/fpm.log\n[www]\nlisten = 127.0.0.1:{port}\nlisten.backlog = 4096\n"
                      f"user = nobody\ngroup = nogroup\npm = static\npm.max_children = {WORKERS}\n")
    run(stack, [PHP_FPM, "--nodaemonize", "--allow-to-run-as-root", "--fpm-config", str(config)], directory)
    wait_for(port)
    return port


def run(stack, command, directory):
    log = stack.enter_context(open(directory / f"{pathlib.Path(command[0]).name}.log", "w"))
    process = subprocess.Popen(command, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def tailcoat(stack, arguments, directory, upstream_port, php_port):
    port, config = free_port(), directory / "tailcoat.kdl"
    config.write_text(f"""
server {{ workers 2; buffer-directory "{directory}" }}
upstream "app" {{ server "http://127.0.0.1:{upstream_port}"; connections-max {WORKERS}; queue-max 10000; queue-timeout "60s" }}
upstream "php" {{ server "tcp://127.0.0.1:{php_port}"; connections-max {WORKERS}; queue-max 10000; queue-timeout "60s" }}
site {{
    listen "127.0.0.1:{port}"
    access-log off
    fastcgi "*.php" "php" root="{directory}/root"
    forward "app"
}}
""")
    run(stack, [arguments.tailcoat, "run", "-c", str(config)], directory)
    return port


def nginx(stack, arguments, directory, upstream_port, php_port):
    port, config = free_port(), directory / "nginx.conf"
    config.write_text(f"""
daemon off;
worker_processes 2;
worker_rlimit_nofile 20000;
pid {directory}/nginx.pid;
error_log {directory}/nginx.err crit;
user root;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ proxy_pass http://127.0.0.1:{upstream_port}; }}
        location ~ \\.php$ {{
            include /etc/nginx/fastcgi_params;
            fastcgi_param SCRIPT_FILENAME {directory}/root$fastcgi_script_name;
            fastcgi_pass 127.0.0.1:{php_port};
        }}
    }}
}}
""")
    run(stack, ["nginx", "-c", str(config), "-p", str(directory)], directory)
    return port


def measure(start, arguments):
    """A round of one server: the p99 of each back end, undisturbed and disturbed."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory)))
        directory.chmod(0o755)
        upstream = Upstream(arguments.long_bytes)
        port = start(stack, arguments, directory, upstream.port, php_fpm(stack, directory, arguments.long_bytes))
        wait_for(port)
        result = {}
        load = [(name, path) for name, path in (("upstream", "/app"), ("php-fpm", "/script.php"))]
        for name, path in load:
            p99_ms(port, path, 1, arguments.rate)
            result[name] = [p99_ms(port, path, arguments.seconds, arguments.rate)]
        slow = Slow(port, arguments.posts, arguments.readers)
        stack.callback(slow.stop)
        time.sleep(arguments.settle)
        for name, path in load:
            result[name].append(p99_ms(port, path, arguments.seconds, arguments.rate))
        result["closed"] = slow.closed
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tailcoat", default=str(ROOT / "target/programs/tailcoat"), metavar="COMMAND")
    parser.add_argument("--posts", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--readers", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--long-bytes", type=int, default=20 << 20, help="what readers ask for; default: %(default)s")
    parser.add_argument("--rate", type=float, default=50, help="requests a second of other clients; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement; default: %(default)s")
    parser.add_argument("--settle", type=float, default=40, help="seconds for slow clients to be buffered; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--directory", default="/var/tmp", help="where buffers are written; default: %(default)s")
    arguments = parser.parse_args()
    for needed in (PHP_FPM, "nginx", arguments.tailcoat):
        if not shutil.which(needed):
            raise SystemExit(f"{needed} is not installed")
    wanted = 3 * (arguments.posts + arguments.readers) + 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, wanted), hard), hard))
    print(f"{arguments.posts} slow POSTs and {arguments.readers} slow readers of {arguments.long_bytes >> 20} MiB, "
          f"{os.cpu_count()} cores, other clients at {arguments.rate:.0f} requests/s; p99 in ms")
    worst = {}
    for number in range(arguments.rounds):
        order = [("tailcoat", tailcoat), ("nginx", nginx)]
        for name, start in order if number % 2 == 0 else reversed(order):
            result = measure(start, arguments)
            for back_end in ("upstream", "php-fpm"):
                (before, wrong_before), (after, wrong_after) = result[back_end]
                ratio = after / before
                worst[name, back_end] = max(worst.get((name, back_end), 0), ratio)
                print(f"{name:9} {back_end:9} undisturbed {before:7.1f}  disturbed {after:7.1f}  ratio {ratio:5.2f}  "
                      f"wrong {wrong_before}/{wrong_after}  slow clients closed {result['closed']}", flush=True)
    for back_end in ("upstream", "php-fpm"):
        ours, theirs = worst["tailcoat", back_end], worst["nginx", back_end]
        verdict = "holds" if ours <= max(MARK, theirs) else "does not hold"
        print(f"mark {back_end}: {ours:.2f} (at most {MARK}, or nginx's {theirs:.2f}): {verdict}")


if __name__ == "__main__":
    main()
