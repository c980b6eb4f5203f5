//! Examples of RFC 9204, appendix B, round trips, and sections of attackers.

use proptest::prelude::*;

use super::*;
use crate::field_section::prepared::PREPARED;
use crate::http::Status;

type Pairs = Vec<(String, String)>;

const TABLE: DecoderLimits = DecoderLimits { table_bytes_max: 220, blocked_streams_max: 2 };

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Decodes a section. Returns its fields, unless it is blocked, and the instructions of the decoder.
fn decode(decoder: &mut QpackDecoder, stream: u64, section: &[u8]) -> Result<(Option<Pairs>, Vec<u8>), InvalidBlock> {
    let (mut text, mut pairs, mut instructions) = (Vec::new(), Vec::new(), Vec::new());
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let decoded = decoder.decode(stream, section, 1 << 20, &mut text, &mut instructions, |text, field| {
        let name = field.name.of(text);
        assert!(field.name_index == 0 || static_name_index(name) == field.name_index);
        pairs.push((string(name), string(field.value.of(text))));
    })?;
    Ok((decoded.map(|_| pairs), instructions))
}

fn check(decoder: &mut QpackDecoder, stream: u64, hex: &str, expect: &[(&str, &str)], instructions: &str) {
    let expect: Pairs = expect.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    assert_eq!(decode(decoder, stream, &from_hex(hex)), Ok((Some(expect), from_hex(instructions))), "{hex}");
}

/// Passes input to the decoder byte by byte. Returns its instructions.
fn instruct(decoder: &mut QpackDecoder, hex: &str) -> Result<Vec<u8>, InvalidInstruction> {
    let (mut pending, mut instructions) = (Vec::new(), Vec::new());
    for byte in from_hex(hex) {
        pending.push(byte);
        let consumed_bytes = decoder.handle_instructions(&pending, &mut instructions)?;
        pending.drain(..consumed_bytes);
    }
    assert_eq!(pending, b"", "half an instruction");
    Ok(instructions)
}

#[test]
fn examples_of_appendix_b() {
    let mut decoder = QpackDecoder::new(TABLE);
    check(&mut decoder, 0, "0000 510b 2f69 6e64 6578 2e68 746d 6c", &[(":path", "/index.html")], "");
    // B.2: two insertions. The section arrives before them.
    assert_eq!(decode(&mut decoder, 4, &from_hex("0381 1011")), Ok((None, Vec::new())));
    assert_eq!((decoder.blocked_streams(), decoder.poll_unblocked()), (1, None));
    let insertions = "3fbd01 c00f7777772e6578616d706c652e636f6d c10c2f73616d706c652f70617468";
    assert_eq!(instruct(&mut decoder, insertions), Ok(vec![1, 1]));
    assert_eq!((decoder.poll_unblocked(), decoder.poll_unblocked()), (Some(4), None));
    let first = [(":authority", "www.example.com"), (":path", "/sample/path")];
    check(&mut decoder, 4, "0381 1011", &first, "84");
    assert_eq!(instruct(&mut decoder, "4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565"), Ok(vec![1]));
    // B.4: a duplicate.
    assert_eq!(instruct(&mut decoder, "02"), Ok(vec![1]));
    let second = [(":authority", "www.example.com"), (":path", "/"), ("custom-key", "custom-value")];
    check(&mut decoder, 8, "0500 80c1 81", &second, "88");
    let mut instructions = Vec::new();
    decoder.cancel(8, &mut instructions);
    assert_eq!(instructions, [0x48]);
    // B.5: the insertion evicts the first entry.
    assert_eq!(instruct(&mut decoder, "810d 6375 7374 6f6d 2d76 616c 7565 32"), Ok(vec![1]));
    check(&mut decoder, 12, "0600 80", &[("custom-key", "custom-value2")], "8c");
    assert!(decode(&mut decoder, 16, &from_hex("0600 84")).is_err(), "evicted");
}

#[test]
fn all_forms_of_fields() {
    let mut decoder = QpackDecoder::new(TABLE);
    instruct(&mut decoder, "3fbd01 4161 0162 c001 78").unwrap();
    for (hex, expect) in [
        ("0000", vec![]),
        ("0000 c1 d9", vec![(":path", "/"), (":status", "200")]),
        ("0000 ff23", vec![("x-frame-options", "sameorigin")]),
        ("0000 5f50 0161", vec![("user-agent", "a")]),
        ("0000 2161 0162", vec![("a", "b")]),
        ("0300 80 81", vec![(":authority", "x"), ("a", "b")]),
        ("0380 10", vec![(":authority", "x")]),
        ("0381 11 10", vec![(":authority", "x"), ("a", "b")]),
        ("0300 41 0163", vec![("a", "c")]),
        ("0381 00 0163", vec![("a", "c")]),
        ("0301 81", vec![(":authority", "x")]),
    ] {
        let (pairs, _) = decode(&mut decoder, 4, &from_hex(hex)).unwrap();
        let pairs = pairs.unwrap();
        assert!(pairs.iter().map(|(name, value)| (&name[..], &value[..])).eq(expect), "{hex}: {pairs:?}");
    }
    for (hex, expect) in [("0000 71 0162", true), ("0000 51 0162", false), ("0000 3161 00", true), ("0381 08 00", true)]
    {
        let (mut text, mut instructions) = (Vec::new(), Vec::new());
        let decoded = decoder.decode(4, &from_hex(hex), 100, &mut text, &mut instructions, |_, field| {
            assert_eq!(field.is_never_indexed, expect, "{hex}");
        });
        assert!(decoded.is_ok());
    }
}

#[test]
fn rejected_sections() {
    for (name, hex) in [
        ("no prefix", ""),
        ("half a prefix", "00"),
        ("half an insert count", "ff"),
        ("an insert count without end", "ff80 8080 8080 8000"),
        ("an insert count beyond the range", "0d00"),
        ("an insert count below 0", "0c00"),
        ("a negative base", "0382"),
        ("half a base", "03ff"),
        ("a static index beyond the table", "0000 ff24"),
        ("a name beyond the static table", "0000 5f54 0161"),
        ("a dynamic index without a count", "0000 80"),
        ("an index beyond the base", "0300 82"),
        ("an index that the count does not cover", "0280 11"),
        ("a post-base index beyond the count", "0300 10"),
        ("a post-base name beyond the count", "0300 00 00"),
        ("a name beyond the base", "0300 42 00"),
        ("half an index", "0000 ff"),
        ("no value", "0000 51"),
        ("a value longer than the section", "0000 5102 61"),
        ("a name longer than the section", "0000 2261"),
        ("a string of 4 GiB", "0000 517f 80ff ffff 0f"),
        ("EOS in a value", "0000 5184 ffff ffff"),
        ("zeros as padding", "0000 5181 18"),
    ] {
        let mut decoder = QpackDecoder::new(TABLE);
        instruct(&mut decoder, "3fbd01 4161 0162 c001 78").unwrap();
        assert!(decode(&mut decoder, 0, &from_hex(hex)).is_err(), "{name}");
    }
    let mut decoder = QpackDecoder::new(DecoderLimits::default());
    assert!(decode(&mut decoder, 0, &from_hex("0200 80")).is_err(), "there is no table");
}

#[test]
fn rejected_instructions() {
    for (name, hex) in [
        ("a capacity larger than allowed", "3fbe01"),
        ("a capacity of 4 GiB", "3fff ffff ffff 0f"),
        ("an insertion without capacity", "c000"),
        ("a literal without capacity", "4161 00"),
        ("a duplicate of nothing", "3fbd01 00"),
        ("a static name beyond the table", "3fbd01 ff24 00"),
        ("a dynamic name of nothing", "3fbd01 80 00"),
        ("an entry larger than the table", "3f01 4161 0162"),
        ("a value that can't fit", "3fbd01 c0ff ffff ff07"),
        ("a name that can't fit", "3fbd01 5fff ffff ff07"),
        ("an index without end", "3fbd01 ff80 8080 8080 8000"),
        ("EOS in a value", "3fbd01 c084 ffff ffff"),
    ] {
        assert!(instruct(&mut QpackDecoder::new(TABLE), hex).is_err(), "{name}");
    }
    assert!(
        instruct(&mut QpackDecoder::new(DecoderLimits::default()), "20").is_ok(),
        "a capacity of 0 is always allowed"
    );
    for (name, hex) in [
        ("an acknowledgement of no section", "84"),
        ("an increment by 0", "00"),
        ("an increment beyond the insertions", "02"),
        ("an increment that overflows", "3fff ffff ffff ffff ff7f"),
        ("a stream of 63 bits", "ff80 ffff ffff ffff ffff 7f"),
    ] {
        let mut encoder = QpackEncoder::new(220);
        let (mut section, mut instructions) = (Vec::new(), Vec::new());
        encoder.set_peer_limits(220, 0, &mut instructions);
        encoder.encode(0, [(&b"x"[..], &b"y"[..])].into_iter(), &mut section, &mut instructions);
        assert!(encoder.handle_instructions(&from_hex(hex)).is_err(), "{name}");
    }
    let mut encoder = QpackEncoder::new(220);
    assert_eq!(encoder.handle_instructions(&from_hex("48 7f80 8001 ff80")), Ok(5), "the last is incomplete");
}

/// CVE-2026-48748: sections that wait for instructions which never come.
#[test]
fn blocked_streams_cve_2026_48748() {
    let mut decoder = QpackDecoder::new(TABLE);
    for stream in [0, 4, 0, 4] {
        assert_eq!(decode(&mut decoder, stream, &from_hex("0200 80")), Ok((None, Vec::new())));
    }
    assert_eq!(decode(&mut decoder, 8, &from_hex("0200 80")), Err(InvalidBlock("too many blocked streams")));
    let mut instructions = Vec::new();
    decoder.cancel(0, &mut instructions);
    assert_eq!(decode(&mut decoder, 8, &from_hex("0200 80")), Ok((None, Vec::new())));
    assert_eq!(decoder.blocked_streams(), 2);
    let mut decoder = QpackDecoder::new(DecoderLimits { blocked_streams_max: 0, ..TABLE });
    assert!(decode(&mut decoder, 0, &from_hex("0200 80")).is_err(), "none may wait");
}

/// A small section that refers to a large entry many times.
#[test]
fn qpack_bomb() {
    let mut decoder = QpackDecoder::new(DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 0 });
    let mut input = from_hex("3fe11f 4161 7f810f");
    input.extend_from_slice(&[b'x'; 2048]);
    let mut instructions = Vec::new();
    assert_eq!(decoder.handle_instructions(&input, &mut instructions), Ok(input.len()));
    let mut section = from_hex("0200");
    section.extend_from_slice(&[0x80; 16_000]);
    let (mut text, mut fields) = (Vec::new(), 0);
    let decoded = decoder.decode(0, &section, 16 << 10, &mut text, &mut instructions, |_, _| fields += 1);
    assert!(decoded.unwrap().unwrap().is_too_large);
    assert_eq!(fields, 7);
    assert!(text.capacity() < 64 << 10, "{}", text.capacity());
    // One byte duplicates an entry. The table stays within its size.
    let before = allocated(&decoder);
    assert_eq!(decoder.handle_instructions(&[0; 10_000], &mut instructions), Ok(10_000));
    assert!(allocated(&decoder) <= before.max(4 * 4096));
}

fn allocated(decoder: &QpackDecoder) -> usize {
    decoder.table.memory_bytes() + decoder.text.capacity()
}

#[test]
fn secrets_are_never_indexed() {
    let mut encoder = QpackEncoder::new(4096);
    let mut instructions = Vec::new();
    encoder.set_peer_limits(4096, 100, &mut instructions);
    instructions.clear();
    for (name, value) in [("Authorization", "Basic YTpi"), ("set-cookie", "a=b"), ("cookie", "short")] {
        let mut section = Vec::new();
        encoder.encode(0, [(name.as_bytes(), value.as_bytes())].into_iter(), &mut section, &mut instructions);
        assert_eq!((section[2] & 0xf0, &instructions[..]), (0x70, &b""[..]), "{name}");
    }
}

#[test]
fn what_comes_again_is_sent_as_an_index() {
    for (blocked_streams_max, acknowledges, expect) in
        [(1, false, [5, 5, 30]), (0, true, [30, 5, 5]), (0, false, [30, 30, 30]), (3, false, [5, 5, 5])]
    {
        let (mut encoder, mut decoder) = (
            QpackEncoder::new(4096),
            QpackDecoder::new(DecoderLimits { table_bytes_max: 4096, blocked_streams_max: 2 }),
        );
        let mut instructions = Vec::new();
        encoder.set_peer_limits(4096, blocked_streams_max, &mut instructions);
        let mut lengths = Vec::new();
        for stream in [0, 0, 4] {
            let mut section = Vec::new();
            let fields = [(&b"user-agent"[..], &b"some client"[..]), (b"x-unknown", b"1234567890")];
            encoder.encode(stream, fields.into_iter(), &mut section, &mut instructions);
            lengths.push(if section.len() > 10 { 30 } else { section.len() + 1 });
            if acknowledges {
                let mut back = Vec::new();
                assert_eq!(decoder.handle_instructions(&instructions, &mut back), Ok(instructions.len()));
                instructions.clear();
                assert_eq!(encoder.handle_instructions(&back), Ok(back.len()));
            }
        }
        assert_eq!(lengths, expect, "{blocked_streams_max} {acknowledges}");
    }
}

#[test]
fn a_prepared_section_is_the_same_for_all_connections() {
    let date = PREPARED.date;
    let prepared = PreparedSection::new(Status::OK, &PREPARED.fields());
    let mut section = Vec::new();
    prepared.write(date, &mut section);
    write_literal(&mut section, b"content-length", b"3");
    let (pairs, instructions) = decode(&mut QpackDecoder::new(DecoderLimits::default()), 0, &section).unwrap();
    assert!(pairs.unwrap().iter().map(|(name, value)| (&name[..], &value[..])).eq(PREPARED.decoded));
    assert_eq!(instructions, b"");
    let (mut some, mut text) = (b"before".to_vec(), Vec::new());
    prepared.write_some(date, &mut some, &mut text, |name| name != b"date" && name != b"vary");
    let (pairs, _) = decode(&mut QpackDecoder::new(DecoderLimits::default()), 0, &some[6..]).unwrap();
    let pairs: Vec<String> = pairs.unwrap().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(pairs.join(" "), ":status=200 server=tailcoat etag=\"1\"");
}

proptest! {
    /// QpackEncoder and decoder stay in step, however late instructions arrive in either direction.
    #[test]
    fn there_and_back(
        wanted in prop_oneof![Just(0usize), 40usize..400, Just(4096)],
        permitted in prop_oneof![Just(0usize), 40usize..400, Just(4096)],
        blocked_streams_max in 0usize..3,
        steps in proptest::collection::vec(
            (
                0u64..4,
                any::<(bool, bool)>(),
                proptest::collection::vec(
                    (
                        prop_oneof!["[a-c]{1,3}", "(:path|:status|cookie|date|vary|accept-encoding)"],
                        prop_oneof!["[a-z0-9]{0,3}", "[ -~]{0,60}", "(200|GET|/|gzip, deflate)"],
                    ),
                    0..12,
                ),
            ),
            1..30,
        ),
    ) {
        let limits = DecoderLimits { table_bytes_max: permitted, blocked_streams_max };
        let (mut encoder, mut decoder) = (QpackEncoder::new(wanted), QpackDecoder::new(limits));
        let (mut forth, mut back, mut waiting) = (Vec::new(), Vec::new(), Vec::<(u64, Vec<u8>, Pairs)>::new());
        encoder.set_peer_limits(permitted as u64, blocked_streams_max as u64, &mut forth);
        let count = steps.len();
        for (index, (stream, (brings_forth, brings_back), pairs)) in steps.into_iter().enumerate() {
            let is_end = index + 1 == count;
            let mut section = Vec::new();
            let fields = pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            encoder.encode(stream, fields, &mut section, &mut forth);
            waiting.push((stream, section, pairs));
            if brings_forth || is_end {
                let consumed_bytes = decoder.handle_instructions(&forth, &mut back);
                prop_assert_eq!(consumed_bytes, Ok(forth.len()));
                forth.clear();
                while decoder.poll_unblocked().is_some() {}
            }
            // The sections of a stream come in order, so a blocked one delays those after it.
            let mut delayed = Vec::<(u64, Vec<u8>, Pairs)>::new();
            for (stream, section, pairs) in std::mem::take(&mut waiting) {
                let is_delayed = delayed.iter().any(|(other, ..)| *other == stream);
                let decoded = if is_delayed { None } else { Some(decode(&mut decoder, stream, &section).unwrap()) };
                match decoded {
                    Some((Some(decoded), instructions)) => {
                        back.extend(instructions);
                        prop_assert_eq!(decoded, pairs);
                    }
                    _ => delayed.push((stream, section, pairs)),
                }
            }
            waiting = delayed;
            if brings_back {
                prop_assert_eq!(encoder.handle_instructions(&back), Ok(back.len()));
                back.clear();
            }
        }
        prop_assert!(waiting.is_empty());
        prop_assert_eq!(encoder.handle_instructions(&back), Ok(back.len()));
    }

    #[test]
    fn any_bytes(inputs: Vec<(bool, Vec<u8>)>) {
        let mut decoder = QpackDecoder::new(TABLE);
        let (mut instructions, mut encoder) = (Vec::new(), QpackEncoder::new(100));
        for (is_section, input) in inputs {
            if is_section {
                let _ = decode(&mut decoder, 0, &input);
            } else {
                let _ = decoder.handle_instructions(&input, &mut instructions);
                let _ = encoder.handle_instructions(&input);
            }
            prop_assert!(decoder.table.memory_bytes() < 4096);
        }
    }
}
