//! End of programs. Each is reaped, so that no zombie stays; its process group is killed with it if necessary.

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

/// A program that was not reaped. Until then, the kernel gives its process ID to no other process.
pub(super) struct RunningProgram {
    child: Child,
    pid: Pid,
    /// The program's pidfd, which becomes readable when it has exited. It is wrapped as a socket because tokio takes
    /// no other descriptor without unsafe code; only its readiness is used.
    pidfd: TcpStream,
    deadline: Instant,
    end_timeout: Duration,
    has_been_waited_for: bool,
    /// Released on drop, after the program is reaped.
    _place: RunningPlace,
}

impl RunningProgram {
    /// Opens the pidfd of a program. On failure the program is killed.
    ///
    /// # Errors
    /// No file descriptor is free.
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

    /// Ready when the program has exited.
    pub(super) fn poll_ended(&mut self, task: &mut Task<'_>) -> Poll<()> {
        // An error would be the end of the runtime, which then waits for nothing.
        self.pidfd.poll_read_ready(task).map(drop)
    }

    async fn ended(&mut self) {
        poll_fn(|task| self.poll_ended(task)).await;
    }

    fn signal_group(&self, signal: Signal) {
        // The group may have ended already.
        let _ = kill_process_group(self.pid, signal);
    }

    fn wait(&mut self) {
        // The program has exited or been killed. An error would mean that another caller has reaped it.
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

/// Reaps a program after its response, or ends it if its request was aborted or its time is up. Ending means SIGTERM,
/// then SIGKILL, for its process group. Processes that left the group, such as daemons, continue.
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
        // Rest of the group, and the program itself if it still runs.
        running.signal_group(Signal::KILL);
        running.ended().await;
    }
    running.wait();
}
