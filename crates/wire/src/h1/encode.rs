//! Encoder for response heads.

pub use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Status};

/// A response head that is encoded once and sent many times. `write` inserts the current date. The head lacks the final
/// empty line, so that the connection can append fields of its own (`Connection`).
#[derive(Clone, Debug)]
pub struct PreparedHead {
    bytes: Box<[u8]>,
    /// Offset of the date; 0 if the response has a Date field of its own.
    date_offset: u16,
}

impl PreparedHead {
    /// Encodes a status and fields. `fields` must not contain Connection or Transfer-Encoding, which the connection
    /// writes. A Date field in `fields`, as upstream responses have it, is sent unchanged (RFC 9110, section 6.6.1).
    pub fn new(status: Status, fields: &Fields) -> Self {
        let mut bytes = Vec::with_capacity(256);
        let mut date_offset = 0;
        if fields.has("Date") {
            write_status_line(&mut bytes, status, status.reason().as_bytes());
        } else {
            date_offset = write_status_and_date(&mut bytes, status, &[b'-'; DATE_BYTES]) as u16;
        }
        write_fields(&mut bytes, fields);
        Self { bytes: bytes.into_boxed_slice(), date_offset }
    }

    /// Head without any bytes, in place of one that is encoded later.
    pub fn empty() -> Self {
        Self { bytes: Box::default(), date_offset: 0 }
    }

    /// Appends the head with this date to `out`, without the final empty line.
    pub fn write(&self, date: &[u8; DATE_BYTES], out: &mut Vec<u8>) {
        let date_at = out.len() + usize::from(self.date_offset);
        out.extend_from_slice(&self.bytes);
        if self.date_offset > 0 {
            out[date_at..date_at + DATE_BYTES].copy_from_slice(date);
        }
    }

    /// Values of the fields with this name, which is case-insensitive.
    pub fn values<'a>(&'a self, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        let lines = self.bytes.split(|byte| *byte == b'\n').skip(1);
        lines.filter_map(move |line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (own, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            own.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// Memory that the head uses.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Appends a whole head to `out`, without the final empty line.
pub fn write_head(out: &mut Vec<u8>, status: Status, date: &[u8; DATE_BYTES], fields: &Fields) {
    write_status_and_date(out, status, date);
    write_fields(out, fields);
}

/// Appends a status line. `reason` must contain only the bytes that RFC 9112, section 4 allows.
pub fn write_status_line(out: &mut Vec<u8>, status: Status, reason: &[u8]) {
    let code = status.code();
    let digits = [b'0' + (code / 100) as u8, b'0' + (code / 10 % 10) as u8, b'0' + (code % 10) as u8];
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&digits);
    out.push(b' ');
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
}

/// Appends status line and Date. Returns the offset of the date, relative to the start of the status line.
fn write_status_and_date(out: &mut Vec<u8>, status: Status, date: &[u8; DATE_BYTES]) -> usize {
    let start = out.len();
    write_status_line(out, status, status.reason().as_bytes());
    out.extend_from_slice(b"Date: ");
    let date_offset = out.len() - start;
    out.extend_from_slice(date);
    out.extend_from_slice(b"\r\n");
    date_offset
}

/// Appends field lines, for heads and trailer sections.
pub fn write_fields(out: &mut Vec<u8>, fields: &Fields) {
    fields.write_h1(out);
}

/// Maximum length of a chunk's size line.
pub const CHUNK_SIZE_LINE_BYTES_MAX: usize = 18;

/// Writes the size line of a chunk of `length` bytes at the end of `place`. Returns the line's length. The caller must
/// provide enough room in `place`.
pub fn write_chunk_size_line(place: &mut [u8], mut length: usize) -> usize {
    let end = place.len();
    let mut at = end - 2;
    place[at..].copy_from_slice(b"\r\n");
    loop {
        at -= 1;
        place[at] = b"0123456789abcdef"[length & 15];
        length >>= 4;
        if length == 0 {
            return end - at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK_SIZE_LINE_BYTES_MAX, PreparedHead, write_chunk_size_line, write_head};
    use crate::http::{Fields, Status};

    #[test]
    fn chunk_size_lines() {
        for (length, expect) in [(0, "0\r\n"), (9, "9\r\n"), (0x1a2f, "1a2f\r\n"), (usize::MAX, "ffffffffffffffff\r\n")]
        {
            let mut place = [0; CHUNK_SIZE_LINE_BYTES_MAX];
            let bytes = write_chunk_size_line(&mut place, length);
            assert_eq!(&place[CHUNK_SIZE_LINE_BYTES_MAX - bytes..], expect.as_bytes());
        }
    }

    #[test]
    fn a_prepared_head_is_the_written_head() {
        let mut fields = Fields::new();
        fields.push("Server", "tailcoat").push("Content-Length", "3");
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
        let (mut prepared, mut written) = (b"before".to_vec(), b"before".to_vec());
        PreparedHead::new(Status::OK, &fields).write(date, &mut prepared);
        write_head(&mut written, Status::OK, date, &fields);
        assert_eq!(prepared, written);
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "beforeHTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: tailcoat\r\nContent-Length: 3\r\n"
        );
    }

    #[test]
    fn a_date_of_its_own_is_kept() {
        let mut fields = Fields::new();
        fields.push("A", "b").push("date", "then");
        let mut written = b"before".to_vec();
        PreparedHead::new(Status::NOT_FOUND, &fields).write(b"Sun, 06 Nov 1994 08:49:37 GMT", &mut written);
        assert_eq!(written.escape_ascii().to_string(), r"beforeHTTP/1.1 404 Not Found\r\nA: b\r\ndate: then\r\n");
    }
}
