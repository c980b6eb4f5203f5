"""Output of a run: printed tables, and files."""

import dataclasses
import json
import pathlib
import sys
import time

from . import machine, record
from .paired import CLIENT_LIMIT, CONTROL_TOLERANCE
from .record import quartiles
from .servers import OURS, OURS_AGAIN


@dataclasses.dataclass
class Mark:
    """A claim with a number that must hold."""

    text: str
    measured: float
    limit: float
    at_least: bool = False

    def met(self):
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def line(self):
        bound = "at least" if self.at_least else "at most"
        return f"{'met   ' if self.met() else 'MISSED'}  {self.text}: {self.measured:.3g} ({bound} {self.limit:g})"


class Report:
    """Collects the parts of one scenario's run; prints each as it comes."""

    def __init__(self, content):
        """A report with this heading; see `begin`."""
        self._content = content
        self._recorded = []
        described = content["machine"]
        print(f"{content['scenario']}: {described['kernel']}, {described['cpu']}, {described['cores']} cores"
              f"{' (virtual)' if described['virtual'] else ''}, {described['network']}, {described['congestion_control']}")
        for name, server in content["servers"].items():
            print(f"  {name:15} {server['version']}")

    @classmethod
    def begin(cls, scenario, arguments, listed):
        """The report of a run that begins now."""
        return cls({
            "scenario": scenario,
            "command": " ".join(["benches/bench.py", *sys.argv[1:]]),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "arguments": {key: str(argument) for key, argument in vars(arguments).items() if key != "scenario"},
            "machine": machine.describe(),
            "servers": {server.name: {"version": server.version, "command": server.command, "program": server.program_hash()}
                        for server in listed},
            "parts": {}, "marks": [], "void": [], "notes": [],
        })

    def add_comparison(self, part, comparison):
        """The table of a comparison by CPU a response. Marks name it by the same `part`."""
        print(f"\n{part}\n  {'server':15} {'CPU us':>9}  {'x floor (quartiles)':>22}  {'x tailcoat (quartiles)':>22}  {'per second':>10}"
              f"  {'p99 us':>9}  {'errors':>6}")
        for name, results in comparison.samples.items():
            p99 = comparison.median(name, "latency_us.p99")
            print(f"  {name:15} {comparison.median(name, 'cpu_us'):9.2f}  {spread(comparison, name, 'floor'):>22}"
                  f"  {spread(comparison, name, OURS):>22}  {comparison.median(name, 'rate'):10.0f}  {p99:9.0f}"
                  f"  {sum(result['error_count'] for result in results):6}")
        for name, results in comparison.samples.items():
            if retries := sum(result.get("retries", 0) for result in results):
                self.note(f"{part}: {name} closed {retries} kept connections just when a request came; it was sent again")
        busy = [name for name in comparison.samples if comparison.median(name, "client_busy") > CLIENT_LIMIT]
        if busy:
            self.note(f"{part}: the client was the limit (over {CLIENT_LIMIT:.0%} busy) with {', '.join(busy)}: "
                      "their throughput and latency are the client's, their CPU a response is their own")
        self._content["parts"][part] = comparison.samples
        self._content["void"] += [f"{part}: {reason}" for reason in comparison.void]
        samples = {name: [result["cpu_us"] for result in results] for name, results in comparison.samples.items()}
        medians = lambda key: {name: comparison.median(name, key) for name in samples}
        self._recorded.append(record.part(part, "CPU time a response", "us", samples, comparison.void, rates=medians("rate"),
                                          p99s_us=medians("latency_us.p99")))

    def add_part(self, part, content):
        """A part that is no comparison by CPU time, as `--json` writes it; `add_figures` adds its figures to the record."""
        self._content["parts"][part] = content

    def add_figures(self, part, what, unit, samples, at_least=False):
        """Figures of a part for the record: server name -> numbers. Servers that took turns have as many numbers each."""
        self._recorded.append(record.part(part, what, unit, samples, at_least=at_least))

    def mark(self, text, measured, limit, at_least=False, **of):
        mark = Mark(text, measured, limit, at_least)
        self._content["marks"].append({**dataclasses.asdict(mark), "met": mark.met(), **of})
        print(f"  {mark.line()}")

    def mark_ratio(self, part, comparison, name, base, limit, at_least=False):
        """A mark on the median of paired ratios; none if one of the two was not measured."""
        if name in comparison.samples and base in comparison.samples:
            text = f"{part}: {name} / {base}"
            self.mark(text, comparison.ratio(name, base), limit, at_least, part=part, name=name, base=base)

    def note(self, text):
        self._content["notes"].append(text)
        print(f"  note: {text}")

    def void(self, reason):
        self._content["void"].append(reason)

    def check_control(self, part, samples):
        """Voids the run if the two medians of ours differ by more than the tolerance."""
        if OURS in samples and OURS_AGAIN in samples:
            ratio = record.spread(samples[OURS_AGAIN])["median"] / record.spread(samples[OURS])["median"]
            if abs(ratio - 1) > CONTROL_TOLERANCE:
                self.void(f"{part}: control: {OURS} against itself is {ratio:.3f}, more than {CONTROL_TOLERANCE:.0%} off")

    def finish(self, arguments):
        """Writes the files that were asked for; returns the exit status: 1 if the run is void."""
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(self._content, indent=1) + "\n")
        if arguments.record:
            print(f"recorded: {record.write(arguments, self._content, self._recorded)}")
        return self.end()

    def end(self):
        """Prints why the run is void, if it is; returns the exit status."""
        for reason in self._content["void"]:
            print(f"VOID: {reason}", file=sys.stderr)
        return 1 if self._content["void"] else 0


def spread(comparison, name, base):
    """Median and quartiles of the paired ratios."""
    if base not in comparison.samples:
        return "-"
    lower, upper = quartiles(comparison.ratios(name, base))
    return f"{comparison.ratio(name, base):.3f} ({lower:.2f}-{upper:.2f})"


def is_comparison(part):
    """True if the part of a report is samples of servers that took turns."""
    results = next(iter(part.values()), None)
    return isinstance(results, list) and isinstance(results[0], dict) and "cpu_us" in results[0]
