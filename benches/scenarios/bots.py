"""Bots: a rejected request beside a hit, the request of a visitor who has passed a challenge, and clients in the tarpit."""

import dataclasses
import hashlib
import http.client
import itertools
import re
import resource
import socket
import statistics
import time

from harness import client, paired, servers
from .scenario import Scenario

FILE, FILE_BYTES = "1k.html", 1 << 10
REFUSED_PATH = "/refused/page.html"
CONFIG = "tailcoat-bots.kdl"
REFUSED, VISITOR = "refused", "visitor"
USER_AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"
BROWSER = (f"User-Agent: {USER_AGENT}", "Accept: text/html", "Accept-Language: en", "Accept-Encoding: identity")
# A rejected request costs at most a hit; a visitor's request at most this much more than without `bots`.
REFUSED_MAX, VISITOR_MAX_US = 1.0, 0.3
FEW, MANY, TARPIT_BYTES_MAX = 2_000, 12_000, 600
SETTLE_SECONDS = 0.5
# Clients in the tarpit, away from the address of the other clients.
SCANNER = "127.0.0.9"


def response(server, path, fields, source=None):
    """Status, fields and content of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5, source_address=source)
    named = dict(field.split(": ", 1) for field in fields)
    connection.request("GET", path, headers=named)
    received = connection.getresponse()
    content = received.read()
    connection.close()
    return received.status, received.headers, content.decode(errors="replace")


def cookie(server):
    """The cookie of a visitor who has solved a challenge: a first request without the fields of a browser gets one."""
    program = (f"User-Agent: {USER_AGENT}",)
    _, _, page = response(server, "/" + FILE, program)
    token = re.search(r'name="t" value="([^"]+)"', page)[1]
    bits = int(re.search(r'data-bits="(\d+)"', page)[1])

    def is_solved(nonce):
        digest = hashlib.sha256(f"{token}:{nonce}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> (64 - bits) == 0

    nonce = next(filter(is_solved, itertools.count()))
    _, fields, _ = response(server, f"/.tailcoat/challenge?t={token}&to=%2F&n={nonce}", program)
    return fields["Set-Cookie"].split(";")[0]


def run_requests(bench):
    path = bench.tree.add(FILE, FILE_BYTES)
    [ours] = servers.named([servers.OURS], bench.arguments.tailcoat)
    with_bots = [servers.configured(dataclasses.replace(ours, name=name), CONFIG) for name in (REFUSED, VISITOR)]
    listed = bench.servers
    bench.servers = [ours, dataclasses.replace(ours, name=servers.OURS_AGAIN), *with_bots]
    plans = {}

    def plan(server):
        """Request of the clients of a server. All send the same fields, so that parsing them costs all the same."""
        if server.port not in plans:
            fields = BROWSER
            if server.name == VISITOR:
                fields += (f"Cookie: {cookie(server)}",)
            else:
                fields += ("Cookie: tailcoat-pass=" + "A" * 36,)
            kind = client.RequestKind(path, FILE_BYTES, fields=fields)
            if server.name == REFUSED:
                status, _, page = response(server, REFUSED_PATH, fields)
                kind = client.RequestKind(REFUSED_PATH, len(page), status=status, pattern_offset=-1, fields=fields)
            plans[server.port] = kind
        return plans[server.port]

    def measure(server, seconds, seed):
        return client.run(server, [plan(server)], bench.tree, client.Load(seconds=seconds), seed)

    comparison = paired.compare(bench, path, measure)
    bench.servers = listed
    bench.report.add_comparison("requests", comparison)
    bench.report.mark_ratio("requests", comparison, REFUSED, servers.OURS, REFUSED_MAX)
    both = zip(comparison.samples[VISITOR], comparison.samples[servers.OURS])
    more_us = statistics.median(one["cpu_us"] - other["cpu_us"] for one, other in both)
    bench.report.mark("requests: visitor - tailcoat, us", more_us, VISITOR_MAX_US)


def hold(server, count):
    """Connections of a banned client; each is in the tarpit."""
    held = []
    for _ in range(count):
        held.append(socket.create_connection(("127.0.0.1", server.port), timeout=5, source_address=(SCANNER, 0)))
    time.sleep(SETTLE_SECONDS)
    return held


def run_tarpit(bench):
    path = bench.tree.add(FILE, FILE_BYTES)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    [ours] = servers.named([servers.OURS], bench.arguments.tailcoat)
    slopes = []
    for _ in range(bench.arguments.rounds):
        with servers.running(servers.configured(ours, CONFIG), bench.tree, path) as running:
            status, _, _ = response(running, "/scan/a", BROWSER, (SCANNER, 0))
            assert status == 404, status
            few = hold(running, FEW)
            before = running.user_memory_bytes()
            many = hold(running, MANY - FEW)
            slopes.append((running.user_memory_bytes() - before) / (MANY - FEW))
            for kept in (few[0], many[0], many[-1]):
                kept.setblocking(False)
                try:
                    bench.report.void(f"the server sent {kept.recv(1)} or closed")
                except BlockingIOError:
                    pass
            for each in few + many:
                each.close()
    print(f"\nuser memory a client in the tarpit, {FEW} to {MANY} clients\n  {statistics.median(slopes):.0f} bytes")
    bench.report.add_figures("tarpit", "user memory of a client in the tarpit", "bytes", {servers.OURS: slopes})
    bench.report.mark("user memory a client in the tarpit, bytes", statistics.median(slopes), TARPIT_BYTES_MAX)


PARTS = {"requests": run_requests, "tarpit": run_tarpit}


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help=f"default: {' '.join(PARTS)}")


def run(bench):
    for part in bench.arguments.part:
        PARTS[part](bench)


BOTS = Scenario("bots", "rejected requests, verified visitors, clients in the tarpit", run, servers=("tailcoat", "tailcoat-again"),
                rounds=2, add_arguments=add_arguments)
