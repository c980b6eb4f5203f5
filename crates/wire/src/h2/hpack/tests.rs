//! Examples of RFC 7541, appendix C, round trips, and blocks of attackers.

use proptest::prelude::*;

use super::*;
use crate::field_section::prepared::PREPARED;
use crate::http::date::DATE_BYTES;
use crate::http::{Fields, Status};

type Pairs = Vec<(String, String)>;

fn decode(decoder: &mut Decoder, block: &[u8], list_bytes_max: usize) -> Result<(Pairs, DecodedBlock), InvalidBlock> {
    let (mut text, mut pairs) = (Vec::new(), Vec::new());
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let decoded = decoder.decode(block, list_bytes_max, &mut text, |text, field| {
        let name = field.name.of(text);
        assert!(field.name_index == 0 || static_name_index(name) > 0);
        pairs.push((string(name), string(field.value.of(text))));
    })?;
    Ok((pairs, decoded))
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn check(decoder: &mut Decoder, hex: &str, expect: &[(&str, &str)]) {
    let (pairs, decoded) = decode(decoder, &from_hex(hex), 1 << 20).unwrap();
    let expect: Pairs = expect.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    assert_eq!(pairs, expect);
    assert!(!decoded.is_too_large);
}

/// Appendices C.3 and C.4: equal requests without and with the Huffman code.
#[test]
fn requests_of_appendix_c() {
    let first = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
    let second = [&first[..], &[("cache-control", "no-cache")]].concat();
    let third = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ];
    for blocks in [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        let mut decoder = Decoder::default();
        check(&mut decoder, blocks[0], &first);
        check(&mut decoder, blocks[1], &second);
        check(&mut decoder, blocks[2], &third);
    }
}

/// Appendices C.5 and C.6, with a table of 256 bytes, so that entries are evicted.
#[test]
fn responses_of_appendix_c() {
    let date = "Mon, 21 Oct 2013 20:13:21 GMT";
    let first =
        [(":status", "302"), ("cache-control", "private"), ("date", date), ("location", "https://www.example.com")];
    let second = [&[(":status", "307")], &first[1..]].concat();
    let third = [
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ];
    for blocks in [
        [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 \
             474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 \
             666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 \
             3630 303b 2076 6572 7369 6f6e 3d31",
        ],
        [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 \
             63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 \
             b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ],
    ] {
        let mut decoder = Decoder::default();
        decoder.set_table_bytes_max(256);
        // The examples assume an agreed size. On a connection a size update would come first.
        assert!(decode(&mut decoder, &from_hex("3fe1 01"), 0).is_ok());
        check(&mut decoder, blocks[0], &first);
        check(&mut decoder, blocks[1], &second);
        check(&mut decoder, blocks[2], &third);
    }
}

#[test]
fn literals_of_appendix_c_2() {
    check(
        &mut Decoder::default(),
        "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
        &[("custom-key", "custom-header")],
    );
    check(&mut Decoder::default(), "040c 2f73 616d 706c 652f 7061 7468", &[(":path", "/sample/path")]);
    let block = from_hex("1008 7061 7373 776f 7264 0673 6563 7265 74");
    let mut text = Vec::new();
    let result = Decoder::default().decode(&block, 100, &mut text, |_, field| assert!(field.is_never_indexed));
    assert!(result.is_ok());
    assert_eq!(text, b"passwordsecret");
}

#[test]
fn rejected() {
    for (name, hex) in [
        ("index 0", "80"),
        ("an index beyond the tables", "be"),
        ("a name beyond the tables", "7f00 0161"),
        ("a large index", "ffff ffff ff0f"),
        ("an index without end", "ff80 8080 8080 8000"),
        ("half an index", "ff"),
        ("no name", "40"),
        ("no value", "4001 61"),
        ("a name longer than the block", "4002 61"),
        ("a value longer than the block", "4001 6102 62"),
        ("a string of 4 GiB", "407f 80ff ffff 0f"),
        ("EOS in a value", "4001 6184 ffff ffff"),
        ("zeros as padding", "4001 6181 18"),
        ("a size update larger than allowed", "3fe2 1f"),
        ("a size update after a field", "8220"),
        ("three size updates", "2020 20"),
        ("half a size update", "3f"),
    ] {
        assert!(decode(&mut Decoder::default(), &from_hex(hex), 1 << 20).is_err(), "{name}");
    }
}

#[test]
fn a_smaller_table_has_to_be_acknowledged_in_the_next_block() {
    let mut decoder = Decoder::default();
    decoder.set_table_bytes_max(100);
    assert!(decode(&mut decoder, &[0x82], 100).is_err());
    assert!(decode(&mut decoder, &from_hex("20 3f45 82"), 100).is_ok());
    assert!(decode(&mut decoder, &[0x82], 100).is_ok());
    assert!(decode(&mut decoder, &from_hex("3f46"), 100).is_err(), "101");
}

/// A small block that refers to a large entry many times.
#[test]
fn hpack_bomb_cve_2016_6581() {
    let mut block = from_hex("4001 617f 810f");
    block.extend_from_slice(&[b'x'; 2048]);
    block.extend_from_slice(&[0xbe; 16_000]);
    let mut decoder = Decoder::default();
    let (mut text, mut fields) = (Vec::new(), 0);
    let decoded = decoder.decode(&block, 16 << 10, &mut text, |_, _| fields += 1).unwrap();
    assert!(decoded.is_too_large);
    assert_eq!(fields, 7);
    assert!(text.capacity() < 64 << 10, "{}", text.capacity());
    // Both tables are still equal: the decoder understands the next block.
    assert_eq!(decode(&mut decoder, &[0xbe], 1 << 20).unwrap().0[0].1.len(), 2048);
}

#[test]
fn secrets_are_never_indexed() {
    let mut encoder = Encoder::new(4096);
    for (name, value, is_never_indexed) in [
        ("Authorization", "Basic YTpi", true),
        ("set-cookie", "a=b", true),
        ("cookie", "short", true),
        ("cookie", "long enough to be hard to guess", false),
        ("accept", "*/*", false),
    ] {
        let mut block = Vec::new();
        encoder.write_field(name.as_bytes(), value.as_bytes(), None, &mut block);
        assert_eq!(block[0] & 0xf0 == 0x10, is_never_indexed, "{name}: {value}");
    }
}

#[test]
fn a_prepared_block_is_the_same_for_all_connections() {
    let date = PREPARED.date;
    let mut block = Vec::new();
    PreparedBlock::new(Status::OK, &PREPARED.fields()).write(date, &mut block);
    write_literal(&mut block, b"content-length", b"3");
    let mut decoder = Decoder::default();
    for _ in 0..2 {
        let (pairs, _) = decode(&mut decoder, &block, 1000).unwrap();
        assert!(pairs.iter().map(|(name, value)| (&name[..], &value[..])).eq(PREPARED.decoded));
    }
    assert!(decode(&mut decoder, &[0xbe], 1000).is_err(), "nothing was put into the table");
    let own_date = [b'x'; DATE_BYTES];
    let prepared = PreparedBlock::new(Status::NOT_FOUND, PREPARED.fields().set("Date", own_date));
    block.clear();
    prepared.write(date, &mut block);
    assert_eq!(block.len(), prepared.memory_bytes());
    let (pairs, _) = decode(&mut decoder, &block, 1000).unwrap();
    assert_eq!(pairs.last().unwrap().1.as_bytes(), own_date);
}

#[test]
fn fields_of_a_prepared_block_can_be_left_out() {
    let mut fields = Fields::new();
    fields.push("Server", "tailcoat").push("X-A", "1").push("ETag", "\"1\"").push("x-a", "2");
    let prepared = PreparedBlock::new(Status::OK, &fields);
    let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
    for (left_out, expect) in [
        (&b"x-a"[..], ":status=200 date=Sun, 06 Nov 1994 08:49:37 GMT server=tailcoat etag=\"1\""),
        (b"date", ":status=200 server=tailcoat x-a=1 etag=\"1\" x-a=2"),
        (b":status", ":status=200 date=Sun, 06 Nov 1994 08:49:37 GMT server=tailcoat x-a=1 etag=\"1\" x-a=2"),
    ] {
        let (mut block, mut text) = (b"before".to_vec(), Vec::new());
        prepared.write_some(date, &mut block, &mut text, |name| name != left_out);
        let (pairs, _) = decode(&mut Decoder::default(), &block[6..], 1000).unwrap();
        let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(pairs.join(" "), expect);
    }
}

#[test]
fn what_comes_again_is_sent_as_an_index() {
    let mut encoder = Encoder::new(4096);
    let mut lengths = Vec::new();
    for _ in 0..2 {
        let mut block = Vec::new();
        encoder.begin_block(&mut block);
        encoder.write_field(b"User-Agent", b"some client", None, &mut block);
        encoder.write_field(b"x-unknown", b"1", None, &mut block);
        lengths.push(block.len());
    }
    assert_eq!(lengths[1], 2);
}

proptest! {
    /// Encoder and decoder stay in step over several blocks and changes of the table's size.
    #[test]
    fn there_and_back(
        wanted in prop_oneof![Just(0usize), 40usize..400, Just(4096)],
        blocks in proptest::collection::vec(
            (
                proptest::option::of(0usize..500),
                proptest::collection::vec(
                    (
                        prop_oneof!["[a-c]{1,3}", "(:path|:status|cookie|date|vary|accept-encoding)"],
                        prop_oneof!["[a-z0-9]{0,3}", "[ -~]{0,60}", "(200|GET|/|gzip, deflate)"],
                    ),
                    0..12,
                ),
            ),
            1..8,
        ),
    ) {
        let (mut encoder, mut decoder) = (Encoder::new(wanted), Decoder::default());
        for (size_bytes, pairs) in blocks {
            if let Some(size_bytes) = size_bytes {
                encoder.set_table_bytes_max(size_bytes);
                decoder.set_table_bytes_max(size_bytes);
            }
            let mut block = Vec::new();
            encoder.begin_block(&mut block);
            for (name, value) in &pairs {
                encoder.write_field(name.as_bytes(), value.as_bytes(), None, &mut block);
            }
            prop_assert_eq!(decode(&mut decoder, &block, 1 << 20).map(|decoded| decoded.0), Ok(pairs));
        }
    }

    #[test]
    fn any_bytes(blocks: Vec<Vec<u8>>) {
        let mut decoder = Decoder::default();
        for block in blocks {
            let _ = decode(&mut decoder, &block, 1000);
        }
    }
}
