"""HTTP/2 over TLS 1.3: many streams a connection, one, larger files. The client is tailor, which is as cheap as h2load."""

import dataclasses

from harness import client, paired, servers
from .scenario import Scenario


@dataclasses.dataclass(frozen=True)
class Part:
    """A kind of work: size, connections, streams per connection, and marks."""

    body_bytes: int
    connections: int
    streams: int
    peers: dict = dataclasses.field(default_factory=dict)
    """Multiple of our CPU time per request that each must need at least."""


# A part without peers has the best peer as its mark.
PARTS = {
    "8x64": Part(1 << 10, 8, 64, {"h2o-tls": 1, "nginx-tls": 5}),
    "64x1": Part(1 << 10, 64, 1, {"h2o-tls": 1.2, "nginx-tls": 1.4}),
    "16KiB": Part(16 << 10, 8, 64),
    "1MiB": Part(1 << 20, 4, 4),
}
LARGE_BYTES = 1 << 20
PEERS = ("nginx-tls", "h2o-tls", "caddy-tls")


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help=f"default: {' '.join(PARTS)}")


def run(bench):
    bench.servers = [servers.configured(server, "tailcoat-tls.kdl") for server in bench.servers]
    for name in bench.arguments.part:
        part = PARTS[name]
        path = bench.tree.add(f"{name}.bin", part.body_bytes)
        words = ["--http2", "--connections", part.connections, "--streams", part.streams, "--insecure",
                 "--expect-body", bench.tree.root / path[1:]]

        def measure(server, seconds, _):
            return client.run_tailor(server, f"https://127.0.0.1:{server.port}{path}", words, seconds)

        # Of large responses many are under way when the time is over, so that bytes are counted.
        comparison = paired.compare(bench, path, measure, part.body_bytes if part.body_bytes >= LARGE_BYTES else None)
        bench.report.add_comparison(name, comparison)
        for peer, least in part.peers.items():
            bench.report.mark_ratio(name, comparison, peer, servers.OURS, least, at_least=True)
        measured = [peer for peer in PEERS if peer in comparison.samples]
        if measured and not part.peers:
            best = min(measured, key=lambda peer: comparison.median(peer, "cpu_us"))
            bench.report.mark_ratio(name, comparison, servers.OURS, best, 1)


HTTP2 = Scenario("http2", "HTTP/2 over TLS: 8 x 64 and 64 x 1 streams of 1 KiB, 16 KiB, 1 MiB", run, rounds=2, add_arguments=add_arguments,
                 servers=("tailcoat", "nginx-tls", "h2o-tls", "caddy-tls", "tailcoat-again"))
