//! Common part of both roles: frames, streams, windows and settings. The roles encode and decode heads.

mod blocks;
mod closing;
mod receive;
mod send;

use std::ops::Range;
use std::time::Duration;

use super::frame::{FRAME_HEADER_BYTES, FrameHeader, PREFACE, kind};
use super::frame_write::{write_settings, write_window_update};
use super::hpack::{DEFAULT_TABLE_BYTES, Decoder, Encoder};
use super::ready::ReadyStreams;
use super::settings::identifier;
use super::streams::StreamTable;
use super::window::{INITIAL_WINDOW_BYTES, ReceiveWindow, SendWindow, WindowGrowth};
use super::{ConnectionError, EngineTurn, ErrorCode, H2Limits, PeerSettings, Priority, StreamId};
use crate::field_section::budget::Budget;
pub(super) use blocks::{Block, BlockPurpose, compression_error};
pub use send::StreamGone;
pub(super) use send::write_fields;

/// Round trip time until one was measured.
const ROUND_TRIP_ASSUMED: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Server,
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H2EngineState {
    /// Expects the client's preface of 24 bytes.
    AwaitPreface,
    /// Expects the peer's first frame, which must be SETTINGS (RFC 9113, section 3.4).
    AwaitSettings,
    AwaitFrame,
    /// Expects nothing: GOAWAY with an error was sent.
    Closed(ConnectionError),
}

#[derive(Debug)]
pub(super) struct Engine {
    role: Role,
    state: H2EngineState,
    pub decoder: Decoder,
    encoder: Encoder,
    pub peer: PeerSettings,
    streams: StreamTable,
    ready: ReadyStreams,
    receive: ReceiveWindow,
    send: SendWindow,
    /// Time when content of any stream was last sent.
    sent_at: Duration,
    /// Initial window of new streams that the SETTINGS announced.
    stream_window_bytes: u32,
    /// Highest stream id that the peer has opened.
    last_peer_stream: u32,
    /// Next stream id that this side opens.
    next_own_stream: u32,
    /// DATA frame whose payload is incomplete.
    data: Option<IncomingData>,
    /// Header block that CONTINUATION must follow.
    block: Option<Block>,
    /// Time when SETTINGS were sent, until they are acknowledged.
    settings_sent_at: Option<Duration>,
    round_trip: Duration,
    shutdown: closing::Shutdown,
    /// Last stream that the peer will answer, after it has sent GOAWAY.
    peer_last_stream: Option<u32>,
    /// Priorities of streams that are not open yet (RFC 9218, section 7.1).
    early_priorities: Vec<(u32, Priority)>,
    /// True if new streams are rejected even if there are not too many.
    pub refuses_streams: bool,
    /// Bytes of DATA frames that may arrive on streams reset by this side, because the peer sent them before it knew.
    late_bytes: u64,
    spent: Spent,
}

#[derive(Debug, Default)]
struct Spent {
    peer_resets: Budget,
    stream_faults: Budget,
    settings: Budget,
    pings: Budget,
    priorities: Budget,
    window_updates: Budget,
    idle_frames: Budget,
}

#[derive(Clone, Copy, Debug)]
struct IncomingData {
    stream: u32,
    content_bytes: usize,
    padding_bytes: usize,
    is_last: bool,
}

/// Meaning of the input.
#[derive(Debug)]
pub(super) enum EngineStep {
    NeedInput,
    AwaitOutput,
    /// A complete header block, of a stream that is open or will be.
    Block(Block),
    /// Content at this range of the input.
    Content {
        stream: StreamId,
        content: Range<usize>,
        is_last: bool,
    },
    /// The content exceeds its limit.
    ContentTooLarge(StreamId),
    /// The stream is closed before its end.
    Reset {
        stream: StreamId,
        code: ErrorCode,
        is_by_peer: bool,
    },
    /// The peer will not answer streams after this one.
    GoAway {
        last_stream: StreamId,
        code: ErrorCode,
    },
    Closed(ConnectionError),
}

impl Engine {
    pub(super) fn new(role: Role, now: Duration, limits: &H2Limits) -> Self {
        let stream_window_bytes = limits.stream_window_bytes.max(INITIAL_WINDOW_BYTES);
        Self {
            role,
            state: if role == Role::Server { H2EngineState::AwaitPreface } else { H2EngineState::AwaitSettings },
            decoder: Decoder::default(),
            encoder: Encoder::new(limits.encoder_table_bytes_max as usize),
            peer: PeerSettings::default(),
            streams: StreamTable::default(),
            ready: ReadyStreams::default(),
            receive: ReceiveWindow::new(INITIAL_WINDOW_BYTES, now),
            send: SendWindow::new(INITIAL_WINDOW_BYTES),
            sent_at: now,
            stream_window_bytes,
            last_peer_stream: 0,
            next_own_stream: 1,
            data: None,
            block: None,
            settings_sent_at: None,
            round_trip: ROUND_TRIP_ASSUMED,
            shutdown: closing::Shutdown::default(),
            peer_last_stream: None,
            early_priorities: Vec::new(),
            refuses_streams: false,
            late_bytes: 0,
            spent: Spent::default(),
        }
    }

    /// Writes the preface (RFC 9113, section 3.4).
    pub(super) fn start(&mut self, turn: &mut EngineTurn<'_>) {
        let (is_server, limits) = (self.role == Role::Server, turn.limits);
        if !is_server {
            turn.output.bytes.extend_from_slice(PREFACE);
        }
        let settings = [
            (identifier::HEADER_TABLE_SIZE, limits.header_table_bytes_max, DEFAULT_TABLE_BYTES as u32),
            (identifier::ENABLE_PUSH, u32::from(is_server), 1),
            (identifier::MAX_CONCURRENT_STREAMS, if is_server { limits.concurrent_streams_max } else { 0 }, u32::MAX),
            (identifier::INITIAL_WINDOW_SIZE, self.stream_window_bytes, INITIAL_WINDOW_BYTES),
            (identifier::MAX_HEADER_LIST_SIZE, limits.head.head_bytes_max as u32, u32::MAX),
            (identifier::ENABLE_CONNECT_PROTOCOL, u32::from(is_server && limits.enables_connect_protocol), 0),
            (identifier::NO_RFC7540_PRIORITIES, u32::from(is_server), 0),
        ];
        // Settings with default values are not sent.
        let changed = settings.into_iter().filter(|(_, value, default)| value != default);
        write_settings(&mut turn.output.bytes, changed.map(|(identifier, value, _)| (identifier, value)));
        self.settings_sent_at = Some(turn.now);
        let increment = self.receive.raise_to(limits.connection_window_bytes);
        if increment > 0 {
            write_window_update(&mut turn.output.bytes, 0, increment);
        }
    }

    /// Handles input. Call it with the rest until it needs more. Ranges count from the first byte of `input`.
    pub(super) fn handle_input(&mut self, input: &[u8], turn: &mut EngineTurn<'_>) -> (usize, EngineStep) {
        let mut at = 0;
        loop {
            if let H2EngineState::Closed(error) = self.state {
                return (input.len(), EngineStep::Closed(error));
            }
            if turn.output.bytes.len() >= turn.limits.output_bytes_max {
                return (at, EngineStep::AwaitOutput);
            }
            match self.on_input(input, &mut at, turn) {
                Ok(Some(step)) => return (at, step),
                Ok(None) => {}
                Err(error) => self.fail(error, turn.output),
            }
        }
    }

    /// Handles one piece of input, which begins at `at`. Returns `None` to continue.
    fn on_input(
        &mut self,
        input: &[u8],
        at: &mut usize,
        turn: &mut EngineTurn<'_>,
    ) -> Result<Option<EngineStep>, ConnectionError> {
        let rest = &input[*at..];
        if self.data.is_some() {
            return Ok(self.on_data_payload(rest.len(), at, turn));
        }
        if self.state == H2EngineState::AwaitPreface {
            return on_preface(rest).map(|is_complete| {
                if !is_complete {
                    return Some(EngineStep::NeedInput);
                }
                *at += PREFACE.len();
                self.state = H2EngineState::AwaitSettings;
                None
            });
        }
        let Some(header) = FrameHeader::parse(rest) else { return Ok(Some(EngineStep::NeedInput)) };
        header.check()?;
        self.check_sequence(&header)?;
        if header.kind == kind::DATA {
            return self.on_data(header, rest, at, turn);
        }
        let end = FRAME_HEADER_BYTES + header.payload_bytes;
        let Some(payload) = rest.get(FRAME_HEADER_BYTES..end) else { return Ok(Some(EngineStep::NeedInput)) };
        let frame = header.read(payload)?;
        *at += end;
        self.state = H2EngineState::AwaitFrame;
        // A fragment is the end of the payload, except for padding.
        self.on_frame(&header, frame, *at, input, turn)
    }

    /// Checks the order of frames: SETTINGS come first, and no other frame interrupts a header block (RFC 9113,
    /// sections 3.4 and 4.3).
    fn check_sequence(&self, header: &FrameHeader) -> Result<(), ConnectionError> {
        if self.state == H2EngineState::AwaitSettings && (header.kind != kind::SETTINGS || header.flags & 1 != 0) {
            return Err(ConnectionError::protocol("the first frame is not SETTINGS"));
        }
        let awaits_continuation = self.block.as_ref().map(|block| block.stream);
        let continues = (header.kind == kind::CONTINUATION).then_some(header.stream);
        if awaits_continuation != continues {
            return Err(ConnectionError::protocol("CONTINUATION expected, or not expected"));
        }
        Ok(())
    }

    /// Returns the parameters for the growth of windows.
    fn pace(&self, limits: &H2Limits) -> WindowGrowth {
        WindowGrowth { round_trip: self.round_trip, window_bytes_max: limits.window_bytes_max }
    }

    /// Returns whether the peer's first SETTINGS have arrived.
    pub(super) fn has_peer_settings(&self) -> bool {
        !matches!(self.state, H2EngineState::AwaitPreface | H2EngineState::AwaitSettings)
    }

    /// Returns the number of open streams.
    pub(super) fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns whether a header block is incomplete.
    pub(super) fn awaits_continuation(&self) -> bool {
        self.block.is_some()
    }

    /// Returns the unsent bytes of a stream's content; `None` if the stream is closed.
    pub(super) fn unsent_bytes(&mut self, stream: StreamId) -> Option<u64> {
        let slot = self.streams.find(stream.0)?;
        Some(self.streams.at(slot).offered_bytes)
    }

    /// Returns the bytes received on all streams and not taken. The connection's window lacks as many.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> u32 {
        self.receive.waiting_bytes()
    }

    /// Frees memory that is not needed while no stream is open.
    pub(super) fn shrink(&mut self) {
        self.streams.shrink();
        self.decoder.shrink();
    }
}

/// Checks the preface. Rejects it at the first wrong byte.
fn on_preface(rest: &[u8]) -> Result<bool, ConnectionError> {
    let length = rest.len().min(PREFACE.len());
    if rest[..length] != PREFACE[..length] {
        return Err(ConnectionError::protocol("invalid connection preface"));
    }
    Ok(length == PREFACE.len())
}
