//! Records of a request: begin, parameters, content.

use super::record::{CONTENT_BYTES_MAX, HEADER_BYTES, Header, record_type};

/// Role of an application that answers as a CGI script does (section 5.1).
const ROLE_RESPONDER: u16 = 1;

/// Flag that keeps the connection open after the request (section 5.1).
const KEEP_CONNECTION: u8 = 1;

/// Writes the record that begins a request; `is_kept` asks the application to keep the connection open for another.
pub fn write_begin(is_kept: bool, out: &mut Vec<u8>) {
    let [role_high, role_low] = ROLE_RESPONDER.to_be_bytes();
    let flags = if is_kept { KEEP_CONNECTION } else { 0 };
    out.extend_from_slice(&Header::new(record_type::BEGIN_REQUEST, 8).to_bytes());
    out.extend_from_slice(&[role_high, role_low, flags, 0, 0, 0, 0, 0]);
}

/// Writes parameters, pairs of name and value, and the record that ends them. Their length is not limited.
pub fn write_parameters<'a>(parameters: impl Iterator<Item = (&'a [u8], &'a [u8])>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    parameters.for_each(|(name, value)| push_name_value(name, value, out));
    let content = start + HEADER_BYTES;
    let rest = out.split_off(out.len().min(content + CONTENT_BYTES_MAX));
    let first_bytes = out.len() - content;
    if first_bytes == 0 {
        out.truncate(start);
    } else {
        out[start..content].copy_from_slice(&header(record_type::PARAMS, first_bytes));
    }
    for piece in rest.chunks(CONTENT_BYTES_MAX) {
        out.extend_from_slice(&header(record_type::PARAMS, piece.len()));
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(&header(record_type::PARAMS, 0));
}

/// Appends a name and a value after their lengths. A length takes one byte if it is below 128, otherwise four (section
/// 3.4).
fn push_name_value(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for part in [name, value] {
        match u8::try_from(part.len()) {
            Ok(length @ 0..=127) => out.push(length),
            // `head_bytes_max` keeps heads far below 2 GiB.
            _ => out.extend_from_slice(&(part.len() as u32 | 1 << 31).to_be_bytes()),
        }
    }
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

/// Writes the header of a record with `content_bytes` of the request's content, from 1 to [`CONTENT_BYTES_MAX`]. The
/// caller sends the content after it.
pub fn write_stdin_header(content_bytes: usize, out: &mut Vec<u8>) {
    debug_assert!((1..=CONTENT_BYTES_MAX).contains(&content_bytes), "none would be the end");
    out.extend_from_slice(&header(record_type::STDIN, content_bytes));
}

/// Writes the record that ends the request's content.
pub fn write_stdin_end(out: &mut Vec<u8>) {
    out.extend_from_slice(&header(record_type::STDIN, 0));
}

fn header(record_type: u8, content_bytes: usize) -> [u8; HEADER_BYTES] {
    Header::new(record_type, content_bytes as u16).to_bytes()
}
