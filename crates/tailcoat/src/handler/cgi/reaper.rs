//! The end of programs. Each is waited for, so that none stays as a zombie, and its process group ends with it if it has to.

use std::future::poll_fn;
use std::io;
use std::process::Child;
use std::task::{Context as Task, Poll};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::RunningPlace;
use super::process::Errors;

/// A program that has not been waited for: until then its number, and that of its group, is nobody else's.
pub(super) struct RunningProgram {
    child: Child,
    pid: Pid,
    /// The program's descriptor, which is readable when it has ended. tokio waits for any descriptor, but takes only sockets
    /// without unsafe code; nothing else is ever asked of this one.
    pidfd: TcpStream,
    deadline: Instant,
    end_timeout: Duration,
    has_been_waited_for: bool,
    /// Its place among those that run.
    _place: RunningPlace,
}

impl RunningProgram {
    /// Takes care of a program. If that can't be done, it is killed.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn new(
        mut child: Child,
        deadline: Instant,
        end_timeout: Duration,
        place: RunningPlace,
    ) -> io::Result<Self> {
        let opened = open(&child);
        match opened {
            Ok((pid, pidfd)) => {
                Ok(Self { child, pid, pidfd, deadline, end_timeout, has_been_waited_for: false, _place: place })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Ready when the program has ended.
    pub(super) fn poll_ended(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // An error would be the end of whoever watches: then nothing is waited for.
        self.pidfd.poll_read_ready(task).map(drop)
    }

    async fn ended(&mut self) {
        poll_fn(|task| self.poll_ended(task)).await;
    }

    fn signal_group(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill_process_group(self.pid, signal);
    }

    fn wait(&mut self) {
        // It has ended, or been killed. That it can't be waited for would mean that somebody else has.
        let _ = self.child.wait();
        self.has_been_waited_for = true;
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if !self.has_been_waited_for {
            self.signal_group(Signal::KILL);
            self.wait();
        }
    }
}

fn open(child: &Child) -> io::Result<(Pid, TcpStream)> {
    let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("a process without a number"))?;
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    Ok((pid, TcpStream::from_std(pidfd.into())?))
}

/// Waits for a program that has answered, or that nobody wants an answer of: that one is told to end, and so is one that
/// runs for longer than it may; both with their groups. What has left its group, as daemons do, is on its own.
pub(super) async fn reap(mut running: RunningProgram, mut errors: Errors, is_aborted: bool) {
    let mut log_until_ended = async |running: &mut RunningProgram| {
        poll_fn(|task| {
            errors.poll_log(task);
            running.poll_ended(task)
        })
        .await;
    };
    let has_ended = !is_aborted && timeout_at(running.deadline, log_until_ended(&mut running)).await.is_ok();
    if !has_ended {
        running.signal_group(Signal::TERM);
        let _ = timeout(running.end_timeout, log_until_ended(&mut running)).await;
        // Those of its group that have not ended; and itself, if it has not.
        running.signal_group(Signal::KILL);
        running.ended().await;
    }
    running.wait();
}
