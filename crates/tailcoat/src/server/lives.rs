//! Processes that still read UDP sockets, as the processes after them see it.
//!
//! Each process has a pipe. It keeps the writing end as long as it reads its sockets, and hands over the reading end.
//! There, later processes see the end, also that of a process that was killed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;

/// Writing end of this process's pipe.
pub(super) struct LifeLine {
    _writer: OwnedFd,
}

/// Reading end of a process's pipe.
pub(super) struct Life(OwnedFd);

impl LifeLine {
    /// Makes the pipe of this process.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn new() -> io::Result<(Self, Life)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Self { _writer: writer }, Life(reader)))
    }
}

impl Life {
    /// True if the process reads its sockets no longer.
    pub(super) fn has_ended(&self) -> bool {
        // No process writes. An empty pipe with a writer would block.
        matches!(rustix::io::read(&self.0, &mut [0_u8; 1]), Ok(0))
    }

    /// Waits until the process reads its sockets no longer. Must be called within a runtime.
    ///
    /// # Errors
    /// The runtime cannot register the pipe.
    pub(super) async fn ended(self: Arc<Self>) -> io::Result<()> {
        pipe::Receiver::from_owned_fd(self.0.try_clone()?)?.readable().await
    }

    /// Duplicate of the descriptor.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl From<OwnedFd> for Life {
    fn from(reader: OwnedFd) -> Self {
        Self(reader)
    }
}
