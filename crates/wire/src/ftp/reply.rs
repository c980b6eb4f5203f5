//! Replies (RFC 959, section 4.2).

use std::borrow::Cow;

use super::line::IAC;

/// Reply to a command. More than one line is sent as a multi-line reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtpReply {
    /// Code of three digits.
    pub code: u16,
    /// Text, whose lines end with LF, except the last.
    pub text: Cow<'static, [u8]>,
}

impl FtpReply {
    /// Reply with a fixed text.
    pub const fn new(code: u16, text: &'static str) -> Self {
        Self { code, text: Cow::Borrowed(text.as_bytes()) }
    }

    /// Reply with a text that was made.
    pub fn with_text(code: u16, text: impl Into<Vec<u8>>) -> Self {
        Self { code, text: Cow::Owned(text.into()) }
    }

    /// Reply to EPSV with a family that the connection does not have (RFC 2428, section 3). `number` is the family that
    /// it has.
    pub fn other_family(number: u8) -> Self {
        Self::with_text(522, format!("Network protocol not supported, use ({number})"))
    }

    /// Appends the reply. In a multi-line reply, all lines except the first and last begin with a space, so that no
    /// line looks like the last one.
    pub fn push(&self, out: &mut Vec<u8>) {
        let mut lines = self.text.split(|byte| *byte == b'\n').peekable();
        let mut is_first = true;
        while let Some(line) = lines.next() {
            let is_last = lines.peek().is_none();
            if is_first || is_last {
                out.extend_from_slice(&self.digits());
                out.push(if is_last { b' ' } else { b'-' });
            } else {
                out.push(b' ');
            }
            push_line_text(out, line);
            out.extend_from_slice(b"\r\n");
            is_first = false;
        }
    }

    fn digits(&self) -> [u8; 3] {
        [100, 10, 1].map(|unit| b'0' + (self.code / unit % 10) as u8)
    }
}

/// Appends text of a line in the form of Telnet: CR becomes CR NUL (RFC 2640, section 3.1), and the byte 255 is doubled
/// (RFC 854).
fn push_line_text(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        out.push(byte);
        match byte {
            b'\r' => out.push(0),
            IAC => out.push(IAC),
            _ => {}
        }
    }
}

/// Appends a path in double quotes, which are doubled inside (RFC 959, appendix II).
pub fn push_quoted(text: &mut Vec<u8>, path: &[u8]) {
    text.push(b'"');
    for &byte in path {
        if byte == b'"' {
            text.push(b'"');
        }
        text.push(byte);
    }
    text.push(b'"');
}
