//! Limits on replies of Valkey. The client library keeps a reply in memory until it is whole, and takes the length of an array
//! from its head. So a server that lies could fill the memory of an instance, or end its process by one line.
//!
//! The library connects to Sentinels and to nodes of a cluster by itself, so their replies have no such limit.
//!
//! [`ReplyScan`] follows the bytes of replies (RESP, "Redis serialization protocol specification") and ends the connection at the
//! first head that promises too much.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Largest reply, in bytes: the largest value, and its version.
const REPLY_BYTES_MAX: u64 = 17 << 20;

/// Largest number of values in a reply: twice the entries of a list.
const REPLY_VALUES_MAX: u64 = 40_000;

/// Longest line, such as an error. Values do not come in lines.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Connection whose replies are limited.
pub(super) struct LimitedReplies<S> {
    stream: S,
    scan: ReplyScan,
}

impl<S> LimitedReplies<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, scan: ReplyScan::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedReplies<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, out))?;
        Poll::Ready(self.scan.take(&out.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedReplies<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Place in the replies of a server.
#[derive(Debug, Default)]
struct ReplyScan {
    /// Bytes of the line so far.
    line: Vec<u8>,
    /// Bytes of the string in progress, with the end of its line.
    string_left: u64,
    /// Values that are missing in the reply; 0 between two replies.
    values_left: u64,
    /// Bytes and values of the reply so far. Values count when their array promises them.
    bytes: u64,
    values: u64,
}

impl ReplyScan {
    /// Takes the next bytes.
    fn take(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.string_left > 0 {
                let count = usize::try_from(self.string_left).map_or(bytes.len(), |left| left.min(bytes.len()));
                self.string_left -= count as u64;
                bytes = &bytes[count..];
                if self.string_left == 0 {
                    self.on_value();
                }
                continue;
            }
            self.line.push(*first);
            bytes = rest;
            if self.line.ends_with(b"\r\n") {
                self.on_line()?;
            } else if self.line.len() > LINE_BYTES_MAX {
                return Err(too_large("a line"));
            }
        }
        Ok(())
    }

    fn on_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        if self.values_left == 0 {
            (self.values_left, self.bytes, self.values) = (1, 0, 1);
        }
        self.add_bytes(line.len() as u64)?;
        let Some((kind, text)) = line[..line.len() - 2].split_first() else { return Err(too_large("an empty line")) };
        let number = || std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<i64>().ok());
        match kind {
            b'$' | b'!' | b'=' => match number().map(u64::try_from) {
                Some(Ok(length)) => {
                    self.add_bytes(length)?;
                    self.string_left = length + 2;
                }
                // No string.
                Some(Err(_)) => self.on_value(),
                None => return Err(too_large("a length that is no number")),
            },
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let count = number().ok_or_else(|| too_large("a length that is no number"))?;
                let count = u64::try_from(count).unwrap_or(0);
                let each = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
                let within = count.saturating_mul(each).saturating_add(u64::from(*kind == b'|'));
                self.values = self.values.saturating_add(within);
                if self.values > REPLY_VALUES_MAX {
                    return Err(too_large("a reply of many values"));
                }
                self.values_left += within;
                self.on_value();
            }
            _ => self.on_value(),
        }
        Ok(())
    }

    fn add_bytes(&mut self, count: u64) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(count);
        if self.bytes > REPLY_BYTES_MAX { Err(too_large("a reply of many bytes")) } else { Ok(()) }
    }

    fn on_value(&mut self) {
        self.values_left = self.values_left.saturating_sub(1);
    }
}

fn too_large(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the store sends {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies() {
        let long = format!("${}\r\n{}\r\n", 100_000, "x".repeat(100_000));
        let line = format!("-ERR {}\r\n", "x".repeat(LINE_BYTES_MAX));
        let nested = "*2\r\n".repeat(50_000);
        let many = format!("*{}\r\n", REPLY_VALUES_MAX);
        let check = |input: &str, is_accepted: bool| {
            // All at once, and byte for byte.
            for size in [input.len(), 1, 7] {
                let mut scan = ReplyScan::default();
                let result = input.as_bytes().chunks(size.max(1)).try_for_each(|piece| scan.take(piece));
                let shown = &input[..input.len().min(40)];
                assert_eq!(result.is_ok(), is_accepted, "{shown:?} in pieces of {size}: {result:?}");
                assert!(scan.line.len() <= LINE_BYTES_MAX + 1);
            }
        };
        for input in [
            "+OK\r\n:1\r\n$-1\r\n*-1\r\n*0\r\n$0\r\n\r\n_\r\n#t\r\n,1.5\r\n",
            "*2\r\n$3\r\na\r\n\r\n*1\r\n:5\r\n+OK\r\n",
            "%1\r\n+a\r\n:1\r\n|1\r\n+a\r\n:1\r\n+data\r\n",
            &long,
            &long.repeat(20),
        ] {
            check(input, true);
        }
        for input in [
            "*1000000000\r\n",
            "*9223372036854775807\r\n",
            "%9223372036854775807\r\n",
            "*2\r\n*39999\r\n",
            "$1000000000\r\n",
            "$9223372036854775807\r\n",
            "*2\r\n$17000000\r\n",
            "$x\r\n",
            "*\r\n",
            "\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
            &line,
            &nested,
            &many,
        ] {
            let more = if input.ends_with("$17000000\r\n") {
                format!("{}\r\n$2000000\r\n", "x".repeat(17_000_000))
            } else {
                String::new()
            };
            check(&format!("{input}{more}"), false);
        }
    }
}
