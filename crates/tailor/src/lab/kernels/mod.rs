//! `tailor compare --kernel`: one server on several kernels, compared by time, or by counted instructions in an emulator.
//!
//! Each kernel boots with the same first files: tailor, the server, and what they need. tailor is process 1 there ([`guest`]).
//!
//! Where KVM works, each boot measures the server as every other lab does ([`timing`]): boots alternate in rounds, and the first
//! kernel is its own control.
//!
//! Elsewhere the emulator (qemu with `-icount`) has a clock that advances by 1 ns for each instruction. So time in the machine
//! counts instructions, and is the same in each run. The guest waits until the kernel has nothing left to do after booting, starts
//! the server, and sends N and 2 N requests; the difference is the cost of N requests. It repeats this until the mean of the
//! differences is precise. The kernel counts the time of the server and of the client by their control groups, so that waiting does not
//! count. A loop in user space is the control. A plugin of the emulator ([`counter`]) divides the instructions of the machine between
//! user space and kernel.

mod counter;
mod guest;
mod image;
mod machine;
mod timing;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use guest::become_guest;
pub(crate) use verdict::schema;

use self::counter::CountingPlugin;
use self::guest::{CountPlan, CountReport, GuestTask};
use self::image::MachineFiles;
use self::machine::{Accelerator, BOOT_MAX, KernelFiles, VirtualMachine, add_written_counts};
use self::timing::TimedMachines;
use self::verdict::{KernelReport, KernelRun};
use super::model::{Lab, LabServer, Program};
use super::rounds::RunDirectory;
use super::server::{ServerPlacement, installed_name};
use crate::end::ProgramEnd;

/// Requests of the shorter of the two loads that are compared.
pub(super) const REQUESTS_DEFAULT: u64 = 8_000;

/// Instructions of a kernel after which no further pair of loads begins.
pub(super) const INSTRUCTIONS_MAX_DEFAULT: u64 = 60_000_000_000;

/// Device of KVM, and the longest time that the first machine may take to show that it works.
const KVM: &str = "/dev/kvm";
const PROBE_MAX: Duration = Duration::from_secs(60);

/// Port of the server; the machine has no other program.
const PORT: u16 = 8080;

/// Kernels to compare: the files of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelChoice(Vec<Vec<PathBuf>>);

/// Parses `FILE,FILE`: each a package (`.deb`) or an image, or several packages of a kernel with `:` between them.
pub(crate) fn parse(text: &str) -> Result<KernelChoice, String> {
    let kernels: Vec<Vec<PathBuf>> =
        text.split(',').map(|files| files.split(':').map(PathBuf::from).collect()).collect();
    let is_package = |file: &PathBuf| file.extension().is_some_and(|end| end == "deb");
    match () {
        () if kernels.len() < 2 => Err("a comparison needs at least two kernels: FILE,FILE".to_owned()),
        () if kernels.iter().flatten().any(|file| file.as_os_str().is_empty()) => Err("a file has no name".to_owned()),
        () if kernels.iter().any(|files| files.len() > 1 && !files.iter().all(is_package)) => {
            Err("`:` joins packages (.deb) of one kernel; an image stands alone".to_owned())
        }
        () => Ok(KernelChoice(kernels)),
    }
}

/// Quantity by which kernels are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KernelMode {
    /// Time of machines that run by KVM
    Time,
    /// Instructions that an emulator counts
    Instructions,
}

/// Options of a comparison of kernels.
pub(super) struct KernelOptions<'a> {
    /// `None` means time where KVM works, otherwise instructions.
    pub(super) mode: Option<KernelMode>,
    /// With instructions: requests of the shorter load.
    pub(super) requests: u64,
    /// With instructions: number after which no further pair of loads begins.
    pub(super) instructions_max: u64,
    /// With time: rounds, and the duration of each load.
    pub(super) rounds: Option<usize>,
    pub(super) duration: Option<Duration>,
    pub(super) json: Option<&'a Path>,
    pub(super) html: Option<&'a Path>,
}

/// Compares kernels with the first server of a lab that is installed. `text` is that of the lab.
pub(super) fn run(
    choice: &KernelChoice,
    lab: &Lab,
    text: &str,
    options: &KernelOptions<'_>,
) -> Result<ProgramEnd, String> {
    let qemu = machine::emulator()?;
    let server = lab.servers.iter().find(|server| server.needs.iter().all(|names| installed_name(names).is_some()));
    let server = server.ok_or("none of the lab's servers is installed")?;
    check(lab)?;
    let directory = RunDirectory::make()?;
    let root = directory.path().join("site");
    crate::site::SiteKind::parse(&lab.site)?.write(&root)?;
    let run = directory.path().join("run");
    let place = ServerPlacement { port: PORT, backend_port: PORT + 1, tls_port: PORT + 2, root, run };
    place.prepare(server).map_err(|error| format!("{}: {error}", server.name))?;
    let commands = server.backends.iter().chain(&server.helpers).chain([&server.command]);
    let commands: Vec<Vec<String>> = commands.map(|words| place.fill_command(words)).collect();
    let unpack = |(index, paths): (usize, &Vec<PathBuf>)| {
        KernelFiles::unpack(paths, &directory.path().join(format!("kernel-{index}")))
    };
    let stop = crate::end::stop_on_signals()?;
    let comparison = KernelComparison {
        lab,
        text,
        server,
        kernels: choice.0.iter().enumerate().map(unpack).collect::<Result<_, _>>()?,
        files: MachineFiles::gather(&commands, &place)?,
        place,
        qemu,
        directory: directory.path(),
        stop: &stop,
    };
    match comparison.accelerator(options.mode)? {
        Accelerator::Counter => comparison.count(options),
        accelerator => comparison.time(accelerator, options),
    }
}

/// Checks that a lab can run in a machine.
fn check(lab: &Lab) -> Result<(), String> {
    match lab.loads.as_slice() {
        _ if lab.search.is_some() || !lab.sweep.is_empty() => {
            Err("--kernel needs a lab without a sweep or search".to_owned())
        }
        _ if lab.before.len() + lab.beside.len() > 0 => {
            Err("--kernel needs a lab without commands before or beside the loads".to_owned())
        }
        loads if loads.iter().any(|load| load.program != Program::Bench) => {
            Err("--kernel needs loads of `tailor bench`".to_owned())
        }
        _ => Ok(()),
    }
}

/// Server, kernels, and what boots them.
struct KernelComparison<'a> {
    lab: &'a Lab,
    text: &'a str,
    server: &'a LabServer,
    kernels: Vec<KernelFiles>,
    files: MachineFiles,
    place: ServerPlacement,
    qemu: PathBuf,
    directory: &'a Path,
    stop: &'a AtomicBool,
}

impl KernelComparison<'_> {
    /// Way in which the machines run. Says why, if it is not the best.
    fn accelerator(&self, mode: Option<KernelMode>) -> Result<Accelerator, String> {
        if mode == Some(KernelMode::Instructions) {
            return Ok(Accelerator::Counter);
        }
        let Err(reason) = self.probe() else { return Ok(Accelerator::Kvm) };
        if self.stop.load(Ordering::Relaxed) {
            return Err(reason);
        }
        Ok(match mode {
            Some(_) => {
                eprintln!("KVM does not work ({reason}): the time of an emulator says nothing about kernels");
                Accelerator::Emulator
            }
            None => {
                eprintln!("KVM does not work ({reason}): counts instructions in an emulator");
                Accelerator::Counter
            }
        })
    }

    /// Boots the first kernel by KVM. A machine may hang although its device is there.
    fn probe(&self) -> Result<(), String> {
        std::fs::File::options().read(true).write(true).open(KVM).map_err(|error| format!("{KVM}: {error}"))?;
        let initial = self.write(&GuestTask::Probe)?;
        let kernel = self.kernels.first().ok_or("no kernel")?;
        self.machine(kernel, &initial, Accelerator::Kvm, PROBE_MAX).run(self.stop)
    }

    /// Writes the first files with a task.
    fn write(&self, task: &GuestTask) -> Result<PathBuf, String> {
        let path = self.directory.join("initial-files");
        self.files.write(task, &path)?;
        Ok(path)
    }

    fn machine(
        &self,
        kernel: &KernelFiles,
        initial: &Path,
        accelerator: Accelerator,
        time_max: Duration,
    ) -> VirtualMachine {
        VirtualMachine {
            qemu: self.qemu.clone(),
            name: kernel.name.clone(),
            image: kernel.image.clone(),
            initial: initial.to_owned(),
            accelerator,
            plugin: None,
            time_max,
        }
    }

    /// Compares by time.
    fn time(&self, accelerator: Accelerator, options: &KernelOptions<'_>) -> Result<ProgramEnd, String> {
        let Self { lab, text, server, kernels, .. } = self;
        let machines = TimedMachines { lab, text, server, kernels, accelerator };
        let initial = self.write(&machines.task(options, &self.place))?;
        let machine = |kernel: &KernelFiles| self.machine(kernel, &initial, accelerator, BOOT_MAX);
        let report = machines.compare(options, self.stop, machine)?;
        report.write(options.json, options.html)?;
        Ok(report.end())
    }

    /// Compares by counted instructions.
    fn count(&self, options: &KernelOptions<'_>) -> Result<ProgramEnd, String> {
        if options.rounds.is_some() || options.duration.is_some() || options.html.is_some() {
            return Err("--rounds, --duration and --html are for time; counted instructions have none".to_owned());
        }
        let plan = self.count_plan(options)?;
        let initial = self.write(&GuestTask::Count(plan.clone()))?;
        let plugin = CountingPlugin::build(&self.qemu, self.directory);
        if let Err(reason) = &plugin {
            eprintln!("instructions are not divided between user space and kernel: {}", reason.trim());
        }
        let mut runs = Vec::new();
        for (index, kernel) in self.kernels.iter().enumerate() {
            eprintln!("{}: counts instructions", kernel.name);
            let mut machine = self.machine(kernel, &initial, Accelerator::Counter, BOOT_MAX);
            let counts = self.directory.join(format!("counts-{index}"));
            machine.plugin = plugin.as_ref().ok().map(|plugin| plugin.option(&counts));
            let mut guest: CountReport = machine.run(self.stop)?;
            if plugin.is_ok() {
                add_written_counts(&mut guest.loads, &counts)?;
            }
            runs.push(KernelRun { config: kernel.config.clone(), guest });
        }
        let report = KernelReport::new(&self.server.name, &plan, runs);
        if let Some(path) = options.json {
            let json = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
            crate::report::write_to(path, &json)?;
        }
        crate::output::print(&report.to_text())?;
        Ok(if report.is_valid { ProgramEnd::Passed } else { ProgramEnd::Failed })
    }

    /// Commands of the server and its load, with all placeholders filled in.
    fn count_plan(&self, options: &KernelOptions<'_>) -> Result<CountPlan, String> {
        let [load] = self.lab.loads.as_slice() else {
            return Err("--kernel needs a lab with one load to count instructions".to_owned());
        };
        let Self { server, place, .. } = self;
        let fill = |words: &Vec<String>| place.fill_command(words);
        Ok(CountPlan {
            backends: server.backends.iter().map(fill).collect(),
            commands: server.helpers.iter().chain([&server.command]).map(fill).collect(),
            sockets: server.sockets.iter().map(|path| place.fill(path)).collect(),
            place: place.clone(),
            load: counted_load(load.arguments.iter().map(|word| place.fill(word)).collect())?,
            requests: options.requests,
            instructions_max: options.instructions_max,
        })
    }
}

/// Arguments of a load that ends after a number of requests instead of a time.
fn counted_load(arguments: Vec<String>) -> Result<Vec<String>, String> {
    let mut counted = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-d" | "--duration" | "--warm-up" | "--interval" | "-n" | "--requests" | "--cpus" => drop(arguments.next()),
            "-R" | "--rate" | "--profile" | "--find" | "--arrivals" => {
                return Err(format!("--kernel needs a closed loop, but the lab's load has {argument}"));
            }
            _ => counted.push(argument),
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices() {
        let choice = parse("a.deb,b-image.deb:b-modules.deb,/boot/vmlinuz-6").unwrap();
        assert_eq!(choice.0.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1]);
        for (text, expect) in
            [("a.deb", "at least two"), ("a.deb,", "no name"), ("a.deb,vmlinuz:b.deb", "`:` joins packages")]
        {
            assert!(parse(text).unwrap_err().contains(expect), "{text}");
        }
    }

    #[test]
    fn loads_end_after_requests() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let load = counted_load(words("-c 64 -d 400ms --warm-up 100ms --expect-body f u")).unwrap();
        assert_eq!(load, words("-c 64 --expect-body f u"));
        assert!(counted_load(words("-R 100 u")).unwrap_err().contains("closed loop"));
    }
}
