//! Lines of a response without an end, such as a stream of events.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::RestError;

/// Lines of a response, as they arrive. Dropping it closes the connection.
pub struct RestLines {
    content: Incoming,
    /// Bytes received that are no whole line yet, or more than one.
    buffer: BytesMut,
    /// Bytes of the buffer without a line feed.
    searched: usize,
    line_bytes_max: usize,
}

impl RestLines {
    /// Lines of this content, each of at most `line_bytes_max`.
    pub fn new(content: Incoming, line_bytes_max: usize) -> Self {
        Self { content, buffer: BytesMut::new(), searched: 0, line_bytes_max }
    }

    /// Next line, without its line feed; `None` at the end of the response. No bytes are lost if the future is dropped.
    ///
    /// # Errors
    /// The connection fails, or the line is too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RestError> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + at + 1).freeze();
                self.searched = 0;
                return Ok(Some(line.slice(..line.len() - 1)));
            }
            self.searched = self.buffer.len();
            if self.searched > self.line_bytes_max {
                return Err(RestError::TooLarge);
            }
            let Some(frame) = self.content.frame().await else { return Ok(None) };
            let frame = frame.map_err(|error| RestError::Unreachable(error.to_string()))?;
            if let Ok(bytes) = frame.into_data() {
                self.buffer.extend_from_slice(&bytes);
            }
        }
    }

    /// Next line that has arrived already; `None` if there is none, or at the end.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_arrived(&mut self) -> Result<Option<Bytes>, RestError> {
        // Polls the line once.
        timeout(Duration::ZERO, self.next()).await.unwrap_or(Ok(None))
    }
}

impl fmt::Debug for RestLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestLines").field("buffered", &self.buffer.len()).finish_non_exhaustive()
    }
}
