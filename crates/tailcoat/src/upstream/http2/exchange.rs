use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use bytes::{Buf, BytesMut};
use wire::h2::{ErrorCode, Placement};
use wire::http::{Fields, Status};

use crate::memory_budget::Charge;

/// Interim responses that wait for somebody to look at them. More are no information.
const INTERIM_WAITING_MAX: usize = 16;

/// What comes of a response, in order.
#[derive(Debug)]
pub enum ResponsePiece {
    /// A head, interim or final.
    Head {
        /// Its status.
        status: Status,
        /// Its fields.
        fields: Fields,
        /// Whether it is all there is.
        is_last: bool,
    },
    /// So many bytes of content, at least one.
    Content(usize),
    /// The end, and trailer fields.
    End(Option<Box<Fields>>),
}

/// Why a response does not come, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFailure {
    /// The server has not looked at the request (RFC 9113, section 8.7): it may be sent again, whatever it is.
    Refused,
    /// The server has given this one up.
    Reset(ErrorCode),
    /// The response is not what RFC 9113 calls well-formed.
    Malformed,
    /// The connection has ended, or broken.
    Closed,
    /// What came on the connection is not HTTP/2, or not allowed.
    NotHttp2(&'static str),
}

impl fmt::Display for StreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("rejected the stream"),
            Self::Reset(code) => write!(f, "reset the stream: {code}"),
            Self::Malformed => f.write_str("sent a malformed response"),
            Self::Closed => f.write_str("closed the connection without a response"),
            Self::NotHttp2(reason) => write!(f, "violated HTTP/2: {reason}"),
        }
    }
}

/// What a session keeps of an exchange: what has come and was not taken, and what is to be sent and was not.
#[derive(Debug)]
pub(super) struct Exchange {
    heads: VecDeque<ResponsePiece>,
    /// Bytes of their fields.
    head_bytes: usize,
    /// Counts what is kept as the client's.
    charge: Charge,
    content: BytesMut,
    /// How the response ends, once that is known.
    end: Option<Result<Option<Box<Fields>>, StreamFailure>>,
    /// Content of the request.
    unsent: BytesMut,
    /// Whom to tell that something has come, or can be sent.
    waker: Option<Waker>,
    /// Content could be sent if there were room.
    awaits_room: bool,
}

impl Exchange {
    /// An exchange for a client, which is charged for what is kept of it.
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

    /// What there is for who reads; content goes to `buffer`, which for heads may be empty.
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

    /// A head has come. Says whether there was room for it.
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
        // Who has answered to the end may reset what is left of the request (RFC 9113, section 8.1).
        self.end.get_or_insert(end);
        self.wake();
    }

    /// How the response has ended, if it has.
    pub(super) fn failure(&self) -> Option<StreamFailure> {
        self.end.as_ref()?.as_ref().err().copied()
    }

    /// Whether all of the response has come.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.end, Some(Ok(_)))
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.len()
    }

    /// Adds to what is to be sent.
    pub(super) fn offer(&mut self, content: &[u8]) {
        self.unsent.extend_from_slice(content);
        self.count();
    }

    /// Puts the next bytes of what is to be sent behind `out`.
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

    /// Notes whom to wake.
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
