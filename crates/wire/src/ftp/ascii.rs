//! Line ends in transfers of the type ASCII (RFC 959, section 3.1.1.1).

/// Converts text with the system's line ends to the network's: LF becomes CR LF. An LF after a CR stays, so that a file
/// that has CR LF already keeps its form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsciiEncoder {
    ends_with_cr: bool,
}

impl AsciiEncoder {
    /// Appends the next piece, converted; at most twice its length.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            let has_cr = line.last().map_or(self.ends_with_cr, |last| *last == b'\r');
            out.extend_from_slice(line);
            out.extend_from_slice(if has_cr { b"\n" } else { b"\r\n" });
            self.ends_with_cr = false;
            rest = &rest[end + 1..];
        }
        out.extend_from_slice(rest);
        if let Some(last) = rest.last() {
            self.ends_with_cr = *last == b'\r';
        }
    }
}
