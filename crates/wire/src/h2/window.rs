//! Flow control windows of streams and connections (RFC 9113, section 5.2).

use std::time::Duration;

/// Default initial window (section 6.9.2).
pub(super) const INITIAL_WINDOW_BYTES: u32 = 65_535;
/// Maximum window (section 6.9.1).
pub(super) const WINDOW_BYTES_MAX: u32 = 0x7fff_ffff;

/// Error of a window that exceeds the maximum (section 6.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowOverflow;

/// Window for sending. It becomes negative if the peer reduces its initial window (section 6.9.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWindow(i32);

impl SendWindow {
    pub(super) fn new(bytes: u32) -> Self {
        Self(bytes as i32)
    }

    /// Returns the bytes that may be sent.
    pub(super) fn available_bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    /// Subtracts sent bytes, which must have been available.
    pub(super) fn on_sent(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.available_bytes());
        self.0 -= bytes as i32;
    }

    pub(super) fn grow(&mut self, increment: u32) -> Result<(), WindowOverflow> {
        let grown = i64::from(self.0) + i64::from(increment);
        self.0 = i32::try_from(grown).map_err(|_| WindowOverflow)?;
        Ok(())
    }

    /// Adjusts the window after a change of the initial window.
    pub(super) fn shift(&mut self, from: u32, to: u32) -> Result<(), WindowOverflow> {
        let shifted = i64::from(self.0) + i64::from(to) - i64::from(from);
        self.0 = i32::try_from(shifted).map_err(|_| WindowOverflow)?;
        Ok(())
    }
}

/// Window for receiving. It grows if the peer uses it up in less than two round trips, because the window then limits
/// the throughput. Bytes received and not taken never exceed its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveWindow {
    /// Bytes that the peer may still send.
    available_bytes: u32,
    /// Size of the window when everything was taken.
    size_bytes: u32,
    /// Bytes taken since the last WINDOW_UPDATE.
    consumed_bytes: u32,
    updated_at: Duration,
}

impl ReceiveWindow {
    pub(super) fn new(size_bytes: u32, now: Duration) -> Self {
        Self { available_bytes: size_bytes, size_bytes, consumed_bytes: 0, updated_at: now }
    }

    /// Increases the window; returns the difference.
    pub(super) fn raise_to(&mut self, size_bytes: u32) -> u32 {
        let increment = size_bytes.saturating_sub(self.size_bytes);
        self.size_bytes += increment;
        self.available_bytes += increment;
        increment
    }

    /// Subtracts received bytes. Fails if the peer has sent more than the window permits.
    pub(super) fn on_received(&mut self, bytes: usize) -> Result<(), WindowOverflow> {
        let bytes = u32::try_from(bytes).map_err(|_| WindowOverflow)?;
        self.available_bytes = self.available_bytes.checked_sub(bytes).ok_or(WindowOverflow)?;
        Ok(())
    }

    /// Returns the bytes that the peer may still send.
    pub(super) fn available_bytes(&self) -> u32 {
        self.available_bytes
    }

    /// Returns the bytes received and not taken.
    pub(super) fn waiting_bytes(&self) -> u32 {
        self.size_bytes - self.available_bytes - self.consumed_bytes
    }

    /// Returns taken bytes to the window. Returns the increment for a WINDOW_UPDATE once it amounts to half of the
    /// window.
    pub(super) fn on_consumed(&mut self, bytes: u32, now: Duration, pace: &WindowGrowth) -> Option<u32> {
        self.consumed_bytes += bytes.min(self.waiting_bytes());
        if self.consumed_bytes < self.size_bytes / 2 {
            return None;
        }
        let mut increment = std::mem::take(&mut self.consumed_bytes);
        self.available_bytes += increment;
        // Half of the window lasted less than a round trip, so the peer uses it up before the update arrives.
        if now.saturating_sub(self.updated_at) < pace.round_trip {
            increment += self.raise_to(self.size_bytes.saturating_mul(2).min(pace.window_bytes_max));
        }
        self.updated_at = now;
        Some(increment)
    }
}

/// Parameters for the growth of windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowGrowth {
    pub round_trip: Duration,
    pub window_bytes_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_windows() {
        let mut window = SendWindow::new(100);
        window.on_sent(60);
        assert_eq!(window.shift(100, 50), Ok(()));
        assert_eq!((window.0, window.available_bytes()), (-10, 0));
        assert_eq!(window.grow(11), Ok(()));
        assert_eq!(window.available_bytes(), 1);
        assert_eq!(window.grow(WINDOW_BYTES_MAX), Err(WindowOverflow));
        assert_eq!(window.grow(WINDOW_BYTES_MAX - 1), Ok(()));
        assert_eq!(window.shift(0, 1), Err(WindowOverflow));
    }

    #[test]
    fn a_receive_window_grows_for_a_fast_peer_only() {
        let pace = WindowGrowth { round_trip: Duration::from_millis(50), window_bytes_max: 3000 };
        let at = Duration::from_millis;
        for (times, expect) in [([10, 20, 30], [1000 + 500, 2000, 1000]), ([100, 200, 300], [500, 500, 500])] {
            let mut window = ReceiveWindow::new(1000, Duration::ZERO);
            for (index, time) in times.into_iter().enumerate() {
                let half = window.size_bytes / 2;
                assert_eq!(window.on_received(half as usize), Ok(()));
                assert_eq!(window.on_consumed(half - 1, at(time), &pace), None);
                assert_eq!(window.waiting_bytes(), 1);
                let reported = window.on_consumed(1, at(time), &pace);
                let expect = if index == 2 { window.size_bytes / 2 } else { expect[index] };
                assert_eq!(reported, Some(expect), "at {time} ms");
                assert!(window.size_bytes <= 3000);
            }
            assert_eq!(window.on_received(window.size_bytes as usize), Ok(()));
            assert_eq!(window.on_received(1), Err(WindowOverflow));
        }
    }
}
