//! Fingerprints of clients: JA4 of the TLS handshake, and the beginning of HTTP/2 connections.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};

/// Kind of connection that a ClientHello comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloTransport {
    /// TCP.
    Tcp,
    /// QUIC.
    Quic,
}

/// Parts of a ClientHello (RFC 8446, section 4.1.2) that a fingerprint has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Hello<'a> {
    version: u16,
    ciphers: Vec<u16>,
    extensions: Vec<u16>,
    signature_algorithms: Vec<u16>,
    has_server_name: bool,
    first_alpn: Option<&'a [u8]>,
}

const SERVER_NAME: u16 = 0x0000;
const SIGNATURE_ALGORITHMS: u16 = 0x000d;
const ALPN: u16 = 0x0010;
const SUPPORTED_VERSIONS: u16 = 0x002b;

/// JA4 fingerprint of a ClientHello in TLS records; `None` if it is malformed or incomplete.
pub fn ja4_of_records(mut records: &[u8]) -> Option<String> {
    let mut message = Vec::new();
    while let Some((head, rest)) = records.split_first_chunk::<5>() {
        if head[0] != 22 {
            break;
        }
        let (fragment, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([head[3], head[4]])))?;
        message.extend_from_slice(fragment);
        records = rest;
    }
    ja4_of_message(&message, HelloTransport::Tcp)
}

/// JA4 fingerprint of a ClientHello message; `None` if it is malformed or incomplete.
pub fn ja4_of_message(message: &[u8], transport: HelloTransport) -> Option<String> {
    let (head, rest) = message.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
    if head[0] != 1 {
        return None;
    }
    Some(Hello::parse(rest.get(..length)?)?.ja4(transport))
}

/// Splits a vector with a length of so many bytes from the beginning.
fn vector<'a>(rest: &mut &'a [u8], length_bytes: usize) -> Option<&'a [u8]> {
    let (head, after) = rest.split_at_checked(length_bytes)?;
    let length = head.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let (content, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(content)
}

/// Values of two bytes, without those of GREASE (RFC 8701).
fn values(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).filter(|value| !is_grease(*value))
}

fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

impl<'a> Hello<'a> {
    fn parse(body: &'a [u8]) -> Option<Self> {
        let mut rest = body.get(34..)?;
        let mut hello = Self { version: u16::from_be_bytes([body[0], body[1]]), ..Self::default() };
        vector(&mut rest, 1)?;
        hello.ciphers = values(vector(&mut rest, 2)?).collect();
        vector(&mut rest, 1)?;
        if rest.is_empty() {
            return Some(hello);
        }
        let mut extensions = vector(&mut rest, 2)?;
        while let Some((kind, after)) = extensions.split_first_chunk::<2>() {
            let kind = u16::from_be_bytes(*kind);
            extensions = after;
            let mut content = vector(&mut extensions, 2)?;
            if is_grease(kind) {
                continue;
            }
            hello.extensions.push(kind);
            match kind {
                SERVER_NAME => hello.has_server_name = true,
                SIGNATURE_ALGORITHMS => hello.signature_algorithms = values(vector(&mut content, 2)?).collect(),
                ALPN => hello.first_alpn = vector(&mut vector(&mut content, 2)?, 1),
                SUPPORTED_VERSIONS => {
                    hello.version = values(vector(&mut content, 1)?).max().unwrap_or(hello.version);
                }
                _ => {}
            }
        }
        Some(hello)
    }

    fn ja4(&self, transport: HelloTransport) -> String {
        let transport = match transport {
            HelloTransport::Tcp => 't',
            HelloTransport::Quic => 'q',
        };
        let version = match self.version {
            0x0304 => "13",
            0x0303 => "12",
            0x0302 => "11",
            0x0301 => "10",
            0x0300 => "s3",
            _ => "00",
        };
        let name = if self.has_server_name { 'd' } else { 'i' };
        let (ciphers, extensions) = (self.ciphers.len().min(99), self.extensions.len().min(99));
        let [first, last] = alpn_characters(self.first_alpn.unwrap_or_default());
        let mut sorted = self.ciphers.clone();
        sorted.sort_unstable();
        let cipher_hash = short_hash(&hexadecimal(&sorted));
        let mut sorted: Vec<u16> =
            self.extensions.iter().copied().filter(|kind| !matches!(*kind, SERVER_NAME | ALPN)).collect();
        sorted.sort_unstable();
        let mut text = hexadecimal(&sorted);
        if !text.is_empty() && !self.signature_algorithms.is_empty() {
            text.push('_');
            text.push_str(&hexadecimal(&self.signature_algorithms));
        }
        let extension_hash = short_hash(&text);
        format!("{transport}{version}{name}{ciphers:02}{extensions:02}{first}{last}_{cipher_hash}_{extension_hash}")
    }
}

/// First and last character of a protocol's name, or digits of its first and last byte if one is no letter or digit.
fn alpn_characters(name: &[u8]) -> [char; 2] {
    let (Some(&first), Some(&last)) = (name.first(), name.last()) else { return ['0', '0'] };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [first.into(), last.into()];
    }
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    [digit(first >> 4), digit(last & 15)]
}

fn hexadecimal(values: &[u16]) -> String {
    let texts: Vec<_> = values.iter().map(|value| format!("{value:04x}")).collect();
    texts.join(",")
}

/// First twelve digits of the SHA-256 of a text; zeros for an empty one.
fn short_hash(text: &str) -> String {
    if text.is_empty() {
        return "0".repeat(12);
    }
    digest(&SHA256, text.as_bytes()).as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fingerprint of an HTTP/2 connection, as in `1:65536;4:6291456|15663105|0|m,a,s,p`. The parts are settings, the
/// window of the connection, priorities of idle streams, and pseudo-fields. All are in the order of the client.
pub fn http2_fingerprint(
    settings: &[(u16, u32)],
    window_increment: u32,
    priorities: &[Http2Priority],
    pseudo_fields: &[u8],
) -> String {
    let settings: Vec<_> = settings.iter().map(|(id, value)| format!("{id}:{value}")).collect();
    let mut text = format!("{}|{window_increment:02}|", settings.join(";"));
    let priorities: Vec<_> = priorities
        .iter()
        .map(|Http2Priority { stream, is_exclusive, depends_on, weight }| {
            format!("{stream}:{}:{depends_on}:{weight}", u8::from(*is_exclusive))
        })
        .collect();
    text.push_str(if priorities.is_empty() { "0" } else { "" });
    text.push_str(&priorities.join(","));
    text.push('|');
    for (index, field) in pseudo_fields.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{}", char::from(*field));
    }
    text
}

/// Priority frame (RFC 9113, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Priority {
    /// Stream that it is for.
    pub stream: u32,
    /// Exclusive dependency.
    pub is_exclusive: bool,
    /// Stream that it depends on.
    pub depends_on: u32,
    /// Weight, from 1 to 256.
    pub weight: u16,
}

/// Most settings and priorities of a fingerprint.
const ENTRIES_MAX: usize = 32;

/// Fingerprint from the first bytes of a client: preface and frames up to the first HEADERS. The order of
/// pseudo-header fields comes from the decoded head.
pub fn http2_of_bytes(bytes: &[u8], pseudo_fields: &[u8]) -> Option<String> {
    let mut rest = bytes.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
    let (mut settings, mut priorities, mut window_increment) = (Vec::new(), Vec::new(), 0);
    while let Some((head, after)) = rest.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        if kind == 1 {
            break;
        }
        let Some((payload, after)) = after.split_at_checked(length) else { break };
        rest = after;
        match kind {
            4 if flags & 1 == 0 => settings.extend(payload.chunks_exact(6).take(ENTRIES_MAX).map(|setting| {
                let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                (u16::from_be_bytes([setting[0], setting[1]]), value)
            })),
            8 if stream == 0 && window_increment == 0 => {
                window_increment = payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) & 0x7fff_ffff);
            }
            2 if priorities.len() < ENTRIES_MAX => {
                if let Some([a, b, c, d, weight]) = payload.first_chunk::<5>() {
                    let dependency = u32::from_be_bytes([*a, *b, *c, *d]);
                    priorities.push(Http2Priority {
                        stream,
                        is_exclusive: dependency >> 31 == 1,
                        depends_on: dependency & 0x7fff_ffff,
                        weight: u16::from(*weight) + 1,
                    });
                }
            }
            _ => {}
        }
        settings.truncate(ENTRIES_MAX);
    }
    Some(http2_fingerprint(&settings, window_increment, &priorities, pseudo_fields))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Example of FoxIO's description of JA4.
    #[test]
    fn ja4_of_chrome() {
        let hello = Hello {
            version: 0x0304,
            ciphers: vec![
                0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d,
                0x002f, 0x0035,
            ],
            extensions: vec![
                0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023, 0x0012, 0x002b, 0xff01,
                0x000b, 0x000a, 0x0015,
            ],
            signature_algorithms: vec![0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601],
            has_server_name: true,
            first_alpn: Some(b"h2"),
        };
        assert_eq!(hello.ja4(HelloTransport::Tcp), "t13d1516h2_8daaf6152771_e5627efa2ab1");
        let bare = Hello { version: 0x0303, ..Hello::default() };
        assert_eq!(bare.ja4(HelloTransport::Quic), "q12i000000_000000000000_000000000000");
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
    }

    #[test]
    fn messages() {
        let extensions = [
            extension(0x2a2a, b""),
            extension(SERVER_NAME, b"\0\x04\0\0\x01a"),
            extension(ALPN, b"\0\x0c\x02h2\x08http/1.1"),
            extension(SUPPORTED_VERSIONS, b"\x06\x1a\x1a\x03\x04\x03\x03"),
            extension(SIGNATURE_ALGORITHMS, b"\0\x02\x04\x03"),
        ]
        .concat();
        let mut body = vec![3, 3];
        body.extend_from_slice(&[0; 32]);
        body.extend_from_slice(b"\x02ab");
        body.extend_from_slice(b"\0\x06\x0a\x0a\x13\x01\x13\x02");
        body.extend_from_slice(b"\x01\0");
        body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
        body.extend_from_slice(&extensions);
        let message = [&[1, 0, 0, body.len() as u8][..], &body].concat();
        let records: Vec<u8> =
            message.chunks(50).flat_map(|part| [&[22, 3, 1, 0, part.len() as u8][..], part].concat()).collect();
        let found = ja4_of_records(&records).unwrap();
        assert!(found.starts_with("t13d0204h2_"), "{found}");
        assert_eq!(ja4_of_message(&message, HelloTransport::Quic).unwrap()[1..], found[1..]);
        for end in 0..records.len() {
            assert_eq!(ja4_of_records(&records[..end]), None, "{end}");
        }
    }

    #[test]
    fn http2() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend_from_slice(b"\0\0\x0c\x04\0\0\0\0\0\0\x01\0\x01\0\0\0\x04\0\x60\0\0");
        bytes.extend_from_slice(b"\0\0\x04\x08\0\0\0\0\0\0\xef\0\x01");
        bytes.extend_from_slice(b"\0\0\x05\x02\0\0\0\0\x03\x80\0\0\0\xc8");
        bytes.extend_from_slice(b"\0\0\x01\x01\x05\0\0\0\x01");
        assert_eq!(http2_of_bytes(&bytes, b"masp").unwrap(), "1:65536;4:6291456|15663105|3:1:0:201|m,a,s,p");
        assert_eq!(http2_of_bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"mpas").unwrap(), "|00|0|m,p,a,s");
        assert_eq!(http2_of_bytes(b"GET / HTTP/1.1", b""), None);
    }

    proptest! {
        #[test]
        fn random_bytes(bytes: Vec<u8>, after: Vec<u8>) {
            ja4_of_records(&bytes);
            ja4_of_message(&[&[1, 0, 0, after.len() as u8][..], &after].concat(), HelloTransport::Tcp);
            http2_of_bytes(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &after].concat(), b"m");
        }
    }
}
