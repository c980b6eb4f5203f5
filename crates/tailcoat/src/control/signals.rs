use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// SIGTERM, SIGINT: end within the grace time.
    Drain,
    /// SIGQUIT: end when the last request is answered, however long that takes.
    DrainWithoutLimit,
    /// SIGUSR1: open the log files again.
    ReopenLogs,
}

/// The signals that the server listens to.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    user1: Signal,
    /// Without a handler SIGHUP would end the server, and it comes when the terminal it was started from goes.
    hangup: Signal,
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
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next command.
    pub async fn next(&mut self) -> Command {
        tokio::select! {
            _ = self.terminate.recv() => Command::Drain,
            _ = self.interrupt.recv() => Command::Drain,
            _ = self.hangup.recv() => Command::Drain,
            _ = self.quit.recv() => Command::DrainWithoutLimit,
            _ = self.user1.recv() => Command::ReopenLogs,
        }
    }
}
