//! Sending: turns content of exchanges into frames, and writes frames to the socket.

use std::io;
use std::task::Poll;

use wire::h1::MessageRejection;
use wire::h2::Placement;

use super::exchange::Polled;
use super::{H2Connection, H2Turn, OUTPUT_BYTES, TURN_BYTES_MAX};

impl H2Connection {
    /// Polls the exchanges that can make progress.
    pub(super) fn drive_exchanges(&mut self, turn: &mut H2Turn<'_, '_>) {
        if self.exchanges.is_empty() {
            return;
        }
        self.exchanges.take_woken();
        let mut index = 0;
        while index < self.exchanges.len() {
            let exchange = self.exchanges.at(index);
            if !exchange.is_due && !exchange.wants_to_offer(&mut self.wire) {
                index += 1;
                continue;
            }
            let stream = exchange.stream;
            match exchange.poll(&mut self.wire, turn) {
                Polled::Pending => {}
                // The exchange is polled once more, for its content.
                Polled::Answered(response) => {
                    self.respond(index, response, turn);
                    continue;
                }
                // As above, for the error page.
                Polled::TooLarge => {
                    self.reject_exchange(index, MessageRejection::CONTENT_TOO_LARGE, turn);
                    continue;
                }
                Polled::Broken(code) => self.reset_exchange(index, code, turn),
            }
            // The exchange may have been removed.
            index += usize::from(self.exchanges.find(stream).is_some());
        }
    }

    /// Lets the sources of responses read ahead while their clients accept nothing.
    pub(super) fn drive_ahead(&mut self) {
        for index in 0..self.exchanges.len() {
            self.exchanges.at(index).poll_ahead(self.is_blocked, &mut self.wire);
        }
    }

    /// Sends output and content until none is left, the client accepts no more, or other connections must get their
    /// turn.
    pub(super) fn drive_sending(&mut self, turn: &mut H2Turn<'_, '_>) -> io::Result<()> {
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
    pub(super) fn write_full(&mut self, turn: &mut H2Turn<'_, '_>) -> io::Result<bool> {
        while turn.output.length() >= OUTPUT_BYTES {
            if self.is_blocked {
                return Ok(false);
            }
            self.write(turn)?;
        }
        Ok(true)
    }

    /// Lets the engine add content to the output, up to `OUTPUT_BYTES`.
    fn gather_content(&mut self, turn: &mut H2Turn<'_, '_>) {
        while !self.is_blocked && turn.output.length() < OUTPUT_BYTES && self.wire.has_content_to_send() {
            let room_bytes = OUTPUT_BYTES - turn.output.length();
            let length_before = turn.output.length();
            let exchanges = &mut self.exchanges;
            let lost = self.wire.poll_output(room_bytes, &mut turn.wire(), |stream, range, out| {
                exchanges.get(stream).map_or(Placement::Lost, |exchange| exchange.outgoing.place(&range, out))
            });
            match lost {
                Some(stream) => self.on_reset(stream, turn),
                None if turn.output.length() == length_before => return,
                None => {}
            }
        }
    }

    /// Sends what the socket accepts at once.
    fn write(&mut self, turn: &mut H2Turn<'_, '_>) -> io::Result<()> {
        match self.socket.poll_write(turn.output.bytes()) {
            Poll::Ready(count) => {
                let count = count?;
                turn.output.drop_front(count);
                turn.sent_bytes += count;
                turn.context.count_sent(count as u64);
                self.clocks.on_sent(turn.now);
            }
            Poll::Pending => self.is_blocked = true,
        }
        Ok(())
    }

    /// Logs and removes the exchanges whose responses have been sent.
    fn finish_exchanges(&mut self, turn: &H2Turn<'_, '_>) {
        let mut index = 0;
        while index < self.exchanges.len() {
            if self.exchanges.at(index).is_complete(&mut self.wire) {
                let exchange = self.exchanges.remove(index);
                self.record_exchange(&exchange, true, turn.now);
            } else {
                index += 1;
            }
        }
    }
}
