//! Lines of the control connection, which is a Telnet stream (RFC 959, section 5.3; RFC 854).

use memchr::memchr;

/// Maximum length of a command with its end of line, in bytes. Linux has no longer path names.
pub const COMMAND_BYTES_MAX: usize = 4 << 10;

/// Telnet: the next byte is a Telnet command (RFC 854).
pub(super) const IAC: u8 = 255;

/// First of the Telnet commands WILL, WONT, DO and DONT, which have an option after them.
const WILL: u8 = 251;

/// Complete line from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtpLine {
    /// Content without the end of line and without Telnet commands. CR NUL has become CR (RFC 2640, section 3.1).
    pub text: Vec<u8>,
    /// Length of the line in the input, in bytes.
    pub consumed_bytes: usize,
}

/// Error of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FtpLineError {
    /// The line is longer than [`COMMAND_BYTES_MAX`]. Its end is unknown, so the connection must be closed.
    TooLong,
    /// The line has a NUL, an LF, or a CR that is not part of CR LF or CR NUL. The error has the number of bytes to skip.
    Malformed(usize),
}

/// Parses the first line of `input`; `None` if it is incomplete. Only CR LF ends a line. An LF in another place may come
/// from a name that a client has put into a command unchecked, and must not begin another command.
pub fn parse_line(input: &[u8]) -> Result<Option<FtpLine>, FtpLineError> {
    let searched = &input[..input.len().min(COMMAND_BYTES_MAX)];
    let mut text = Vec::new();
    let mut at = 0;
    let mut is_malformed = false;
    while let Some(&byte) = searched.get(at) {
        match byte {
            IAC => match (searched.get(at + 1), searched.get(at + 2)) {
                (Some(&IAC), _) => {
                    text.push(IAC);
                    at += 2;
                }
                (Some(WILL..), Some(_)) => at += 3,
                (Some(..WILL), _) => at += 2,
                _ => break,
            },
            b'\n' => {
                let consumed_bytes = at + 1;
                if !ends_with_raw_cr(&searched[..at]) {
                    is_malformed = true;
                    at += 1;
                    continue;
                }
                if is_malformed {
                    return Err(FtpLineError::Malformed(consumed_bytes));
                }
                // The CR of the end, which was kept until this byte told its meaning.
                text.pop();
                return Ok(Some(FtpLine { text, consumed_bytes }));
            }
            0 => {
                // CR NUL is a CR in a name.
                is_malformed |= !ends_with_raw_cr(&searched[..at]);
                at += 1;
            }
            _ => {
                is_malformed |= ends_with_raw_cr(&searched[..at]);
                text.push(byte);
                at += 1;
            }
        }
    }
    if searched.len() == COMMAND_BYTES_MAX {
        return Err(FtpLineError::TooLong);
    }
    Ok(None)
}

/// True if the byte before is a CR whose meaning is still open.
fn ends_with_raw_cr(before: &[u8]) -> bool {
    before.last() == Some(&b'\r')
}

/// True if the text has a byte that cannot stand in a line.
pub(super) fn has_line_end(text: &[u8]) -> bool {
    memchr(b'\n', text).is_some() || memchr(0, text).is_some()
}
