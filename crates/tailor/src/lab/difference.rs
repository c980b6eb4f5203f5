//! Two recorded runs beside each other: two versions, two kernels, two machines.

use std::fmt::Write;

use super::report::{CompareReport, Measurement, ServerResult};
use super::statistics::unpaired_ratio;

/// What changed from the old run to the new one; and whether they may be compared at all.
pub(super) fn describe(old: &CompareReport, new: &CompareReport) -> (String, bool) {
    let mut out = String::new();
    let obstacles = obstacles(old, new);
    if !obstacles.is_empty() {
        for obstacle in obstacles {
            let _ = writeln!(out, "May not be compared: {obstacle}");
        }
        return (out, false);
    }
    for difference in old.environment.differences(&new.environment) {
        let _ = writeln!(out, "Differs: {difference}");
    }
    for (before, after) in old.servers.iter().filter_map(|a| Some((a, new.servers.iter().find(|b| b.name == a.name)?)))
    {
        if before.version != after.version {
            let _ = writeln!(out, "Differs: {}: {} -> {}", before.name, before.version, after.version);
        }
        if (&before.files, &before.command) != (&after.files, &after.command) {
            let _ = writeln!(out, "Differs: {}: its settings", before.name);
        }
    }
    if old.tailor_version != new.tailor_version {
        let _ = writeln!(out, "Differs: tailor {} -> {}", old.tailor_version, new.tailor_version);
    }
    out.push_str("The more of these there are, the less a change can be laid to one of them.\n\n");
    for (before, after) in old.steps.iter().zip(&new.steps) {
        if let Some(value) = &before.value {
            let _ = writeln!(out, "{value}:");
        }
        for server in &before.servers {
            if let Some(other) = after.servers.iter().find(|other| other.name == server.name) {
                write_change(&mut out, server, other);
            }
        }
    }
    (out, true)
}

/// Why a comparison would say nothing.
fn obstacles(old: &CompareReport, new: &CompareReport) -> Vec<String> {
    let mut found = Vec::new();
    if old.format_version != new.format_version {
        found.push("the records have different forms".to_owned());
    }
    if old.lab != new.lab || old.lab_text != new.lab_text {
        found.push(format!("the labs differ ({}, {}): not the same load", old.lab, new.lab));
    }
    if old.duration_seconds != new.duration_seconds {
        found.push("the loads ran for different times".to_owned());
    }
    let values = |report: &CompareReport| report.steps.iter().map(|step| step.value.clone()).collect::<Vec<_>>();
    if values(old) != values(new) {
        found.push("the sweeps have different values".to_owned());
    }
    for (name, report) in [("old", old), ("new", new)] {
        if report.interrupted {
            found.push(format!("the {name} run was broken off"));
        }
    }
    found
}

/// Something that was measured.
type Quantity<'a> = &'a dyn Fn(&Measurement) -> f64;

fn write_change(out: &mut String, old: &ServerResult, new: &ServerResult) {
    let rate = |it: &Measurement| it.loads.first().map_or(0.0, |load| load.served_per_second);
    let p99 = |it: &Measurement| it.loads.first().map_or(0.0, |load| load.p99_nanos as f64);
    let rows: [(&str, Quantity<'_>); 4] = [
        ("us/request", &Measurement::processor_micros_per_request),
        ("served/s", &rate),
        ("p99", &p99),
        ("memory", &|it: &Measurement| it.memory_bytes_max as f64),
    ];
    let _ = writeln!(out, "  {}", old.name);
    for (name, value) in rows {
        let (before, after) = (old.values(value), new.values(value));
        if before.is_empty() || after.is_empty() {
            continue;
        }
        let ratio = unpaired_ratio(&after, &before);
        let verdict = if ratio.low > 1.0 || ratio.high < 1.0 { "" } else { "  (no difference shown)" };
        let _ = writeln!(out, "    {name:<12} x {:.3} [{:.3} - {:.3}]{verdict}", ratio.median, ratio.low, ratio.high);
    }
}
