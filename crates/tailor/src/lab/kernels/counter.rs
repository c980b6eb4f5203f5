//! Plugin of the emulator, which counts instructions in user space and in the kernel.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::programs::installed_path;

/// Operand of the instruction at which the plugin writes its counts. `black_box` keeps it in the program.
pub(super) const MARK: u64 = 0x746c_7243_6f75_6e74;

const SOURCE: &str = include_str!("counter.c");

/// Versions of qemu's interface for plugins that differ for this one.
const VERSIONS: [u32; 3] = [1, 2, 3];

/// Compiled plugin.
pub(super) struct CountingPlugin {
    path: PathBuf,
}

/// Instructions so far, at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MarkedCounts {
    pub(super) user: u64,
    pub(super) kernel: u64,
}

impl CountingPlugin {
    /// Compiles the plugin in a directory.
    ///
    /// # Errors
    /// There is no compiler, or the emulator takes no plugins.
    pub(super) fn build(qemu: &Path, directory: &Path) -> Result<Self, String> {
        let compiler = installed_path("cc").ok_or("no C compiler is installed")?;
        let source = directory.join("counter.c");
        std::fs::write(&source, SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
        let mut reason = String::new();
        for version in VERSIONS {
            let path = directory.join(format!("counter-{version}.so"));
            let mut compile = Command::new(&compiler);
            compile.args(["-O2", "-shared", "-fPIC", &format!("-DAPI={version}"), &format!("-DMARK={MARK}u")]);
            let output = compile.arg("-o").arg(&path).arg(&source).output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
            let plugin = Self { path };
            match plugin.check(qemu, directory) {
                Ok(()) => return Ok(plugin),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Option of the emulator that loads the plugin, which then writes to this file.
    pub(super) fn option(&self, out: &Path) -> String {
        format!("{},out={}", self.path.display(), out.display())
    }

    /// Loads the plugin in an emulator without a machine.
    fn check(&self, qemu: &Path, directory: &Path) -> Result<(), String> {
        let mut command = Command::new(qemu);
        command.args(["-machine", "none", "-nodefaults", "-display", "none", "-monitor", "stdio", "-plugin"]);
        command.arg(self.option(&directory.join("check")));
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut emulator = pipes.spawn().map_err(|error| error.to_string())?;
        if let Some(mut input) = emulator.stdin.take() {
            // An emulator that rejects the plugin has ended.
            let _ = input.write_all(b"quit\n");
        }
        let output = emulator.wait_with_output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }
}

/// Counts at each mark.
pub(super) fn parse_counts(text: &str) -> Vec<MarkedCounts> {
    let counts = |line: &str| {
        let (user, kernel) = line.split_once(' ')?;
        Some(MarkedCounts { user: user.parse().ok()?, kernel: kernel.parse().ok()? })
    };
    text.lines().filter_map(counts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let counts = |user, kernel| MarkedCounts { user, kernel };
        assert_eq!(parse_counts("1 2\n30 40\n"), [counts(1, 2), counts(30, 40)]);
        assert_eq!(parse_counts("1 2\n3"), [counts(1, 2)], "a line that was not written whole");
        assert_eq!(parse_counts(""), []);
    }

    /// The program has the instruction that the plugin looks for.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_mark_is_an_operand() {
        std::hint::black_box(MARK);
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let is_instruction = |bytes: &[u8]| {
            matches!(bytes[0], 0x48 | 0x49) && bytes[1] & 0xf8 == 0xb8 && bytes[2..] == MARK.to_le_bytes()
        };
        assert!(program.windows(10).any(is_instruction));
    }
}
