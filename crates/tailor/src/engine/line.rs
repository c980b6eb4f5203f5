//! Simulated lines that are slower than the network: a modem, a phone, a slow client.

use super::clock::{MILLISECOND, Nanos, SECOND};
use super::window::CongestionWindow;

/// Payload of an Ethernet packet; a slow line transfers one at a time.
const PACKET_BYTES: u64 = 1460;

/// Simulated line. Rates count payload in bits per second, without headers of IP and TCP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SimulatedLine {
    /// Rate towards the client in bits per second; `None` for no limit.
    pub receive_bits_per_second: Option<u64>,
    /// Rate towards the server in bits per second; `None` for no limit.
    pub send_bits_per_second: Option<u64>,
    /// Round trip time in addition to that of the network.
    pub latency: Nanos,
    /// Share of packets that are lost. It needs a latency.
    pub loss: f64,
    /// True if servers seem to begin with a small window, as on a real line with this latency.
    pub has_slow_start: bool,
}

/// Maximum number of bytes that a fast line transfers at a time. Two such pieces fit into the receive buffers that
/// systems permit (`net.core.rmem_max`).
const PIECE_BYTES_MAX: u64 = 64 << 10;

/// Maximum share of lost packets.
const LOSS_MAX: f64 = 0.5;

/// Minimum size of a line's receive buffer.
const BUFFER_BYTES_MIN: u64 = 8192;

impl SimulatedLine {
    /// Window of the server on a new connection; `None` if the line does not simulate it.
    pub(crate) fn send_window(&self) -> Option<CongestionWindow> {
        (self.has_slow_start && self.latency > 0).then(|| CongestionWindow::new(self.latency, self.loss))
    }

    /// Time that a client loses because packets of its own are lost, one after the other. `first_wait` is the time until
    /// the first is sent again; it doubles.
    pub(crate) fn draw_wait(&self, first_wait: Nanos, rng: &mut fastrand::Rng) -> Nanos {
        let (mut wait, mut sum) = (first_wait, 0);
        while self.loss > 0.0 && rng.f64() < self.loss {
            sum += wait;
            wait *= 2;
        }
        sum
    }

    /// Returns the size of the receive buffer: the bytes that arrive while the line waits to transfer a piece, so that
    /// the next one is then available. `None` for a line without a rate limit.
    pub(crate) fn receive_buffer_bytes(&self) -> Option<usize> {
        self.receive_bits_per_second.map(|bits| (2 * piece_bytes(bits)).max(BUFFER_BYTES_MIN) as usize)
    }
}

/// Returns the bytes to transfer at a time. A fast line transfers about twenty times a second instead of once for each
/// packet.
fn piece_bytes(bits_per_second: u64) -> u64 {
    (bits_per_second / 8 / 20).clamp(PACKET_BYTES, PIECE_BYTES_MAX)
}

/// Token bucket for one direction of a line. It counts from the time when the line became busy. A late timer loses no
/// tokens, so the average rate is right.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Credit {
    bits_per_second: u64,
    /// Time up to which the transferred bytes are paid for.
    from: Nanos,
    is_busy: bool,
}

impl Credit {
    pub(crate) fn new(bits_per_second: u64) -> Self {
        Self { bits_per_second, from: 0, is_busy: false }
    }

    /// Starts a busy period, not before `now`.
    pub(crate) fn begin(&mut self, now: Nanos) {
        if !self.is_busy {
            self.is_busy = true;
            self.from = self.from.max(now);
        }
    }

    /// Ends the busy period, because all bytes were transferred.
    pub(crate) fn end(&mut self) {
        self.is_busy = false;
    }

    /// Returns the bytes that may be transferred now.
    pub(crate) fn allowed_bytes(&self, now: Nanos) -> u64 {
        let elapsed = u128::from(now.saturating_sub(self.from));
        (elapsed * u128::from(self.bits_per_second) / (8 * u128::from(SECOND))) as u64
    }

    /// Subtracts transferred bytes.
    pub(crate) fn pay(&mut self, bytes: u64) {
        self.from += self.time_for(bytes);
    }

    /// Returns when to try again, for this number of expected bytes or an unknown one.
    pub(crate) fn ready_at(&self, expected_bytes: Option<u64>) -> Nanos {
        self.from + self.time_for(expected_bytes.unwrap_or(PACKET_BYTES).clamp(1, piece_bytes(self.bits_per_second)))
    }

    fn time_for(&self, bytes: u64) -> Nanos {
        let bits = u128::from(bytes) * 8;
        // Rounded up, so that the bytes are permitted at that time.
        (bits * u128::from(SECOND)).div_ceil(u128::from(self.bits_per_second.max(1))) as Nanos
    }
}

/// Parses `56k`, `400k`, `10M`, or `56k/33k` (receive/send), and after commas `latency=100ms`, `loss=1%` and `slow-start=off`.
pub(crate) fn parse_line(text: &str) -> Result<SimulatedLine, String> {
    let mut parts = text.split(',');
    let rates = parts.next().unwrap_or_default();
    let (receive, send) = rates.split_once('/').unwrap_or((rates, rates));
    let mut line = SimulatedLine {
        receive_bits_per_second: parse_bits(receive)?,
        send_bits_per_second: parse_bits(send)?,
        latency: 0,
        loss: 0.0,
        has_slow_start: true,
    };
    for part in parts {
        match part.split_once('=') {
            Some(("latency", value)) => line.latency = crate::units::parse_duration(value)?.as_nanos() as Nanos,
            Some(("loss", value)) => line.loss = crate::units::parse_share(value)?,
            Some(("slow-start", "on")) => line.has_slow_start = true,
            Some(("slow-start", "off")) => line.has_slow_start = false,
            _ => return Err(format!("`{part}`: write `latency=TIME`, `loss=SHARE` or `slow-start=off`")),
        }
    }
    if line.loss > LOSS_MAX {
        return Err(format!("a loss of more than {:.0} % carries next to nothing", LOSS_MAX * 100.0));
    }
    if line.loss > 0.0 && (line.latency == 0 || !line.has_slow_start) {
        return Err(
            "`loss` needs `latency=TIME`, and excludes `slow-start=off`: packets are sent again after a round trip"
                .into(),
        );
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

/// Time that a line may be idle within a response without losing tokens. It covers late wake-ups and the server's delay
/// after the buffer has room again, which the queue of a real line hides.
pub(crate) const LINE_SLACK: Nanos = 20 * MILLISECOND;

/// Resolution of line timers. Rounding up lets many lines share a wake-up.
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
        // After a late wake-up the missed bytes may pass at once.
        assert_eq!(credit.allowed_bytes(305 * MILLISECOND), 200);
        credit.pay(150);
        credit.end();
        // An idle line saves no tokens.
        credit.begin(2_000 * MILLISECOND);
        assert_eq!(credit.allowed_bytes(2_010 * MILLISECOND), 10);
    }

    #[test]
    fn lines_as_text() {
        let with = |receive, send, latency, loss, has_slow_start| {
            Ok(SimulatedLine {
                receive_bits_per_second: receive,
                send_bits_per_second: send,
                latency: latency * MILLISECOND,
                loss,
                has_slow_start,
            })
        };
        let line = |receive, send, latency| with(receive, send, latency, 0.0, true);
        for (text, expect) in [
            ("56k", line(Some(56_000), Some(56_000), 0)),
            ("2M/100k,latency=30ms", line(Some(2_000_000), Some(100_000), 30)),
            ("9600/-", line(Some(9_600), None, 0)),
            ("-,latency=1ms,slow-start=off", with(None, None, 1, 0.0, false)),
            ("10M,latency=50ms,loss=1%", with(Some(10_000_000), Some(10_000_000), 50, 0.01, true)),
        ] {
            assert_eq!(parse_line(text), expect, "{text}");
        }
        for text in
            ["", "k", "0", "56k,lag=1", "56k/", "1M,loss=1%", "1M,latency=1s,loss=51%", "1M,latency=1s,slow-start=no"]
        {
            assert!(parse_line(text).is_err(), "{text}");
        }
    }
}
