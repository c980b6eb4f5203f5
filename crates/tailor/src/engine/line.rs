//! Lines slower than the network that is there: a modem, a phone, a reader or sender that takes its time.

use super::clock::{MILLISECOND, Nanos, SECOND};

/// Payload of a packet on an Ethernet: what a line takes at a time if it is slow.
const PACKET_BYTES: u64 = 1460;

/// A line: its rates count payload in bits per second, without the headers of IP and TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Bits per second towards the client; `None` for no limit.
    pub receive_bits_per_second: Option<u64>,
    /// Bits per second towards the server.
    pub send_bits_per_second: Option<u64>,
    /// Time for a round trip besides that of the network.
    pub latency: Nanos,
}

/// Bytes that a fast line takes at a time at most: two of them fit into what systems let a socket keep (`net.core.rmem_max`).
const PIECE_BYTES_MAX: u64 = 64 << 10;

/// A line's receive buffer at least.
const BUFFER_BYTES_MIN: u64 = 8192;

impl Line {
    /// What the server may send ahead of what the line has taken: what comes while a piece is waited for, so that the next is
    /// there then. `None` if nothing is held back.
    pub(crate) fn receive_buffer_bytes(&self) -> Option<usize> {
        self.receive_bits_per_second.map(|bits| (2 * piece_bytes(bits)).max(BUFFER_BYTES_MIN) as usize)
    }
}

/// Bytes that are taken at a time. A fast line is looked at less often than once a packet: twenty times a second is smooth
/// enough.
fn piece_bytes(bits_per_second: u64) -> u64 {
    (bits_per_second / 8 / 20).clamp(PACKET_BYTES, PIECE_BYTES_MAX)
}

/// One direction of a line: counts what may have passed since it became busy. Being late to look costs no credit, so the
/// rate is kept in the long run whatever the timers do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credit {
    bits_per_second: u64,
    /// The time from which bytes that passed are paid for.
    from: Nanos,
    is_busy: bool,
}

impl Credit {
    pub(crate) fn new(bits_per_second: u64) -> Self {
        Self { bits_per_second, from: 0, is_busy: false }
    }

    /// There is something to pass, no earlier than `now`.
    pub(crate) fn begin(&mut self, now: Nanos) {
        if !self.is_busy {
            self.is_busy = true;
            self.from = self.from.max(now);
        }
    }

    /// All there was has passed.
    pub(crate) fn end(&mut self) {
        self.is_busy = false;
    }

    /// How many bytes may pass now.
    pub(crate) fn allowed_bytes(&self, now: Nanos) -> u64 {
        let elapsed = u128::from(now.saturating_sub(self.from));
        (elapsed * u128::from(self.bits_per_second) / (8 * u128::from(SECOND))) as u64
    }

    /// So many bytes passed.
    pub(crate) fn pay(&mut self, bytes: u64) {
        self.from += self.time_for(bytes);
    }

    /// When to look again, if so many bytes are to come, or an unknown number.
    pub(crate) fn ready_at(&self, expected_bytes: Option<u64>) -> Nanos {
        self.from + self.time_for(expected_bytes.unwrap_or(PACKET_BYTES).clamp(1, piece_bytes(self.bits_per_second)))
    }

    fn time_for(&self, bytes: u64) -> Nanos {
        let bits = u128::from(bytes) * 8;
        // Rounded up, so that after this time the bytes are allowed.
        (bits * u128::from(SECOND)).div_ceil(u128::from(self.bits_per_second.max(1))) as Nanos
    }
}

/// Reads `56k`, `400k`, `10M`, or `56k/33k` (receiving/sending), and after commas `latency=100ms`.
pub(crate) fn parse_line(text: &str) -> Result<Line, String> {
    let mut parts = text.split(',');
    let rates = parts.next().unwrap_or_default();
    let (receive, send) = rates.split_once('/').unwrap_or((rates, rates));
    let mut line =
        Line { receive_bits_per_second: parse_bits(receive)?, send_bits_per_second: parse_bits(send)?, latency: 0 };
    for part in parts {
        match part.split_once('=') {
            Some(("latency", value)) => line.latency = crate::units::parse_duration(value)?.as_nanos() as Nanos,
            _ => return Err(format!("`{part}`: write `latency=TIME`")),
        }
    }
    Ok(line)
}

fn parse_bits(text: &str) -> Result<Option<u64>, String> {
    if text == "-" {
        return Ok(None);
    }
    match crate::units::parse_count(text)? {
        0 => Err("a line needs more than 0 bits per second".into()),
        bits => Ok(Some(bits)),
    }
}

/// How long a line may be found empty within a response without losing the time: waking up late, and the server sending
/// on once there is room again, take a moment that a real line's queue hides.
pub(crate) const LINE_SLACK: Nanos = 20 * MILLISECOND;

/// Timers on lines are rounded up to this, so that many lines share a wake-up.
pub(crate) const LINE_TICK: Nanos = MILLISECOND;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_keeps_the_rate() {
        let mut credit = Credit::new(8_000); // a byte a millisecond
        credit.begin(5 * MILLISECOND);
        assert_eq!(credit.ready_at(Some(100)), 105 * MILLISECOND);
        assert_eq!(credit.allowed_bytes(104 * MILLISECOND), 99);
        assert_eq!(credit.allowed_bytes(105 * MILLISECOND), 100);
        credit.pay(100);
        // Looked at late: what was missed may pass at once.
        assert_eq!(credit.allowed_bytes(305 * MILLISECOND), 200);
        credit.pay(150);
        credit.end();
        // An idle line saves nothing up.
        credit.begin(2_000 * MILLISECOND);
        assert_eq!(credit.allowed_bytes(2_010 * MILLISECOND), 10);
    }

    #[test]
    fn lines_as_text() {
        let line = |receive, send, latency| {
            Ok(Line { receive_bits_per_second: receive, send_bits_per_second: send, latency: latency * MILLISECOND })
        };
        for (text, expect) in [
            ("56k", line(Some(56_000), Some(56_000), 0)),
            ("2M/100k,latency=30ms", line(Some(2_000_000), Some(100_000), 30)),
            ("9600/-", line(Some(9_600), None, 0)),
        ] {
            assert_eq!(parse_line(text), expect, "{text}");
        }
        for text in ["", "k", "0", "56k,lag=1", "56k/"] {
            assert!(parse_line(text).is_err(), "{text}");
        }
    }
}
