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

/// Converts text of the network to the system's line ends: CR LF becomes LF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsciiDecoder {
    has_cr: bool,
}

impl AsciiDecoder {
    /// Appends the next piece, converted; at most one byte longer.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for &byte in piece {
            if std::mem::take(&mut self.has_cr) && byte != b'\n' {
                out.push(b'\r');
            }
            match byte {
                b'\r' => self.has_cr = true,
                byte => out.push(byte),
            }
        }
    }

    /// Appends the end of the text.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.has_cr) {
            out.push(b'\r');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_of_uploads() {
        for (text, expect) in [
            (&b"one\r\ntwo\r\n"[..], &b"one\ntwo\n"[..]),
            (b"one\ntwo", b"one\ntwo"),
            (b"\r\r\n\r", b"\r\n\r"),
            (b"a\rb", b"a\rb"),
            (b"", b""),
        ] {
            for size in 1..4 {
                let (mut decoder, mut out) = (AsciiDecoder::default(), Vec::new());
                text.chunks(size).for_each(|piece| decoder.push(piece, &mut out));
                decoder.finish(&mut out);
                assert_eq!(out, expect, "{}", text.escape_ascii());
            }
        }
    }
}
