//! A process beside the server that starts the next one (upgrade), and reads the configuration for it. What starts a server
//! must not be confined to what the server of before needed (`confinement/`), for what a process has taken from itself all that
//! it starts lack as well. So it is a process, and not a thread: whoever has got hold of the server has no memory in common
//! with it. It does nothing but what is here, with a program, arguments and a file that are fixed when it begins, as the
//! server's user, and ends with the server.
//!
//! They speak by messages on a socket that the launcher has as its standard input: for each [`Wish`] there is an [`LaunchOutcome`].

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

use super::handover::{Heir, receive, send};
use crate::config::{self, ConfigOrigin};
use crate::control::Signals;

/// What the launcher ends with, so that the first process of a container takes it for no server.
pub(super) const EXIT_CODE: u8 = 77;

/// The subcommand that it is.
const SUBCOMMAND: &str = "launcher";

/// Most of what is found in a configuration that is told, in bytes.
const FINDINGS_BYTES_MAX: usize = 64 << 10;

/// What the launcher is asked for.
#[derive(Debug, Serialize, Deserialize)]
enum Wish {
    /// Start a server; its standard input comes along.
    Start,
    /// Wait so long for the server that was started, and then kill it.
    End(Duration),
    /// Read the configuration.
    Check,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
enum LaunchOutcome {
    /// A server with this number.
    Started(u32),
    /// None, for this reason.
    NotStarted(String),
    /// How it has ended, if it has by itself.
    Ended(Option<String>),
    /// What is wrong with the configuration.
    Checked(ConfigFindings),
}

/// What is wrong with a configuration: nothing, if there are no errors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ConfigFindings {
    pub(super) error_count: usize,
    /// For a person.
    pub(super) plain: String,
    /// The same with boxes and colours.
    pub(super) fancy: String,
}

/// The server's end. Dropped, it ends the launcher.
#[derive(Debug)]
pub(super) struct Launcher {
    socket: Mutex<OwnedFd>,
    process: Mutex<Child>,
}

impl Launcher {
    /// Starts the launcher: as this process was started, so will be those that it starts.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(program: &Path, arguments: &[OsString], origin: &ConfigOrigin) -> io::Result<Self> {
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // This very program, whatever is in its place by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND);
        if let ConfigOrigin::File(file, _) = origin {
            command.arg("--config").arg(file);
        }
        command.arg("--").arg(program).args(arguments).stdin(Stdio::from(other));
        // What a terminal sends its foreground is for the server.
        command.process_group(0);
        let process = command.spawn()?;
        Ok(Self { socket: Mutex::new(own), process: Mutex::new(process) })
    }

    /// Starts a server with this standard input; returns its number.
    ///
    /// # Errors
    /// It can't be started, or there is no launcher any more.
    pub(super) fn launch(&self, input: &OwnedFd) -> io::Result<u32> {
        match self.ask(&Wish::Start, Some(input))? {
            LaunchOutcome::Started(pid) => Ok(pid),
            LaunchOutcome::NotStarted(reason) => Err(io::Error::other(reason)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits for the server that was started, and kills it if it does not end in this time. Returns its status if it has ended
    /// by itself.
    pub(super) fn end(&self, patience: Duration) -> Option<String> {
        match self.ask(&Wish::End(patience), None) {
            Ok(LaunchOutcome::Ended(status)) => status,
            _ => None,
        }
    }

    /// Reads the configuration, as a server would that is about to start.
    ///
    /// # Errors
    /// There is no launcher any more, or the configuration can't be read.
    pub(super) fn check(&self) -> io::Result<ConfigFindings> {
        match self.ask(&Wish::Check, None)? {
            LaunchOutcome::Checked(findings) => Ok(findings),
            LaunchOutcome::NotStarted(reason) => Err(io::Error::other(reason)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn ask(&self, wish: &Wish, descriptor: Option<&OwnedFd>) -> io::Result<LaunchOutcome> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptors: Vec<_> = descriptor.iter().map(std::os::fd::AsFd::as_fd).collect();
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the launcher process ended");
        send(&socket, wish, &descriptors).map_err(gone)?;
        receive(&socket).map(|(outcome, _)| outcome).map_err(gone)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have ended already. What it has started stays.
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// What the process does that is the launcher: what it is asked for on its standard input, until nobody is there any more.
pub fn launcher(file: Option<&Path>, program: &Path, arguments: &[OsString]) -> ExitCode {
    // What is sent to all processes of this name is not for this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let entered = runtime.as_ref().ok().map(|runtime| runtime.enter());
    let signals = entered.as_ref().and_then(|_| Signals::new().ok());
    let _ = rustix::thread::set_name(c"tailcoat-launch");
    if let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3) {
        let mut child = None;
        while let Ok((wish, descriptors)) = receive::<Wish>(&socket) {
            let outcome = match wish {
                Wish::Start => match descriptors.into_iter().next().map(|input| start(program, arguments, input)) {
                    Some(Ok(started)) => LaunchOutcome::Started(child.insert(started).id()),
                    Some(Err(error)) => LaunchOutcome::NotStarted(error.to_string()),
                    None => LaunchOutcome::NotStarted("no handover was passed".to_owned()),
                },
                Wish::End(patience) => {
                    LaunchOutcome::Ended(child.take().and_then(|mut child| end(&mut child, patience)))
                }
                Wish::Check => check(file),
            };
            if send(&socket, &outcome, &[]).is_err() {
                break;
            }
        }
    }
    drop(signals);
    ExitCode::from(EXIT_CODE)
}

/// Starts a server that finds a handover as its standard input.
///
/// # Errors
/// The system's.
pub(super) fn start(program: &Path, arguments: &[OsString], input: OwnedFd) -> io::Result<Child> {
    let (name, value) = Heir::variable();
    let mut command = Command::new(program);
    command.args(arguments).stdin(input).env(name, value);
    // Its sockets come with the handover.
    ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].iter().for_each(|name| _ = command.env_remove(name));
    command.spawn()
}

/// Waits for a process, and kills it if it does not end in this time. Returns its status if it has ended by itself.
pub(super) fn end(child: &mut Child, patience: Duration) -> Option<String> {
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(10)),
            Ok(Some(status)) => return Some(status.to_string()),
            _ => break,
        }
    }
    // It may just have ended.
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
    /// What is told of these.
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
    fn wishes_and_outcomes_come_back_as_they_were() {
        let wish = serde_json::to_string(&Wish::End(Duration::from_millis(1_500))).unwrap();
        assert!(matches!(serde_json::from_str(&wish), Ok(Wish::End(patience)) if patience.as_millis() == 1_500));
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
