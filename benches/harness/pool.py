"""Runs of the same scenario put together. A machine that can be had for minutes at a time gives many short runs, whose turns
count alike: all of a run are taken or none, and none may be left out for what it says."""

import json
import pathlib

from .paired import Comparison, reasons_to_void
from .report import Report, is_comparison

# Arguments that may differ between runs: their length, and paths.
MAY_DIFFER = {"rounds", "slots", "seconds", "json", "directory", "part", "connections", "size"}


def run(files):
    """Prints the report of all runs together; the exit status, as of one run."""
    runs = [json.loads(pathlib.Path(file).read_text()) for file in files]
    first, *others = runs
    for file, other in zip(files[1:], others):
        if differing := difference(first, other):
            raise SystemExit(f"{file} is no run of the same as {files[0]}: {differing}")
    report = Report({**first, "parts": {}, "marks": [], "void": [], "notes": [], "pooled": len(runs)})
    for part in dict.fromkeys(part for run in runs for part, content in run["parts"].items() if is_comparison(content)):
        having = [run["parts"][part] for run in runs if part in run["parts"]]
        names = [name for name in having[0] if all(name in samples for samples in having)]
        comparison = Comparison(samples := {name: sum((one[name] for one in having), []) for name in names}, reasons_to_void(samples))
        report.add_comparison(f"{part}, of {len(having)} runs, {len(samples[names[0]])} turns", comparison)
        marks = {mark["text"]: mark for run in runs for mark in run["marks"] if mark.get("part") == part}
        for mark in marks.values():
            report.mark_ratio(part, comparison, mark["name"], mark["base"], mark["limit"], mark["at_least"])
    return report.end()


def difference(one, other):
    """First difference that keeps two runs from being pooled; None if there is none."""
    for key in ("scenario", "machine"):
        if one[key] != other[key]:
            return f"{key} {other[key]}"
    for name in one["servers"].keys() & other["servers"].keys():
        if one["servers"][name]["program"] != other["servers"][name]["program"]:
            return f"server {name} is another build"
    for key in one["arguments"].keys() - MAY_DIFFER - {"servers"}:
        if one["arguments"][key] != other["arguments"].get(key):
            return f"--{key} {other['arguments'].get(key)}"
    return None
