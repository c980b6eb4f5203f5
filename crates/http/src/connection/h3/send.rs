//! Sending: frames and content go to the streams of QUIC.

use bytes::Bytes;
use tailcoat_quic::QuicStreamId;
use wire::h3::{H3ErrorCode, H3StreamId};

use super::streams::{H3Streams, PIECE_BYTES, quic_id};
use super::{H3Exchanges, H3WorkerConnection};
use crate::connection::exchange::{ExchangeTurn, HttpStreams, StreamFault};
use crate::handler::Now;

/// Streams of this side, in the order of the buffers in [`wire::h3::H3Output`].
pub(super) type OwnStreams = [Option<QuicStreamId>; 3];

/// Outcome of sending on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Some,
    Nothing,
    /// The content cannot be completed.
    Lost,
}

impl H3WorkerConnection {
    /// Passes output of the connection itself to QUIC. The part that is not accepted stays.
    pub(super) fn send_own(&mut self) {
        let H3Streams { transport, output, .. } = &mut self.streams;
        if output.length() == 0 {
            return;
        }
        let buffers = [&mut output.control, &mut output.encoder, &mut output.decoder];
        for (own, buffer) in self.own.iter_mut().zip(buffers).filter(|(_, buffer)| !buffer.is_empty()) {
            if own.is_none() {
                *own = transport.proto.streams().open_uni();
            }
            if let Some(id) = *own
                && let Ok(count) = transport.proto.streams().write(id, &mut [Bytes::copy_from_slice(buffer)])
            {
                buffer.drain(..count);
            }
        }
    }

    /// Passes output and content of request streams to QUIC, as far as it accepts them. Returns true if it has accepted
    /// any.
    pub(super) fn send_requests(&mut self, turn: &mut ExchangeTurn<'_>) -> bool {
        let mut has_sent = false;
        let mut unsent = std::mem::take(&mut self.streams.unsent);
        for id in unsent.drain(..) {
            match self.streams.send(id, &mut self.exchanges, turn) {
                Progress::Some => has_sent = true,
                Progress::Nothing => {}
                Progress::Lost => self.lost.push(id),
            }
        }
        if self.streams.unsent.is_empty() {
            self.streams.unsent = unsent;
        }
        has_sent
    }

    /// True if the client had time to go, and has all responses. The end of a connection drops output that was not sent
    /// or was lost, so that acknowledgments are awaited. A client that is gone sends none.
    pub(super) fn is_ready_to_end(&mut self, now: Now) -> bool {
        self.streams.engine.is_drained()
            && self.streams.is_empty()
            && now.monotonic_ms >= self.leaves_by_ms()
            && (now.monotonic_ms >= self.acknowledged_by_ms() || self.is_acknowledged())
    }

    /// Time until which the client may end the connection itself after GOAWAY. The packet that closes a connection is
    /// sent once and not acknowledged. If the client had moved, it would not reach it, and later no process would know
    /// the connection.
    pub(super) fn leaves_by_ms(&self) -> u64 {
        self.ending_since_ms.unwrap_or(0) + self.linger_ms()
    }

    /// Time by which the client must acknowledge something after the last request or output of a connection that ends.
    pub(super) fn acknowledged_by_ms(&self) -> u64 {
        self.silent_since_ms.max(self.clocks.sent_at_ms()) + self.linger_ms()
    }

    fn linger_ms(&self) -> u64 {
        self.context.generation().limits.linger_timeout.as_millis() as u64
    }

    /// True if the client has acknowledged all responses.
    pub(super) fn is_acknowledged(&mut self) -> bool {
        self.streams.transport.proto.streams().sending() == 0
    }

    /// Resets streams whose content is lost.
    pub(super) fn reset_lost(&mut self, turn: &ExchangeTurn<'_>) {
        while let Some(id) = self.lost.pop() {
            self.streams.reset(id, StreamFault::Internal);
            self.exchanges.on_reset(id, turn);
        }
    }
}

impl H3Streams {
    /// Sends on a request stream until nothing is left, or QUIC accepts no more.
    fn send(&mut self, id: H3StreamId, exchanges: &mut H3Exchanges, turn: &mut ExchangeTurn<'_>) -> Progress {
        let mut progress = Progress::Nothing;
        let Some(index) = self.index(id) else { return progress };
        let Self { transport, requests, .. } = self;
        let stream = &mut requests[index];
        stream.is_unsent = false;
        let streams = transport.proto.streams();
        loop {
            if stream.head.is_empty() && !stream.output.is_empty() {
                stream.head = Bytes::copy_from_slice(&stream.output);
                stream.output.clear();
            }
            // Both go to QUIC in one call, unless output follows that was written after the piece.
            while !stream.head.is_empty() || stream.output.is_empty() && !stream.piece.is_empty() {
                let piece = if stream.output.is_empty() { std::mem::take(&mut stream.piece) } else { Bytes::new() };
                let mut chunks = [std::mem::take(&mut stream.head), piece];
                let written = streams.write(quic_id(id), &mut chunks);
                let [head, piece] = chunks;
                (stream.head, stream.piece) = (head, piece);
                match written {
                    Ok(written) if written > 0 => progress = Progress::Some,
                    // The stream is blocked, or the event that it was stopped follows.
                    Ok(_) | Err(_) => return progress,
                }
            }
            if !stream.output.is_empty() {
                continue;
            }
            if stream.offered_bytes > 0 {
                let Ok(piece) = exchanges.take(id, stream.offered_bytes.min(PIECE_BYTES as u64), turn) else {
                    return Progress::Lost;
                };
                stream.offered_bytes -= piece.len() as u64;
                stream.piece = piece;
            } else if !stream.trailers.is_empty() {
                stream.output.append(&mut stream.trailers);
            } else {
                break;
            }
        }
        self.finish(index);
        progress
    }

    /// Ends the stream at an index, whose response was sent. The rest of its request is not read.
    fn finish(&mut self, index: usize) {
        let Self { transport, requests, .. } = self;
        let stream = &mut requests[index];
        if !stream.is_last || stream.is_finished {
            return;
        }
        stream.is_finished = true;
        let id = stream.id;
        // Fails only if the client has stopped the stream.
        let _ = transport.proto.streams().finish(quic_id(id));
        if stream.receiving.has_ended {
            return self.remove_at(index);
        }
        if stream.is_tunnel {
            return;
        }
        // RFC 9114, section 4.1: the client may go on as if its request had been read.
        transport.proto.streams().stop(quic_id(id), H3ErrorCode::H3_NO_ERROR.0);
        let (engine, mut turn) = self.engine();
        engine.reset(id, &mut turn);
        self.remove_at(index);
    }
}
