//! Verdict of a comparison of kernels: instructions of a request, and what the figures do and do not say.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guest::{GuestLoad, GuestPlan, GuestReport};

/// Largest difference of the control between two kernels, as a share: the loop has the same instructions on both.
const CONTROL_MARGIN: f64 = 0.01;
/// Largest difference of two measurements on one kernel, as a share.
const REPEAT_MARGIN: f64 = 0.001;
/// Differences of the configurations that the text shows.
const SHOWN_OPTIONS: usize = 20;

/// Result of `tailor compare --kernel`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct KernelReport {
    /// Version of the format.
    pub format_version: u32,
    /// Server.
    pub server: String,
    /// Arguments of `tailor bench`.
    pub load: Vec<String>,
    /// Kernels, the baseline first.
    pub kernels: Vec<KernelResult>,
    /// Options of the build configurations that differ: values by kernel, in order; `null` if the kernel lacks the option.
    pub options: BTreeMap<String, Vec<Option<String>>>,
    /// True if the control and the repeats hold.
    pub is_valid: bool,
}

/// Boots of a kernel.
pub(super) struct KernelRun {
    /// Build configuration, if it is known.
    pub(super) config: Option<String>,
    pub(super) guest: GuestReport,
}

/// Result of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct KernelResult {
    /// Version.
    pub kernel: String,
    /// Instructions of the control.
    pub control: u64,
    /// All instructions of a request: server, load generator, and the kernel for both.
    pub all: f64,
    /// Instructions of the server, with those of the kernel in its place.
    pub server: f64,
    /// Instructions of the load generator, likewise.
    pub client: f64,
    /// Instructions of a request in user space, in the whole machine; `null` if the emulator could not count them.
    pub user: Option<f64>,
    /// Instructions of a request in the kernel, likewise.
    pub kernel_mode: Option<f64>,
    /// Largest difference of the measurements of `all`, as a share.
    pub repeat_difference: f64,
    /// Loads, in the order in which they ran.
    pub loads: Vec<GuestLoad>,
}

/// Row of the report: its name, and the text of a kernel.
type ReportRow<'a> = (&'static str, &'a dyn Fn(&KernelResult) -> String);

/// Cost of a request by each pair of loads: the longer one less the shorter one.
fn costs(loads: &[GuestLoad], cost: impl Fn(&GuestLoad) -> u64) -> Vec<f64> {
    let pairs = loads.chunks_exact(2);
    pairs
        .map(|pair| (cost(&pair[1]) as f64 - cost(&pair[0]) as f64) / (pair[1].requests - pair[0].requests) as f64)
        .collect()
}

/// Cost of a request by counts that each load has, or none.
fn counted_cost(loads: &[GuestLoad], count: impl Fn(&GuestLoad) -> Option<u64>) -> Option<f64> {
    let is_counted = loads.iter().all(|load| count(load).is_some());
    is_counted.then(|| mean(&costs(loads, |load| count(load).unwrap_or_default())))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

impl KernelReport {
    /// Judges the runs of all kernels.
    pub(super) fn new(server: &str, plan: &GuestPlan, runs: Vec<KernelRun>) -> Self {
        let configurations: Vec<_> = runs.iter().map(|run| run.config.as_deref().map(options)).collect();
        let options = different_options(&configurations);
        let kernels: Vec<KernelResult> = runs
            .into_iter()
            .map(|KernelRun { guest, .. }| {
                let all = costs(&guest.loads, |load| load.server + load.client);
                let spread =
                    all.iter().copied().fold(f64::MIN, f64::max) - all.iter().copied().fold(f64::MAX, f64::min);
                KernelResult {
                    kernel: guest.kernel,
                    control: guest.control,
                    all: mean(&all),
                    server: mean(&costs(&guest.loads, |load| load.server)),
                    client: mean(&costs(&guest.loads, |load| load.client)),
                    user: counted_cost(&guest.loads, |load| load.user),
                    kernel_mode: counted_cost(&guest.loads, |load| load.kernel),
                    repeat_difference: spread / mean(&all),
                    loads: guest.loads,
                }
            })
            .collect();
        let mut report = Self {
            format_version: 1,
            server: server.to_owned(),
            load: plan.load.clone(),
            kernels,
            options,
            is_valid: false,
        };
        report.is_valid = report.faults().is_empty();
        report
    }

    /// Reasons why the figures say nothing.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let Some(first) = self.kernels.first() else { return faults };
        for kernel in &self.kernels {
            let ratio = kernel.control as f64 / first.control as f64;
            if (ratio - 1.0).abs() > CONTROL_MARGIN {
                faults.push(format!("the control on {} is {ratio:.3} of that on {}", kernel.kernel, first.kernel));
            }
            if kernel.repeat_difference > REPEAT_MARGIN {
                let percent = kernel.repeat_difference * 100.0;
                faults.push(format!(
                    "two measurements on {} differ by {percent:.2} %; try more requests (-n)",
                    kernel.kernel
                ));
            }
        }
        faults
    }

    /// The report as text.
    pub(crate) fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n{}: instructions of a request, counted in an emulator\n", self.server)?;
        write!(out, "  {:<26}", "")?;
        for kernel in &self.kernels {
            write!(out, " {:>26}", kernel.kernel)?;
        }
        writeln!(out)?;
        let Some(first) = self.kernels.first() else { return Ok(()) };
        let times = |value: f64, first: f64| format!("{value:.0} ({:.3} x)", value / first);
        let counted = |value: Option<f64>, first: Option<f64>| match (value, first) {
            (Some(value), Some(first)) => times(value, first),
            _ => "unknown".to_owned(),
        };
        let rows: [ReportRow<'_>; 7] = [
            ("all", &|kernel| times(kernel.all, first.all)),
            ("server and its kernel", &|kernel| times(kernel.server, first.server)),
            ("client and its kernel", &|kernel| times(kernel.client, first.client)),
            ("user space, all", &|kernel| counted(kernel.user, first.user)),
            ("kernel, all", &|kernel| counted(kernel.kernel_mode, first.kernel_mode)),
            ("control", &|kernel| format!("{:.4}", kernel.control as f64 / first.control as f64)),
            ("difference of repeats", &|kernel| format!("{:.4}", kernel.repeat_difference)),
        ];
        for (name, text) in rows {
            write!(out, "  {name:<26}")?;
            for kernel in &self.kernels {
                write!(out, " {:>26}", text(kernel))?;
            }
            writeln!(out)?;
        }
        if !self.options.is_empty() {
            writeln!(out, "\n  {} options of the build configurations differ:", self.options.len())?;
            for (name, values) in self.options.iter().take(SHOWN_OPTIONS) {
                let values: Vec<&str> = values.iter().map(|value| value.as_deref().unwrap_or("-")).collect();
                writeln!(out, "    {name}: {}", values.join(", "))?;
            }
            if self.options.len() > SHOWN_OPTIONS {
                writeln!(out, "    and {} more, see --json", self.options.len() - SHOWN_OPTIONS)?;
            }
        }
        writeln!(
            out,
            "\n  This is the length of the path: how many instructions a request takes. It says nothing about time, caches,\n  \
             branches, several processors or real network devices. Mitigations of the processor are off, and control groups do not\n  \
             account the kernel's memory."
        )?;
        for fault in self.faults() {
            writeln!(out, "  VOID: {fault}")?;
        }
        Ok(())
    }
}

/// JSON schema of a report.
pub(crate) fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(KernelReport)).expect("a schema can be written as JSON")
}

/// Options of a build configuration that are set.
fn options(config: &str) -> BTreeMap<&str, &str> {
    config.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('=')).collect()
}

/// Options that differ between kernels whose configurations are all known.
fn different_options(configurations: &[Option<BTreeMap<&str, &str>>]) -> BTreeMap<String, Vec<Option<String>>> {
    let known: Option<Vec<_>> = configurations.iter().map(Option::as_ref).collect();
    let Some(known) = known else { return BTreeMap::new() };
    let names: std::collections::BTreeSet<&str> = known.iter().flat_map(|options| options.keys().copied()).collect();
    let values =
        |name: &str| known.iter().map(|options| options.get(name).map(|it| (*it).to_owned())).collect::<Vec<_>>();
    let all = names.into_iter().map(|name| (name.to_owned(), values(name)));
    all.filter(|(_, values)| values.iter().any(|value| *value != values[0])).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn plan() -> GuestPlan {
        GuestPlan {
            backends: Vec::new(),
            commands: Vec::new(),
            sockets: Vec::new(),
            port: 1,
            backend_port: None,
            run: PathBuf::new(),
            root: PathBuf::new(),
            load: vec!["-c".to_owned(), "1".to_owned()],
            requests: 10,
        }
    }

    /// Report of a kernel on which a request costs this much, and a load 1,000 beside.
    fn report(kernel: &str, control: u64, cost: u64, noise: u64) -> GuestReport {
        let load = |requests: u64, noise: u64| GuestLoad {
            requests,
            server: 1_000 + requests * (cost - 4_000) + noise,
            client: requests * 4_000,
            user: Some(requests * 3_000),
            kernel: Some(500 + requests * (cost - 3_000)),
        };
        let loads = vec![load(10, 0), load(20, 0), load(10, 0), load(20, noise)];
        GuestReport { kernel: kernel.to_owned(), control, loads }
    }

    fn judged(second: GuestReport) -> KernelReport {
        let first = report("6.1", 1_000_000, 10_000, 0);
        let run = |config: &str, guest: GuestReport| KernelRun { config: Some(config.to_owned()), guest };
        let runs = vec![
            run("CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\n", first),
            run("CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=y\n", second),
        ];
        KernelReport::new("tailcoat", &plan(), runs)
    }

    #[test]
    fn costs_are_differences() {
        let report = judged(report("7.2", 1_001_000, 12_000, 0));
        let [old, new] = report.kernels.as_slice() else { panic!("two kernels") };
        assert_eq!((old.all, old.server, old.client), (10_000.0, 6_000.0, 4_000.0));
        assert_eq!((new.all, report.is_valid), (12_000.0, true));
        assert_eq!((new.user, new.kernel_mode), (Some(3_000.0), Some(9_000.0)));
        assert_eq!(report.options.keys().collect::<Vec<_>>(), ["B", "C"]);
        assert_eq!(report.options["C"], [None, Some("y".to_owned())]);
        let text = report.to_text();
        for part in [
            "12000 (1.200 x)",
            "8000 (1.333 x)",
            "9000 (1.286 x)",
            "2 options",
            "B: m, y",
            "C: -, y",
            "length of the path",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("VOID"), "{text}");
    }

    #[test]
    fn void_without_control_or_repeats() {
        let other_control = judged(report("7.2", 1_020_000, 10_000, 0));
        assert!(!other_control.is_valid && other_control.to_text().contains("VOID: the control on 7.2 is 1.020"));
        let unsteady = judged(report("7.2", 1_000_000, 10_000, 2_000));
        assert!(!unsteady.is_valid && unsteady.to_text().contains("VOID: two measurements on 7.2 differ by"));
    }

    #[test]
    fn kernels_without_a_configuration() {
        let first = report("6.1", 1_000_000, 10_000, 0);
        let run = |config: Option<&str>| KernelRun { config: config.map(str::to_owned), guest: first.clone() };
        let report = KernelReport::new("nginx", &plan(), vec![run(None), run(Some("CONFIG_A=y"))]);
        assert!(report.is_valid && report.options.is_empty());
    }
}
