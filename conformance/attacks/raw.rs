//! Connections that send any bytes and read the rest.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::trial::pause;

/// Time that a server may take for a response.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A connection, and the bytes received.
pub(crate) struct Raw {
    pub(crate) socket: TcpStream,
    pub(crate) received: Vec<u8>,
    pub(crate) is_closed: bool,
}

impl Raw {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self, String> {
        let socket =
            TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| format!("cannot connect: {error}"))?;
        Ok(Self::over(socket))
    }

    pub(crate) fn over(socket: TcpStream) -> Self {
        // Both only fail on sockets that are closed, which the next read notices.
        let _ = socket.set_nodelay(true);
        let _ = socket.set_write_timeout(Some(Duration::from_secs(2)));
        Self { socket, received: Vec::new(), is_closed: false }
    }

    /// Sends bytes. A server that has had enough may close meanwhile.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.is_closed |= self.socket.write_all(bytes).is_err();
    }

    /// Sends bytes in one piece or, half of the time, in a few with pauses.
    pub(crate) fn send_in_pieces(&mut self, bytes: &[u8], random: &mut Rng) {
        let mut rest = bytes;
        if random.bool() {
            for _ in 0..random.usize(1..4) {
                let (piece, after) = rest.split_at(random.usize(0..=rest.len()));
                self.send(piece);
                pause(random, Duration::from_millis(3));
                rest = after;
            }
        }
        self.send(rest);
    }

    /// Reads until `is_done`, the end, or nothing came for so long.
    pub(crate) fn read(&mut self, silence: Duration, mut is_done: impl FnMut(&[u8]) -> bool) {
        let (deadline, mut buffer) = (Instant::now() + PATIENCE, [0; 16 << 10]);
        let _ = self.socket.set_read_timeout(Some(silence));
        while !self.is_closed && Instant::now() < deadline && !is_done(&self.received) {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.is_closed = true,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_closed = true,
            }
        }
    }
}

/// Sends a request whose response is the last of its connection, and returns that.
pub(crate) fn ask(address: SocketAddr, request: &str) -> String {
    let mut raw = match Raw::connect(address) {
        Ok(raw) => raw,
        Err(error) => return error,
    };
    raw.send(request.as_bytes());
    // A server may close before it has read all, with a response.
    raw.is_closed = false;
    raw.read(PATIENCE, |_| false);
    String::from_utf8_lossy(&raw.received).into_owned()
}

/// The status of a response; 0 if it has none.
pub(crate) fn status(response: &str) -> u16 {
    response.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Number of times that a text occurs.
pub(crate) fn count(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).filter(|window| *window == text).count()
}

/// One of them.
pub(crate) fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}
