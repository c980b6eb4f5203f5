//! Comparison of two recorded runs, such as two versions, two kernels or two machines.

use std::fmt::Write;

use super::report::{CompareReport, Measurement, ServerDescription, ServerResult, SweepStep};
use super::statistics::{median, unpaired_ratio};

/// Describes the change from the old run to the new one. Returns false if the runs cannot be compared.
pub(super) fn describe(old: &CompareReport, new: &CompareReport) -> (String, bool) {
    let mut out = String::new();
    let obstacles = obstacles(old, new);
    if !obstacles.is_empty() {
        for obstacle in obstacles {
            let _ = writeln!(out, "Not comparable: {obstacle}");
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
        let settings = |server: &ServerDescription| {
            let commands = [&server.backends[..], &server.helpers, std::slice::from_ref(&server.command)].concat();
            (server.files.clone(), commands)
        };
        if settings(before) != settings(after) {
            let _ = writeln!(out, "Differs: settings of {}", before.name);
        }
    }
    if old.tailor_version != new.tailor_version {
        let _ = writeln!(out, "Differs: tailor {} -> {}", old.tailor_version, new.tailor_version);
    }
    out.push_str("With more than one difference, a change has no single cause.\n\n");
    write_searches(&mut out, old, new);
    for (before, after) in old.steps.iter().zip(&new.steps) {
        if let Some(value) = &before.value {
            let _ = writeln!(out, "{value}:");
        }
        let steps = [("old", old.control_margin, before), ("new", new.control_margin, after)];
        let off = steps.into_iter().find(|(_, margin, step)| !step.is_controlled(*margin));
        if let Some((name, _, SweepStep { control: Some(control), .. })) = off {
            let _ = writeln!(out, "  Not compared: the A/A control of the {name} run is {control} here");
            continue;
        }
        for server in &before.servers {
            if let Some(other) = after.servers.iter().find(|other| other.name == server.name) {
                write_change(&mut out, server, other);
            }
        }
    }
    (out, true)
}

/// Describes the change of the highest values.
fn write_searches(out: &mut String, old: &CompareReport, new: &CompareReport) {
    for before in &old.searches {
        let Some(after) = new.searches.iter().find(|after| after.name == before.name) else { continue };
        let (before_best, after_best) = (median(&before.values()), median(&after.values()));
        let precision = old.search_precision.unwrap_or(0.0);
        let ratio = after_best / before_best.max(f64::MIN_POSITIVE);
        let verdict = if (ratio - 1.0).abs() > precision { "" } else { "  (within the precision of the search)" };
        let name = &before.name;
        let _ = writeln!(out, "  {name:<18} {before_best} -> {after_best}, x {ratio:.3}{verdict}");
    }
}

/// Reasons why the two runs cannot be compared.
fn obstacles(old: &CompareReport, new: &CompareReport) -> Vec<String> {
    let mut found = Vec::new();
    if old.format_version != new.format_version {
        found.push("the records have different format versions".to_owned());
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
    let names = |report: &CompareReport| {
        let ran = report.servers.iter().filter(|server| server.missing.is_none());
        ran.map(|server| server.name.clone()).collect::<Vec<_>>()
    };
    if !names(old).iter().any(|name| names(new).contains(name)) {
        found.push("no server ran in both runs".to_owned());
    }
    for (name, report) in [("old", old), ("new", new)] {
        if report.interrupted {
            found.push(format!("the {name} run was interrupted"));
        }
        let is_controlled_anywhere =
            report.is_controlled() || report.steps.iter().any(|step| step.is_controlled(report.control_margin));
        if let Some(control) = report.control.filter(|_| !is_controlled_anywhere) {
            found.push(format!("the A/A control of the {name} run is {control}: its differences prove nothing"));
        }
    }
    found
}

/// Accessor of a measured quantity.
type MeasuredQuantity<'a> = &'a dyn Fn(&Measurement) -> f64;

fn write_change(out: &mut String, old: &ServerResult, new: &ServerResult) {
    let rate = |it: &Measurement| it.loads.first().map_or(0.0, |load| load.served_per_second);
    let p99 = |it: &Measurement| it.loads.first().map_or(0.0, |load| load.p99());
    let rows: [(&str, MeasuredQuantity<'_>); 4] = [
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
        let verdict = match ratio {
            _ if before.len() == 1 && after.len() == 1 => "  (one round: no interval)",
            _ if ratio.low > 1.0 || ratio.high < 1.0 => "",
            _ => "  (no difference shown)",
        };
        let _ = writeln!(out, "    {name:<12} x {ratio}{verdict}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::SearchResult;
    use super::*;

    /// Builds a run of one server and its control; `micros` is the CPU time per request of each round.
    fn run(micros: &[f64]) -> CompareReport {
        let measurements: Vec<Measurement> = micros
            .iter()
            .map(|micros| Measurement { user_micros_per_request: *micros, ..Measurement::default() })
            .collect();
        let server = |name: &str| ServerResult { name: name.to_owned(), measurements: measurements.clone() };
        let description = ServerDescription {
            name: "a".to_owned(),
            version: "1".to_owned(),
            command: vec!["a".to_owned()],
            helpers: Vec::new(),
            backends: Vec::new(),
            files: Vec::new(),
            missing: None,
        };
        let report = CompareReport {
            format_version: 1,
            tailor_version: "1".to_owned(),
            lab: "lab".to_owned(),
            about: String::new(),
            lab_text: "text".to_owned(),
            start_unix_seconds: 0.0,
            duration_seconds: None,
            environment: super::super::Environment::default(),
            servers: vec![description],
            steps: vec![SweepStep { value: None, servers: vec![server("a"), server("a (again)")], control: None }],
            searches: Vec::new(),
            search_precision: None,
            is_endurance: false,
            interrupted: false,
            control: None,
            control_margin: 0.03,
            passed: false,
        };
        report.judged()
    }

    const MICROS: [f64; 5] = [10.0, 10.1, 9.9, 10.0, 10.05];

    #[test]
    fn what_may_not_be_compared() {
        let check = |change: &dyn Fn(&mut CompareReport), expect: &str| {
            let (old, mut new) = (run(&MICROS), run(&MICROS));
            change(&mut new);
            let (text, is_comparable) = describe(&old, &new);
            assert!(!is_comparable && text.starts_with("Not comparable") && text.contains(expect), "{text}");
        };
        check(&|new| new.format_version = 2, "different format versions");
        check(&|new| new.lab = "other".to_owned(), "the labs differ (lab, other)");
        check(&|new| new.lab_text = "changed".to_owned(), "not the same load");
        check(&|new| new.duration_seconds = Some(1.0), "different times");
        check(&|new| new.steps[0].value = Some("5".to_owned()), "different values");
        check(&|new| new.interrupted = true, "the new run was interrupted");
        check(&|new| new.servers[0].name = "b".to_owned(), "no server ran in both runs");
        check(&|new| new.servers[0].missing = Some("a".to_owned()), "no server ran in both runs");
        let uncontrolled = |new: &mut CompareReport| {
            new.steps[0].servers[1].measurements.iter_mut().for_each(|it| it.user_micros_per_request *= 1.1);
            *new = new.clone().judged();
        };
        check(&uncontrolled, "the A/A control of the new run is 1.100");
    }

    #[test]
    fn a_value_without_control_is_left_out() {
        let with_two = || {
            let mut report = run(&MICROS);
            report.steps =
                ["1", "2"].map(|value| SweepStep { value: Some(value.to_owned()), ..report.steps[0].clone() }).into();
            report.judged()
        };
        let (old, mut new) = (with_two(), with_two());
        new.steps[1].servers[1].measurements.iter_mut().for_each(|it| it.user_micros_per_request *= 1.1);
        let new = new.judged();
        assert!(old.is_controlled() && !new.is_controlled() && !new.passed);
        let (text, is_comparable) = describe(&old, &new);
        let not_compared = "2:\n  Not compared: the A/A control of the new run is 1.100 here\n";
        assert!(
            is_comparable && text.contains("1:\n  a\n    us/request   x 1.000") && text.ends_with(not_compared),
            "{text}"
        );
    }

    #[test]
    fn what_differs() {
        let check = |change: &dyn Fn(&mut CompareReport), expect: &str| {
            let (old, mut new) = (run(&MICROS), run(&MICROS));
            change(&mut new);
            let (text, is_comparable) = describe(&old, &new);
            assert!(is_comparable && text.contains(expect), "{text}");
        };
        check(&|_| {}, "x 1.000");
        check(&|_| {}, "no difference shown");
        check(&|new| new.environment.kernel = "7.0".to_owned(), "Differs: kernel:  -> 7.0");
        check(&|new| new.environment.processor = "fast".to_owned(), "Differs: processor:  -> fast");
        check(&|new| new.servers[0].version = "2".to_owned(), "Differs: a: 1 -> 2");
        check(&|new| new.servers[0].command.push("-x".to_owned()), "Differs: settings of a");
        check(&|new| new.tailor_version = "2".to_owned(), "Differs: tailor 1 -> 2");
        check(&|new| *new = run(&MICROS.map(|micros| micros * 2.0)), "us/request   x 2.");
    }

    #[test]
    fn highest_values() {
        let with = |best: u64| {
            let mut report = run(&MICROS);
            let search = |name: &str| SearchResult { name: name.to_owned(), best: vec![best], tries: Vec::new() };
            report.searches = vec![search("a"), search("a (again)")];
            report.search_precision = Some(0.05);
            report.judged()
        };
        let text = describe(&with(1000), &with(1200)).0;
        assert!(text.contains("1000 -> 1200, x 1.200\n"), "{text}");
        let text = describe(&with(1000), &with(1040)).0;
        assert!(text.contains("within the precision of the search"), "{text}");
    }
}
