"""Comparison in alternating rounds: A B B A, ratios only within a round, and a control of ourselves against ourselves."""

import dataclasses
import statistics

from . import servers
from .servers import OURS, OURS_AGAIN

CONTROL_TOLERANCE = 0.03
CLIENT_LIMIT = 0.9


@dataclasses.dataclass
class Comparison:
    """Samples of all rounds by server, and what makes the run void."""

    samples: dict
    """Server name -> results of clients/load.c, one a round, each with `cpu_us` a response added."""
    void: list
    """Reasons; none: the run counts."""

    def median(self, name, key):
        return statistics.median(value(sample, key) for sample in self.samples[name])

    def ratios(self, name, base, key="cpu_us"):
        """name / base, round by round."""
        return [value(a, key) / value(b, key) for a, b in zip(self.samples[name], self.samples[base])]

    def ratio(self, name, base, key="cpu_us"):
        return statistics.median(self.ratios(name, base, key))


def value(sample, key):
    for part in key.split("."):
        sample = sample[part]
    return sample


def alternate(listed, rounds, measure):
    """Calls measure(server) for each server in each round, forwards and backwards in turn."""
    samples = {server.name: [] for server in listed}
    for number in range(rounds):
        for server in listed if number % 2 == 0 else reversed(listed):
            samples[server.name].append(measure(server))
    return samples


def compare(listed, rounds, tree, path, measure, body_bytes=None):
    """Measures each server freshly started. `measure` takes a running server and returns a result of clients/load.c.
    With `body_bytes` responses are counted by bytes: of large ones, many are under way when the time is over."""

    def measure_fresh(server):
        with servers.running(server, tree, path) as running:
            result = measure(running)
        responses = result["body_bytes"] / body_bytes if body_bytes else result["responses"]
        result["cpu_us"] = result["server_cpu_us"] / max(responses, 1)
        result["rate"] = responses / result["seconds"]
        result["error_count"] = sum(result["errors"].values())
        result["client_busy"] = result.get("client_cpu_us", 0) / 1e6 / result["seconds"]
        return result

    samples = alternate(listed, rounds, measure_fresh)
    return Comparison(samples, reasons_to_void(samples))


def reasons_to_void(samples):
    reasons = []
    for name, results in samples.items():
        errors = sum(result["error_count"] for result in results)
        if errors:
            reasons.append(f"{name}: {errors} wrong or missing responses: {[result['errors'] for result in results]}")
        if min(result["responses"] for result in results) == 0:
            reasons.append(f"{name}: a round without a response")
    if OURS in samples and OURS_AGAIN in samples and not reasons:
        control = Comparison(samples, []).ratio(OURS_AGAIN, OURS)
        if abs(control - 1) > CONTROL_TOLERANCE:
            reasons.append(f"control: tailcoat against itself is {control:.3f}, more than {CONTROL_TOLERANCE:.0%} off")
    return reasons
