//! Open streams.

use std::collections::VecDeque;

use super::H3StreamId;
use crate::field_section::priority::Priority;

/// Progress of the peer's message on a request stream (RFC 9114, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receive {
    AwaitHead,
    AwaitContent,
    /// Trailers have arrived.
    AwaitEnd,
    /// All frames are skipped, because the head was not decoded.
    Skip,
    Ended,
}

/// Frame of a request stream whose payload is passed on or skipped as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IncomingFrame {
    pub is_data: bool,
    pub missing_bytes: u64,
}

/// Request stream.
#[derive(Debug)]
pub(super) struct H3Stream {
    pub id: u64,
    pub receive: Receive,
    pub frame: Option<IncomingFrame>,
    /// True if content is dropped, because the message was rejected.
    pub discards_content: bool,
    /// True if the stream is a CONNECT tunnel: content has no limit, and no trailers follow.
    pub is_tunnel: bool,
    /// True if the response has no content whatever its Content-Length: after HEAD, or because of its status.
    pub has_no_content: bool,
    /// Length of the content according to Content-Length (RFC 9114, section 4.1.2).
    pub expected_bytes: Option<u64>,
    /// Length of the content in all DATA frames that have begun.
    pub received_bytes: u64,
    pub body_bytes_max: u64,
    /// True if this side's message is complete.
    pub is_sent: bool,
    pub priority: Priority,
}

impl H3Stream {
    pub(super) fn new(id: u64, body_bytes_max: u64) -> Self {
        Self {
            id,
            receive: Receive::AwaitHead,
            frame: None,
            discards_content: false,
            is_tunnel: false,
            has_no_content: false,
            expected_bytes: None,
            received_bytes: 0,
            body_bytes_max,
            is_sent: false,
            priority: Priority::default(),
        }
    }

    /// Returns whether the peer's message has the length that Content-Length says.
    pub(super) fn is_length_right(&self) -> bool {
        self.expected_bytes.is_none_or(|expected| self.received_bytes == expected)
    }

    /// Returns whether the caller gets the peer's message.
    pub(super) fn is_read(&self) -> bool {
        !self.discards_content && self.receive != Receive::Skip
    }
}

/// Request streams by id. Ids mostly grow, so the list is sorted, and lookups use binary search.
#[derive(Debug, Default)]
pub(super) struct StreamList {
    streams: VecDeque<H3Stream>,
}

impl StreamList {
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn insert(&mut self, stream: H3Stream) {
        match self.streams.back() {
            Some(last) if last.id >= stream.id => {
                if let Err(index) = self.streams.binary_search_by_key(&stream.id, |other| other.id) {
                    self.streams.insert(index, stream);
                }
            }
            _ => self.streams.push_back(stream),
        }
    }

    pub(super) fn find(&mut self, id: H3StreamId) -> Option<&mut H3Stream> {
        let index = self.index(id)?;
        self.streams.get_mut(index)
    }

    /// Returns the place of a stream, until another one is added or removed.
    pub(super) fn index(&self, id: H3StreamId) -> Option<usize> {
        // Ids of requests are 4 apart (RFC 9000, section 2.1). Unless a stream between has ended, this is the place.
        let before = (id.0.checked_sub(self.streams.front()?.id)? / 4) as usize;
        if self.streams.get(before).is_some_and(|stream| stream.id == id.0) {
            return Some(before);
        }
        self.streams.binary_search_by_key(&id.0, |stream| stream.id).ok()
    }

    /// Returns the stream at a place, which must exist.
    pub(super) fn at(&self, index: usize) -> &H3Stream {
        &self.streams[index]
    }

    /// Returns the stream at a place, which must exist.
    pub(super) fn at_mut(&mut self, index: usize) -> &mut H3Stream {
        &mut self.streams[index]
    }

    pub(super) fn remove(&mut self, id: H3StreamId) -> Option<H3Stream> {
        let index = self.index(id)?;
        self.remove_at(index)
    }

    pub(super) fn remove_at(&mut self, index: usize) -> Option<H3Stream> {
        self.streams.remove(index)
    }

    /// Returns the stream with the highest id.
    pub(super) fn last(&self) -> Option<H3StreamId> {
        self.streams.back().map(|stream| H3StreamId(stream.id))
    }

    pub(super) fn clear(&mut self) {
        self.streams = VecDeque::new();
    }

    /// Frees memory that is not needed while no stream is open.
    pub(super) fn shrink(&mut self) {
        if self.streams.is_empty() {
            self.clear();
        }
    }
}

/// Unidirectional stream that the peer has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IncomingKind {
    AwaitType,
    /// Control stream, before SETTINGS.
    AwaitSettings,
    Control,
    QpackEncoder,
    QpackDecoder,
}

impl IncomingKind {
    /// Returns whether the connection fails when the stream ends (RFC 9114, section 6.2.1; RFC 9204, section 4.2).
    pub(super) fn is_critical(self) -> bool {
        self != Self::AwaitType
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingStream {
    pub id: u64,
    pub kind: IncomingKind,
    /// Bytes of the current frame that are still skipped.
    pub skipped_bytes: u64,
}
