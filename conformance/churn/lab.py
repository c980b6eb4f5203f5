#!/usr/bin/env python3
"""Three instances that share a store, under load, with faults at random: `cargo xtask churn`.

Each instance runs in a network namespace of its own, with one link to clients, upstream and CA, and another to the store. The
lab kills instances (SIGKILL), stops the store (SIGSTOP), wipes it, and cuts instances off it. An instance that starts again may
have a clock that is two minutes wrong. Meanwhile clients connect over TLS, and purges go to random instances.

`cargo xtask churn` starts this file in new namespaces, so that no address leaves the machine and every process ends with it.
"""

import argparse
import array
import http.client
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOST = "www.example.com"
LAB = "10.9.0.1"
ORIGIN_PORT, CA_PORT, CA_MANAGEMENT_PORT, NAMES_PORT, STORE_PORT = 9000, 14000, 15000, 8053, 6379
FRONT_HTTP_PORT, FRONT_TLS_PORT = 5002, 5001
INSTANCES, CLIENTS, PATHS = 3, 3, 200
REQUESTS_PER_CONNECTION, THINK_SECONDS = 4, 0.05
SKEWS = (-120, 0, 120)
# Longest time without a turn for this process. In longer ones, the machine or all processes of the lab were stopped.
PAUSE_SECONDS = 1.5
# Time after a fault that its effects are counted with.
AFTERMATH_SECONDS = 2
PATIENCE = 60


def say(text):
    print(text, flush=True)


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def until(what, ask, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while True:
        try:
            found = ask()
            if found:
                return found
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"churn: not within {patience} s: {what}")
        time.sleep(0.05)


def listens(address, port):
    with socket.create_connection((address, port), 1):
        return True


def share_of(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else None


class Network:
    """Links of the instances. Link `net` leads to clients and CA, link `store` to the store."""

    def __init__(self):
        run("ip", "link", "set", "lo", "up")
        run("ip", "addr", "add", f"{LAB}/32", "dev", "lo")
        os.makedirs("/run/netns", exist_ok=True)
        run("mount", "-t", "tmpfs", "none", "/run/netns")
        for number in range(INSTANCES):
            space = f"edge-{number}"
            run("ip", "netns", "add", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
            for name, first in (("net", 20), ("store", 40)):
                run("ip", "link", "add", f"{name}{number}", "type", "veth", "peer", "name", name, "netns", space)
                run("ip", "addr", "add", f"10.9.{first + number}.1/24", "dev", f"{name}{number}")
                run("ip", "link", "set", f"{name}{number}", "up")
                run("ip", "-n", space, "addr", "add", f"10.9.{first + number}.2/24", "dev", name)
                run("ip", "-n", space, "link", "set", name, "up")
            run("ip", "-n", space, "route", "add", "default", "via", f"10.9.{20 + number}.1")

    def set_store(self, number, is_up):
        run("ip", "link", "set", f"store{number}", "up" if is_up else "down")


class Origin:
    """Upstream: each path has a version, which purges raise."""

    def __init__(self):
        self.versions = [1] * PATHS
        origin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and content in one packet.
            wbufsize = 65536

            def do_GET(self):
                part = self.path.split("/")[2]
                if not part.isdigit():  # A challenge of ACME that the instance did not know.
                    self.send_error(404)
                    return
                path = int(part)
                content = str(origin.versions[path]).encode()
                self.send_response(200)
                self.send_header("Cache-Control", "max-age=86400")
                self.send_header("Surrogate-Key", f"all tag-{path}")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        threading.Thread(target=Server((LAB, ORIGIN_PORT), Handler).serve_forever, daemon=True).start()


class Instance:
    """One Tailcoat."""

    def __init__(self, lab, number):
        self.lab, self.number = lab, number
        self.address = f"10.9.{20 + number}.2"
        self.directory = lab.directory / f"edge-{number}"
        (self.directory / "state").mkdir(parents=True)
        self.life, self.is_up, self.skew, self.process = 0, False, 0, None
        shares = 'share "certificates" "tickets" "orders" "limits" "responses"' if lab.options.tier else ""
        (self.directory / "tailcoat.kdl").write_text(f"""\
server {{ workers 1; control-socket "{self.directory}/control.sock" }}
store {{
    url "valkey://10.9.{40 + number}.1:{STORE_PORT}"
    key-file "{lab.directory}/store.key"
    instance "edge-{number}"
    timeout "500ms"
    lease-time "3s"
    {shares}
}}
automatic-certificates {{
    directory "https://{LAB}:{CA_PORT}/dir" ca-file="{lab.directory}/ca.pem"
    profile "short"
    retry-interval "1s"
}}
access-log off
site "{HOST}" {{
    listen 80
    listen 443 tls=on
    forward "http://{LAB}:{ORIGIN_PORT}" {{ cache }}
}}
""")

    def start(self, skew=0):
        self.skew = skew if self.lab.faketime else 0
        environment = dict(os.environ, STATE_DIRECTORY=str(self.directory / "state"))
        if self.skew:
            environment |= {"LD_PRELOAD": self.lab.faketime, "FAKETIME": f"{self.skew:+}s",
                            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}
        log = open(self.directory / "errors.log", "a")
        command = ["ip", "netns", "exec", f"edge-{self.number}", self.lab.options.program, "run", "-c",
                   str(self.directory / "tailcoat.kdl")]
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

        def serves():
            if self.process.poll() is not None:
                raise SystemExit(f"churn: edge-{self.number} has ended; see {self.directory}/errors.log")
            return listens(self.address, 443)

        until(f"edge-{self.number} listens", serves)
        self.is_up = True

    def kill(self):
        self.life += 1
        self.is_up = False
        self.process.kill()
        self.process.wait()

    def order(self, order):
        """Gives an order on the control socket, which wants to see a descriptor of its directory."""
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(10)
            stream.connect(str(self.directory / "control.sock"))
            directory = os.open(self.directory, os.O_RDONLY)
            try:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [directory]))
                stream.sendmsg([json.dumps(order).encode() + b"\n"], [rights])
            finally:
                os.close(directory)
            return json.loads(stream.makefile().readline())

    def waiting_orders(self):
        report = self.order({"order": "status"})
        return find(report, "waiting_events") or 0

    def get(self, path):
        connection = http.client.HTTPConnection(self.address, 80, timeout=10)
        try:
            connection.request("GET", f"/p/{path}/x", headers={"Host": HOST})
            return int(connection.getresponse().read())
        finally:
            connection.close()


def find(value, name):
    """First member of this name, at any depth."""
    if isinstance(value, dict):
        if name in value:
            return value[name]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            found = find(item, name)
            if found is not None:
                return found
    return None


class Counts:
    """Requests and handshakes of clients, each with the fault at its time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests, self.handshakes = [], []

    def request(self, began, seconds, fault, end):
        with self.lock:
            self.requests.append((began, seconds, fault, end))

    def handshake(self, began, seconds, fault, end):
        with self.lock:
            self.handshakes.append((began, seconds, fault, end))


class Lab:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.directory = Path(options.directory).absolute()
        self.network, self.origin, self.counts = Network(), Origin(), Counts()
        self.faketime = options.faketime
        self.faults, self.active, self.calm_at = [], {}, 0.0
        self.purges, self.pending = [], [dict() for _ in range(INSTANCES)]
        self.lock, self.is_over = threading.Lock(), False
        self.processes, self.pauses = [], []
        self.start_store()
        self.start_authority()
        (self.directory / "store.key").write_bytes(os.urandom(48).hex().encode())
        self.instances = [Instance(self, number) for number in range(INSTANCES)]
        threading.Thread(target=self.front, args=(FRONT_HTTP_PORT, 80), daemon=True).start()
        threading.Thread(target=self.front, args=(FRONT_TLS_PORT, 443), daemon=True).start()

    def spawn(self, *command, environment=None):
        log = open(self.directory / f"{Path(command[0]).name}.log", "a")
        process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ, **(environment or {})))
        self.processes.append(process)
        return process

    def start_store(self):
        names = ("valkey-server", "redis-server")
        program = self.options.valkey or next((found for found in map(shutil.which, names) if found), None)
        if program is None:
            raise SystemExit("churn: install valkey-server or redis-server")
        self.store_program = program
        self.store = self.spawn(program, "--bind", "0.0.0.0", "--port", str(STORE_PORT), "--protected-mode", "no",
                                "--save", "", "--appendonly", "no", "--dir", str(self.directory))
        until("the store listens", lambda: listens(LAB, STORE_PORT))

    def start_authority(self):
        ca = self.directory
        subject = ["-subj", "/CN=churn", "-days", "2", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        (ca / "openssl.cnf").write_text(
            f"[req]\ndistinguished_name = name\n[name]\n[ca]\nbasicConstraints = critical,CA:TRUE\n"
            f"[server]\nbasicConstraints = critical,CA:FALSE\nsubjectAltName = IP:{LAB}\n")
        request = ("openssl", "req", "-x509", "-config", ca / "openssl.cnf", *subject)
        run(*request, "-extensions", "ca", "-keyout", ca / "ca.key", "-out", ca / "ca.pem")
        run(*request, "-extensions", "server", "-CA", ca / "ca.pem", "-CAkey", ca / "ca.key", "-keyout",
            ca / "pebble.key", "-out", ca / "pebble.pem")
        (ca / "pebble.json").write_text(json.dumps({"pebble": {
            "listenAddress": f"{LAB}:{CA_PORT}", "managementListenAddress": f"{LAB}:{CA_MANAGEMENT_PORT}",
            "certificate": str(ca / "pebble.pem"), "privateKey": str(ca / "pebble.key"),
            "httpPort": FRONT_HTTP_PORT, "tlsPort": FRONT_TLS_PORT, "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"short": {"description": "short", "validityPeriod": self.options.certificate_seconds}}}}))
        self.spawn("pebble-challtestsrv", "-dnsserver", f"{LAB}:{NAMES_PORT}", "-http01", "", "-https01", "",
                   "-tlsalpn01", "", "-doh", "", "-management", "", "-defaultIPv4", LAB, "-defaultIPv6", "")
        self.spawn("pebble", "-config", str(ca / "pebble.json"), "-dnsserver", f"{LAB}:{NAMES_PORT}",
                   environment={"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_AUTHZREUSE": "0"})
        until("the CA listens", lambda: listens(LAB, CA_MANAGEMENT_PORT))

    def client_context(self):
        """Trusts what the CA issues."""
        to_ca = ssl.create_default_context(cafile=self.directory / "ca.pem")
        connection = http.client.HTTPSConnection(LAB, CA_MANAGEMENT_PORT, context=to_ca)
        connection.request("GET", "/roots/0")
        return ssl.create_default_context(cadata=connection.getresponse().read().decode())

    def front(self, port, of_instance):
        """One address before all instances: each connection goes to any that is up."""
        listener = socket.create_server((LAB, port), backlog=64)
        while True:
            client, _ = listener.accept()
            up = [instance for instance in self.instances if instance.is_up]
            if not up:
                client.close()
                continue
            threading.Thread(target=forward, args=(client, random.choice(up).address, of_instance), daemon=True).start()

    # Load of clients, and purges.

    def note_pauses(self):
        """Notes when this process had no turn: what clients saw then says nothing about the instances."""
        before = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            if now - before > PAUSE_SECONDS:
                self.pauses.append((before, now + PAUSE_SECONDS))
            before = now

    def is_paused(self, began, ended):
        return any(began < until and ended > since for since, until in self.pauses)

    def fault_now(self):
        with self.lock:
            if self.active:
                return "+".join(sorted(set(self.active.values())))
            return None if time.monotonic() > self.calm_at else "aftermath"

    def client(self, context, seed):
        choose = random.Random(seed)
        while not self.is_over:
            up = [instance for instance in self.instances if instance.is_up]
            if not up:
                time.sleep(0.05)
                continue
            self.visit(context, choose.choice(up), choose)

    def visit(self, context, instance, choose):
        """One connection with some requests."""
        life, fault, began = instance.life, self.fault_now(), time.monotonic()
        how = lambda: "cut" if instance.life != life else "failed"
        try:
            plain = socket.create_connection((instance.address, 443), 10)
            stream = context.wrap_socket(plain, server_hostname=HOST)
        except (OSError, ssl.SSLError) as error:
            if how() == "failed":
                say(f"handshake with edge-{instance.number} failed after {time.monotonic() - began:.3f} s: {error}")
            self.counts.handshake(began, time.monotonic() - began, fault, how())
            time.sleep(0.05)
            return
        self.counts.handshake(began, time.monotonic() - began, fault, "done")
        connection = http.client.HTTPConnection(instance.address)
        connection.sock = stream
        try:
            for _ in range(REQUESTS_PER_CONNECTION):
                fault, began = self.fault_now(), time.monotonic()
                connection.request("GET", f"/p/{choose.randrange(PATHS)}/x", headers={"Host": HOST})
                response = connection.getresponse()
                response.read()
                end = "done" if response.status == 200 else "failed"
                if end == "failed":
                    say(f"edge-{instance.number} responds {response.status}")
                self.counts.request(began, time.monotonic() - began, fault, end)
                time.sleep(THINK_SECONDS)
        except (OSError, http.client.HTTPException) as error:
            if how() == "failed":
                say(f"request to edge-{instance.number} failed: {error!r}")
            self.counts.request(began, time.monotonic() - began, fault, how())
        finally:
            connection.close()

    def purge(self):
        """Raises the version of a path, and purges its response at a random instance."""
        up = [instance for instance in self.instances if instance.is_up]
        if not up:
            return
        instance, path = random.choice(up), random.randrange(PATHS)
        for other in up:
            # Something to purge.
            try:
                other.get(path)
            except (OSError, ValueError, http.client.HTTPException):
                pass
        self.origin.versions[path] += 1
        order = {"order": "purge-cache", "urls": [], "prefixes": [], "tags": []}
        kind = random.choice(("urls", "prefixes", "tags"))
        order[kind] = [f"tag-{path}" if kind == "tags" else
                       f"http://{HOST}/p/{path}/" + ("x" if kind == "urls" else "")]
        life = instance.life
        record = {"at": time.monotonic(), "path": path, "version": self.origin.versions[path], "kind": kind,
                  "instance": instance.number, "life": life, "delays": [None] * INSTANCES}
        try:
            report = instance.order(order)
        except OSError:
            return
        if "purged" not in json.dumps(report):
            say(f"purge rejected: {report}")
            return
        with self.lock:
            self.purges.append(record)
            for pending in self.pending:
                pending[len(self.purges) - 1] = record

    def watch(self, number):
        """Looks until each purge holds at an instance."""
        instance = self.instances[number]
        while not self.is_over or self.pending[number]:
            with self.lock:
                wanted = list(self.pending[number].items())[:20]
            for index, record in wanted:
                try:
                    holds = instance.is_up and instance.get(record["path"]) >= record["version"]
                except (OSError, ValueError, http.client.HTTPException):
                    continue
                if holds:
                    record["delays"][number] = time.monotonic() - record["at"]
                    with self.lock:
                        self.pending[number].pop(index, None)
            time.sleep(0.05)

    def purge_for_ever(self):
        while not self.is_over:
            self.purge()
            time.sleep(random.uniform(0.5, 1.5))

    # Faults.

    def begin_fault(self, kind, instance=None):
        with self.lock:
            fault = {"kind": kind, "instance": instance, "from": time.monotonic(), "to": None}
            self.faults.append(fault)
            self.active[id(fault)] = kind
        return fault

    def end_fault(self, fault):
        with self.lock:
            fault["to"] = time.monotonic()
            self.active.pop(id(fault))
            self.calm_at = max(self.calm_at, time.monotonic() + AFTERMATH_SECONDS)

    def make_fault(self):
        kind = self.random.choice(("kill", "kill", "store stopped", "store wiped", "cut off", "cut off"))
        seconds = self.random.uniform(2, 8)
        number = self.random.randrange(INSTANCES)
        instance = self.instances[number]
        if kind == "kill":
            # Orders that wait for the store end with the process: the manual says so. They are counted apart.
            try:
                waiting = instance.waiting_orders()
            except OSError:
                waiting = 0
            fault = self.begin_fault(kind, number)
            fault["waiting_orders"], fault["life"] = waiting, instance.life
            instance.kill()
            time.sleep(self.random.uniform(0.2, 2))
            instance.start(self.random.choice(SKEWS))
            fault["skew"] = instance.skew
        elif kind == "store stopped":
            fault = self.begin_fault(kind)
            self.store.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.store.send_signal(signal.SIGCONT)
        elif kind == "store wiped":
            fault = self.begin_fault(kind)
            with socket.create_connection((LAB, STORE_PORT), 5) as stream:
                stream.sendall(b"FLUSHALL\r\n")
                stream.recv(64)
        else:
            fault = self.begin_fault(kind, number)
            self.network.set_store(number, False)
            time.sleep(seconds)
            self.network.set_store(number, True)
        self.end_fault(fault)

    def run(self):
        for instance in self.instances:
            instance.start(0)
        context = self.client_context()

        def has_certificate(instance):
            try:
                with socket.create_connection((instance.address, 443), 5) as plain:
                    context.wrap_socket(plain, server_hostname=HOST).close()
                    return True
            except ssl.SSLError:
                return False

        for instance in self.instances:
            until(f"edge-{instance.number} has a certificate", lambda: has_certificate(instance))
        say(f"churn: {INSTANCES} instances serve, for {self.options.seconds} s")
        self.began = time.monotonic()
        threads = [threading.Thread(target=self.client, args=(context, seed)) for seed in range(CLIENTS)]
        threads += [threading.Thread(target=self.watch, args=(number,), daemon=True) for number in range(INSTANCES)]
        threads.append(threading.Thread(target=self.purge_for_ever))
        threads.append(threading.Thread(target=self.note_pauses, daemon=True))
        for thread in threads:
            thread.start()
        calm, end = self.options.calm, self.began + self.options.seconds
        time.sleep(calm)
        while time.monotonic() < end - calm:
            self.make_fault()
            pause = self.random.uniform(0.3, 1.7) * self.options.pause
            time.sleep(max(0, min(pause, end - calm - time.monotonic())))
        time.sleep(max(0, end - time.monotonic()))
        self.is_over = True
        deadline = time.monotonic() + 30
        while any(self.pending) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.report()

    def fault_during(self, began, ended):
        """Kind of the first fault in this time."""
        for fault in self.faults:
            if began < fault["to"] and ended > fault["from"]:
                return fault["kind"]
        is_after = any(fault["to"] <= began < fault["to"] + AFTERMATH_SECONDS for fault in self.faults)
        return "aftermath" if is_after else None

    def is_in_doubt(self, purge):
        """True if the instance that got the purge was killed before the store had it."""
        kills = [fault for fault in self.faults if fault["kind"] == "kill" and fault["instance"] == purge["instance"]
                 and fault["life"] == purge["life"]]
        return any(fault["waiting_orders"] or fault["from"] - purge["at"] < 1 for fault in kills)

    def report(self):
        began = self.began
        requests = [item for item in self.counts.requests if not self.is_paused(item[0], item[0] + item[1])]
        handshakes = [item for item in self.counts.handshakes if not self.is_paused(item[0], item[0] + item[1])]
        interval = max(1, self.options.seconds // 240)
        series = []
        for start in range(0, self.options.seconds, interval):
            within = [item for item in requests if start <= item[0] - began < start + interval]
            shaken = [item for item in handshakes if start <= item[0] - began < start + interval]
            done = [item[1] * 1000 for item in within if item[3] == "done"]
            series.append({"at": start, "requests": len(within), "failed": sum(item[3] == "failed" for item in within),
                           "cut": sum(item[3] == "cut" for item in within), "p50_ms": share_of(done, 0.5),
                           "p99_ms": share_of(done, 0.99), "handshakes": len(shaken),
                           "handshakes_failed": sum(item[3] == "failed" for item in shaken)})
        kinds = ["none", "kill", "store stopped", "store wiped", "cut off", "aftermath"]
        by_fault = []
        for kind in kinds:
            name = None if kind == "none" else kind
            within = [item for item in requests if item[2] == name]
            shaken = [item for item in handshakes if item[2] == name]
            done = [item[1] * 1000 for item in within if item[3] == "done"]
            delays = [delay * 1000 for purge in self.purges for delay in purge["delays"]
                      if delay is not None and self.fault_during(purge["at"], purge["at"] + delay) == name
                      and not self.is_paused(purge["at"], purge["at"] + delay)]
            by_fault.append({"fault": kind, "count": sum(fault["kind"] == kind for fault in self.faults),
                             "requests": len(within), "failed": sum(item[3] == "failed" for item in within),
                             "cut": sum(item[3] == "cut" for item in within), "handshakes": len(shaken),
                             "handshakes_failed": sum(item[3] == "failed" for item in shaken),
                             "handshakes_cut": sum(item[3] == "cut" for item in shaken),
                             "p50_ms": share_of(done, 0.5), "p99_ms": share_of(done, 0.99),
                             "purge_p50_ms": share_of(delays, 0.5), "purge_p99_ms": share_of(delays, 0.99)})
        missing = [purge for purge in self.purges if None in purge["delays"]]
        lost = [purge for purge in missing if not self.is_in_doubt(purge)]
        logs = [(instance.directory / "errors.log").read_text() for instance in self.instances]
        issued = sum(log.count("certificate obtained") for log in logs)
        version = subprocess.run([self.options.program, "--version"], capture_output=True, text=True).stdout.strip()
        store = subprocess.run([self.store_program, "--version"], capture_output=True, text=True).stdout.strip()
        result = {
            "seconds": self.options.seconds, "seed": self.options.seed, "program": version, "store": store,
            "has_skew": bool(self.faketime), "has_tier": self.options.tier, "interval": interval, "series": series,
            "by_fault": by_fault, "certificates_issued": issued,
            "pauses": [[since - began, until - began] for since, until in self.pauses],
            "faults": [dict(fault, **{"from": fault["from"] - began, "to": (fault["to"] or time.monotonic()) - began})
                       for fault in self.faults],
            "purges": {"ordered": len(self.purges), "lost": len(lost),
                       "lost_with_killed_instance": len(missing) - len(lost)}}
        (self.directory / "results.json").write_text(json.dumps(result, indent=1))
        for purge in lost:
            say(f"lost: {purge}")
        for instance in self.instances:
            instance.kill()
        for process in self.processes:
            process.kill()


def forward(client, address, port):
    try:
        server = socket.create_connection((address, port), 5)
    except OSError:
        client.close()
        return

    def copy(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    other = threading.Thread(target=copy, args=(server, client), daemon=True)
    other.start()
    copy(client, server)
    other.join()
    client.close()
    server.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=8, help="mean seconds between faults")
    parser.add_argument("--calm", type=float, default=5, help="seconds without faults at the start and at the end")
    parser.add_argument("--certificate-seconds", type=int, default=600)
    parser.add_argument("--faketime", help="libfaketime, for clocks that are wrong")
    parser.add_argument("--valkey", help="program of the store")
    parser.add_argument("--tier", action="store_true", help="share cached responses as well")
    Lab(parser.parse_args()).run()
    # Threads of clients have ended; the others hold nothing.
    sys.stdout.flush()
    os._exit(0)


main()
