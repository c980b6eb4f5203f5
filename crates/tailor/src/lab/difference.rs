//! Comparison of recorded runs, such as those of two versions, two kernels or two machines.

use std::fmt::Write;

use super::report::{
    CompareReport, LabLoadResult, Measurement, SearchResult, ServerDescription, ServerResult, SweepStep,
};
use crate::statistics::{Change, change, median};

/// Repeated runs of one state: the old one or the new one.
#[derive(Clone, Copy)]
struct Side<'a> {
    name: &'static str,
    runs: &'a [CompareReport],
}

/// Describes the change from the old runs to the new ones. Each side has at least one run. Returns false if the runs
/// cannot be compared.
pub(super) fn describe(old: &[CompareReport], new: &[CompareReport]) -> (String, bool) {
    let mut out = String::new();
    let sides = [Side { name: "old", runs: old }, Side { name: "new", runs: new }];
    let obstacles = obstacles(sides);
    if !obstacles.is_empty() {
        for obstacle in obstacles {
            let _ = writeln!(out, "Not comparable: {obstacle}");
        }
        return (out, false);
    }
    for difference in differences(&old[0], &new[0]) {
        let _ = writeln!(out, "Differs: {difference}");
    }
    out.push_str("With more than one difference, a change has no single cause.\n");
    if old.len() < 2 || new.len() < 2 {
        out.push_str(
            "One run does not show how much runs differ, so no change is judged. Record at least three runs of each, then:\n  \
             tailor compare old1.json,old2.json,old3.json new1.json,new2.json,new3.json\n",
        );
    }
    let reference = reference(sides);
    if let Some(name) = reference {
        let _ = writeln!(out, "Times are relative to {name}, which is the same in all runs.");
    }
    out.push('\n');
    write_searches(&mut out, sides);
    for (index, step) in old[0].steps.iter().enumerate() {
        if let Some(value) = &step.value {
            let _ = writeln!(out, "{value}:");
        }
        if let Some((name, step)) = sides.iter().find_map(|side| Some((side.name, side.uncontrolled(index)?))) {
            let control = step.control.unwrap_or_default();
            let _ = writeln!(out, "  Not compared: the A/A control of the {name} run is {control} here");
            continue;
        }
        for server in &step.servers {
            write_change(&mut out, sides, index, &server.name, reference.filter(|name| *name != server.name));
        }
    }
    (out, true)
}

impl<'a> Side<'a> {
    /// Results of a server at a step, by run.
    fn results(self, step: usize, server: &str) -> Vec<&'a ServerResult> {
        let steps = self.runs.iter().filter_map(|run| run.steps.get(step));
        steps.filter_map(|step| step.servers.iter().find(|it| it.name == server)).collect()
    }

    /// A run's step whose control does not hold.
    fn uncontrolled(self, step: usize) -> Option<&'a SweepStep> {
        let mut steps = self.runs.iter().filter_map(|run| Some((run.steps.get(step)?, run.control_margin)));
        steps.find(|(step, margin)| !step.is_controlled(*margin)).map(|(step, _)| step)
    }
}

/// Differences between two runs that can change their results.
fn differences(old: &CompareReport, new: &CompareReport) -> Vec<String> {
    let mut found = old.environment.differences(&new.environment);
    for before in &old.servers {
        let Some(after) = new.servers.iter().find(|after| after.name == before.name) else { continue };
        if before.version != after.version {
            found.push(format!("{}: {} -> {}", before.name, before.version, after.version));
        }
        if settings(before) != settings(after) {
            found.push(format!("settings of {}", before.name));
        }
    }
    if old.tailor_version != new.tailor_version {
        found.push(format!("tailor {} -> {}", old.tailor_version, new.tailor_version));
    }
    found
}

/// Files and commands of a server.
fn settings(server: &ServerDescription) -> (&[(String, String)], Vec<Vec<String>>) {
    let commands = [&server.backends[..], &server.helpers, std::slice::from_ref(&server.command)].concat();
    (&server.files, commands)
}

/// Server that is the same in all runs while another one changes. Its own change is the drift of the machine.
fn reference(sides: [Side<'_>; 2]) -> Option<&str> {
    let [old, new] = sides.map(|side| &side.runs[0].servers);
    let is_same = |before: &&ServerDescription| {
        let after = new.iter().find(|after| after.name == before.name);
        before.missing.is_none()
            && after.is_some_and(|after| after.version == before.version && settings(after) == settings(before))
    };
    let same: Vec<&ServerDescription> = old.iter().filter(is_same).collect();
    let present = old.iter().filter(|server| server.missing.is_none()).count();
    // If no server changed, or only one ran, there is none to compare with.
    (same.len() < present).then(|| same.first().map(|server| server.name.as_str())).flatten()
}

/// Describes the change of the highest values.
fn write_searches(out: &mut String, sides: [Side<'_>; 2]) {
    for search in &sides[0].runs[0].searches {
        let [old, new] = sides.map(|side| {
            let searches = side.runs.iter().filter_map(|run| run.searches.iter().find(|it| it.name == search.name));
            searches.map(|search: &SearchResult| median(&search.values())).collect::<Vec<f64>>()
        });
        if old.is_empty() || new.is_empty() {
            continue;
        }
        let change = change(&logs(&new), &logs(&old));
        let (name, before, after) = (&search.name, median(&old), median(&new));
        let _ = writeln!(out, "  {name:<18} {before} -> {after}, x {change}{}", verdict(&change));
    }
}

fn logs(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.ln()).collect()
}

/// Remark on a change.
fn verdict(change: &Change) -> &'static str {
    match change.interval {
        None => "  (not judged)",
        Some([low, high]) if low <= 1.0 && 1.0 <= high => "  (no difference shown)",
        Some(_) => "",
    }
}

/// Reasons why the runs cannot be compared.
fn obstacles(sides: [Side<'_>; 2]) -> Vec<String> {
    let first = &sides[0].runs[0];
    let mut found = Vec::new();
    for side in sides {
        for run in side.runs {
            found.extend(obstacles_between(first, run));
            found.extend(obstacles_of(side.name, run));
        }
        let repeated = side.runs.iter().skip(1).flat_map(|run| differences(&side.runs[0], run));
        found
            .extend(repeated.map(|difference| format!("the {} runs differ among themselves: {difference}", side.name)));
    }
    found.dedup();
    found
}

fn obstacles_between(old: &CompareReport, new: &CompareReport) -> Vec<String> {
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
    found
}

fn obstacles_of(name: &str, report: &CompareReport) -> Vec<String> {
    let mut found = Vec::new();
    if report.interrupted {
        found.push(format!("the {name} run was interrupted"));
    }
    let is_controlled_anywhere =
        report.is_controlled() || report.steps.iter().any(|step| step.is_controlled(report.control_margin));
    if let Some(control) = report.control.filter(|_| !is_controlled_anywhere) {
        found.push(format!("the A/A control of the {name} run is {control}: its differences prove nothing"));
    }
    found
}

/// Accessor of a measured quantity.
type MeasuredQuantity = fn(&Measurement) -> f64;

fn write_change(out: &mut String, sides: [Side<'_>; 2], step: usize, server: &str, reference: Option<&str>) {
    let rate: MeasuredQuantity = |it| it.loads.first().map_or(0.0, |load| load.served_per_second);
    let p99: MeasuredQuantity = |it| it.loads.first().map_or(0.0, LabLoadResult::p99);
    let memory: MeasuredQuantity = |it| it.memory_bytes_max as f64;
    let rows: [(&str, MeasuredQuantity, bool); 4] = [
        ("us/request", Measurement::processor_micros_per_request, true),
        ("served/s", rate, true),
        ("p99", p99, true),
        ("memory", memory, false),
    ];
    if sides.iter().any(|side| side.results(step, server).is_empty()) {
        return;
    }
    let _ = writeln!(out, "  {server}");
    for (name, value, is_time) in rows {
        let reference = reference.filter(|_| is_time);
        let [old, new] = sides.map(|side| run_logs(side, step, server, reference, value));
        if old.is_empty() || new.is_empty() {
            continue;
        }
        let change = change(&new, &old);
        let _ = writeln!(out, "    {name:<12} x {change}{}", verdict(&change));
    }
}

/// Logarithm of a quantity in each run: the median over the rounds, relative to the reference if there is one. Runs are
/// the sample, because rounds of one run are alike.
fn run_logs(side: Side<'_>, step: usize, server: &str, reference: Option<&str>, value: MeasuredQuantity) -> Vec<f64> {
    let results = side.results(step, server);
    let bases = reference.map(|reference| side.results(step, reference));
    let logs = results.iter().enumerate().map(|(run, result)| {
        let values = logs(&result.values(value));
        match bases.as_ref().and_then(|bases| bases.get(run)) {
            Some(base) => {
                let bases = logs(&base.values(value));
                median(&values.iter().zip(bases).map(|(value, base)| value - base).collect::<Vec<_>>())
            }
            None => median(&values),
        }
    });
    logs.filter(|log| log.is_finite()).collect()
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
            environment: super::super::environment::Environment::default(),
            servers: vec![description],
            steps: vec![SweepStep { value: None, servers: vec![server("a"), server("a (again)")], control: None }],
            searches: Vec::new(),
            search_precision: None,
            is_endurance: false,
            is_emulated: false,
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
            let (text, is_comparable) = describe(&[old], &[new]);
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
        check(&uncontrolled, "the A/A control of the new run is 1.100 (1.100 - 1.100)");
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
        let (text, is_comparable) = describe(&[old], &[new]);
        let not_compared = "2:\n  Not compared: the A/A control of the new run is 1.100 (1.100 - 1.100) here\n";
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
            let (text, is_comparable) = describe(&[old], &[new]);
            assert!(is_comparable && text.contains(expect), "{text}");
        };
        check(&|_| {}, "x 1.000  (not judged)");
        check(&|new| new.environment.kernel = "7.0".to_owned(), "Differs: kernel:  -> 7.0");
        check(&|new| new.environment.processor = "fast".to_owned(), "Differs: processor:  -> fast");
        check(&|new| new.servers[0].version = "2".to_owned(), "Differs: a: 1 -> 2");
        check(&|new| new.servers[0].command.push("-x".to_owned()), "Differs: settings of a");
        check(&|new| new.tailor_version = "2".to_owned(), "Differs: tailor 1 -> 2");
        check(&|new| *new = run(&MICROS.map(|micros| micros * 2.0)), "us/request   x 2.000  (not judged)");
    }

    /// Runs of the same server, each with steady rounds, differ by up to 15 %: by where the kernel placed their memory.
    #[test]
    fn variance_between_runs() {
        let runs =
            |factors: &[f64]| factors.iter().map(|factor| run(&MICROS.map(|it| it * factor))).collect::<Vec<_>>();
        // One run of each shows steady rounds and a difference of 14.6 %, which says nothing.
        let (text, is_comparable) = describe(&runs(&[1.0]), &runs(&[1.146]));
        assert!(is_comparable && text.contains("us/request   x 1.146  (not judged)"), "{text}");
        assert!(text.contains("Record at least three runs of each") && !text.contains('['), "{text}");
        // Three runs of each show how much they differ.
        let (text, _) = describe(&runs(&[1.0, 1.1, 1.05]), &runs(&[1.146, 1.02, 1.04]));
        assert!(text.contains("(no difference shown)") && !text.contains("not judged"), "{text}");
        let (text, _) = describe(&runs(&[1.0, 1.1, 1.05]), &runs(&[2.0, 2.2, 2.1]));
        let line = text.lines().find(|line| line.contains("us/request")).unwrap();
        assert!(line.contains("x 2.000 [1.") && !line.contains("no difference"), "{text}");
        // Runs of one side must be repetitions.
        let mut mixed = runs(&[1.0, 1.0]);
        mixed[1].servers[0].version = "2".to_owned();
        let (text, is_comparable) = describe(&runs(&[1.0]), &mixed);
        assert!(!is_comparable && text.contains("the new runs differ among themselves: a: 1 -> 2"), "{text}");
    }

    /// A server that is the same in all runs takes the drift of the machine out of the others' times.
    #[test]
    fn relative_to_an_unchanged_server() {
        let with_two = |version: &str, factor: f64, drift: f64| {
            let mut report = run(&MICROS.map(|micros| micros * drift));
            let fixed = ServerDescription { name: "fixed".to_owned(), ..report.servers[0].clone() };
            report.servers[0].version = version.to_owned();
            report.servers.push(fixed);
            let mut result = ServerResult { name: "fixed".to_owned(), ..report.steps[0].servers[0].clone() };
            result.measurements.iter_mut().for_each(|it| it.memory_bytes_max = 1);
            report.steps[0].servers.insert(1, result);
            for server in [0, 2] {
                let measurements = &mut report.steps[0].servers[server].measurements;
                measurements.iter_mut().for_each(|it| it.user_micros_per_request *= factor);
            }
            report.judged()
        };
        let old = [with_two("1", 1.0, 1.0), with_two("1", 1.0, 1.3), with_two("1", 1.01, 0.8)];
        let new = [with_two("2", 1.2, 0.9), with_two("2", 1.21, 1.1), with_two("2", 1.2, 1.4)];
        let (text, is_comparable) = describe(&old, &new);
        assert!(is_comparable && text.contains("Times are relative to fixed"), "{text}");
        let line = text.lines().find(|line| line.contains("us/request")).unwrap();
        assert!(line.contains("x 1.199 [") && line.contains('[') && !line.contains("no difference"), "{text}");
    }

    #[test]
    fn highest_values() {
        let with = |best: u64| {
            let mut report = run(&MICROS);
            let search = |name: &str| SearchResult { best: vec![best], ..SearchResult::new(name) };
            report.searches = vec![search("a"), search("a (again)")];
            report.search_precision = Some(0.05);
            report.judged()
        };
        let text = describe(&[with(1000)], &[with(1200)]).0;
        assert!(text.contains("1000 -> 1200, x 1.200  (not judged)\n"), "{text}");
        let text = describe(&[with(1000), with(1040)], &[with(1040), with(1000)]).0;
        assert!(text.contains("no difference shown"), "{text}");
    }
}
