//! Sending: turns content of exchanges into frames, and writes frames to the socket.

use std::io;
use std::task::Poll;

use wire::h2::Placement;

use super::{H2Connection, H2Streams, H2Turn, OUTPUT_BYTES, TURN_BYTES_MAX};

impl H2Connection {
    /// Polls the exchanges that can make progress.
    pub(super) fn drive_exchanges(&mut self, turn: &mut H2Turn<'_>) {
        let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
        self.exchanges.drive(&mut streams, exchange_turn);
    }

    /// Lets the sources of responses read ahead while their clients accept nothing.
    pub(super) fn drive_ahead(&mut self, turn: &mut H2Turn<'_>) {
        let (mut streams, _) = turn.streams(&mut self.wire, &self.socket);
        self.exchanges.drive_ahead(self.is_blocked, &mut streams);
    }

    /// Sends output and content until none is left, the client accepts no more, or other connections must get their
    /// turn.
    pub(super) fn drive_sending(&mut self, turn: &mut H2Turn<'_>) -> io::Result<()> {
        loop {
            self.gather_content(turn);
            if turn.output.is_empty() || self.is_blocked || turn.sent_bytes >= TURN_BYTES_MAX {
                return Ok(());
            }
            self.write(turn)?;
            if turn.output.is_empty() {
                self.finish_exchanges(turn);
                self.drive_exchanges(turn);
            }
        }
    }

    /// Sends output until less than `OUTPUT_BYTES` is left. Returns false if the socket is blocked before that.
    pub(super) fn write_full(&mut self, turn: &mut H2Turn<'_>) -> io::Result<bool> {
        while turn.output.length() >= OUTPUT_BYTES {
            if self.is_blocked {
                return Ok(false);
            }
            self.write(turn)?;
        }
        Ok(true)
    }

    /// Lets the engine add content to the output, up to `OUTPUT_BYTES`.
    fn gather_content(&mut self, turn: &mut H2Turn<'_>) {
        while !self.is_blocked && turn.output.length() < OUTPUT_BYTES && self.wire.has_content_to_send() {
            let room_bytes = OUTPUT_BYTES - turn.output.length();
            let length_before = turn.output.length();
            let exchanges = &mut self.exchanges;
            let (streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
            let H2Streams { wire, turn: mut engine_turn, .. } = streams;
            let lost = wire.poll_output(room_bytes, &mut engine_turn, |stream, range, out| {
                exchanges.place(stream, &range, out, exchange_turn).map_or(Placement::Lost, |()| Placement::Copied)
            });
            match lost {
                Some(stream) => self.exchanges.on_reset(stream, &turn.exchange),
                None if turn.output.length() == length_before => return,
                None => {}
            }
        }
    }

    /// Sends what the socket accepts at once.
    fn write(&mut self, turn: &mut H2Turn<'_>) -> io::Result<()> {
        match self.socket.poll_write(turn.output.bytes()) {
            Poll::Ready(count) => {
                let count = count?;
                turn.output.drop_front(count);
                turn.sent_bytes += count;
                turn.exchange.context.count_sent(count as u64);
                self.clocks.on_sent(turn.exchange.now);
            }
            Poll::Pending => self.is_blocked = true,
        }
        Ok(())
    }

    /// Logs and removes the exchanges whose responses have been sent.
    fn finish_exchanges(&mut self, turn: &mut H2Turn<'_>) {
        let (mut streams, exchange_turn) = turn.streams(&mut self.wire, &self.socket);
        self.exchanges.finish_sent(&mut streams, exchange_turn);
    }
}
