#!/usr/bin/env python3
"""Runs pyftpdlib's functional tests against another server. Usage: run.py SUITE [TEST]...

SUITE is a source distribution of pyftpdlib, with `tests`. Its tests start a server in a thread; here, they start the
server of TAILCOAT (default: target/debug/tailcoat) with the same options. `not-applicable.txt` names the tests that are
left out, with reasons.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = os.path.abspath(os.environ.get("TAILCOAT", "target/debug/tailcoat"))
# bcrypt of the suite's password "12345", at the lowest cost.
PASSWORD_HASH = "$2b$04$vfEveZsa3TQ2MvrKXlwuaeo1iBp6YQqZrh.hYZhmUqXOE9Ke.ihyS"
START_SECONDS_MAX = 20


def free_port(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        return listener.getsockname()[1]


def address(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def seconds(value):
    """A time in the form of the configuration; at least a second."""
    return f"{max(1, round(value))}s"


class ServerInProcess:
    """Has the interface of the suite's FtpdThreadWrapper, as far as tests that apply need it."""

    handler = None
    server_class = None
    number = itertools.count()

    def __init__(self, addr=None):
        self.host = addr[0] if addr else "127.0.0.1"
        self.port = free_port(self.host)
        # Options that tests set before the start.
        self.server = type("Options", (), {"max_cons": 0, "max_cons_per_ip": 0, "handler": self.handler})()
        self.process = None

    def start(self):
        handler = self.handler
        root, files = os.getcwd(), tempfile.mkdtemp(dir=os.environ["FTP_JUDGE_FILES"])
        users = os.path.join(files, "users")
        with open(users, "w") as file:
            file.write(f"user:{PASSWORD_HASH}\n")
        options = [f'root "{root}"', f'users "{users}"', "anonymous on", "active-mode on", 'write "users"', "keep-partial off"]
        if handler.timeout:
            options.append(f'session-idle-timeout "{seconds(handler.timeout)}"')
        if handler.passive_dtp.timeout:
            options.append(f'data-timeout "{seconds(handler.passive_dtp.timeout)}"')
        if handler.passive_ports:
            options.append(f"passive-ports {min(handler.passive_ports)} {max(handler.passive_ports)}")
        limits = ["linger-timeout \"1s\""]
        if self.server.max_cons_per_ip:
            limits.append(f"connections-per-client-max {self.server.max_cons_per_ip}")
        if handler.dtp_handler.timeout:
            limits.append(f'write-timeout "{seconds(handler.dtp_handler.timeout)}"')
            limits.append(f'body-timeout "{seconds(handler.dtp_handler.timeout)}"')
        # One socket of the suite's server takes both families.
        listen = ["[::]", "0.0.0.0"] if self.host == "::" else [address(self.host, self.port).rpartition(":")[0]]
        listen = " ".join(f'"{host}:{self.port}"' for host in listen)
        text = (
            "server { workers 1 }\n"
            f"limits {{ {'; '.join(limits)} }}\n"
            f"site {{\n ftp {listen} {{\n" + "\n".join(options) + "\n }\n}\n"
        )
        config = os.path.join(files, "tailcoat.kdl")
        with open(config, "w") as file:
            file.write(text)
        with open(os.path.join(files, "log"), "w") as log:
            self.process = subprocess.Popen([SERVER, "run", "-c", config], stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with socket.create_connection((self.host, self.port), 1) as probe:
                    probe.recv(100)
                return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    with open(os.path.join(files, "log")) as log:
                        raise SystemExit(f"the server does not start: {log.read()}\n{text}") from None
                time.sleep(0.02)

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


class RelaxedPytest:
    """Compares codes of replies, and not their texts, which RFC 959 leaves to the server."""

    raises = staticmethod(lambda expected, match=None: pytest.raises(expected))
    mark = pytest.mark
    skip = pytest.skip


def read_not_applicable():
    """Names of tests that do not apply, or beginnings of names that end with a dot."""
    names = []
    with open(os.path.join(HERE, "not-applicable.txt")) as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line:
                names.append(line.split(" ")[0])
    return names


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def main():
    suite, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as files:
        os.environ["FTP_JUDGE_FILES"] = files
        os.chmod(root, 0o755)
        os.chmod(files, 0o755)
        # The suite's root is the working directory when it is imported.
        os.chdir(root)
        sys.path.insert(0, suite)
        import tests
        from pyftpdlib.handlers import FTPHandler

        ServerInProcess.handler = FTPHandler
        tests.FtpdThreadWrapper = ServerInProcess
        tests.assert_free_resources = lambda parent_pid=None: None
        from tests import test_functional

        test_functional.pytest = RelaxedPytest
        not_applicable = read_not_applicable()
        chosen, left_out = unittest.TestSuite(), 0
        for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(test_functional)):
            name = test.id().removeprefix("tests.test_functional.")
            if wanted and not any(name.startswith(part) for part in wanted):
                continue
            if any(name == one or (one.endswith(".") and name.startswith(one)) for one in not_applicable):
                left_out += 1
            else:
                chosen.addTest(test)
        result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(chosen)
        bad = len(result.failures) + len(result.errors)
        print(f"{result.testsRun - bad} passed, {bad} failed, {left_out} do not apply")
        return 0 if bad == 0 and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
