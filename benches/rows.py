"""The rows of BENCHMARKS.md: runs and records them one after another.

You can interrupt the command and start it again: rows that are recorded for this build are left out. A void run is repeated
up to twice. If it stays void, the last run is kept, and the page says so. With `--minutes`, no row starts that would
probably not end in time."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import time

from harness import record, servers

ATTEMPTS_MAX = 3
TO_REPEAT = "void, to be repeated"
BENCH = pathlib.Path(__file__).resolve().parent / "bench.py"


@dataclasses.dataclass(frozen=True)
class Row:
    """A run that the page shows."""

    name: str
    """Name of its results file."""
    words: tuple
    """Scenario and options."""
    seconds: int
    """Estimated duration."""
    needs: str = ""
    """Option of `all` that it needs."""


def row(name, words, seconds, needs=""):
    return Row(name, tuple(words.split()), seconds, needs)


ALL = (
    row("keepalive-64", "keepalive-1k --connections 64 --rounds 2", 75),
    row("forwarding-1KiB", "forwarding --part 1KiB", 50),
    row("tls-keep-alive", "tls --part keep-alive", 40),
    row("http2-8x64", "http2 --part 8x64", 45),
    row("http2-64x1", "http2 --part 64x1", 45),
    row("sizes-16KiB", "sizes --size 16KiB --rounds 1", 60),
    row("sizes-100KiB", "sizes --size 100KiB --rounds 1", 60),
    row("sizes-1MiB", "sizes --size 1MiB --rounds 2", 90),
    row("idle", "idle --rounds 1 --servers tailcoat,nginx,h2o,apache,caddy", 90),
    row("fastcgi", "scripts --part fastcgi", 50),
    row("keepalive-512", "keepalive-1k --connections 512 --rounds 1", 45),
    row("pipelined", "pipelined --rounds 1", 45),
    row("close", "close --rounds 1", 45),
    row("ten", "ten --rounds 1", 45),
    row("mixed-conditional", "mixed-conditional --rounds 1", 40),
    row("absent-404", "absent --part 404", 35),
    row("absent-fallback", "absent --part fallback", 35),
    row("bots", "bots --part requests", 35),
    row("bots-tarpit", "bots --part tarpit", 35),
    row("forwarding-64KiB", "forwarding --part 64KiB --rounds 1", 35),
    row("forwarding-10MiB", "forwarding --part 10MiB --rounds 1 --seconds 1", 70),
    row("forwarding-upload", "forwarding --part upload --rounds 1 --slots 4", 50),
    row("forwarding-latency", "forwarding --part latency --servers tailcoat,nginx-proxy,haproxy,haproxy-unlogged,tailcoat-again", 50),
    row("forwarding-cached", "forwarding --part cached", 30),
    row("compression", "compression", 220),
    row("forward-auth", "forward-auth", 35),
    row("disk-cache", "disk-cache --rounds 1 --slots 16", 100),
    row("tls-handshake-p256", "tls --part handshake-p256", 40),
    row("tls-handshake-x25519", "tls --part handshake-x25519", 40),
    row("tls-resumed", "tls --part resumed", 40),
    row("http2-16KiB", "http2 --part 16KiB", 45),
    row("http2-1MiB", "http2 --part 1MiB", 45),
    row("http3-8x64", "http3 --part 8x64", 60),
    row("http3-64x1", "http3 --part 64x1", 60),
    row("http3-16KiB", "http3 --part 16KiB", 60),
    row("http3-1MiB", "http3 --part 1MiB", 60),
    row("http3-handshake", "http3 --part handshake", 60),
    row("http3-resumed", "http3 --part resumed", 60),
    row("http3-early", "http3 --part early", 60),
    row("http3-flood", "http3-flood", 70),
    row("cgi", "scripts --part cgi --rounds 1", 30),
    row("module", "module", 60, "component"),
    row("module-http-wasm", "module", 60, "http_wasm"),
    row("web99", "web99 --slots 6", 100, "modules"),
    row("idle-tls", "idle-tls --rounds 1", 90),
    row("sizes-100MiB", "sizes --size 100MiB --rounds 1 --slots 4 --seconds 1.5", 90),
    row("slow-readers", "slow-readers --slots 6 --servers tailcoat,nginx", 90),
    row("start", "start --servers floor,tailcoat,nginx,h2o,apache", 30),
    row("page", "page", 70),
    row("page-loss", "page-loss", 240),
    row("zipf", "zipf-tree --rounds 1 --servers tailcoat,nginx,h2o,caddy,tailcoat-again", 120),
    row("cold-disk", "cold-disk", 120),
    row("overload-static", "overload --part static --seconds 20 --servers tailcoat,nginx,h2o", 130),
    row("overload-proxy", "overload --part proxy --seconds 20", 170),
)


def add_arguments(parser):
    parser.add_argument("--minutes", type=float, help="start no row that would probably not end by then; default: no limit")
    parser.add_argument("--rows", nargs="+", choices=[each.name for each in ALL], metavar="NAME", help="default: all; `--list` names them")
    parser.add_argument("--list", action="store_true", help="show what is recorded, and run nothing")
    parser.add_argument("--again", action="store_true", help="run rows again that are recorded")
    parser.add_argument("--tailcoat", default=record.DEFAULT_TAILCOAT, metavar="PROGRAM", help="default: the optimized build")
    parser.add_argument("--tailor", metavar="PROGRAM", help="default: the optimized build")
    parser.add_argument("--commit", help="the commit of both; default: that of the working tree, for the optimized build")
    parser.add_argument("--peer-root", metavar="DIRECTORY", help="a root directory whose peers are preferred to the machine's; they run by chroot")
    parser.add_argument("--results", default=str(record.RESULTS), metavar="DIRECTORY", help="default: target/results")
    parser.add_argument("--component", metavar="FILE", help="the component of the row `module` (`tailcoat module new`, then build it)")
    parser.add_argument("--http-wasm", metavar="FILE", help="the module of the row `module-http-wasm` (built from tests/http_wasm_guests)")
    parser.add_argument("--modules", metavar="DIRECTORY", help="for the row `web99`: where `cargo xtask modules web99 web99-filter` puts modules")


def run_all(arguments):
    """Runs what is missing; the exit status: 1 if a row is void or failed."""
    deadline = time.monotonic() + arguments.minutes * 60 if arguments.minutes else None
    chosen = [each for each in ALL if not arguments.rows or each.name in arguments.rows]
    build = servers.program_hash(arguments.tailcoat)
    states = {}
    for each in chosen:
        state = states[each.name] = recorded_state(arguments, each, build)
        if arguments.list or (state in ("recorded", "void") and not arguments.again):
            continue
        if each.needs and not getattr(arguments, each.needs):
            states[each.name] = f"left out: needs --{each.needs.replace('_', '-')}"
        elif deadline and time.monotonic() + each.seconds > deadline:
            states[each.name] = f"not started: needs about {each.seconds} s"
        else:
            states[each.name] = measure(arguments, each, state, deadline)
    print("\n" + "".join(f"{name:22} {state}\n" for name, state in states.items()), end="")
    return 1 if any(state.startswith(("void", "failed")) for state in states.values()) else 0


def recorded_state(arguments, each, build):
    path = pathlib.Path(arguments.results, f"{each.name}.json")
    if not path.exists():
        return "missing"
    recorded = json.loads(path.read_text())
    if recorded["servers"][servers.OURS]["program"] != build:
        return "recorded of another build"
    if recorded["void"]:
        return "void" if recorded["attempts"] >= ATTEMPTS_MAX else TO_REPEAT
    return "recorded"


def measure(arguments, each, state, deadline):
    """Runs a row, again if it is void; how it ended. Attempts of earlier calls count."""
    path = pathlib.Path(arguments.results, f"{each.name}.json")
    earlier = json.loads(path.read_text()) if state == TO_REPEAT else {"attempts": 0}
    voids = [*earlier["void_before"], earlier["void"]] if earlier["attempts"] else []
    for attempt in range(earlier["attempts"] + 1, ATTEMPTS_MAX + 1):
        if voids and deadline and time.monotonic() + each.seconds > deadline:
            return TO_REPEAT
        print(f"\n== {each.name}, attempt {attempt}", flush=True)
        began = time.monotonic()
        status = subprocess.run([sys.executable, str(BENCH), *words(arguments, each)]).returncode
        if not path.exists() or path.stat().st_mtime < time.time() - (time.monotonic() - began):
            return f"failed with status {status}"
        recorded = json.loads(path.read_text())
        recorded["attempts"] = attempt
        recorded["void_before"] = voids
        record.save(path, recorded)
        print(f"== {each.name}: {time.monotonic() - began:.0f} s", flush=True)
        if not recorded["void"]:
            return "recorded"
        voids = voids + [recorded["void"]]
    return "void"


def words(arguments, each):
    """The command line of a row."""
    options = ["--record", each.name, "--results", arguments.results, "--tailcoat", arguments.tailcoat]
    for name in ("peer_root", "commit", "tailor"):
        if value := getattr(arguments, name):
            options += [f"--{name.replace('_', '-')}", value]
    if each.needs:
        options += [f"--{each.needs.replace('_', '-')}", getattr(arguments, each.needs)]
    return [*each.words, *options]
