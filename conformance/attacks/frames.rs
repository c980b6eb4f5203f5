//! Frames of HTTP/2 as no engine writes them, and a connection that sends them.

use std::net::SocketAddr;
use std::time::Duration;

use wire::h2::PREFACE;

use crate::raw::Raw;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// GET / of http://a, without the dynamic table.
pub(crate) const GET: &[u8] = b"\x82\x86\x84\x01\x01a";

/// POST / of http://a, without the dynamic table.
pub(crate) const POST: &[u8] = b"\x83\x86\x84\x01\x01a";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A field in its plainest form: no table, no Huffman code, any bytes.
pub(crate) fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    for text in [name, value] {
        if text.len() < 127 {
            block.push(text.len() as u8);
        } else {
            let rest = text.len() - 127;
            assert!(rest < 1 << 14, "a text of this length takes more bytes");
            block.extend([127, (rest % 128) as u8 | 0x80, (rest / 128) as u8]);
        }
        block.extend_from_slice(text);
    }
}

/// Opens a connection and sends what every client begins with.
pub(crate) fn connect(address: SocketAddr, settings: &[u8]) -> Result<Raw, String> {
    let mut raw = Raw::connect(address)?;
    raw.send(&[&PREFACE[..], &frame(SETTINGS, 0, 0, settings), &frame(SETTINGS, 1, 0, b"")].concat());
    Ok(raw)
}

/// Reads the bytes received by now, so that the server can go on sending.
pub(crate) fn drain(raw: &mut Raw, time: Duration) {
    raw.read(time, |_| false);
    // Kept whole, a long flood's responses would fill memory.
    if raw.received.len() > 1 << 20 {
        raw.received.drain(..raw.received.len() - (64 << 10));
    }
}
