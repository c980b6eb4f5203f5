"""Comparison in alternating slots: A B B A, ratios only within a turn, and a control of ourselves against ourselves."""

import contextlib
import dataclasses
import statistics

from . import servers
from .servers import OURS, OURS_AGAIN

CONTROL_TOLERANCE = 0.03
CLIENT_LIMIT = 0.9


@dataclasses.dataclass
class Comparison:
    """Samples of all turns by server, and what makes the run void."""

    samples: dict
    """Server name -> results of `tailor`, one a turn, each with `cpu_us` a response added."""
    void: list
    """Reasons; none: the run counts."""

    def median(self, name, key):
        return statistics.median(value(sample, key) for sample in self.samples[name])

    def ratios(self, name, base, key="cpu_us"):
        """name / base, turn by turn."""
        return [value(a, key) / value(b, key) for a, b in zip(self.samples[name], self.samples[base])]

    def ratio(self, name, base, key="cpu_us"):
        return statistics.median(self.ratios(name, base, key))


def value(sample, key):
    for part in key.split("."):
        sample = sample[part]
    return sample


def compare(bench, path, measure, body_bytes=None, warm_up_seconds=0.5, control=(OURS, OURS_AGAIN)):
    """Measures the servers in turn, in short slots: a virtual machine changes its speed within seconds (its cores come
    to lie nearer together or farther apart), and only what is measured close together can be compared.

    A round starts all servers afresh, warms each up, and then gives each a slot, forwards and backwards in turn, as often
    as --slots says; those that are not being measured are idle. `measure` takes a running server, a number of seconds and
    a seed, and returns a result of `tailor`. With `body_bytes` responses are counted by bytes: of large ones, many
    are under way when the time is over. `control` names the two servers that are the same."""
    arguments = bench.arguments
    samples = {server.name: [] for server in bench.servers}
    for number in range(arguments.rounds):
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(servers.running(server, bench.tree, path)) for server in bench.servers]
            for running in started:
                measure(running, warm_up_seconds, 0)
            for slot in range(arguments.slots):
                for running in started if slot % 2 == 0 else reversed(started):
                    seed = number * arguments.slots + slot + 1
                    samples[running.name].append(with_rates(measure(running, arguments.seconds, seed), body_bytes))
    return Comparison(samples, reasons_to_void(samples, control))


def with_rates(result, body_bytes):
    responses = result["body_bytes"] / body_bytes if body_bytes else result["responses"]
    result["cpu_us"] = result["server_cpu_us"] / max(responses, 1)
    result["rate"] = responses / result["seconds"]
    result["error_count"] = sum(result["errors"].values())
    result["client_busy"] = result.get("client_cpu_us", 0) / 1e6 / result["seconds"]
    return result


def reasons_to_void(samples, control=(OURS, OURS_AGAIN)):
    reasons = []
    for name, results in samples.items():
        errors = sum(result["error_count"] for result in results)
        if errors:
            kinds = {kind: sum(result["errors"][kind] for result in results) for kind in results[0]["errors"]}
            reasons.append(f"{name}: {errors} wrong or missing responses: {kinds}")
        if min(result["responses"] for result in results) == 0:
            reasons.append(f"{name}: a slot without a response")
    ours, again = control
    if ours in samples and again in samples and not reasons:
        ratio = Comparison(samples, []).ratio(again, ours)
        if abs(ratio - 1) > CONTROL_TOLERANCE:
            reasons.append(f"control: {ours} against itself is {ratio:.3f}, more than {CONTROL_TOLERANCE:.0%} off")
    return reasons
