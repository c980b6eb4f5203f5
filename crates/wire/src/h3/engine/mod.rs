//! Common part of both roles: streams, frames, settings and priorities. The roles encode and decode heads.

mod closing;
mod control;
mod receive;
mod send;

use std::ops::Range;

use super::frame::{H3FrameHeader, stream_kind};
use super::settings::{identifier, write_settings};
use super::streams::{H3Stream, IncomingKind, IncomingStream, StreamList};
use super::{H3Error, H3ErrorCode, H3Event, H3Limits, H3Output, H3PeerSettings, H3StreamId, H3Turn, Priority, varint};
use crate::field_section::InvalidBlock;
use crate::field_section::budget::Budget;
use crate::qpack::{OpenedSection, QpackDecoder, QpackEncoder, SectionReader};
pub use send::H3StreamGone;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum H3Side {
    Server,
    Client,
}

/// Unidirectional streams of the peer whose type has not arrived, and others, at most. The transport has a limit of its own.
const INCOMING_STREAMS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct H3Engine {
    role: H3Side,
    /// Error that has ended the connection.
    closed: Option<H3Error>,
    pub decoder: QpackDecoder,
    encoder: QpackEncoder,
    /// Settings of the peer, once they have arrived.
    pub peer: Option<H3PeerSettings>,
    pub streams: StreamList,
    /// Unidirectional streams of the peer.
    incoming: Vec<IncomingStream>,
    has_encoder_stream: bool,
    has_decoder_stream: bool,
    shutdown: closing::H3Shutdown,
    /// Smallest id above those of the streams that the peer has opened.
    next_peer_stream: u64,
    /// First stream or push that the peer will not handle, after it has sent GOAWAY.
    peer_first_unhandled: Option<u64>,
    max_push_id: Option<u64>,
    /// Priorities of streams that are not open yet (RFC 9218, section 7).
    early_priorities: Vec<(u64, Priority)>,
    /// Smallest id of a stream that the transport does not permit the client to open.
    pub streams_end: u64,
    /// True if new streams are rejected even if there are not too many.
    pub refuses_streams: bool,
    spent: Spent,
}

#[derive(Debug, Default)]
struct Spent {
    peer_resets: Budget,
    stream_faults: Budget,
    priorities: Budget,
    idle_frames: Budget,
}

/// Complete field section on a request stream.
#[derive(Debug)]
pub(super) struct IncomingSection {
    pub stream: H3StreamId,
    /// Offset of the frame in the input.
    pub frame_start: usize,
    /// Range of the input.
    pub range: Range<usize>,
    pub is_trailers: bool,
    /// True if the section ends the message.
    pub is_last: bool,
}

/// Available input of a stream.
#[derive(Debug)]
pub(super) struct StreamInput<'a> {
    pub stream: H3StreamId,
    pub bytes: &'a [u8],
    /// Offset of the first byte that is not consumed.
    pub at: usize,
    /// True if the stream ends after `bytes`.
    pub is_fin: bool,
}

impl<'a> StreamInput<'a> {
    pub(super) fn new(stream: H3StreamId, bytes: &'a [u8], is_fin: bool) -> Self {
        Self { stream, bytes, at: 0, is_fin }
    }

    pub(super) fn is_consumed(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn consume_all(&mut self) {
        self.at = self.bytes.len();
    }
}

/// Meaning of the input.
#[derive(Debug)]
pub(super) enum H3Step<Head> {
    Section(IncomingSection),
    /// The head is longer than the encoded section may be. Its stream is skipped.
    HeadTooLarge(H3StreamId),
    /// The content exceeds its limit.
    ContentTooLarge(H3StreamId),
    Event(H3Event<Head>),
}

type StepResult<Head> = Result<H3Step<Head>, H3Error>;

impl H3Engine {
    pub(super) fn new(role: H3Side, limits: &H3Limits) -> Self {
        Self {
            role,
            closed: None,
            decoder: QpackDecoder::new(limits.decoder),
            encoder: QpackEncoder::new(limits.encoder_table_bytes_max),
            peer: None,
            streams: StreamList::default(),
            incoming: Vec::new(),
            has_encoder_stream: false,
            has_decoder_stream: false,
            shutdown: closing::H3Shutdown::default(),
            next_peer_stream: 0,
            peer_first_unhandled: None,
            max_push_id: None,
            early_priorities: Vec::new(),
            streams_end: varint::VARINT_END,
            refuses_streams: false,
            spent: Spent::default(),
        }
    }

    /// Begins the control stream (RFC 9114, section 6.2.1).
    pub(super) fn start(&mut self, turn: &mut H3Turn<'_>) {
        let (limits, is_server) = (turn.limits, self.role == H3Side::Server);
        let settings = [
            (identifier::QPACK_MAX_TABLE_CAPACITY, limits.decoder.table_bytes_max as u64),
            (identifier::MAX_FIELD_SECTION_SIZE, limits.head.head_bytes_max as u64),
            (identifier::QPACK_BLOCKED_STREAMS, limits.decoder.blocked_streams_max as u64),
            (identifier::ENABLE_CONNECT_PROTOCOL, u64::from(is_server && limits.enables_connect_protocol)),
            (identifier::H3_DATAGRAM, u64::from(limits.enables_datagrams)),
        ];
        turn.output.control.push(stream_kind::CONTROL as u8);
        // Settings with default values are not sent.
        let is_changed =
            |(identifier, value): &(u64, u64)| *value > 0 || *identifier == identifier::MAX_FIELD_SECTION_SIZE;
        write_settings(&mut turn.output.control, settings.into_iter().filter(is_changed));
    }

    /// Handles a new stream of the peer.
    pub(super) fn accept<Head>(&mut self, stream: H3StreamId, turn: &mut H3Turn<'_>) -> H3Event<Head> {
        if let Some(error) = self.closed {
            return H3Event::Closed(error);
        }
        match self.on_opened(stream, turn) {
            Ok(None) => H3Event::NeedInput,
            Ok(Some(code)) => H3Event::Reset { stream, code, is_by_peer: false },
            Err(error) => self.fail(error),
        }
    }

    /// Opens a stream. Returns the code to reset it with, if it is rejected.
    fn on_opened(&mut self, stream: H3StreamId, turn: &mut H3Turn<'_>) -> Result<Option<H3ErrorCode>, H3Error> {
        let creation_error = |reason| H3Error::new(H3ErrorCode::H3_STREAM_CREATION_ERROR, reason);
        if stream.is_unidirectional() {
            if self.incoming.len() >= INCOMING_STREAMS_MAX {
                return Err(H3Error::too_much("too many unidirectional streams"));
            }
            self.incoming.push(IncomingStream { id: stream.0, kind: IncomingKind::AwaitType, skipped_bytes: 0 });
            return Ok(None);
        }
        // RFC 9114, section 6.1: servers open no bidirectional streams.
        if self.role == H3Side::Client || !stream.0.is_multiple_of(4) {
            return Err(creation_error("bidirectional stream of a server"));
        }
        self.next_peer_stream = self.next_peer_stream.max(stream.0 + 4);
        // Section 5.2: GOAWAY tells the client to retry on another connection.
        if self.shutdown.is_final_before(stream.0) {
            return Ok(Some(H3ErrorCode::H3_REQUEST_REJECTED));
        }
        if self.streams.len() >= turn.limits.concurrent_streams_max || self.refuses_streams {
            self.spend_stream_fault(turn)?;
            return Ok(Some(H3ErrorCode::H3_REQUEST_REJECTED));
        }
        let mut new = H3Stream::new(stream.0, turn.limits.body.body_bytes_max);
        if let Some(priority) = self.take_early_priority(stream.0) {
            new.priority = priority;
        }
        self.streams.insert(new);
        Ok(None)
    }

    /// Handles input of a stream that is not consumed.
    pub(super) fn handle_input<Head>(&mut self, input: &mut StreamInput<'_>, turn: &mut H3Turn<'_>) -> H3Step<Head> {
        if let Some(error) = self.closed {
            input.consume_all();
            return H3Step::Event(H3Event::Closed(error));
        }
        if turn.output.length() >= turn.limits.output_bytes_max {
            return H3Step::Event(H3Event::AwaitOutput);
        }
        let step = if input.stream.is_unidirectional() {
            self.on_incoming(input, turn).map(H3Step::Event)
        } else {
            self.on_request(input, turn)
        };
        step.unwrap_or_else(|error| H3Step::Event(self.fail(error)))
    }

    /// Reads the prefix of a section. If it must wait for instructions, leaves it in the input and returns `None`.
    pub(super) fn open_section(
        &mut self,
        section: &IncomingSection,
        input: &mut StreamInput<'_>,
    ) -> Result<Option<SectionReader<'_>>, H3Error> {
        let opened = self.decoder.open(section.stream.0, &input.bytes[section.range.clone()]);
        Ok(match opened.map_err(decompression_failed)? {
            OpenedSection::Ready(reader) => Some(reader),
            OpenedSection::Blocked => {
                input.at = section.frame_start;
                None
            }
        })
    }

    /// Returns the number of open requests.
    pub(super) fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Resets a stream because of an error of the peer. Too many of them end the connection (MadeYouReset,
    /// CVE-2025-8671: the peer makes the server reset streams at no cost).
    pub(super) fn stream_fault<Head>(
        &mut self,
        stream: H3StreamId,
        code: H3ErrorCode,
        turn: &mut H3Turn<'_>,
    ) -> Result<H3Event<Head>, H3Error> {
        self.spend_stream_fault(turn)?;
        self.reset(stream, turn.output);
        Ok(H3Event::Reset { stream, code, is_by_peer: false })
    }

    fn spend_stream_fault(&mut self, turn: &H3Turn<'_>) -> Result<(), H3Error> {
        if self.spent.stream_faults.spend(turn.now, turn.limits.stream_faults) {
            return Ok(());
        }
        Err(H3Error::too_much("too many faults on streams"))
    }

    fn spend_idle_frame(&mut self, turn: &H3Turn<'_>) -> Result<(), H3Error> {
        if self.spent.idle_frames.spend(turn.now, turn.limits.idle_frames) {
            return Ok(());
        }
        Err(H3Error::too_much("too many frames that say nothing"))
    }

    /// Tells the peer's encoder that a section was decoded.
    pub(super) fn acknowledge(&mut self, stream: H3StreamId, required: u64, output: &mut H3Output) {
        if required == 0 {
            return;
        }
        let decoder = &mut self.decoder;
        on_decoder_stream(&mut self.has_decoder_stream, output, |out| decoder.acknowledge(stream.0, required, out));
    }

    /// Begins to skip a frame of an unknown type. Returns the length of its payload (RFC 9114, section 9).
    fn on_unknown_frame(&mut self, header: &H3FrameHeader, turn: &H3Turn<'_>) -> Result<u64, H3Error> {
        if header.payload_bytes > turn.limits.unknown_frame_bytes_max {
            return Err(H3Error::too_much("frame of an unknown type too large"));
        }
        self.spend_idle_frame(turn)?;
        Ok(header.payload_bytes)
    }

    /// Returns the number of priorities kept for streams that are not open.
    #[cfg(test)]
    pub(super) fn early_priorities(&self) -> usize {
        self.early_priorities.len()
    }

    /// Frees memory that is not needed while no stream is open.
    pub(super) fn shrink(&mut self) {
        self.streams.shrink();
        self.decoder.shrink();
        self.incoming.shrink_to_fit();
        self.early_priorities.shrink_to_fit();
    }
}

/// Writes to the QPACK decoder stream, which begins with its type.
fn on_decoder_stream<T>(is_open: &mut bool, output: &mut H3Output, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    on_stream(is_open, stream_kind::QPACK_DECODER, &mut output.decoder, write)
}

fn on_stream<T>(is_open: &mut bool, kind: u64, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    if *is_open {
        return write(out);
    }
    out.push(kind as u8);
    let start = out.len();
    let result = write(out);
    if out.len() > start {
        *is_open = true;
    } else {
        out.clear();
    }
    result
}

pub(super) fn decompression_failed(invalid: InvalidBlock) -> H3Error {
    H3Error::new(H3ErrorCode::QPACK_DECOMPRESSION_FAILED, invalid.0)
}
