use proptest::prelude::*;
use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::{Keys, Version};

use super::number::{PacketNumber, number_bytes};
use super::*;
use crate::error::TransportError;

/// Destination ID of the client's Initial packet in RFC 9001, appendix A.
const CLIENT_ID: &str = "8394c8f03e515708";

/// ID of the server there.
const SERVER_ID: &str = "f067a5502a4262b5";

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn id(text: &str) -> ConnectionId {
    ConnectionId::new(&hex(text)).unwrap()
}

fn initial_keys(side: Side) -> Keys {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
    suite.keys(&hex(CLIENT_ID), side, Version::V1)
}

/// Payload of the client's Initial packet: a CRYPTO frame and PADDING.
fn client_payload() -> Vec<u8> {
    let mut payload = hex(concat!(
        "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e868",
        "04fe3a47f06a2b69484c00000413011302010000c000000010000e00000b6578",
        "616d706c652e636f6dff01000100000a00080006001d00170018001000070005",
        "04616c706e000500050100000000003300260024001d00209370b2c9caa47fba",
        "baf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400",
        "0d0010000e0403050306030203080408050806002d00020101001c0002400100",
        "3900320408ffffffffffffffff05048000ffff07048000ffff08011001048000",
        "75300901100f088394c8f03e51570806048000ffff",
    ));
    payload.resize(1162, 0);
    payload
}

/// Removes all protection of a packet, and gives its number and payload.
fn open(packet: &mut [u8], header: &PacketHeader, keys: &Keys, largest: Option<u64>) -> Option<(u64, Vec<u8>)> {
    let packet = &mut packet[..header.end];
    let parts = unprotect(packet, header.number_at, &*keys.remote.header)?;
    let number = expand_number(parts.truncated, parts.bytes, largest);
    let (head, payload) = packet.split_at_mut(header.number_at + parts.bytes);
    let payload = keys.remote.packet.decrypt_in_place(number, head, payload).ok()?;
    Some((number, payload.to_vec()))
}

#[test]
fn client_initial_of_the_rfc() {
    let (client, server) = (initial_keys(Side::Client), initial_keys(Side::Server));
    let (destination, source) = (id(CLIENT_ID), ConnectionId::EMPTY);
    let mut out = b"coalesced".to_vec();
    let writer = PacketWriter::long_with(&mut out, PacketKind::Initial, &destination, &source, &[], 2, 4);
    assert_eq!((writer.start(), writer.payload_start()), (9, 9 + 22));
    out.extend_from_slice(&client_payload());
    writer.finish(&mut out, 2, &*client.local.packet, &*client.local.header).unwrap();
    let mut packet = out.split_off(9);
    assert_eq!(out, b"coalesced");
    assert_eq!(packet.len(), 1200);
    let begin = hex("c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11d242b123dc9bd8bab936b47d92ec356c");
    assert_eq!(packet[..begin.len()], begin);
    assert_eq!(packet[1200 - 16..], hex("e221af44860018ab0856972e194cd934"), "the tag, which covers all");

    packet.extend_from_slice(&[0xc0; 7]);
    let header = read_header(&packet, 8).unwrap();
    let expected = PacketHeader {
        kind: PacketKind::Initial,
        version: VERSION_1,
        destination,
        source,
        token: 16..16,
        number_at: 18,
        end: 1200,
    };
    assert_eq!(header, expected);
    let (number, payload) = open(&mut packet, &header, &server, None).unwrap();
    assert_eq!(number, 2);
    assert_eq!(payload, client_payload());
}

#[test]
fn server_initial_of_the_rfc() {
    let (client, server) = (initial_keys(Side::Client), initial_keys(Side::Server));
    let payload = hex(concat!(
        "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf739",
        "88cfc79825df566dc5430b9a045a1200130100002e00330024001d00209d3c94",
        "0d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a002b00",
        "020304",
    ));
    let mut out = Vec::new();
    let (empty, source) = (ConnectionId::EMPTY, id(SERVER_ID));
    let writer = PacketWriter::long_with(&mut out, PacketKind::Initial, &empty, &source, &[], 1, 2);
    out.extend_from_slice(&payload);
    writer.finish(&mut out, 1, &*server.local.packet, &*server.local.header).unwrap();
    let expected = hex(concat!(
        "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a",
        "5816b6394100f37a1c69797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3",
        "dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84",
        "022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc4",
        "2158407dd074ee",
    ));
    assert_eq!(out, expected);
    let header = read_header(&out, 0).unwrap();
    assert_eq!(open(&mut out, &header, &client, None), Some((1, payload)));
}

#[test]
fn retry_of_the_rfc() {
    let mut out = b"before".to_vec();
    write_retry(&mut out, &ConnectionId::EMPTY, &id(SERVER_ID), &id(CLIENT_ID), b"token");
    let packet = &out[6..];
    assert_eq!(packet, hex("ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba"));
    let header = read_header(packet, 0).unwrap();
    assert_eq!((header.kind, header.source, header.number_at), (PacketKind::Retry, id(SERVER_ID), header.end));
    assert_eq!(&packet[header.token], b"token");
    assert_eq!(read_header(&packet[..packet.len() - 6], 0), Err(HeaderError::Malformed), "shorter than a tag");
}

#[test]
fn short_header_of_the_rfc() {
    let algorithm = TLS13_CHACHA20_POLY1305_SHA256.tls13().unwrap().quic.unwrap();
    let key = |text: &str| AeadKey::from(<[u8; 32]>::try_from(hex(text)).unwrap());
    let iv = Iv::copy(&hex("e0459b3474bdd0e44a41c144"));
    let packet_key = key("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8");
    let packet_key = algorithm.packet_key(packet_key, iv);
    let header_key = key("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4");
    let header_key = algorithm.header_protection_key(header_key);

    let number = 654_360_564;
    let mut out = Vec::new();
    let writer = PacketWriter::short_with(&mut out, &ConnectionId::EMPTY, number, 3, false);
    out.push(0x01);
    writer.finish(&mut out, number, &*packet_key, &*header_key).unwrap();
    assert_eq!(out, hex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb"));

    let header = read_header(&out, 0).unwrap();
    assert_eq!((header.kind, header.number_at, header.end), (PacketKind::OneRtt, 1, 21));
    let parts = unprotect(&mut out, 1, &*header_key).unwrap();
    assert_eq!(parts, PacketNumber { first: 0x42, truncated: 0xbff4, bytes: 3 });
    assert_eq!(expand_number(parts.truncated, parts.bytes, Some(number - 1)), number);
    let (head, payload) = out.split_at_mut(4);
    assert_eq!(packet_key.decrypt_in_place(number, head, payload).unwrap(), [0x01]);
}

#[test]
fn numbers_of_the_rfc() {
    // RFC 9000, appendices A.2 and A.3.
    assert_eq!(number_bytes(0xac5c02, Some(0xabe8b3)), 2);
    assert_eq!(number_bytes(0xace8fe, Some(0xabe8b3)), 3);
    assert_eq!(expand_number(0x9b32, 2, Some(0xa82f30ea)), 0xa82f9b32);

    assert_eq!(number_bytes(0, None), 1);
    assert_eq!((number_bytes(127, None), number_bytes(128, None)), (1, 2));
    assert_eq!((number_bytes(0x8000, Some(0)), number_bytes(0x8001, Some(0))), (2, 3));
    assert_eq!((number_bytes(0x80_0000, Some(0)), number_bytes(0x80_0001, Some(0))), (3, 4));
    assert_eq!(number_bytes(1 << 40, Some(0)), 4, "at most");
    assert_eq!(number_bytes(3, Some(9)), 1, "never sent so");
}

#[test]
fn spaces_and_flags() {
    assert_eq!(PacketKind::ZeroRtt.space(), Some(Space::Data));
    assert_eq!(PacketKind::Retry.space(), None);
    let with = |first| PacketNumber { first, truncated: 0, bytes: 1 };
    assert!(!with(0x43).has_reserved_bits() && !with(0xc3).has_reserved_bits());
    assert!(with(0x48).has_reserved_bits() && with(0x50).has_reserved_bits());
    assert!(with(0xc4).has_reserved_bits() && with(0xc8).has_reserved_bits());
    assert!(with(0x44).key_phase() && !with(0x40).key_phase());
    assert!(!with(0x44).has_reserved_bits());
}

#[test]
fn packets_without_payload_are_padded() {
    let (client, server) = (initial_keys(Side::Client), initial_keys(Side::Server));
    let destination = id(SERVER_ID);
    // Numbers of 1 and of 4 bytes.
    for (acked, number, padding) in [(None, 0, 3), (Some(0), 1 << 30, 1)] {
        let mut out = Vec::new();
        let writer = PacketWriter::short(&mut out, &destination, number, acked, true);
        writer.finish(&mut out, number, &*client.local.packet, &*client.local.header).unwrap();
        assert_eq!(short_destination(&out, 8), Some(&destination[..]));
        let header = read_header(&out, 8).unwrap();
        assert_eq!((header.number_at, header.end), (9, out.len()));
        let (read, payload) = open(&mut out, &header, &server, Some(number)).unwrap();
        assert_eq!((read, payload.len()), (number, padding));
        assert!(payload.iter().all(|&byte| byte == 0));
        assert_eq!(out[0] & 0x04, 0x04, "key phase");
    }
}

#[test]
fn packets_with_tokens_are_coalesced() {
    let (client, server) = (initial_keys(Side::Client), initial_keys(Side::Server));
    let (destination, source) = (id(CLIENT_ID), id("0102030405"));
    let mut out = Vec::new();
    for (kind, number) in [(PacketKind::Initial, 7), (PacketKind::ZeroRtt, 8), (PacketKind::Handshake, 9)] {
        let writer = PacketWriter::long(&mut out, kind, &destination, &source, b"a token", number, Some(5));
        out.extend_from_slice(b"payload");
        writer.finish(&mut out, number, &*client.local.packet, &*client.local.header).unwrap();
    }
    let mut rest = out.as_mut_slice();
    for (kind, number, token) in
        [(PacketKind::Initial, 7, &b"a token"[..]), (PacketKind::ZeroRtt, 8, b""), (PacketKind::Handshake, 9, b"")]
    {
        let header = read_header(rest, 8).unwrap();
        assert_eq!((header.kind, header.destination, header.source), (kind, destination, source));
        assert_eq!(&rest[header.token.clone()], token);
        assert_eq!(open(rest, &header, &server, Some(6)), Some((number, b"payload".to_vec())));
        rest = &mut rest[header.end..];
    }
    assert!(rest.is_empty());
}

#[test]
fn changed_packets_are_not_decrypted() {
    let (client, server) = (initial_keys(Side::Client), initial_keys(Side::Server));
    let mut out = Vec::new();
    let writer = PacketWriter::long(&mut out, PacketKind::Initial, &id(CLIENT_ID), &id(SERVER_ID), b"t", 0, None);
    out.extend_from_slice(b"payload");
    writer.finish(&mut out, 0, &*client.local.packet, &*client.local.header).unwrap();
    for at in 0..out.len() {
        let mut changed = out.clone();
        changed[at] ^= 0x01;
        if let Ok(header) = read_header(&changed, 8) {
            assert_eq!(open(&mut changed, &header, &server, None), None, "byte {at}");
        }
    }
}

#[test]
fn short_packets_have_no_sample() {
    let server = initial_keys(Side::Server);
    for length in 0..21 {
        let mut packet = vec![0x40; length];
        assert_eq!(unprotect(&mut packet, 1, &*server.remote.header), None);
    }
    assert!(unprotect(&mut [0x40; 21], 1, &*server.remote.header).is_some());
    assert_eq!(unprotect(&mut [0x40; 21], 0, &*server.remote.header), None, "number in place of the first byte");
    assert_eq!(unprotect(&mut [0x40; 21], usize::MAX, &*server.remote.header), None);
}

#[test]
fn too_long_packets_are_errors() {
    let client = initial_keys(Side::Client);
    let seal = |payload_bytes| {
        let mut out = Vec::new();
        let (destination, source) = (id(CLIENT_ID), id(SERVER_ID));
        let writer = PacketWriter::long(&mut out, PacketKind::Handshake, &destination, &source, &[], 0, None);
        out.resize(writer.payload_start() + payload_bytes, 1);
        writer.finish(&mut out, 0, &*client.local.packet, &*client.local.header).map(|()| out)
    };
    // The length counts the number and the tag too.
    let longest = 0x3fff - 1 - TAG_BYTES;
    let packet = seal(longest).unwrap();
    assert_eq!(read_header(&packet, 8).unwrap().end, packet.len());
    assert_eq!(seal(longest + 1).unwrap_err().code, TransportError::INTERNAL_ERROR);
}

#[test]
fn malformed_headers_are_errors() {
    for bad in [
        "",
        "40",
        // An ID that is too short.
        "4001020304050607",
        // No version.
        "c0",
        // An ID of 21 bytes that is cut.
        "c00000000115",
        // No source ID.
        "c00000000100",
        // No token.
        "c0000000010000",
        // A token that is cut.
        "c000000001000001",
        // A very long token.
        "c0000000010000ffffffffffffffff",
        // No length.
        "c000000001000000",
        // A packet that is cut.
        "c00000000100000001",
        // A cut token in a Handshake packet.
        "e000000001000001",
        "e0000000010000ffffffffffffffff",
        // An ID of 21 bytes.
        "c00000000115000000000000000000000000000000000000000000000000",
        // An ID of 21 bytes in Version Negotiation.
        "800000000015000000000000000000000000000000000000000000000000",
    ] {
        assert_eq!(read_header(&hex(bad), 8), Err(HeaderError::Malformed), "{bad}");
    }
    assert_eq!(short_destination(&hex("c0010203"), 2), None);
    assert_eq!(read_header(&[0x40; 40], 21), Err(HeaderError::Malformed), "local IDs that are too long");
}

#[test]
fn headers_without_the_fixed_bit_are_read() {
    assert_eq!(read_header(&[0; 30], 8).unwrap().kind, PacketKind::OneRtt);
    let header = read_header(&hex("a000000001000001ff"), 8).unwrap();
    assert_eq!((header.kind, header.number_at, header.end), (PacketKind::Handshake, 8, 9));
}

#[test]
fn unknown_versions_are_negotiated() {
    let (destination, source) = (vec![1; 255], vec![2; 254]);
    let mut packet = hex("c01a2a3a4aff");
    packet.extend_from_slice(&destination);
    packet.push(254);
    packet.extend_from_slice(&source);
    let expected = HeaderError::UnknownVersion { destination: &destination, source: &source };
    assert_eq!(read_header(&packet, 8), Err(expected));
    assert_eq!(read_header(&packet[..packet.len() - 1], 8), Err(HeaderError::Malformed));

    for random in [0x00, 0xff, 0x31] {
        let mut out = Vec::new();
        write_version_negotiation(&mut out, &source, &destination, random);
        assert_eq!(out[0] & 0xc0, 0xc0);
        assert_eq!(out[1..5], [0; 4]);
        assert_eq!((out[5], &out[6..260]), (254, &source[..]));
        assert_eq!((out[260], &out[261..516]), (255, &destination[..]));
        let versions: Vec<u32> =
            out[516..].chunks(4).map(|version| u32::from_be_bytes(version.try_into().unwrap())).collect();
        assert_eq!(versions.len(), 2);
        assert!(versions.contains(&VERSION_1));
        assert!(versions.iter().any(|version| version & 0x0f0f_0f0f == 0x0a0a_0a0a));
    }
    // Such a packet of a peer is not answered.
    let mut out = Vec::new();
    write_version_negotiation(&mut out, &[1; 8], &[2; 3], 5);
    let header = read_header(&out, 8).unwrap();
    assert_eq!((header.kind, header.version, header.end), (PacketKind::VersionNegotiation, 0, out.len()));
}

proptest! {
    #[test]
    fn numbers_are_expanded_as_written(largest in 0_u64..1 << 61, acked in 0_u64..1 << 31, ahead in 1_u64..1 << 31) {
        // The receiver has got anything from the acknowledged number to the one before.
        let acked_number = largest.saturating_sub(acked);
        let number = acked_number + ahead;
        let bytes = number_bytes(number, Some(acked_number));
        let truncated = number & ((1 << (8 * bytes)) - 1);
        for received in [acked_number, acked_number + ahead / 2, number - 1] {
            prop_assert_eq!(expand_number(truncated, bytes, Some(received)), number);
        }
    }

    #[test]
    fn any_numbers_are_expanded_without_panic(truncated: u32, bytes in 1_usize..=4, largest in 0_u64..=1 << 62) {
        let truncated = u64::from(truncated) & ((1 << (8 * bytes)) - 1);
        let number = expand_number(truncated, bytes, Some(largest));
        prop_assert_eq!(number & ((1 << (8 * bytes)) - 1), truncated);
    }

    #[test]
    fn any_datagram_is_read_without_panic(mut bytes: Vec<u8>, is_version_1: bool) {
        if let Some(version) = bytes.get_mut(1..5).filter(|_| is_version_1) {
            version.copy_from_slice(&VERSION_1.to_be_bytes());
        }
        if let Ok(header) = read_header(&bytes, 8) {
            prop_assert!(header.token.end <= header.number_at);
            prop_assert!(header.number_at <= header.end && header.end <= bytes.len());
            let key = initial_keys(Side::Server).remote.header;
            unprotect(&mut bytes[..header.end], header.number_at, &*key);
        }
    }
}
