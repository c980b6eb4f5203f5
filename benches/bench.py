#!/usr/bin/env python3
"""Measures Tailcoat beside its peers. One scenario a run; each is a row of the table in BENCHMARKS.md.

  benches/bench.py keepalive-1k                       one scenario, with the release build
  benches/bench.py sizes --rounds 3 --size 1MiB       shorter, or a part
  benches/bench.py close --servers floor,tailcoat     fewer servers
  benches/bench.py keepalive-1k --servers tailcoat,old='/tmp/old/tailcoat'
  benches/bench.py pool one.json two.json             several runs as one, from what --json wrote

The server is pinned to core 0, the clients to core 1. Turns alternate (A B B A), ratios are taken within a turn, and
`tailcoat-again` is the control: if tailcoat differs from itself by more than 3 %, or any response was wrong, the run is
void and ends with status 1. Needs root (control groups), a C compiler, taskset and the named peers.
"""

import argparse
import pathlib
import signal
import sys

import scenarios
from harness import network, pool, report, servers, tree

DEFAULT_TAILCOAT = str(pathlib.Path(__file__).resolve().parent.parent / "target/release/tailcoat")


class Bench:
    """What a scenario gets: its arguments, the servers, a tree to fill, and the report."""

    def __init__(self, arguments, listed, files, reporting):
        self.arguments, self.servers, self.tree, self.report = arguments, listed, files, reporting


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for scenario in scenarios.ALL:
        summary = scenario.summary.replace("%", "%%")  # argparse fills in what stands behind one.
        command = commands.add_parser(scenario.name, help=summary, description=summary)
        command.add_argument("--servers", default=",".join(scenario.servers), metavar="NAME[=COMMAND],...",
                             help="default: %(default)s; a COMMAND without {port} gets the options of `tailcoat serve`")
        command.add_argument("--tailcoat", default=DEFAULT_TAILCOAT, metavar="COMMAND", help="default: the release build")
        command.add_argument("--rounds", type=int, default=scenario.rounds, help="how often servers are started; default: %(default)s")
        command.add_argument("--slots", type=int, default=scenario.slots, help="turns in a round; default: %(default)s")
        command.add_argument("--seconds", type=float, default=scenario.seconds, help="a turn of a server; default: %(default)s")
        command.add_argument("--directory", help="where the files to serve are made; default: the system's temporary directory")
        command.add_argument("--congestion", default=network.DEFAULT, metavar="NAME",
                             help=f"congestion control; `{network.SYSTEM}`: as the machine has it; default: %(default)s, as Linux has it")
        command.add_argument("--json", metavar="FILE", help="write everything that was measured")
        scenario.add_arguments(command)
    pooling = commands.add_parser("pool", help="runs of one scenario with the same programs, put together")
    pooling.add_argument("files", nargs="+", metavar="FILE", help="what --json of these runs wrote; all of them")
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that servers, groups and files are cleaned up.
    arguments = parse_arguments()
    if arguments.scenario == "pool":
        sys.exit(pool.run(arguments.files))
    network.enter(arguments.congestion)
    scenario = next(scenario for scenario in scenarios.ALL if scenario.name == arguments.scenario)
    listed = servers.named(arguments.servers.split(","), arguments.tailcoat)
    with tree.temporary(arguments.directory) as files:
        reporting = report.Report.begin(scenario.name, arguments, listed)
        scenario.run(Bench(arguments, listed, files, reporting))
    sys.exit(reporting.finish(arguments.json))


if __name__ == "__main__":
    main()
