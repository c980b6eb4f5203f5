//! Kernels compared by time: each boot starts the server and loads it as in every other lab.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::KernelOptions;
use super::guest::GuestTask;
use super::machine::{Accelerator, KernelFiles, VirtualMachine};
use super::verdict::{different_options, options};
use crate::lab::measure::Bench;
use crate::lab::model::{Lab, LabServer};
use crate::lab::report::{CompareReport, Measurement, ServerDescription, ServerResult, SweepStep};
use crate::lab::rounds::{describe, order};
use crate::lab::server::ServerPlacement;
use crate::lab::{model, peers, select_servers};
use crate::statistics::PAIRS_MIN;

/// Pause after booting, in which the kernel does what it put off.
const SETTLE: Duration = Duration::from_secs(2);

/// Server of a lab whose time is measured in a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TimePlan {
    /// Text of the lab.
    lab: String,
    server: String,
    /// Duration of each load, if it replaces the lab's.
    duration: Option<Duration>,
    place: ServerPlacement,
}

impl TimePlan {
    pub(super) fn new(lab: &str, server: &LabServer, duration: Option<Duration>, place: &ServerPlacement) -> Self {
        Self { lab: lab.to_owned(), server: server.name.clone(), duration, place: place.clone() }
    }

    /// Measures, in the machine.
    pub(super) fn measure(&self) -> Result<Measurement, String> {
        std::thread::sleep(SETTLE);
        let mut lab = model::parse(&self.lab, &peers()?)?;
        select_servers(&mut lab, std::slice::from_ref(&self.server))?;
        let stop = AtomicBool::new(false);
        let bench = Bench { lab: &lab, value: None, duration: self.duration, stop: &stop };
        bench.measure(lab.servers.first().ok_or("the lab has no server")?, &self.place)
    }
}

/// Machines that measure the same server by time.
pub(super) struct TimedMachines<'a> {
    pub(super) lab: &'a Lab,
    /// Text of the lab.
    pub(super) text: &'a str,
    pub(super) server: &'a LabServer,
    pub(super) kernels: &'a [KernelFiles],
    pub(super) accelerator: Accelerator,
}

impl TimedMachines<'_> {
    /// Task of each machine.
    pub(super) fn task(&self, options: &KernelOptions<'_>, place: &ServerPlacement) -> GuestTask {
        GuestTask::Time(TimePlan::new(self.text, self.server, options.duration, place))
    }

    /// Boots the kernels in rounds of alternating order. The first kernel is repeated as the A/A control.
    pub(super) fn compare(
        &self,
        options: &KernelOptions<'_>,
        stop: &AtomicBool,
        machine: impl Fn(&KernelFiles) -> VirtualMachine,
    ) -> Result<CompareReport, String> {
        let name = |kernel: &KernelFiles| format!("{} {}", self.server.name, kernel.name);
        let again = self.kernels.first().map(|first| (format!("{} (again)", name(first)), first));
        let booted: Vec<(String, &KernelFiles)> =
            self.kernels.iter().map(|kernel| (name(kernel), kernel)).chain(again).collect();
        let mut results: Vec<ServerResult> = booted.iter().map(|(name, _)| ServerResult::new(name)).collect();
        let mut lab = self.lab.clone();
        lab.turns = 1;
        lab.rounds = options.rounds.unwrap_or(lab.rounds.max(PAIRS_MIN as usize));
        let lab = lab.with_even_rounds();
        for round in 0..lab.rounds {
            for index in order(booted.len(), round) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (name, kernel) = &booted[index];
                eprintln!("round {} of {}: {name}", round + 1, lab.rounds);
                results[index].measurements.push(machine(kernel).run(stop)?);
            }
        }
        let mut report = CompareReport::of_lab(&lab, self.text, options.duration, stop);
        report.is_emulated = self.accelerator != Accelerator::Kvm;
        report.servers = self.describe(&booted);
        report.steps = vec![SweepStep { value: None, servers: results, control: None }];
        Ok(report.judged())
    }

    /// Descriptions of the server with each kernel, and with the options in which the kernels differ.
    fn describe(&self, booted: &[(String, &KernelFiles)]) -> Vec<ServerDescription> {
        let configurations: Vec<_> = self.kernels.iter().map(|kernel| kernel.config.as_deref().map(options)).collect();
        let different = different_options(&configurations);
        let of_kernel = |(index, (name, _)): (usize, &(String, &KernelFiles))| {
            let value = |(option, values): (&String, &Vec<Option<String>>)| {
                format!("{option}={}\n", values[index].as_deref().unwrap_or("-"))
            };
            let mut description = describe(self.server);
            description.name.clone_from(name);
            if !different.is_empty() {
                let text: String = different.iter().map(value).collect();
                description.files.push(("different options of the kernel".to_owned(), text));
            }
            description
        };
        booted.iter().take(self.kernels.len()).enumerate().map(of_kernel).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::guest::REPORT_MARK;
    use super::*;

    const LAB: &str = "lab \"l\" { about \"a\"; turns 4; load \"l\" \"-c 1 u\"; server \"s\" { command \"s\" } }";

    /// Kernel whose machine reports this CPU time. `echo` takes the place of the emulator: it prints the name of the image.
    fn kernel(name: &str, micros: f64, config: &str) -> KernelFiles {
        let measurement = Measurement { user_micros_per_request: micros, ..Measurement::default() };
        let json = serde_json::to_string(&measurement).unwrap();
        let image = PathBuf::from(format!("\n{REPORT_MARK}{json}\n"));
        KernelFiles { name: name.to_owned(), image, config: Some(config.to_owned()) }
    }

    fn machine(kernel: &KernelFiles) -> VirtualMachine {
        VirtualMachine {
            qemu: "/bin/echo".into(),
            name: kernel.name.clone(),
            image: kernel.image.clone(),
            initial: PathBuf::new(),
            accelerator: Accelerator::Emulator,
            plugin: None,
            time_max: Duration::from_secs(600),
        }
    }

    #[test]
    fn rounds_of_boots() {
        let lab = model::parse(LAB, &[]).unwrap();
        let kernels = [kernel("6.1", 10.0, "CONFIG_A=y\n"), kernel("7.2", 20.0, "CONFIG_A=m\nCONFIG_B=y\n")];
        let compare = |accelerator, rounds| {
            let (text, server) = (LAB, &lab.servers[0]);
            let machines = TimedMachines { lab: &lab, text, server, kernels: &kernels, accelerator };
            let options = KernelOptions {
                mode: None,
                requests: 1,
                instructions_max: 1,
                rounds,
                duration: None,
                json: None,
                html: None,
            };
            machines.compare(&options, &AtomicBool::new(false), machine).unwrap()
        };
        let report = compare(Accelerator::Kvm, None);
        let [old, new, again] = report.steps[0].servers.as_slice() else { panic!("two kernels and a control") };
        assert_eq!([&old.name, &new.name, &again.name], ["s 6.1", "s 7.2", "s 6.1 (again)"]);
        assert_eq!(new.processor(), [20.0; 6], "six rounds, and one turn");
        assert_eq!(report.control.map(|control| (control.median, control.pairs)), Some((1.0, 6)));
        assert!(report.passed, "{}", report.to_text());
        assert_eq!(report.servers.len(), 2);
        assert_eq!(report.servers[1].files[0].1, "A=m\nB=y\n");

        let report = compare(Accelerator::Emulator, Some(3));
        assert_eq!(report.steps[0].servers[0].measurements.len(), 4, "an even number of rounds");
        assert!(!report.passed && report.to_text().contains("ITS TIME PROVES NOTHING"), "{}", report.to_text());
    }
}
