use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use bytes::{Buf, BytesMut};
use wire::h2::{ErrorCode, Placement};
use wire::http::{Fields, Status};

use crate::memory_budget::Charge;

/// Most interim responses that wait to be read; a stream with more is reset.
const INTERIM_WAITING_MAX: usize = 16;

/// Part of a response, in order.
#[derive(Debug)]
pub enum ResponsePiece {
    /// A head, interim or final.
    Head {
        /// Status code.
        status: Status,
        /// Header fields.
        fields: Fields,
        /// True if the response ends here, without content.
        is_last: bool,
    },
    /// Number of content bytes read, at least one.
    Content(usize),
    /// End of the response, with trailer fields if the server sent any.
    End(Option<Box<Fields>>),
}

/// Reason that a response is missing or incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFailure {
    /// The server has not processed the request (RFC 9113, section 8.7): any request may be sent again.
    Rejected,
    /// The server has reset the stream.
    Reset(ErrorCode),
    /// The response is malformed (RFC 9113, section 8.1.1).
    Malformed,
    /// The connection has ended or broken.
    Closed,
    /// The server has violated HTTP/2 on the connection.
    NotHttp2(&'static str),
}

impl fmt::Display for StreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected => f.write_str("rejected the stream"),
            Self::Reset(code) => write!(f, "reset the stream: {code}"),
            Self::Malformed => f.write_str("sent a malformed response"),
            Self::Closed => f.write_str("closed the connection without a response"),
            Self::NotHttp2(reason) => write!(f, "violated HTTP/2: {reason}"),
        }
    }
}

/// A session's state of one exchange: response data not read yet, and request content not sent yet.
#[derive(Debug)]
pub(super) struct UpstreamExchange {
    heads: VecDeque<ResponsePiece>,
    /// Bytes of the fields in `heads`.
    head_bytes: usize,
    /// Charges the client for the memory this exchange keeps.
    charge: Charge,
    content: BytesMut,
    /// End of the response, once it is known.
    end: Option<Result<Option<Box<Fields>>, StreamFailure>>,
    /// Content of the request that was not framed yet.
    unsent: BytesMut,
    /// Task to wake when response data arrives or content can be sent.
    waker: Option<Waker>,
    /// True if the task waits for room to send content.
    awaits_room: bool,
}

impl UpstreamExchange {
    /// Creates the state of an exchange and charges its client for the memory kept.
    pub(super) fn new(charge: Charge) -> Self {
        Self {
            heads: VecDeque::new(),
            head_bytes: 0,
            charge,
            content: BytesMut::new(),
            end: None,
            unsent: BytesMut::new(),
            waker: None,
            awaits_room: false,
        }
    }

    fn count(&mut self) {
        self.charge.set(self.head_bytes + self.content.len() + self.unsent.len());
    }

    /// Takes the next part of the response. Content is copied to `buffer`, which may be empty for heads.
    pub(super) fn take(&mut self, buffer: &mut [u8]) -> Option<Result<ResponsePiece, StreamFailure>> {
        if let Some(head) = self.heads.pop_front() {
            if let ResponsePiece::Head { fields, .. } = &head {
                self.head_bytes -= fields.h1_bytes_max();
            }
            self.count();
            return Some(Ok(head));
        }
        if !self.content.is_empty() {
            let length = self.content.len().min(buffer.len());
            self.content.copy_to_slice(&mut buffer[..length]);
            self.count();
            return Some(Ok(ResponsePiece::Content(length)));
        }
        match self.end.as_mut()? {
            Ok(trailers) => Some(Ok(ResponsePiece::End(trailers.take()))),
            Err(failure) => Some(Err(*failure)),
        }
    }

    /// Records a received head. Returns whether there was room for it.
    pub(super) fn on_head(&mut self, status: Status, fields: Fields, is_last: bool) -> bool {
        if self.heads.len() > INTERIM_WAITING_MAX {
            return false;
        }
        self.head_bytes += fields.h1_bytes_max();
        self.heads.push_back(ResponsePiece::Head { status, fields, is_last });
        self.count();
        if is_last {
            self.end = Some(Ok(None));
        }
        self.wake();
        true
    }

    pub(super) fn on_content(&mut self, content: &[u8], is_last: bool) {
        self.content.extend_from_slice(content);
        self.count();
        if is_last {
            self.end = Some(Ok(None));
        }
        self.wake();
    }

    pub(super) fn on_end(&mut self, end: Result<Option<Box<Fields>>, StreamFailure>) {
        // After a complete response, the server may reset the rest of the request (RFC 9113, section 8.1).
        self.end.get_or_insert(end);
        self.wake();
    }

    /// Failure that ended the response, if one did.
    pub(super) fn failure(&self) -> Option<StreamFailure> {
        self.end.as_ref()?.as_ref().err().copied()
    }

    /// True if all of the response was received.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.end, Some(Ok(_)))
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.len()
    }

    /// Appends request content to send.
    pub(super) fn offer(&mut self, content: &[u8]) {
        self.unsent.extend_from_slice(content);
        self.count();
    }

    /// Moves the next `length` bytes of request content to the end of `out`.
    pub(super) fn place(&mut self, length: usize, out: &mut Vec<u8>) -> Placement {
        let Some(content) = self.unsent.get(..length) else { return Placement::Lost };
        out.extend_from_slice(content);
        self.unsent.advance(length);
        if self.unsent.is_empty() {
            self.unsent = BytesMut::new();
        }
        self.count();
        Placement::Copied
    }

    /// Records the task to wake.
    pub(super) fn wait(&mut self, waker: &Waker, awaits_room: bool) {
        self.awaits_room |= awaits_room;
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    pub(super) fn awaits_room(&self) -> bool {
        self.awaits_room
    }

    pub(super) fn wake(&mut self) {
        self.awaits_room = false;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
