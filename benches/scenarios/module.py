"""WebAssembly modules beside a file of 1 KiB: a component with a fresh instance per request, and with a reused one;
http-wasm with each reset; and the file while modules loop.

The client is wrk, because responses of modules are not in the tree."""

import contextlib
import dataclasses
import shutil
import socket
import statistics

from harness import client, paired, servers
from .scenario import Scenario

CONFIG = (servers.PEERS / "tailcoat-module.kdl").read_text()
FILE_BYTES = 1024
ABOVE_FILE_MAX_US = {"component": 15, "http-wasm-none": 1.0}
# With a worker for its core, as ours, and with what makes it quickest.
WASMTIME_COMMAND = ("{wasmtime} serve --addr 127.0.0.1:{{port}} -O pooling-allocator,pooling-memory-keep-resident=65536,"
                    "pooling-table-keep-resident=65536,pooling-pagemap-scan=auto -S cli {{module}}")
WASMTIME_MARK = 1.5
UNDISTURBED_MAX = 1.5


def add_arguments(parser):
    parser.add_argument("--component", help="a component (`tailcoat module new` makes one)")
    parser.add_argument("--component-path", default="/module/", help="what it is asked for; default: %(default)s")
    parser.add_argument("--http-wasm", help="a module of http-wasm, such as that of tests/http_wasm_guests")
    parser.add_argument("--http-wasm-path", default="/guest/hello", help="what it is asked for; default: %(default)s")
    parser.add_argument("--wasmtime", default="wasmtime", metavar="PROGRAM", help="for `wasmtime serve`, a peer; default: %(default)s")
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
        modules.append(server("component-none", arguments.component, arguments.component_path, "none"))
        modules += others(bench, modules[0])
        paths |= {module.name: arguments.component_path for module in modules}
    if arguments.http_wasm:
        for reset in ("fresh", "memory", "none"):
            modules.append(server(f"http-wasm-{reset}", arguments.http_wasm, arguments.http_wasm_path, reset))
            paths[f"http-wasm-{reset}"] = arguments.http_wasm_path
    if modules:
        modules.append(dataclasses.replace(modules[0], name=f"{modules[0].name}-again"))
        paths[modules[-1].name] = paths[modules[0].name]
        run_beside_file(bench, path, modules, paths)
    if arguments.component and arguments.loop:
        run_disturbed(bench, server("", arguments.component, arguments.loop), path)


def others(bench, ours):
    """Other servers that run the component: `wasmtime serve` and other builds of ours, if they are installed."""
    wasmtime = bench.arguments.wasmtime
    if shutil.which(wasmtime):
        bench.report.note(f"wasmtime-serve: {servers.first_line(f'{wasmtime} --version')}")
        yield servers.Server("wasmtime-serve", WASMTIME_COMMAND.format(wasmtime=wasmtime), fill=ours.fill)
    else:
        bench.report.note(f"`{wasmtime}` is not there: `wasmtime serve` is left out")
    for server in bench.servers:
        if server.name != servers.OURS:
            command = server.command.removesuffix(servers.TAILCOAT_OPTIONS) + servers.TAILCOAT_CONFIG_OPTIONS
            yield dataclasses.replace(ours, name=f"component-{server.name}", command=command)


def run_beside_file(bench, path, modules, paths):
    bench.servers = [dataclasses.replace(modules[0], name="file"), *modules]

    def measure(running, seconds, _):
        return client.run_wrk(running, paths[running.name], client.Load(connections=64, seconds=seconds))

    part = "modules beside a file of 1 KiB, 64 connections"
    comparison = paired.compare(bench, path, measure, control=(modules[0].name, modules[-1].name))
    bench.report.add_comparison(part, comparison)
    bench.report.mark_ratio(part, comparison, "wasmtime-serve", "component", WASMTIME_MARK, at_least=True)
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
    ratios = comparison.ratios("disturbed", "undisturbed", "latency_us.p99")
    ratio = statistics.median(ratios)
    bench.report.add_figures("beside a loop", "p99 of a file beside a module that loops / undisturbed", "x", {servers.OURS: ratios})
    bench.report.mark("file beside a loop: 99th percentile / undisturbed", ratio, UNDISTURBED_MAX)


@contextlib.contextmanager
def looping(port, path):
    """A request that is never answered; leaving it ends the module."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield


MODULE = Scenario("module", "WebAssembly modules beside a file of 1 KiB, and a file beside modules that loop", run,
                  servers=(servers.OURS,), rounds=1, slots=6, seconds=1, add_arguments=add_arguments)
