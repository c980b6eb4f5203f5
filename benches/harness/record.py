"""The results file of a run, which BENCHMARKS.md and its charts are drawn from.

A file has one run. Each part of the run has one figure per server: the median and quartiles of its samples. Servers that took
turns also have paired ratios to Tailcoat and to the floor."""

import json
import pathlib
import re
import statistics
import subprocess
import sys

from .servers import OURS, OURS_AGAIN

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
# A run changes no versioned file. A results file that the page must show is copied to benches/results.
RESULTS = REPOSITORY / "target/results"
DEFAULT_TAILCOAT = str(REPOSITORY / "target/programs/tailcoat")
# Options that say where something is on this machine; the recorded command leaves them out.
PLACES = {"--tailcoat", "--tailor", "--peer-root", "--results", "--record", "--commit", "--directory", "--modules", "--json", "--component",
          "--http-wasm", "--wasmtime"}
DIGITS = 4


def quartiles(numbers):
    if len(numbers) < 2:
        return numbers[0], numbers[0]
    lower, _, upper = statistics.quantiles(numbers, n=4, method="inclusive")
    return lower, upper


def spread(numbers):
    """Median and quartiles."""
    lower, upper = quartiles(numbers)
    return {"median": rounded(statistics.median(numbers)), "lower": rounded(lower), "upper": rounded(upper)}


def rounded(number):
    """Four significant digits; None if there is no number."""
    return float(f"{number:.{DIGITS}g}") if number == number and abs(number) != float("inf") else None


def part(name, what, unit, samples, void=(), at_least=False, rates=None, p99s_us=None):
    """The record of a part. `samples`: server name -> numbers, in the order of the turns."""
    servers = {}
    for server, numbers in samples.items():
        finite = [number for number in numbers if number is not None and rounded(number) is not None]
        if not finite:
            continue
        servers[server] = {**spread(finite), "samples": [rounded(number) for number in finite]}
        for key, base in (("ratio", OURS), ("of_floor", "floor")):
            if base in samples and server != base and len(samples[base]) == len(finite) and all(samples[base]):
                servers[server][key] = spread([a / b for a, b in zip(finite, samples[base])])
        for key, values in (("per_second", rates), ("p99_us", p99s_us)):
            if values:
                servers[server][key] = rounded(values[server])
    control = servers.get(OURS_AGAIN, {}).get("ratio", {}).get("median")
    return {"part": name, "what": what, "unit": unit, "better": "more" if at_least else "less",
            "turns": max((len(numbers) for numbers in samples.values()), default=0), "control": control, "void": list(void), "servers": servers}


def command(words):
    """The command without the places of this machine."""
    kept, skips = [], False
    for word in words:
        if skips and not word.startswith("--"):
            skips = False
            continue
        skips = word.split("=")[0] in PLACES
        if not skips:
            kept.append(re.sub(r"=\S*/\S+", "=...", word))
        skips = skips and "=" not in word
    return " ".join(["benches/bench.py", *kept])


def built_commit(tailcoat):
    """The commit of the optimized build: that of the working tree, with `-dirty` if a crate differs from it."""
    if tailcoat != DEFAULT_TAILCOAT:
        return "unknown"
    run = lambda *words: subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    commit = run("rev-parse", "--short=10", "HEAD") or "unknown"
    return f"{commit}-dirty" if run("status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock") else commit


def write(arguments, content, parts):
    """Writes the file of a run; returns its path."""
    record = {
        "name": arguments.record,
        "scenario": content["scenario"],
        "command": command(sys.argv[1:]),
        "commit": arguments.commit or built_commit(arguments.tailcoat),
        "started": content["started"],
        "machine": content["machine"],
        "servers": {name: {key: server[key] for key in ("version", "program")} for name, server in content["servers"].items()},
        "parts": parts,
        "marks": [{key: number_or_text(value) for key, value in mark.items()} for mark in content["marks"]],
        "void": content["void"],
        "notes": content["notes"],
        "attempts": 1,
    }
    path = pathlib.Path(arguments.results) / f"{arguments.record}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, record)
    return path


def number_or_text(value):
    return rounded(value) if isinstance(value, float) else value


def save(path, record):
    """Indented, but each list of numbers on one line."""
    text = json.dumps(record, indent=1, allow_nan=False)
    path.write_text(re.sub(r"\[[-\d.e+,\s]+\]", lambda match: f"[{', '.join(match[0][1:-1].replace(',', ' ').split())}]", text) + "\n")
