//! Kernel parameters that are changed for a time, and put back even if this process is killed.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Maximum size of what a guard reads.
const INPUT_BYTES_MAX: u64 = 64 << 10;
/// Text by which a guard learns that the value was put back.
const DONE: &str = "done\n";

/// Kernel parameter with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelParameter {
    name: String,
    value: String,
}

/// Changed kernel parameter; dropping it puts the old value back. If this process is killed, a guard does that at once;
/// if the guard is killed, too, the next run does it.
#[derive(Debug)]
pub(super) struct ChangedParameter {
    old: KernelParameter,
    /// File with the old value.
    note: PathBuf,
    guard: Option<Child>,
}

impl KernelParameter {
    pub(super) fn new(name: &str, value: &str) -> Self {
        Self { name: name.to_owned(), value: value.to_owned() }
    }

    /// The parameter with its current value.
    pub(super) fn current(name: &str) -> Result<Self, String> {
        Ok(Self { name: name.to_owned(), value: read(name)? })
    }

    /// Sets the parameter until the result is dropped.
    pub(super) fn apply(&self) -> Result<ChangedParameter, String> {
        let old = Self::current(&self.name)?;
        let note = note_path(std::process::id());
        std::fs::write(&note, format!("{}\n{}", old.name, old.value))
            .map_err(|error| format!("{}: {error}", note.display()))?;
        // From here on the old value is put back, whatever happens.
        let guard = start_guard(&old, &note);
        let changed = ChangedParameter { old, note, guard: guard.ok() };
        self.write()?;
        Ok(changed)
    }

    fn write(&self) -> Result<(), String> {
        let fail = |reason: String| format!("--vary: cannot set {} to {}: {reason}", self.name, self.value);
        std::fs::write(path(&self.name), &self.value).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                fail(format!("{error}; run as root, outside of a container"))
            }
            _ => fail(error.to_string()),
        })?;
        let is = read(&self.name)?;
        // The kernel separates values by tabs.
        match is.split_whitespace().eq(self.value.split_whitespace()) {
            true => Ok(()),
            false => Err(fail(format!("the kernel made it {is}"))),
        }
    }
}

impl Drop for ChangedParameter {
    fn drop(&mut self) {
        match self.old.write() {
            Ok(()) => drop(std::fs::remove_file(&self.note)),
            Err(error) => eprintln!("tailor: {error}; its value was {} before", self.old.value),
        }
        if let Some(mut guard) = self.guard.take() {
            if let Some(mut input) = guard.stdin.take() {
                let _ = input.write_all(DONE.as_bytes());
            }
            let _ = guard.wait();
        }
    }
}

/// Starts a guard: a process that puts a value back when this one has ended without doing so. It has a process group of
/// its own, so an interrupt from the terminal does not end it.
fn start_guard(old: &KernelParameter, note: &Path) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("guard").process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut guard = command.spawn()?;
    let text = format!("{}\n{}\n{}\n", note.display(), old.name, old.value);
    if let Some(input) = &mut guard.stdin {
        input.write_all(text.as_bytes())?;
    }
    Ok(guard)
}

/// Runs the hidden command of the guard: waits for the end of its input, which is the end of its parent.
pub(crate) fn run_guard() -> Result<(), String> {
    let mut text = String::new();
    std::io::stdin().take(INPUT_BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.ends_with(DONE) {
        return Ok(());
    }
    let mut lines = text.lines();
    let (Some(note), Some(name), Some(value)) = (lines.next(), lines.next(), lines.next()) else { return Ok(()) };
    eprintln!("{name} is put back to {value}: tailor ended before it could");
    KernelParameter::new(name, value).write()?;
    let _ = std::fs::remove_file(note);
    Ok(())
}

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name.replace('.', "/"))
}

fn read(name: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path(name));
    text.map(|text| text.trim().to_owned()).map_err(|error| format!("--vary: {name}: {error}"))
}

fn note_path(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("tailor-vary-{process}"))
}

/// Puts back parameters that killed processes have left changed.
pub(super) fn restore_left_settings() -> Result<(), String> {
    let entries = std::fs::read_dir(std::env::temp_dir()).map_err(|error| error.to_string())?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix("tailor-vary-").and_then(|process| process.parse::<u32>().ok()) else {
            continue;
        };
        if Path::new("/proc").join(process.to_string()).exists() || !is_own(&entry) {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).map_err(|error| format!("{name}: {error}"))?;
        if let Some((name, value)) = text.split_once('\n') {
            eprintln!("{name} is put back to {value}: process {process} ended before it could");
            KernelParameter::new(name, value).write()?;
        }
        let _ = std::fs::remove_file(entry.path());
    }
    Ok(())
}

/// True for a plain file of this user. Other users may write to the directory.
fn is_own(entry: &std::fs::DirEntry) -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_own = |meta: std::fs::Metadata| meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(entry.path()).is_ok_and(is_own)
}
