"""HTTP/3: many streams a connection, one, larger files, beside our own HTTP/2; and a request per connection, with a full handshake,
a resumed one, and early data. The tests of tailor compare its counts with those of a server of aioquic."""

import dataclasses

from harness import client, paired, servers
from .scenario import Scenario


@dataclasses.dataclass(frozen=True)
class Part:
    """A kind of work: size, connections, streams per connection, and marks."""

    body_bytes: int
    connections: int
    streams: int
    nginx: float
    """Multiple of our CPU time per request that nginx must need at least."""
    http2: float | None
    """Multiple of the CPU time of our own HTTP/2 that we may need at most; None: it is only reported."""


PARTS = {
    "8x64": Part(1 << 10, 8, 64, 3, 1.15),
    "64x1": Part(1 << 10, 64, 1, 1.5, 1.15),
    "16KiB": Part(16 << 10, 8, 8, 1.3, None),
    "1MiB": Part(1 << 20, 4, 4, 1.3, None),
}
# Part of one request per connection -> options of tailor.
HANDSHAKES = {"handshake": (), "resumed": ("--resume",), "early": ("--resume", "--early-data")}
HANDSHAKE_CONNECTIONS = 16
# Least share of the handshakes that must be of the kind.
KIND_MIN = 0.95
PINNED = ("--tls-groups", "X25519", "--tls-ciphers", "TLS_AES_128_GCM_SHA256")
LARGE_BYTES = 1 << 20
# A response from memory must fit into a buffer of HAProxy.
HAPROXY, HAPROXY_BYTES_MAX = "haproxy-http3", 16 << 10


def add_arguments(parser):
    parts = [*PARTS, *HANDSHAKES]
    parser.add_argument("--part", nargs="+", choices=parts, default=parts, help=f"default: {' '.join(parts)}")


def run_handshakes(bench, name, listed):
    """Requests with a connection each."""
    body_bytes = 1 << 10
    path = bench.tree.add(f"{name}.bin", body_bytes)
    bench.servers = [server for server in listed if server.name != servers.OURS_HTTP2]
    words = ["--http3", "--connections", HANDSHAKE_CONNECTIONS, "--requests-per-connection", 1, "--insecure", *PINNED,
             "--expect-body", bench.tree.root / path[1:], *HANDSHAKES[name]]

    def measure(server, seconds, _):
        return client.run_tailor(server, f"https://127.0.0.1:{server.port}{path}", words, seconds)

    comparison = paired.compare(bench, path, measure)
    without = check_kind(bench, name, comparison)
    bench.report.add_comparison(name, comparison)
    for peer in comparison.samples:
        if peer not in (servers.OURS, servers.OURS_AGAIN, *without):
            bench.report.mark_ratio(name, comparison, peer, servers.OURS, 1.0, at_least=True)


def check_kind(bench, name, comparison):
    """Voids the run if our handshakes are not of the kind. Returns the peers whose are not: they do another work."""
    without = []
    for server, results in comparison.samples.items():
        connects = max(sum(result["connects"] for result in results), 1)
        resumed, early = (sum(result[kind] for result in results) / connects for kind in ("resumed", "early"))
        share = {"handshake": 1 - resumed, "resumed": resumed, "early": early}[name]
        if share < KIND_MIN:
            text = f"{name}: {server}: {share:.0%} of the handshakes are of this kind"
            bench.report.void(text) if server in (servers.OURS, servers.OURS_AGAIN) else bench.report.note(text)
            without.append(server)
    return without


def run(bench):
    listed = [servers.configured(server, "tailcoat-http3.kdl") for server in bench.servers]
    for name in bench.arguments.part:
        if name in HANDSHAKES:
            run_handshakes(bench, name, listed)
            continue
        part = PARTS[name]
        path = bench.tree.add(f"{name}.bin", part.body_bytes)
        bench.servers = [server for server in listed if server.name != HAPROXY or part.body_bytes <= HAPROXY_BYTES_MAX]
        words = ["--connections", part.connections, "--streams", part.streams, "--insecure", *PINNED,
                 "--expect-body", bench.tree.root / path[1:]]

        def measure(server, seconds, _):
            version = "--http2" if server.name == servers.OURS_HTTP2 else "--http3"
            url = f"https://127.0.0.1:{server.port}{path}"
            return client.run_tailor(server, url, [version, *words], seconds)

        # Of large responses many are under way when the time is over, so that bytes are counted.
        comparison = paired.compare(bench, path, measure, part.body_bytes if part.body_bytes >= LARGE_BYTES else None)
        bench.report.add_comparison(name, comparison)
        bench.report.mark_ratio(name, comparison, "nginx-http3", servers.OURS, part.nginx, at_least=True)
        if part.http2:
            bench.report.mark_ratio(name, comparison, servers.OURS, servers.OURS_HTTP2, part.http2)


HTTP3 = Scenario("http3", "HTTP/3: 8 x 64 and 64 x 1 streams of 1 KiB, 8 x 8 of 16 KiB, 1 MiB, beside HTTP/2", run, rounds=2, add_arguments=add_arguments,
                 servers=("tailcoat", servers.OURS_HTTP2, "nginx-http3", "haproxy-http3", "caddy-http3", "tailcoat-again"))
