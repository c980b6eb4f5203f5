"""A reverse proxy that compresses: pages of text from an upstream that does not, by coding and level.

The upstream is a floor on the client's core: only the proxy counts. Levels differ between libraries, so a peer has a mark only
if its content is as small as ours."""

import dataclasses
import gzip
import http.client
import shutil
import subprocess

from harness import client, paired, servers
from .forwarding import ABOVE_BEST_PEER_MAX, before
from .scenario import Scenario

PEERS = ("nginx-compression", "haproxy-compression", "caddy-compression")
GZIP, ZSTD = "gzip", "zstd"
LARGER_MAX = 1.03


@dataclasses.dataclass(frozen=True)
class Part:
    """A kind of work. Caddy has a level of its own, and so has HAProxy, whose library has only one."""

    coding: str
    body_bytes: int
    level: str
    nginx_level: int = 1
    peers: tuple = PEERS
    connections: int = 64


PARTS = {
    "gzip-fast": Part(GZIP, 32 << 10, "fast"),
    "gzip-balanced": Part(GZIP, 32 << 10, "balanced", nginx_level=4),
    "gzip-256KiB": Part(GZIP, 256 << 10, "balanced", nginx_level=4, connections=8),
    "zstd": Part(ZSTD, 32 << 10, "balanced", peers=("caddy-compression",)),
}


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help=f"default: {' '.join(PARTS)}")


def decoded(coding, content):
    if coding == GZIP:
        return gzip.decompress(content)
    client.require("zstd", "it checks the content of the part `zstd` (package zstd)")
    return subprocess.run(["zstd", "-dc"], input=content, capture_output=True, check=True).stdout


def encoded_bytes(server, coding, path, text):
    """Length of the compressed content, which must be that of the text."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", path, headers={"Accept-Encoding": coding})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.headers["Content-Encoding"] == coding, f"{server.name}: {response.headers}"
    assert decoded(coding, content) == text, f"{server.name}: other content"
    return len(content)


def run_part(bench, name, part):
    path = bench.tree.add_text(f"{name}.html", part.body_bytes)
    text = (bench.tree.root / path[1:]).read_bytes()
    words = ["--connections", part.connections, "--header", f"Accept-Encoding: {part.coding}", "--expect-status", 200,
             "--expect-header", f"Content-Encoding: {part.coding}"]
    sizes = {}

    def measure(server, seconds, _):
        if server.name not in sizes:
            sizes[server.name] = encoded_bytes(server, part.coding, path, text)
        return client.run_tailor(server, f"http://127.0.0.1:{server.port}{path}", words, seconds)

    everything = bench.servers
    bench.servers = [server for server in everything if server.name in part.peers or server.name not in PEERS]
    [floor] = servers.named(["floor"], None)
    with before(bench, floor, path, "tailcoat-compression.kdl"):
        levels = {"level": part.level, "gzip_level": part.nginx_level}
        bench.servers = [dataclasses.replace(server, fill={**server.fill, **levels}) for server in bench.servers]
        comparison = paired.compare(bench, path, measure)
    bench.servers = everything
    bench.report.add_comparison(name, comparison)
    shares = {server: 100 * size / len(text) for server, size in sizes.items()}
    print(f"\n{name}: compressed content, % of the text\n" + "".join(f"  {server:20} {share:5.1f}\n" for server, share in shares.items()))
    bench.report.add_figures(f"{name}: size", "compressed content of the text", "%", {server: [share] for server, share in shares.items()})
    if servers.OURS not in sizes:
        return
    as_small = [peer for peer in part.peers if peer in sizes and sizes[peer] <= sizes[servers.OURS] * LARGER_MAX]
    if as_small:
        best = min(as_small, key=lambda peer: comparison.median(peer, "cpu_us"))
        bench.report.mark_ratio(name, comparison, servers.OURS, best, ABOVE_BEST_PEER_MAX)


def run(bench):
    for name in bench.arguments.part:
        run_part(bench, name, PARTS[name])


COMPRESSION = Scenario("compression", "a proxy that compresses text by gzip and Zstandard", run, rounds=1, slots=24, seconds=0.25, add_arguments=add_arguments,
                       servers=("tailcoat", *PEERS, "tailcoat-again"))
