//! Kernels from packages, and the machine that boots them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::counter::{MarkedCounts, parse_counts};
use super::guest::{FAILURE_MARK, GuestLoad, REPORT_MARK};
use crate::programs::installed_path;

const EMULATOR: &str = "qemu-system-x86_64";

/// Processor model that all kernels boot on, whatever the emulator's version.
const MODEL: &str = "Nehalem";

/// Memory of the machine in MiB.
const MEMORY_MIB: &str = "2048";

/// Longest time of a boot with its loads.
pub(super) const BOOT_MAX: Duration = Duration::from_secs(60 * 60);

/// Lines of the machine's output that an error shows.
const SHOWN_LINES: usize = 15;

/// Path of the emulator.
///
/// # Errors
/// The emulator is not installed.
pub(super) fn emulator() -> Result<PathBuf, String> {
    installed_path(EMULATOR).ok_or_else(|| format!("--kernel needs `{EMULATOR}` (Debian: apt install qemu-system-x86)"))
}

/// Files of a kernel.
pub(super) struct KernelFiles {
    /// Name in the report.
    pub(super) name: String,
    pub(super) image: PathBuf,
    /// Build configuration, if the files have it.
    pub(super) config: Option<String>,
}

impl KernelFiles {
    /// Takes an image, or unpacks packages to a directory.
    pub(super) fn unpack(paths: &[PathBuf], directory: &Path) -> Result<Self, String> {
        let is_image = |path: &&PathBuf| path.extension().is_none_or(|end| end != "deb");
        if let [image] = paths
            && is_image(&image)
        {
            if !image.is_file() {
                return Err(format!("{}: no such file", image.display()));
            }
            let name = file_name(image);
            let version = name.strip_prefix("vmlinuz-");
            let config =
                version.and_then(|version| fs::read_to_string(image.with_file_name(format!("config-{version}"))).ok());
            return Ok(Self { name: version.unwrap_or(&name).to_owned(), image: image.clone(), config });
        }
        fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for package in paths {
            let output = Command::new("dpkg-deb").arg("-x").arg(package).arg(directory).output();
            let output = output.map_err(|error| format!("dpkg-deb: {error}"))?;
            if !output.status.success() {
                return Err(format!("{}: {}", package.display(), String::from_utf8_lossy(&output.stderr).trim()));
            }
        }
        Self::of_tree(directory).ok_or_else(|| {
            let packages: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            format!("{}: no image (vmlinuz); newer packages of a kernel are several, joined by `:`", packages.join(":"))
        })
    }

    /// The kernel in `boot`, or in its directory of modules.
    fn of_tree(root: &Path) -> Option<Self> {
        let named = |directory: &Path, prefix: &str| {
            let entries = fs::read_dir(directory).ok()?;
            entries.filter_map(|entry| Some(entry.ok()?.path())).find(|path| file_name(path).starts_with(prefix))
        };
        if let Some(image) = named(&root.join("boot"), "vmlinuz-") {
            let name = file_name(&image).trim_start_matches("vmlinuz-").to_owned();
            let config = fs::read_to_string(root.join("boot").join(format!("config-{name}"))).ok();
            return Some(Self { name, image, config });
        }
        let modules = ["usr/lib/modules", "lib/modules"].iter().find_map(|path| named(&root.join(path), ""))?;
        let image = modules.join("vmlinuz");
        let config = fs::read_to_string(modules.join("config")).ok();
        image.is_file().then(|| Self { name: file_name(&modules), image, config })
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Way in which a machine runs its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// An emulator whose clock counts instructions.
    Counter,
    /// An emulator.
    Emulator,
    /// The processors of this machine.
    Kvm,
}

/// Virtual machine.
pub(super) struct VirtualMachine {
    pub(super) qemu: PathBuf,
    /// Name of the kernel.
    pub(super) name: String,
    pub(super) image: PathBuf,
    /// First files.
    pub(super) initial: PathBuf,
    pub(super) accelerator: Accelerator,
    /// Option of the emulator that loads a plugin.
    pub(super) plugin: Option<String>,
    /// Longest time until it ends.
    pub(super) time_max: Duration,
}

impl VirtualMachine {
    /// Boots, and returns what the machine reports.
    pub(super) fn run<Report: DeserializeOwned>(&self, stop: &AtomicBool) -> Result<Report, String> {
        let mut command = Command::new(&self.qemu);
        let processors = std::thread::available_parallelism().map_or(1, usize::from).to_string();
        match self.accelerator {
            // One processor: one that waits for another would never end, as time advances by instructions alone.
            Accelerator::Counter => {
                command.args([
                    "-accel",
                    "tcg,thread=single",
                    "-icount",
                    "shift=0,sleep=off",
                    "-cpu",
                    MODEL,
                    "-smp",
                    "1",
                ]);
                // The clock and the seed of random numbers are the same in each boot.
                command.args(["-rtc", "base=2026-01-01,clock=vm", "-seed", "1"]);
            }
            Accelerator::Emulator => {
                command.args(["-accel", "tcg,thread=multi", "-cpu", MODEL, "-smp", &processors]);
            }
            Accelerator::Kvm => {
                command.args(["-accel", "kvm", "-cpu", "host", "-smp", &processors]);
            }
        }
        command.args(["-m", MEMORY_MIB, "-nic", "none", "-nographic", "-no-reboot", "-kernel"]).arg(&self.image);
        command.arg("-initrd").arg(&self.initial);
        if let Some(plugin) = &self.plugin {
            command.args(["-plugin", plugin]);
        }
        // Without random addresses, the layout of memory is the same in each boot, too. The kernel's memory is not accounted to
        // control groups, because server and client take its reserve from each other, more or less often.
        let options = match self.accelerator {
            Accelerator::Counter => " nokaslr norandmaps mitigations=off cgroup.memory=nokmem,nosocket",
            Accelerator::Emulator | Accelerator::Kvm => "",
        };
        command.arg("-append").arg(format!("console=ttyS0 quiet panic=-1{options}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut machine = command.spawn().map_err(|error| format!("{}: {error}", self.qemu.display()))?;
        let output = machine.stdout.take().ok_or("the emulator has no output")?;
        let lines = std::thread::spawn(move || {
            let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
            lines.map(|line| String::from_utf8_lossy(&line).trim_end().to_owned()).collect::<Vec<_>>()
        });
        let start = Instant::now();
        let wait = loop {
            match machine.try_wait() {
                Ok(Some(_)) => break Ok(()),
                Ok(None) if stop.load(Ordering::Relaxed) => break Err("interrupted".to_owned()),
                Ok(None) if start.elapsed() > self.time_max => {
                    break Err(format!("{}: not done within {} s", self.name, self.time_max.as_secs()));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(100)),
                Err(error) => break Err(error.to_string()),
            }
        };
        // The machine may have ended already.
        let _ = machine.kill();
        let _ = machine.wait();
        let lines = lines.join().map_err(|_| "the output of the emulator cannot be read")?;
        wait?;
        read_report(&self.name, &lines)
    }
}

/// Adds the counts that the emulator has written to loads.
pub(super) fn add_written_counts(loads: &mut [GuestLoad], path: &Path) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    add_counts(loads, &parse_counts(&text));
    Ok(())
}

/// Adds the emulator's counts to loads. Each load has a mark at its start and at its end. An uncounted one is before them.
fn add_counts(loads: &mut [GuestLoad], counts: &[MarkedCounts]) {
    let Some(first) = counts.len().checked_sub(2 * loads.len()) else { return };
    for (load, marks) in loads.iter_mut().zip(counts[first..].chunks_exact(2)) {
        load.user = Some(marks[1].user - marks[0].user);
        load.kernel = Some(marks[1].kernel - marks[0].kernel);
    }
}

/// Report among the lines of a machine.
fn read_report<Report: DeserializeOwned>(name: &str, lines: &[String]) -> Result<Report, String> {
    for line in lines {
        if let Some(json) = line.strip_prefix(REPORT_MARK) {
            return serde_json::from_str(json).map_err(|error| format!("{name}: {error}: {json}"));
        }
        if let Some(reason) = line.strip_prefix(FAILURE_MARK) {
            return Err(format!("{name}: {reason}"));
        }
    }
    let last = lines.len().saturating_sub(SHOWN_LINES);
    Err(format!("{name}: the machine ended without a report:\n{}", lines[last..].join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_in_packages_of_both_layouts() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("old/boot/vmlinuz-6.1.0-1", "");
        write("old/boot/config-6.1.0-1", "CONFIG_A=y\n");
        write("new/usr/lib/modules/7.2/vmlinuz", "");
        write("new/usr/lib/modules/7.2/config", "CONFIG_B=y\n");
        write("empty/usr/share/x", "");
        let kernel = |name: &str| KernelFiles::of_tree(&directory.path().join(name));
        let (old, new) = (kernel("old").unwrap(), kernel("new").unwrap());
        assert_eq!((old.name.as_str(), old.config.as_deref()), ("6.1.0-1", Some("CONFIG_A=y\n")));
        assert_eq!((new.name.as_str(), new.config.as_deref()), ("7.2", Some("CONFIG_B=y\n")));
        assert!(kernel("empty").is_none());
        let image =
            KernelFiles::unpack(&[directory.path().join("old/boot/vmlinuz-6.1.0-1")], directory.path()).unwrap();
        assert_eq!((image.name.as_str(), image.config), ("6.1.0-1", old.config));
        let missing = KernelFiles::unpack(&[directory.path().join("vmlinuz-x")], directory.path());
        assert!(missing.err().unwrap().contains("no such file"));
    }

    #[test]
    fn counts_belong_to_the_last_loads() {
        let load = GuestLoad { requests: 1, server: 1, client: 1, user: None, kernel: None };
        let mut loads = [load; 2];
        let counts: Vec<MarkedCounts> =
            [1, 5, 6, 10, 12, 20].map(|at| MarkedCounts { user: at, kernel: 3 * at }).into();
        add_counts(&mut loads, &counts[..3]);
        assert_eq!(loads, [load; 2], "a machine that ended early");
        add_counts(&mut loads, &counts);
        let divided = |user| GuestLoad { user: Some(user), kernel: Some(3 * user), ..load };
        assert_eq!(loads, [divided(4), divided(8)]);
    }

    #[test]
    fn a_machine_says_why_it_has_no_report() {
        let lines = |text: &str| text.split('\n').map(str::to_owned).collect::<Vec<_>>();
        let error = |text: &str| read_report::<()>("6.1", &lines(text)).unwrap_err();
        assert_eq!(error(&format!("booting\n{FAILURE_MARK}mount: exit status: 1")), "6.1: mount: exit status: 1");
        assert!(error("a\nKernel panic - not syncing").contains("without a report:\na\nKernel panic"));
        assert!(error(&format!("{REPORT_MARK}{{")).contains("6.1: "));
        assert_eq!(read_report("6.1", &lines(&format!("a\n{REPORT_MARK}5"))), Ok(5));
    }
}
