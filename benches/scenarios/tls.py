"""HTTP/1.1 over TLS 1.3: a small file on keep-alive connections, and handshakes, full and resumed.

Each server has an ECDSA certificate (P-256) of its own. The client offers AES-128-GCM only."""

import dataclasses

from harness import client, paired, servers
from .scenario import Scenario

FILE, FILE_BYTES = "1k.html", 1024
KEPT = "keep-alive"

# Part -> its load, and the multiple of our CPU time per request that each peer must need at least.
PARTS = {
    KEPT: (client.Load(tls_groups="X25519"), {"nginx-tls": 1.3, "h2o-tls": 1.3}),
    "handshake-p256": (client.Load(tls_groups="P-256", requests_per_connection=1, sources=64), {"nginx-tls": 1.3}),
    "handshake-x25519": (client.Load(tls_groups="X25519", requests_per_connection=1, sources=64), {"nginx-tls": 1.3}),
    "resumed": (client.Load(tls_groups="X25519", requests_per_connection=1, sources=64, resumes=True, warmup_seconds=0.4), {"nginx-tls": 1.6}),
}
RESUMED_MIN = 0.99


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help=f"default: {' '.join(PARTS)}")


def check_resumed(bench, part, comparison):
    """Handshakes must be what the part is about."""
    expected = part == "resumed"
    for name, results in comparison.samples.items():
        share = sum(result["resumed"] for result in results) / max(sum(result["connects"] for result in results), 1)
        if (share < RESUMED_MIN) if expected else share > 0:
            bench.report.void(f"{part}: {name} resumed {share:.1%} of the handshakes")


def run(bench):
    path = bench.tree.add(FILE, FILE_BYTES)
    plan = [client.RequestKind(path, FILE_BYTES)]
    bench.servers = [servers.configured(server, "tailcoat-tls.kdl") for server in bench.servers]
    for part in bench.arguments.part:
        kind, marks = PARTS[part]

        def measure(server, seconds, seed):
            return client.run(server, plan, bench.tree, dataclasses.replace(kind, seconds=seconds), seed)

        comparison = paired.compare(bench, path, measure)
        check_resumed(bench, part, comparison)
        bench.report.add_comparison(part, comparison)
        for peer, least in marks.items():
            bench.report.mark_ratio(part, comparison, peer, servers.OURS, least, at_least=True)


TLS = Scenario("tls", "HTTP/1.1 over TLS 1.3: keep-alive, full and resumed handshakes", run, rounds=2, add_arguments=add_arguments,
               servers=("tailcoat", "nginx-tls", "h2o-tls", "caddy-tls", "tailcoat-again"))
