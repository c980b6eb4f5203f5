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

/// Pieces of standard error that are read in a turn.
const ERROR_READS_PER_TURN_MAX: u32 = 16;

/// A program that answers a request: read and written as a connection is. Dropping it ends the program.
pub struct CgiProcess {
    name: Rc<str>,
    input: Option<pipe::Sender>,
    output: pipe::Receiver,
    errors: Errors,
    /// `None` when the reaper has it.
    running: Option<RunningProgram>,
    /// When it has run for as long as it may.
    time_up: Pin<Box<Sleep>>,
    /// Bytes that it may still write; `None` for any number.
    output_bytes_left: Option<u64>,
}

/// Standard error.
pub(super) struct Errors {
    /// `None` at its end.
    pub(super) pipe: Option<pipe::Receiver>,
    pub(super) lines: ErrorLines,
}

impl CgiProcess {
    /// A program that has been started, with the place that it takes among those that run.
    ///
    /// # Errors
    /// Its pipes can't be waited for.
    pub(super) fn new(
        mut child: Child,
        name: Rc<str>,
        lines: ErrorLines,
        config: &ProgramsConfig,
        place: RunningPlace,
    ) -> io::Result<Self> {
        let (input, output, error) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // First of all, so that it is waited for whatever happens.
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

    /// What it is called in logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same, to be kept.
    pub fn shared_name(&self) -> &Rc<str> {
        &self.name
    }

    /// Reads what it has written; 0 is the end: it has closed its output, or has ended, whoever may still hold the pipe.
    ///
    /// # Errors
    /// It has run or written more than it may.
    pub fn poll_read(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.errors.poll_log(task);
        if self.time_up.as_mut().poll(task).is_ready() {
            self.errors.lines.push(b"has run for as long as it may (`run-time-max`), and is ended\n");
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let mut count = read(&mut self.output, task, buffer);
        if count.is_pending() && self.poll_ended(task).is_ready() {
            // It wrote before it ended; what its children may write is not waited for.
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

    /// Writes what the pipe takes of `bytes`.
    ///
    /// # Errors
    /// It has closed its input, or was not to be given any.
    pub fn poll_write(&mut self, task: &mut Task<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.input {
            Some(input) => Pin::new(input).poll_write(task, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Nothing more is written: it reads the end of its input.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// It has answered. It may do what it has to do yet, for as long as it may run.
    pub fn finish(mut self) {
        if let Some(running) = self.running.take() {
            self.leave(running, false);
        }
    }

    /// Gives the program to the reaper, with its standard error.
    fn leave(&mut self, running: RunningProgram, is_aborted: bool) {
        let lines = self.errors.lines.take();
        let errors = Errors { pipe: self.errors.pipe.take(), lines };
        // Pipes that are closed tell a program that nobody listens.
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
    /// Logs what there is. It is read even if nothing is logged any more, or the program would wait for ever.
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
