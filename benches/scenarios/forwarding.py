"""A reverse proxy: 1 KiB, 64 KiB, 10 MiB, an upload of 10 MiB, added latency, and cache hits.

Both sides use keep-alive. The upstream is a floor, or for uploads a sink, on the client's core in a control group of its
own: only the proxy counts."""

import contextlib
import dataclasses
import statistics

from harness import client, paired, report, servers
from .scenario import Scenario

DIRECT, CACHED = "direct", "cached"
PROXIES = ("nginx-proxy", "haproxy", "caddy-proxy")
MARKED_PROXIES = ("nginx-proxy", "haproxy")
SMALL_BYTES, PEER_MARK = 1 << 10, 1.2
LARGE = {"64KiB": (64 << 10, 64), "10MiB": (10 << 20, 8)}  # Bytes, connections.
UPLOAD_BYTES, UPLOAD_CONNECTIONS = 10 << 20, 4
ABOVE_BEST_PEER_MAX = 1.03
# A cache hit must cost no more than a file, within the control's tolerance.
STATIC_PATH, CACHED_PATH, CACHED_MAX = "1k.html", "/cached.html", 1 + paired.CONTROL_TOLERANCE


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--rate", type=float, help="requests a second where latency is measured; default: half of what HAProxy, "
                        "or whatever is slower, does in a closed loop before")


@contextlib.contextmanager
def before(bench, back_end, path, config="tailcoat-proxy.kdl"):
    """The servers of the bench, as proxies before this back end."""
    listed = bench.servers
    with servers.running(back_end, bench.tree, path, core=servers.CLIENT_CORE) as running:
        bench.servers = [servers.before(server, running.port, config) for server in listed]
        try:
            yield running
        finally:
            bench.servers = listed


def mark_best(bench, part, comparison):
    peers = [name for name in PROXIES if name in comparison.samples]
    if peers:
        best = min(peers, key=lambda name: comparison.median(name, "cpu_us"))
        bench.report.mark_ratio(part, comparison, servers.OURS, best, ABOVE_BEST_PEER_MAX)


def run_download(bench, part, body_bytes, connections):
    path = bench.tree.add(f"{part}.bin", body_bytes)
    plan = [client.RequestKind(path, body_bytes)]

    def measure(server, seconds, seed):
        return client.run(server, plan, bench.tree, client.Load(connections=connections, seconds=seconds), seed)

    [floor] = servers.named(["floor"], None)
    with before(bench, floor, path):
        comparison = paired.compare(bench, path, measure, body_bytes)
    bench.report.add_comparison(part, comparison)
    if part in LARGE:
        return mark_best(bench, part, comparison)
    for peer in MARKED_PROXIES:
        bench.report.mark_ratio(part, comparison, peer, servers.OURS, PEER_MARK, at_least=True)


def run_upload(bench):
    load = client.Load(connections=UPLOAD_CONNECTIONS)

    def measure(server, seconds, _):
        load.seconds = seconds
        return client.run_wrk(server, "/upload", load, upload_bytes=UPLOAD_BYTES)

    with before(bench, servers.SINK, "/"):
        comparison = paired.compare(bench, "/", measure)
    bench.report.add_comparison("upload", comparison)
    mark_best(bench, "upload", comparison)


def run_cached(bench):
    """A cache hit beside a file, on the same server with the same config. The control requests the file again."""
    path = bench.tree.add(STATIC_PATH, SMALL_BYTES)
    [floor] = servers.named(["floor"], None)
    [ours] = servers.named([servers.OURS], bench.arguments.tailcoat)
    listed = bench.servers
    bench.servers = [dataclasses.replace(ours, name=name) for name in (servers.OURS, CACHED, servers.OURS_AGAIN)]

    def measure(server, seconds, seed):
        plan = [client.RequestKind(CACHED_PATH if server.name == CACHED else path, SMALL_BYTES)]
        return client.run(server, plan, bench.tree, client.Load(seconds=seconds), seed)

    with before(bench, floor, path, "tailcoat-cache.kdl"):
        comparison = paired.compare(bench, path, measure)
    bench.servers = listed
    bench.report.add_comparison(CACHED, comparison)
    bench.report.mark_ratio(CACHED, comparison, CACHED, servers.OURS, CACHED_MAX)


def half_load(bench, proxies, plan):
    """Half of the requests a second that the slowest of the proxies answers in a closed loop."""
    load = client.Load(connections=64, seconds=bench.arguments.seconds)
    results = {running.name: client.run(running, plan, bench.tree, load) for running in proxies}
    rates = {name: result["responses"] / result["seconds"] for name, result in results.items()}
    print("\nclosed loop, requests/s: " + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
    return min(rates.values()) / 2


def run_latency(bench):
    """Open loop, below what any of the proxies can do. The back end asked directly shows what is not theirs."""
    path = bench.tree.add("1k.html", SMALL_BYTES)
    plan = [client.RequestKind(path, SMALL_BYTES)]
    samples = {}
    with contextlib.ExitStack() as stack:
        [floor] = servers.named(["floor"], None)
        direct = dataclasses.replace(stack.enter_context(before(bench, floor, path)), name=DIRECT)
        proxies = [stack.enter_context(servers.running(server, bench.tree, path)) for server in bench.servers]
        rate = bench.arguments.rate or half_load(bench, proxies, plan)
        load = client.Load(connections=64, seconds=bench.arguments.seconds, rate=rate)
        for slot in range(-1, bench.arguments.slots):
            for running in [direct, *proxies] if slot % 2 == 0 else [*reversed(proxies), direct]:
                result = client.run(running, plan, bench.tree, load, slot + 2)
                if sum(result["errors"].values()) or result["unanswered"]:
                    bench.report.void(f"{running.name}: {result['errors']}, {result['unanswered']} unanswered")
                if slot >= 0:
                    samples.setdefault(running.name, []).append(result["latency_us"])
    bench.report.add_part("latency", samples)
    print(f"\nlatency at {load.rate:.0f} requests/s, us above that of the back end (median of paired differences, quartiles)")
    added = {}
    for name, results in samples.items():
        for key in ("p50", "p99"):
            added[name, key] = [one[key] - base[key] for one, base in zip(results, samples[DIRECT])]
        columns = [f"{key} {statistics.median(one[key] for one in results):6.0f}, added {statistics.median(added[name, key]):6.0f}"
                   " ({:.0f}-{:.0f})".format(*report.quartiles(added[name, key])) for key in ("p50", "p99")]
        print(f"  {name:15} {'   '.join(columns)}")
    for key in ("p50", "p99"):
        bench.report.add_figures(f"latency {key}", f"latency added, {key}", "us",
                                 {name: added[name, key] for name in samples if name != DIRECT})
    if (servers.OURS, "p50") in added and ("haproxy", "p50") in added:
        for key in ("p50", "p99"):
            bench.report.mark(f"added {key}, us", statistics.median(added[servers.OURS, key]), statistics.median(added["haproxy", key]))


OTHER_PARTS = {"upload": run_upload, "latency": run_latency, CACHED: run_cached}
PARTS = ("1KiB", *LARGE, *OTHER_PARTS)


def run(bench):
    for part in bench.arguments.part:
        if part in OTHER_PARTS:
            OTHER_PARTS[part](bench)
        else:
            run_download(bench, part, *LARGE.get(part, (SMALL_BYTES, 64)))


FORWARDING = Scenario("forwarding", "a proxy before a back end: CPU of downloads and uploads, and added latency", run,
                      servers=("tailcoat", *PROXIES, "haproxy-unlogged", "tailcoat-again"), rounds=2, add_arguments=add_arguments)
