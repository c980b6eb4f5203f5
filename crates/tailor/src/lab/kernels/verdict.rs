//! Verdict of a comparison of kernels: instructions of a request, and what the figures do and do not say.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guest::{CountPlan, CountReport, GuestLoad};
use crate::statistics::{PAIRS_MIN, mean_interval};

/// Largest difference of the control between two kernels, as a share: the loop has the same instructions on both.
const CONTROL_MARGIN: f64 = 0.01;
/// Largest half of the width of the 95 % confidence interval of the mean, as a share of the mean.
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
    pub(super) guest: CountReport,
}

/// Result of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct KernelResult {
    /// Version.
    pub kernel: String,
    /// Instructions of the control.
    pub control: u64,
    /// All instructions of a request: server, load generator, and the kernel for both. Mean of the pairs of loads.
    pub all: f64,
    /// 95 % confidence interval of `all`.
    pub all_interval: [f64; 2],
    /// Half the width of the interval as a share of `all`: repeats are within it.
    pub repeats_within: f64,
    /// Pairs of loads.
    pub pairs: u64,
    /// Instructions of the server, with those of the kernel in its place.
    pub server: f64,
    /// Instructions of the load generator, likewise.
    pub client: f64,
    /// Instructions of a request in user space, in the whole machine; `null` if the emulator could not count them.
    pub user: Option<f64>,
    /// Instructions of a request in the kernel, likewise.
    pub kernel_mode: Option<f64>,
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

/// Decides when pairs of loads are enough: once the interval of their mean was narrow in two looks in a row. One look is not
/// enough, because the variance of few pairs may be small by chance.
#[derive(Debug, Default)]
pub(super) struct PrecisionRule {
    precise_looks: usize,
}

impl PrecisionRule {
    /// Looks at all loads so far. Must be called after each pair.
    pub(super) fn look(&mut self, loads: &[GuestLoad]) {
        let (mean, half) = mean_interval(&costs(loads, GuestLoad::all));
        let is_precise = loads.len() >= 2 * PAIRS_MIN as usize && half / mean <= REPEAT_MARGIN;
        self.precise_looks = if is_precise { self.precise_looks + 1 } else { 0 };
    }

    /// True if further pairs are not needed.
    pub(super) fn is_met(&self) -> bool {
        self.precise_looks >= 2
    }
}

impl KernelReport {
    /// Judges the runs of all kernels.
    pub(super) fn new(server: &str, plan: &CountPlan, runs: Vec<KernelRun>) -> Self {
        let configurations: Vec<_> = runs.iter().map(|run| run.config.as_deref().map(options)).collect();
        let options = different_options(&configurations);
        let kernels: Vec<KernelResult> = runs
            .into_iter()
            .map(|KernelRun { guest, .. }| {
                let (all, half) = mean_interval(&costs(&guest.loads, GuestLoad::all));
                KernelResult {
                    kernel: guest.kernel,
                    control: guest.control,
                    all,
                    all_interval: [all - half, all + half],
                    repeats_within: half / all,
                    pairs: guest.loads.len() as u64 / 2,
                    server: mean(&costs(&guest.loads, |load| load.server)),
                    client: mean(&costs(&guest.loads, |load| load.client)),
                    user: counted_cost(&guest.loads, |load| load.user),
                    kernel_mode: counted_cost(&guest.loads, |load| load.kernel),
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
            if kernel.repeats_within > REPEAT_MARGIN {
                faults.push(format!(
                    "{} pairs of loads on {} repeat within {:.2} % only; permit more instructions (--instructions-max)",
                    kernel.pairs,
                    kernel.kernel,
                    kernel.repeats_within * 100.0
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
        let rows: [ReportRow<'_>; 8] = [
            ("all", &|kernel| times(kernel.all, first.all)),
            ("95 % interval", &|kernel| format!("[{:.0} - {:.0}]", kernel.all_interval[0], kernel.all_interval[1])),
            ("server and its kernel", &|kernel| times(kernel.server, first.server)),
            ("client and its kernel", &|kernel| times(kernel.client, first.client)),
            ("user space, all", &|kernel| counted(kernel.user, first.user)),
            ("kernel, all", &|kernel| counted(kernel.kernel_mode, first.kernel_mode)),
            ("control", &|kernel| format!("{:.4}", kernel.control as f64 / first.control as f64)),
            ("repeats within", &|kernel| format!("{:.3} % ({} pairs)", kernel.repeats_within * 100.0, kernel.pairs)),
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
pub(super) fn options(config: &str) -> BTreeMap<&str, &str> {
    config.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('=')).collect()
}

/// Options that differ between kernels whose configurations are all known.
pub(super) fn different_options(
    configurations: &[Option<BTreeMap<&str, &str>>],
) -> BTreeMap<String, Vec<Option<String>>> {
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
    use crate::lab::server::ServerPlacement;

    fn plan() -> CountPlan {
        let (root, run) = (PathBuf::new(), PathBuf::new());
        CountPlan {
            backends: Vec::new(),
            commands: Vec::new(),
            sockets: Vec::new(),
            place: ServerPlacement { port: 1, backend_port: 2, tls_port: 3, root, run },
            load: vec!["-c".to_owned(), "1".to_owned()],
            requests: 10,
            instructions_max: 1,
        }
    }

    /// Report of a kernel on which a request costs this much, and a load 1,000 beside.
    fn report(kernel: &str, control: u64, cost: u64, noise: u64) -> CountReport {
        let load = |requests: u64, noise: u64| GuestLoad {
            requests,
            server: 1_000 + requests * (cost - 4_000) + noise,
            client: requests * 4_000,
            user: Some(requests * 3_000),
            kernel: Some(500 + requests * (cost - 3_000)),
        };
        let loads = (0..6).flat_map(|pair| [load(10, 0), load(20, noise * (pair % 2))]).collect();
        CountReport { kernel: kernel.to_owned(), control, loads }
    }

    /// The rule stops when the interval is narrow, which could favour intervals that miss. It hardly does: with intervals of 95 %,
    /// and noise as was measured within a boot (0.14 % on 7.2, 0.55 % on 6.1), at least 92 % contain the true cost.
    #[test]
    fn intervals_of_the_stopping_rule_hold_the_truth() {
        const COST: f64 = 40_000.0;
        const REQUESTS: u64 = 1_000;
        let mut rng = fastrand::Rng::with_seed(7);
        for noise in [0.0005, 0.0014, 0.003, 0.0055] {
            let mut held = 0;
            for _ in 0..1_000 {
                let (mut loads, mut rule) = (Vec::new(), PrecisionRule::default());
                while !rule.is_met() {
                    // A sum of twelve has a variance of 1, and is close to normal.
                    let normal = (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
                    let pair = COST * REQUESTS as f64 * (1.0 + noise * normal);
                    let load = |requests: u64, server: f64| GuestLoad {
                        requests,
                        server: server as u64,
                        client: 0,
                        user: None,
                        kernel: None,
                    };
                    loads.extend([load(REQUESTS, 0.0), load(2 * REQUESTS, pair)]);
                    rule.look(&loads);
                }
                let (mean, half) = mean_interval(&costs(&loads, GuestLoad::all));
                assert!(half / mean <= REPEAT_MARGIN && loads.len() >= 2 * PAIRS_MIN as usize);
                held += usize::from((mean - COST).abs() <= half);
            }
            assert!(held >= 920, "noise of {noise}: {held} of 1,000");
        }
    }

    fn judged(second: CountReport) -> KernelReport {
        let first = report("6.1", 1_000_000, 10_000, 0);
        let run = |config: &str, guest: CountReport| KernelRun { config: Some(config.to_owned()), guest };
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
        assert_eq!((new.all, new.all_interval, new.pairs, report.is_valid), (12_000.0, [12_000.0; 2], 6, true));
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
        let fault = "VOID: 6 pairs of loads on 7.2 repeat within 1.14 % only";
        assert!(!unsteady.is_valid && unsteady.to_text().contains(fault), "{}", unsteady.to_text());
        let steady = judged(report("7.2", 1_000_000, 10_000, 100));
        assert!(steady.is_valid && steady.to_text().contains("0.057 % (6 pairs)"), "{}", steady.to_text());
    }

    #[test]
    fn kernels_without_a_configuration() {
        let first = report("6.1", 1_000_000, 10_000, 0);
        let run = |config: Option<&str>| KernelRun { config: config.map(str::to_owned), guest: first.clone() };
        let report = KernelReport::new("nginx", &plan(), vec![run(None), run(Some("CONFIG_A=y"))]);
        assert!(report.is_valid && report.options.is_empty());
    }
}
