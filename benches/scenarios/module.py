"""WebAssembly modules beside a file of 1 KiB: a component with a fresh instance a request, http-wasm with each reset; and the
file while modules loop.

wrk is the client: what a module answers is not in the tree."""

import contextlib
import dataclasses
import socket
import statistics

from harness import client, paired, servers
from .scenario import Scenario

CONFIG = (servers.PEERS / "tailcoat-module.kdl").read_text()
FILE_BYTES = 1024
ABOVE_FILE_MAX_US = {"component": 15, "http-wasm-none": 1.0}
UNDISTURBED_MAX = 1.5


def add_arguments(parser):
    parser.add_argument("--component", help="a component (`tailcoat module new` makes one)")
    parser.add_argument("--component-path", default="/module/", help="what it is asked for; default: %(default)s")
    parser.add_argument("--http-wasm", help="a module of http-wasm, such as that of tests/http_wasm_guests")
    parser.add_argument("--http-wasm-path", default="/guest/hello", help="what it is asked for; default: %(default)s")
    parser.add_argument("--loop", help="a path of the component that never ends, such as /loop of tests/guests")
    parser.add_argument("--loops", type=int, default=1, help="how many at a time; default: %(default)s")


def run(bench):
    path = bench.tree.add("1k.html", FILE_BYTES)
    [ours] = servers.named([servers.OURS], bench.arguments.tailcoat)
    command = ours.command.removesuffix(servers.TAILCOAT_OPTIONS) + servers.TAILCOAT_CONFIG_OPTIONS

    def server(name, module, module_path, reset="fresh"):
        fill = {"module": module, "path": module_path, "reset": reset}
        return dataclasses.replace(ours, name=name, command=command, config=CONFIG, fill=fill)

    arguments, modules, paths = bench.arguments, [], {"file": path}
    if arguments.component:
        modules.append(server("component", arguments.component, arguments.component_path))
        paths["component"] = arguments.component_path
    if arguments.http_wasm:
        for reset in ("fresh", "memory", "none"):
            modules.append(server(f"http-wasm-{reset}", arguments.http_wasm, arguments.http_wasm_path, reset))
            paths[f"http-wasm-{reset}"] = arguments.http_wasm_path
    if modules:
        run_beside_file(bench, path, modules, paths)
    if arguments.component and arguments.loop:
        run_disturbed(bench, server("", arguments.component, arguments.loop), path)


def run_beside_file(bench, path, modules, paths):
    bench.servers = [dataclasses.replace(modules[0], name="file"), *modules]

    def measure(running, seconds, _):
        return client.run_wrk(running, paths[running.name], client.Load(connections=64, seconds=seconds))

    comparison = paired.compare(bench, path, measure)
    bench.report.add_comparison("modules beside a file of 1 KiB, 64 connections", comparison)
    for name, limit in ABOVE_FILE_MAX_US.items():
        if name in comparison.samples:
            pairs = zip(comparison.samples[name], comparison.samples["file"])
            above = statistics.median(module["cpu_us"] - file["cpu_us"] for module, file in pairs)
            bench.report.mark(f"{name}: us above a file of 1 KiB", above, limit)


def run_disturbed(bench, server, path):
    bench.servers = [dataclasses.replace(server, name=name) for name in ("undisturbed", "disturbed")]

    def measure(running, seconds, _):
        with contextlib.ExitStack() as stack:
            if running.name == "disturbed":
                for _ in range(bench.arguments.loops):
                    stack.enter_context(looping(running.port, bench.arguments.loop))
            return client.run_wrk(running, path, client.Load(connections=64, seconds=seconds))

    comparison = paired.compare(bench, path, measure)
    bench.report.add_comparison(f"file of 1 KiB beside {bench.arguments.loops} modules that loop", comparison)
    ratio = comparison.ratio("disturbed", "undisturbed", "latency_us.p99")
    bench.report.mark("file beside a loop: 99th percentile / undisturbed", ratio, UNDISTURBED_MAX)


@contextlib.contextmanager
def looping(port, path):
    """A request that is never answered; leaving it ends the module."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield


MODULE = Scenario("module", "WebAssembly modules beside a file of 1 KiB, and a file beside modules that loop", run,
                  servers=(servers.OURS,), rounds=1, slots=6, seconds=1, add_arguments=add_arguments)
