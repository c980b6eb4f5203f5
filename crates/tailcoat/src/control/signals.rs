use std::io::{self, IsTerminal};

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Arriving, SignalKind, signal};

/// Command given by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalCommand {
    /// SIGTERM, SIGINT: end within the grace time.
    Drain,
    /// SIGQUIT: end after the last open request, without a time limit.
    DrainWithoutLimit,
    /// SIGUSR1: reopen the log files.
    ReopenLogs,
    /// SIGHUP: reload the configuration.
    Reload,
    /// SIGUSR2: upgrade to another binary.
    Upgrade,
}

impl SignalCommand {
    /// Signal of the command.
    pub fn signal(self) -> Signal {
        match self {
            Self::Drain => Signal::TERM,
            Self::DrainWithoutLimit => Signal::QUIT,
            Self::ReopenLogs => Signal::USR1,
            Self::Reload => Signal::HUP,
            Self::Upgrade => Signal::USR2,
        }
    }
}

/// Signals that the server handles.
#[derive(Debug)]
pub struct Signals {
    terminate: Arriving,
    interrupt: Arriving,
    quit: Arriving,
    user1: Arriving,
    user2: Arriving,
    hangup: Arriving,
    /// SIGXFSZ: a file reached RLIMIT_FSIZE. Handled so that it does not end the process; the write fails with EFBIG.
    _file_size: Arriving,
    /// True if the server was started from a terminal: SIGHUP then means that the terminal has closed, and ends the
    /// server.
    has_terminal: bool,
}

impl Signals {
    /// Starts handling signals. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
            hangup: signal(SignalKind::hangup())?,
            _file_size: signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?,
            has_terminal: io::stdin().is_terminal(),
        })
    }

    /// Waits for the next command.
    pub async fn next(&mut self) -> SignalCommand {
        tokio::select! {
            _ = self.terminate.recv() => SignalCommand::Drain,
            _ = self.interrupt.recv() => SignalCommand::Drain,
            _ = self.hangup.recv() => if self.has_terminal { SignalCommand::Drain } else { SignalCommand::Reload },
            _ = self.user2.recv() => SignalCommand::Upgrade,
            _ = self.quit.recv() => SignalCommand::DrainWithoutLimit,
            _ = self.user1.recv() => SignalCommand::ReopenLogs,
        }
    }
}
