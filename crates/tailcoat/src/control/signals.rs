use std::io::{self, IsTerminal};

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Arriving, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// SIGTERM, SIGINT: end within the grace time.
    Drain,
    /// SIGQUIT: end when the last request is answered, however long that takes.
    DrainWithoutLimit,
    /// SIGUSR1: open the log files again.
    ReopenLogs,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR2: start another binary, and let it take over.
    Upgrade,
}

impl Command {
    /// The signal that asks for it.
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

/// The signals that the server listens to.
#[derive(Debug)]
pub struct Signals {
    terminate: Arriving,
    interrupt: Arriving,
    quit: Arriving,
    user1: Arriving,
    user2: Arriving,
    hangup: Arriving,
    /// SIGXFSZ: a file has reached RLIMIT_FSIZE. Listened to so that it does not end the process; the write fails with EFBIG.
    _file_size: Arriving,
    /// SIGHUP comes also when the terminal goes that the server was started from; then it is to end.
    has_terminal: bool,
}

impl Signals {
    /// Listens from now on, in a tokio runtime.
    ///
    /// # Errors
    /// The kernel's.
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
    pub async fn next(&mut self) -> Command {
        tokio::select! {
            _ = self.terminate.recv() => Command::Drain,
            _ = self.interrupt.recv() => Command::Drain,
            _ = self.hangup.recv() => if self.has_terminal { Command::Drain } else { Command::Reload },
            _ = self.user2.recv() => Command::Upgrade,
            _ = self.quit.recv() => Command::DrainWithoutLimit,
            _ = self.user1.recv() => Command::ReopenLogs,
        }
    }
}
