//! A separate process that starts the next server process (upgrade) and reads the configuration for it. A confined
//! process passes its confinement (`confinement/`) on to every program that it starts. The next server must not inherit
//! it, because its configuration may need more. A thread would not do: an attacker inside the server shares no memory
//! with a process. The launcher does only what is here, with a program, arguments and a file that are fixed at its
//! start. It runs as the server's user and ends with the server.
//!
//! Both exchange messages over a socket, the launcher's standard input: each [`LaunchRequest`] gets one [`LaunchOutcome`].

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};

use super::handover::{HandoverSender, receive, send};
use crate::config::{self, ConfigOrigin};
use crate::control::Signals;

/// Exit code of the launcher, by which process 1 of a container tells it from a server.
pub(super) const EXIT_CODE: u8 = 77;

/// Hidden subcommand that runs the launcher.
const SUBCOMMAND: &str = "launcher";

/// Limit of a report on a configuration, in bytes.
const FINDINGS_BYTES_MAX: usize = 64 << 10;

/// Request of the server.
#[derive(Debug, Serialize, Deserialize)]
enum LaunchRequest {
    /// Start a server. A descriptor for its standard input comes with the message.
    Start,
    /// Wait at most this long for the started server, then kill it.
    End(Duration),
    /// Read the configuration.
    Check,
}

/// Answer of the launcher.
#[derive(Debug, Serialize, Deserialize)]
enum LaunchOutcome {
    /// The server runs with this process id.
    Started(u32),
    /// The server could not be started, for this reason.
    NotStarted(String),
    /// Exit status of the server, unless the launcher killed it.
    Ended(Option<String>),
    /// Result of reading the configuration.
    Checked(ConfigFindings),
}

/// Findings in a configuration. It is valid if `error_count` is zero.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ConfigFindings {
    pub(super) error_count: usize,
    /// Report as plain text.
    pub(super) plain: String,
    /// Report with boxes and colours, for a terminal.
    pub(super) fancy: String,
}

/// Server's end. Dropping it ends the launcher.
#[derive(Debug)]
pub(super) struct Launcher {
    socket: Mutex<OwnedFd>,
    process: Mutex<Child>,
}

impl Launcher {
    /// Starts the launcher with this process's program and arguments. The servers that it starts get them, too.
    ///
    /// # Errors
    /// The system call that failed.
    pub(super) fn start(program: &Path, arguments: &[OsString], origin: &ConfigOrigin) -> io::Result<Self> {
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The running program itself, even if its file was replaced.
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND);
        if let ConfigOrigin::File(file, _) = origin {
            command.arg("--config").arg(file);
        }
        command.arg("--").arg(program).args(arguments).stdin(Stdio::from(other));
        // A terminal's signals to the foreground group are for the server only.
        command.process_group(0);
        let process = command.spawn()?;
        Ok(Self { socket: Mutex::new(own), process: Mutex::new(process) })
    }

    /// Starts a server with this standard input; returns its process id.
    ///
    /// # Errors
    /// The server cannot be started, or the launcher has ended.
    pub(super) fn launch(&self, input: &OwnedFd) -> io::Result<u32> {
        match self.ask(&LaunchRequest::Start, Some(input))? {
            LaunchOutcome::Started(pid) => Ok(pid),
            LaunchOutcome::NotStarted(reason) => Err(io::Error::other(reason)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits for the started server, and kills it after `patience`. Returns its status if it has ended by itself.
    pub(super) fn end(&self, patience: Duration) -> Option<String> {
        match self.ask(&LaunchRequest::End(patience), None) {
            Ok(LaunchOutcome::Ended(status)) => status,
            _ => None,
        }
    }

    /// Reads the configuration as a server does at its start.
    ///
    /// # Errors
    /// The launcher has ended, or the configuration cannot be read.
    pub(super) fn check(&self) -> io::Result<ConfigFindings> {
        match self.ask(&LaunchRequest::Check, None)? {
            LaunchOutcome::Checked(findings) => Ok(findings),
            LaunchOutcome::NotStarted(reason) => Err(io::Error::other(reason)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn ask(&self, request: &LaunchRequest, descriptor: Option<&OwnedFd>) -> io::Result<LaunchOutcome> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptors: Vec<_> = descriptor.iter().map(std::os::fd::AsFd::as_fd).collect();
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the launcher process ended");
        send(&socket, request, &descriptors).map_err(gone)?;
        receive(&socket).map(|(outcome, _)| outcome).map_err(gone)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The launcher may have ended already. A server that it has started keeps running.
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// Main loop of the launcher: answers requests on standard input until the server closes the socket.
pub(crate) fn launcher(file: Option<&Path>, program: &Path, arguments: &[OsString]) -> ExitCode {
    // Ignores signals that are sent to all processes of this name.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let entered = runtime.as_ref().ok().map(|runtime| runtime.enter());
    let signals = entered.as_ref().and_then(|_| Signals::new().ok());
    let _ = rustix::thread::set_name(c"tailcoat-launch");
    if let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3) {
        let mut child = None;
        while let Ok((request, descriptors)) = receive::<LaunchRequest>(&socket) {
            let outcome = match request {
                LaunchRequest::Start => {
                    match descriptors.into_iter().next().map(|input| start(program, arguments, input)) {
                        Some(Ok(started)) => LaunchOutcome::Started(child.insert(started).id()),
                        Some(Err(error)) => LaunchOutcome::NotStarted(error.to_string()),
                        None => LaunchOutcome::NotStarted("no handover was passed".to_owned()),
                    }
                }
                LaunchRequest::End(patience) => {
                    LaunchOutcome::Ended(child.take().and_then(|mut child| end(&mut child, patience)))
                }
                LaunchRequest::Check => check(file),
            };
            if send(&socket, &outcome, &[]).is_err() {
                break;
            }
        }
    }
    drop(signals);
    ExitCode::from(EXIT_CODE)
}

/// Starts a server that finds a handover on its standard input.
///
/// # Errors
/// The system call that failed.
pub(super) fn start(program: &Path, arguments: &[OsString], input: OwnedFd) -> io::Result<Child> {
    let (name, value) = HandoverSender::variable();
    let mut command = Command::new(program);
    command.args(arguments).stdin(input).env(name, value);
    // The new server gets its sockets with the handover, not from systemd.
    ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].iter().for_each(|name| _ = command.env_remove(name));
    command.spawn()
}

/// Waits for a process, and kills it after `patience`. Returns its status if it has ended by itself.
pub(super) fn end(child: &mut Child, patience: Duration) -> Option<String> {
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(10)),
            Ok(Some(status)) => return Some(status.to_string()),
            _ => break,
        }
    }
    // The process may just have ended.
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn check(file: Option<&Path>) -> LaunchOutcome {
    let Some(file) = file else {
        return LaunchOutcome::NotStarted("the server was not started from a configuration file".to_owned());
    };
    match config::check_file_to_run(file) {
        Ok(checked) => LaunchOutcome::Checked(ConfigFindings::of(&checked.diagnostics)),
        Err(error) => LaunchOutcome::NotStarted(format!("{}: {error}", file.display())),
    }
}

impl ConfigFindings {
    /// Report on these diagnostics, cut to [`FINDINGS_BYTES_MAX`].
    pub(super) fn of(diagnostics: &config::Diagnostics) -> Self {
        let cut = |mut text: String| {
            text.truncate(text.floor_char_boundary(FINDINGS_BYTES_MAX));
            text
        };
        let (plain, fancy) = (cut(diagnostics.to_text(false)), cut(diagnostics.to_text(true)));
        Self { error_count: diagnostics.error_count(), plain, fancy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_outcomes_come_back_as_they_were() {
        let request = serde_json::to_string(&LaunchRequest::End(Duration::from_millis(1_500))).unwrap();
        assert!(
            matches!(serde_json::from_str(&request), Ok(LaunchRequest::End(patience)) if patience.as_millis() == 1_500)
        );
        let outcome = serde_json::to_string(&LaunchOutcome::Ended(Some("exit status: 1".into()))).unwrap();
        assert!(
            matches!(serde_json::from_str(&outcome), Ok(LaunchOutcome::Ended(Some(status))) if status == "exit status: 1")
        );
    }

    #[test]
    fn findings_are_cut_between_characters() {
        let mut text = "é".repeat(FINDINGS_BYTES_MAX);
        text.truncate(text.floor_char_boundary(FINDINGS_BYTES_MAX - 1));
        assert!(text.len() < FINDINGS_BYTES_MAX && text.chars().all(|letter| letter == 'é'));
    }
}
