#!/usr/bin/env python3
"""Measures Tailcoat beside its peers. BENCHMARKS.md shows the results files in benches/results.

    benches/bench.py keepalive-1k                       one scenario, with the optimized build
    benches/bench.py sizes --rounds 3 --size 1MiB       shorter, or one part
    benches/bench.py close --servers floor,tailcoat     fewer servers
    benches/bench.py keepalive-1k --servers tailcoat,old='/tmp/old/tailcoat'
    benches/bench.py keepalive-1k --peer-root DIR       peers of another distribution, unpacked below DIR
    benches/bench.py all --minutes 20                   every row of BENCHMARKS.md that is not recorded yet
    benches/bench.py pool one.json two.json             several runs as one, from what --json wrote

The server is pinned to core 0, the clients to core 1. Turns alternate (A B B A), ratios are taken within a turn, and
`tailcoat-again` is the control: if tailcoat differs from itself by more than 3 %, or any response was wrong, the run is
void and ends with status 1. Needs root (control groups), a C compiler for the floor, taskset and the named peers.
"""

import argparse
import signal
import sys

import rows
import scenarios
from harness import client, network, pool, record, report, servers, tree


class Bench:
    """Arguments, servers, tree to fill and report of a scenario."""

    def __init__(self, arguments, listed, files, reporting):
        self.arguments, self.servers, self.tree, self.report = arguments, listed, files, reporting


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for scenario in scenarios.ALL:
        summary = scenario.summary.replace("%", "%%")  # argparse expands it.
        command = commands.add_parser(scenario.name, help=summary, description=summary)
        command.add_argument("--servers", default=",".join(scenario.servers), metavar="NAME[=COMMAND],...",
                             help="default: %(default)s; a COMMAND without {port} gets the options of `tailcoat serve`")
        command.add_argument("--tailcoat", default=record.DEFAULT_TAILCOAT, metavar="COMMAND", help="default: the optimized build")
        command.add_argument("--tailor", metavar="PROGRAM", help="default: the optimized build")
        command.add_argument("--peer-root", metavar="DIRECTORY", help="a root directory whose peers are preferred to the machine's; they run by chroot")
        command.add_argument("--rounds", type=int, default=scenario.rounds, help="how often servers are started; default: %(default)s")
        command.add_argument("--slots", type=int, default=scenario.slots, help="turns in a round; default: %(default)s")
        command.add_argument("--seconds", type=float, default=scenario.seconds, help="length of a server's turn; default: %(default)s")
        command.add_argument("--directory", help="where the files to serve are made; default: the system's temporary directory")
        command.add_argument("--congestion", default=network.DEFAULT, metavar="NAME",
                             help=f"congestion control; `{network.SYSTEM}`: the machine's; default: %(default)s, Linux's default")
        command.add_argument("--json", metavar="FILE", help="write every sample to this file")
        command.add_argument("--record", nargs="?", const=scenario.name, metavar="NAME",
                             help="write the results file NAME.json; default: the scenario's name")
        command.add_argument("--results", metavar="DIRECTORY", default=str(record.RESULTS), help="where results files are written; default: target/results")
        command.add_argument("--commit", help="the commit of the measured build; default: that of the working tree, for the optimized build")
        scenario.add_arguments(command)
    pooling = commands.add_parser("pool", help="several runs of one scenario with the same programs as one run")
    pooling.add_argument("files", nargs="+", metavar="FILE", help="what --json of each run wrote")
    rows.add_arguments(commands.add_parser("all", help="run and record every row of BENCHMARKS.md", description=rows.__doc__,
                                           formatter_class=argparse.RawDescriptionHelpFormatter))
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that servers, groups and files are cleaned up.
    arguments = parse_arguments()
    if arguments.scenario == "pool":
        sys.exit(pool.run(arguments.files))
    if arguments.scenario == "all":
        sys.exit(rows.run_all(arguments))
    if arguments.tailor:
        client.use_tailor(arguments.tailor)
    network.enter(arguments.congestion)
    scenario = next(scenario for scenario in scenarios.ALL if scenario.name == arguments.scenario)
    listed = servers.named(arguments.servers.split(","), arguments.tailcoat, arguments.peer_root if scenario.enters_peer_root else None)
    with tree.temporary(arguments.directory) as files:
        reporting = report.Report.begin(scenario.name, arguments, listed)
        scenario.run(Bench(arguments, listed, files, reporting))
    sys.exit(reporting.finish(arguments))


if __name__ == "__main__":
    main()
