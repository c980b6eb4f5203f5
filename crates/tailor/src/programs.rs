//! Programs of the system, such as `ip` and `tc`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Path of a program, in the directories of this user and of root.
pub(crate) fn installed_path(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_root = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(of_root).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// Runs a command that must succeed.
pub(crate) fn call(words: &[&str]) -> Result<(), String> {
    output(words).map(drop)
}

/// Output of a command that must succeed.
pub(crate) fn output(words: &[&str]) -> Result<String, String> {
    let program = installed_path(words[0]).unwrap_or_else(|| words[0].into());
    // The first process of a machine calls `mount` before there is an empty input (`/dev/null`).
    let output = Command::new(program).args(&words[1..]).stdin(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{}: {error}", words[0]))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}
