//! `tailor compare --kernel`: one server on several kernels, compared by counted instructions in an emulator.
//!
//! The emulator (qemu with `-icount`) has a clock that advances by 1 ns for each instruction. So time in the machine counts instructions, and
//! is the same in each run. Each kernel boots with the same first files: tailor, the server, and what they need. tailor is
//! process 1 there ([`guest`]): it waits until the kernel has nothing left to do after booting, starts the server, and sends N and
//! 2 N requests; the difference is the cost of N requests. The kernel counts the time of the server and of the client by their
//! control groups, so that waiting does not count. A loop in user space is the control. A plugin of the emulator ([`counter`])
//! divides the instructions of the machine between user space and kernel.

mod counter;
mod guest;
mod image;
mod machine;
mod verdict;

use std::path::{Path, PathBuf};

pub(crate) use guest::become_guest;
pub(crate) use verdict::schema;

use self::counter::CountingPlugin;
use self::guest::GuestPlan;
use self::image::MachineFiles;
use self::machine::{EmulatedMachine, KernelFiles};
use self::verdict::{KernelReport, KernelRun};
use super::model::{Lab, LabServer, Program};
use super::rounds::RunDirectory;
use super::server::{ServerPlacement, installed_name};
use crate::end::ProgramEnd;

/// Requests of the shorter of the two loads that are compared.
pub(super) const REQUESTS_DEFAULT: u64 = 16_000;

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

/// Options of a comparison of kernels.
pub(super) struct KernelOptions<'a> {
    pub(super) requests: u64,
    pub(super) json: Option<&'a Path>,
}

/// Compares kernels with the first server of a lab that is installed.
pub(super) fn run(choice: &KernelChoice, lab: &Lab, options: &KernelOptions<'_>) -> Result<ProgramEnd, String> {
    let qemu = machine::emulator()?;
    let server = lab.servers.iter().find(|server| server.needs.iter().all(|names| installed_name(names).is_some()));
    let server = server.ok_or("none of the lab's servers is installed")?;
    let directory = RunDirectory::make()?;
    let plan = plan(lab, server, options.requests, &directory)?;
    let files = MachineFiles::gather(&plan)?;
    let initial = directory.path().join("initial-files");
    files.write(&plan, &initial)?;
    let plugin = CountingPlugin::build(&qemu, directory.path());
    if let Err(reason) = &plugin {
        eprintln!("instructions are not divided between user space and kernel: {}", reason.trim());
    }
    let stop = crate::end::stop_on_signals()?;
    let mut reports = Vec::new();
    for (index, paths) in choice.0.iter().enumerate() {
        let kernel = KernelFiles::unpack(paths, &directory.path().join(format!("kernel-{index}")))?;
        eprintln!("{}: counts instructions", kernel.name);
        let counts = directory.path().join(format!("counts-{index}"));
        let plugin = plugin.as_ref().ok().map(|plugin| (plugin, counts.as_path()));
        let guest = EmulatedMachine { qemu: &qemu, kernel: &kernel, initial: &initial, plugin }.run(&stop)?;
        reports.push(KernelRun { config: kernel.config, guest });
    }
    let report = KernelReport::new(&server.name, &plan, reports);
    if let Some(path) = options.json {
        let json = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        crate::report::write_to(path, &json)?;
    }
    crate::output::print(&report.to_text())?;
    Ok(if report.is_valid { ProgramEnd::Passed } else { ProgramEnd::Failed })
}

/// Plan of the machine: the commands of a server and its load, with all placeholders filled in.
fn plan(lab: &Lab, server: &LabServer, requests: u64, directory: &RunDirectory) -> Result<GuestPlan, String> {
    if lab.search.is_some() || !lab.sweep.is_empty() {
        return Err("--kernel needs a lab without a sweep or search".to_owned());
    }
    let [load] = lab.loads.as_slice() else { return Err("--kernel needs a lab with one load".to_owned()) };
    if load.program != Program::Bench {
        return Err("--kernel needs a load of `tailor bench`".to_owned());
    }
    let root = directory.path().join("site");
    crate::site::SiteKind::parse(&lab.site)?.write(&root)?;
    let place = ServerPlacement {
        port: PORT,
        backend_port: PORT + 1,
        tls_port: PORT + 2,
        root,
        run: directory.path().join("run"),
    };
    place.prepare(server).map_err(|error| format!("{}: {error}", server.name))?;
    let fill = |words: &Vec<String>| place.fill_command(words);
    Ok(GuestPlan {
        backends: server.backends.iter().map(fill).collect(),
        commands: server.helpers.iter().chain([&server.command]).map(fill).collect(),
        sockets: server.sockets.iter().map(|path| place.fill(path)).collect(),
        port: PORT,
        backend_port: (!server.backends.is_empty()).then_some(PORT + 1),
        run: place.run.clone(),
        root: place.root.clone(),
        load: counted_load(load.arguments.iter().map(|word| place.fill(word)).collect())?,
        requests,
    })
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
