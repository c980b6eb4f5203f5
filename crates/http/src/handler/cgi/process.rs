use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process::Child;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::time::{Instant, Sleep, sleep_until};

use super::reaper::{RunningProgram, reap};
use super::{ErrorLines, RunningPlace};
use crate::config::ProgramsConfig;

/// Reads of standard error in a turn.
const ERROR_READS_PER_TURN_MAX: u32 = 16;

/// A program that handles one request: read and written like a connection. Dropping it ends the program.
pub struct CgiProcess {
    name: Rc<str>,
    input: Option<pipe::Sender>,
    output: pipe::Receiver,
    errors: Errors,
    /// `None` once the reaper has it.
    running: Option<RunningProgram>,
    /// Timer that ends the program at its time limit.
    time_up: Pin<Box<Sleep>>,
    /// Bytes that it may still write; `None` for no limit.
    output_bytes_left: Option<u64>,
}

/// Standard error of a program.
pub(super) struct Errors {
    /// `None` after the end.
    pub(super) pipe: Option<pipe::Receiver>,
    pub(super) lines: ErrorLines,
}

impl CgiProcess {
    /// Wraps a started program and its place.
    ///
    /// # Errors
    /// The runtime rejects one of its pipes.
    pub(super) fn new(
        mut child: Child,
        name: Rc<str>,
        lines: ErrorLines,
        config: &ProgramsConfig,
        place: RunningPlace,
    ) -> io::Result<Self> {
        let (input, output, error) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // First of all, so that the program is reaped whatever happens next.
        let deadline = Instant::now() + config.run_time_max;
        let running = RunningProgram::new(child, deadline, config.end_timeout, place)?;
        let receiver = |fd: OwnedFd| pipe::Receiver::from_owned_fd(fd);
        let lost = || io::Error::other("a pipe is missing");
        Ok(Self {
            input: input.map(|input| pipe::Sender::from_owned_fd(input.into())).transpose()?,
            output: receiver(output.ok_or_else(lost)?.into())?,
            errors: Errors { pipe: Some(receiver(error.ok_or_else(lost)?.into())?), lines },
            running: Some(running),
            time_up: Box::pin(sleep_until(deadline)),
            output_bytes_left: (config.output_bytes_max > 0).then_some(config.output_bytes_max),
            name,
        })
    }

    /// Name for logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name as an `Rc` to keep.
    pub fn shared_name(&self) -> &Rc<str> {
        &self.name
    }

    /// Reads its output. 0 is the end: the program has closed its output or has exited, even if a child still holds
    /// the pipe.
    ///
    /// # Errors
    /// The program has exceeded its time limit or its output limit.
    pub fn poll_read(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.errors.poll_log(task);
        if self.time_up.as_mut().poll(task).is_ready() {
            self.errors.lines.push(b"has run for as long as it may (`run-time-max`), and is ended\n");
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let mut count = read(&mut self.output, task, buffer);
        if count.is_pending() && self.poll_ended(task).is_ready() {
            // All its output was written before it exited; output of its children is not waited for.
            count = match read(&mut self.output, task, buffer) {
                Poll::Pending => Poll::Ready(Ok(0)),
                count => count,
            };
        }
        let count = ready!(count)?;
        if let Some(left) = &mut self.output_bytes_left {
            *left = left.checked_sub(count as u64).ok_or_else(|| {
                self.errors.lines.push(b"has written more than it may (`output-bytes-max`), and is ended\n");
                io::Error::from(io::ErrorKind::FileTooLarge)
            })?;
        }
        Poll::Ready(Ok(count))
    }

    fn poll_ended(&mut self, task: &mut Task<'_>) -> Poll<()> {
        match &mut self.running {
            Some(running) => running.poll_ended(task),
            None => Poll::Ready(()),
        }
    }

    /// Writes as much of `bytes` as the pipe accepts.
    ///
    /// # Errors
    /// The program has closed its input, or gets none.
    pub fn poll_write(&mut self, task: &mut Task<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.input {
            Some(input) => Pin::new(input).poll_write(task, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Closes the program's input.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// Ends the exchange after the response. The program may continue until its time limit.
    pub fn finish(mut self) {
        if let Some(running) = self.running.take() {
            self.leave(running, false);
        }
    }

    /// Passes the program and its standard error to the reaper.
    fn leave(&mut self, running: RunningProgram, is_aborted: bool) {
        let lines = self.errors.lines.take();
        let errors = Errors { pipe: self.errors.pipe.take(), lines };
        // Closed pipes tell a program that its client has gone.
        self.input = None;
        tokio::task::spawn_local(reap(running, errors, is_aborted));
    }
}

impl Drop for CgiProcess {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.leave(running, true);
        }
    }
}

impl Errors {
    /// Logs available error output. It is read even beyond the log limit, so that the program never blocks on it.
    pub(super) fn poll_log(&mut self, task: &mut Task<'_>) {
        let mut buffer = [0; 1024];
        for _ in 0..ERROR_READS_PER_TURN_MAX {
            let Some(pipe) = &mut self.pipe else { return };
            match read(pipe, task, &mut buffer) {
                Poll::Pending => return,
                Poll::Ready(Ok(count @ 1..)) => self.lines.push(&buffer[..count]),
                Poll::Ready(_) => {
                    self.lines.end();
                    self.pipe = None;
                }
            }
        }
        task.waker().wake_by_ref();
    }
}

fn read(pipe: &mut pipe::Receiver, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(buffer);
    ready!(Pin::new(pipe).poll_read(task, &mut buffer))?;
    Poll::Ready(Ok(buffer.filled().len()))
}
