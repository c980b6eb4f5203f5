//! Header blocks: HEADERS and its CONTINUATION (RFC 9113, sections 4.3, 6.2 and 6.10).

use std::ops::Range;

use super::super::frame::{FrameHeader, flag};
use super::super::frame_write::write_reset;
use super::super::hpack::InvalidBlock;
use super::super::streams::{H2Stream, Past};
use super::super::window::{ReceiveWindow, SendWindow};
use super::super::{ConnectionError, EngineTurn, ErrorCode, Priority, StreamId};
use super::{Engine, EngineStep, Role};

/// Header block, complete or not.
#[derive(Debug)]
pub(in super::super) struct Block {
    pub stream: u32,
    pub purpose: BlockPurpose,
    /// True if the block ends the message.
    pub is_last: bool,
    pub fragment: Fragment,
    continuations: u32,
}

/// Purpose of a header block. Every block is decoded, because it may change the dynamic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum BlockPurpose {
    /// Head of a message. It opens a stream for a server.
    Head,
    Trailers,
    /// None: the stream was reset, or must be reset with this code.
    Discard(Option<ErrorCode>),
}

/// Location of a block's bytes.
#[derive(Debug)]
pub(in super::super) enum Fragment {
    /// Range of the input.
    Input(Range<usize>),
    /// Copy, joined from several frames.
    Joined(Vec<u8>),
}

impl Fragment {
    pub(crate) fn bytes<'a>(&'a self, input: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Input(range) => &input[range.clone()],
            Self::Joined(bytes) => bytes,
        }
    }
}

impl Engine {
    pub(super) fn on_headers(
        &mut self,
        header: &FrameHeader,
        range: Range<usize>,
        is_own_dependency: bool,
        input: &[u8],
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<EngineStep>, ConnectionError> {
        let is_last = header.has(flag::END_STREAM);
        let mut purpose = self.purpose(header.stream, is_last, turn)?;
        // RFC 7540, section 5.3.1. Priorities are ignored, but only attackers and tests send this.
        if is_own_dependency && !matches!(purpose, BlockPurpose::Discard(_)) {
            purpose = BlockPurpose::Discard(Some(ErrorCode::PROTOCOL_ERROR));
        }
        let mut block =
            Block { stream: header.stream, purpose, is_last, fragment: Fragment::Input(range), continuations: 0 };
        if header.has(flag::END_HEADERS) {
            return self.on_block(block, input, turn);
        }
        let bytes = block.fragment.bytes(input);
        self.check_fragment(bytes.len(), bytes.len(), turn)?;
        block.fragment = Fragment::Joined(bytes.to_vec());
        self.block = Some(block);
        Ok(None)
    }

    pub(super) fn on_continuation(
        &mut self,
        header: &FrameHeader,
        fragment: &[u8],
        input: &[u8],
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<EngineStep>, ConnectionError> {
        let Some(mut block) = self.block.take() else {
            return Err(ConnectionError::protocol("CONTINUATION without HEADERS"));
        };
        block.continuations += 1;
        if block.continuations > turn.limits.continuations_max {
            return Err(ConnectionError::too_much("too many CONTINUATION frames"));
        }
        let mut bytes = match block.fragment {
            Fragment::Joined(bytes) => bytes,
            Fragment::Input(range) => input[range].to_vec(),
        };
        self.check_fragment(fragment.len(), bytes.len() + fragment.len(), turn)?;
        bytes.extend_from_slice(fragment);
        block.fragment = Fragment::Joined(bytes);
        if header.has(flag::END_HEADERS) {
            return self.on_block(block, input, turn);
        }
        self.block = Some(block);
        Ok(None)
    }

    fn check_fragment(
        &mut self,
        fragment_bytes: usize,
        block_bytes: usize,
        turn: &mut EngineTurn<'_>,
    ) -> Result<(), ConnectionError> {
        if block_bytes > turn.limits.header_block_bytes_max {
            return Err(ConnectionError::too_much("header block too large"));
        }
        if fragment_bytes == 0 { self.spend_idle_frame(turn) } else { Ok(()) }
    }

    /// Determines the purpose of HEADERS on this stream (section 5.1).
    fn purpose(
        &mut self,
        stream: u32,
        is_last: bool,
        turn: &mut EngineTurn<'_>,
    ) -> Result<BlockPurpose, ConnectionError> {
        if let Some(slot) = self.streams.find(stream) {
            let known = self.streams.at(slot);
            return Ok(if known.is_received {
                BlockPurpose::Discard(Some(ErrorCode::STREAM_CLOSED))
            } else if self.role == Role::Client && !known.has_head {
                BlockPurpose::Head
            } else if is_last {
                BlockPurpose::Trailers
            } else {
                // Section 8.1: trailers must end the message.
                BlockPurpose::Discard(Some(ErrorCode::PROTOCOL_ERROR))
            });
        }
        let is_new = self.role == Role::Server && stream % 2 == 1 && stream > self.last_peer_stream;
        if is_new {
            self.last_peer_stream = stream;
            return Ok(self.purpose_of_new(stream, turn));
        }
        match self.streams.past(stream) {
            Past::ResetByUs => Ok(BlockPurpose::Discard(None)),
            Past::Ended => Err(ConnectionError::new(ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream")),
            Past::Unknown => Err(ConnectionError::protocol("HEADERS on a stream that the peer can't open")),
        }
    }

    fn purpose_of_new(&mut self, stream: u32, turn: &mut EngineTurn<'_>) -> BlockPurpose {
        if self.shutdown.is_final() {
            // Section 6.8: GOAWAY tells the client to retry on another connection.
            self.streams.remember(stream, true);
            return BlockPurpose::Discard(None);
        }
        let streams_max = turn.limits.concurrent_streams_max as usize;
        if self.streams.len() >= streams_max
            && let Some((answered, _)) = self.lingering()
        {
            self.reset(answered, ErrorCode::NO_ERROR, turn);
        }
        if self.streams.len() >= streams_max || self.refuses_streams {
            return BlockPurpose::Discard(Some(ErrorCode::REFUSED_STREAM));
        }
        BlockPurpose::Head
    }

    fn on_block(
        &mut self,
        block: Block,
        input: &[u8],
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<EngineStep>, ConnectionError> {
        let BlockPurpose::Discard(code) = block.purpose else { return Ok(Some(EngineStep::Block(block))) };
        let mut text = Vec::new();
        self.decoder.decode(block.fragment.bytes(input), 0, &mut text, |_, _| {}).map_err(compression_error)?;
        match code {
            Some(code) => self.stream_fault(block.stream, code, turn),
            None => self.spend_idle_frame(turn).map(|()| None),
        }
    }

    /// Opens a stream for a head from the peer.
    pub(crate) fn open(&mut self, stream: u32, turn: &EngineTurn<'_>) -> &mut H2Stream {
        let receive = ReceiveWindow::new(self.stream_window_bytes, turn.now);
        let mut new = H2Stream::new(stream, receive, SendWindow::new(self.peer.initial_window_bytes));
        new.has_head = true;
        new.body_bytes_max = turn.limits.body.body_bytes_max;
        if let Some(priority) = self.take_early_priority(stream) {
            new.priority = priority;
        }
        let slot = self.streams.insert(new);
        self.streams.at(slot)
    }

    fn take_early_priority(&mut self, stream: u32) -> Option<Priority> {
        if self.early_priorities.is_empty() {
            return None;
        }
        let found = self.early_priorities.iter().find(|(id, _)| *id == stream).map(|(_, priority)| *priority);
        // Streams with lower ids can no longer be opened.
        self.early_priorities.retain(|(id, _)| *id > stream);
        found
    }

    /// Returns an open stream.
    pub(crate) fn stream(&mut self, stream: u32) -> Option<&mut H2Stream> {
        let slot = self.streams.find(stream)?;
        Some(self.streams.at(slot))
    }

    /// Resets a stream because of an error of the peer. Too many of them end the connection (MadeYouReset,
    /// CVE-2025-8671: the peer makes the server reset streams at no cost).
    pub(crate) fn stream_fault(
        &mut self,
        stream: u32,
        code: ErrorCode,
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<EngineStep>, ConnectionError> {
        if !self.spent.stream_faults.spend(turn.now, turn.limits.stream_faults) {
            return Err(ConnectionError::too_much("too many faults on streams"));
        }
        let was_open = self.reset(StreamId(stream), code, turn);
        if !was_open {
            write_reset(&mut turn.output.bytes, stream, code);
            self.streams.remember(stream, true);
        }
        Ok(was_open.then_some(EngineStep::Reset { stream: StreamId(stream), code, is_by_peer: false }))
    }
}

pub(in super::super) fn compression_error(invalid: InvalidBlock) -> ConnectionError {
    ConnectionError::new(ErrorCode::COMPRESSION_ERROR, invalid.0)
}
