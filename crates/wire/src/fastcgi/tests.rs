use proptest::prelude::*;

use super::record::{Header, record_type};
use super::*;

fn record(record_type: u8, content: &[u8], padding_bytes: u8) -> Vec<u8> {
    let header = Header { padding_bytes, ..Header::new(record_type, content.len() as u16) };
    [&header.to_bytes()[..], content, &vec![0xaa; usize::from(padding_bytes)]].concat()
}

fn output(content: &str) -> Vec<u8> {
    record(record_type::STDOUT, content.as_bytes(), 0)
}

fn error(content: &str) -> Vec<u8> {
    record(record_type::STDERR, content.as_bytes(), 0)
}

fn end(application_status: u8, protocol_status: u8, padding_bytes: u8) -> Vec<u8> {
    record(record_type::END_REQUEST, &[0, 0, 0, application_status, protocol_status, 0, 0, 0], padding_bytes)
}

/// Everything that the decoder returned, and the input after the end of the response.
#[derive(Debug, Default, PartialEq)]
struct ApplicationOutput {
    output: String,
    error: String,
    ended: Option<FastCgiEnd>,
    rest_bytes: usize,
}

/// Decodes the input in pieces of at most `piece_bytes`.
fn read(input: &[u8], piece_bytes: usize) -> Result<ApplicationOutput, &'static str> {
    let mut decoder = ResponseDecoder::default();
    let mut said = ApplicationOutput::default();
    let mut at = 0;
    while at < input.len() {
        let piece = &input[at..input.len().min(at + piece_bytes)];
        let decoded = decoder.decode(piece).map_err(|malformed| malformed.0)?;
        assert!(decoded.consumed_bytes > 0 && decoded.consumed_bytes <= piece.len());
        let text = |range: std::ops::Range<usize>| String::from_utf8(piece[range].to_vec()).unwrap();
        at += decoded.consumed_bytes;
        match decoded.piece {
            FastCgiPiece::Nothing => assert_eq!(decoded.consumed_bytes, piece.len(), "more could be read"),
            FastCgiPiece::Output(range) => said.output += &text(range),
            FastCgiPiece::Error(range) => said.error += &text(range),
            FastCgiPiece::Ended(ended) => {
                said.ended = Some(ended);
                said.rest_bytes = input.len() - at;
                return Ok(said);
            }
        }
    }
    Ok(said)
}

#[test]
fn answers() {
    let check = |records: &[Vec<u8>], output: &str, error: &str, ended: Option<(u32, ProtocolStatus)>| {
        let input = records.concat();
        let ended =
            ended.map(|(application_status, protocol_status)| FastCgiEnd { application_status, protocol_status });
        let expect = ApplicationOutput { output: output.into(), error: error.into(), ended, rest_bytes: 0 };
        for piece_bytes in [1, 2, 7, 8, 9, 1_000_000] {
            assert_eq!(read(&input, piece_bytes).as_ref(), Ok(&expect), "in pieces of {piece_bytes}");
        }
    };
    let complete = Some((0, ProtocolStatus::Complete));
    check(&[], "", "", None);
    check(&[output("abc")], "abc", "", None);
    check(&[output("abc"), output("d"), end(0, 0, 0)], "abcd", "", complete);
    check(&[output("abc"), output(""), error(""), end(0, 0, 0)], "abc", "", complete);
    check(&[error("e"), output("abc"), error("f"), end(7, 0, 0)], "abc", "ef", Some((7, ProtocolStatus::Complete)));
    check(&[output("a"), output(""), error("late"), end(0, 0, 0)], "a", "late", complete);
    check(&[record(record_type::STDOUT, b"abc", 255), end(0, 0, 5)], "abc", "", complete);
    check(&[record(record_type::STDOUT, b"", 3), end(0, 0, 0)], "", "", complete);
    check(&[end(0, 1, 0)], "", "", Some((0, ProtocolStatus::NotMultiplexed)));
    check(&[end(0, 2, 0)], "", "", Some((0, ProtocolStatus::Overloaded)));
    check(&[end(0, 3, 0)], "", "", Some((0, ProtocolStatus::UnknownRole)));
    let huge = "x".repeat(CONTENT_BYTES_MAX);
    check(&[output(&huge), output(&huge), end(0, 0, 0)], &huge.repeat(2), "", complete);
}

#[test]
fn hostile_records() {
    let check = |name: &str, input: Vec<u8>, expect: &'static str| {
        for piece_bytes in [1, 1_000] {
            assert_eq!(read(&input, piece_bytes), Err(expect), "{name}");
        }
    };
    let other = "a record of another version or request";
    let with = |at: usize, byte: u8| {
        let mut record = output("abc");
        record[at] = byte;
        record
    };
    check("version", with(0, 2), other);
    check("answer to another request", with(3, 2), other);
    check("request id with a high byte", with(2, 1), other);
    check("management record", with(3, 0), other);
    check("HTTP", b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), other);
    let misplaced = "a record that a response cannot have";
    for record_type in [0, 1, 2, 4, 5, 8, 9, 10, 11, 255] {
        check("type", record(record_type, b"abc", 0), misplaced);
    }
    check("output goes on", [output("a"), output(""), output("b")].concat(), "output after its end");
    check("errors go on", [error(""), error("b")].concat(), "output after its end");
    check("short end", record(record_type::END_REQUEST, &[0; 7], 0), "an end of unknown form");
    check("long end", record(record_type::END_REQUEST, &[0; 9], 0), "an end of unknown form");
    check("status", end(0, 4, 0), "an end of unknown status");
}

#[test]
fn nothing_is_read_after_the_end() {
    let input = [output("a"), end(0, 0, 3), output("of another request")].concat();
    let said = read(&input, 1_000).unwrap();
    assert_eq!((said.output.as_str(), said.rest_bytes), ("a", output("of another request").len()));
    let mut decoder = ResponseDecoder::default();
    decoder.decode(&end(0, 0, 0)).unwrap();
    assert_eq!(decoder.decode(b"x").unwrap_err().0, "bytes after the end of the response");
}

#[test]
fn requests() {
    let mut out = Vec::new();
    write_begin(true, &mut out);
    assert_eq!(out, b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0");
    out.clear();
    write_begin(false, &mut out);
    assert_eq!(out[10], 0, "the application closes the connection");
    out.clear();
    let parameters: [(&[u8], &[u8]); 2] = [(b"A", b"bc"), (b"D", &[b'x'; 128])];
    write_parameters(parameters.into_iter(), &mut out);
    let encoded = [&b"\x01\x02Abc\x01\x80\0\0\x80D"[..], &[b'x'; 128]].concat();
    let expect = [record(record_type::PARAMS, &encoded, 0), record(record_type::PARAMS, b"", 0)].concat();
    assert_eq!(out, expect);
    out.clear();
    write_parameters(std::iter::empty(), &mut out);
    assert_eq!(out, record(record_type::PARAMS, b"", 0));
    for rest_bytes in [0, 1, CONTENT_BYTES_MAX + 3] {
        out.clear();
        // Name and value have lengths of one and four bytes.
        let value = vec![b'x'; CONTENT_BYTES_MAX - 6 + rest_bytes];
        write_parameters([(&b"A"[..], &value[..])].into_iter(), &mut out);
        let [a, b, c, d] = (value.len() as u32 | 1 << 31).to_be_bytes();
        let encoded = [&[1, a, b, c, d, b'A'][..], &value].concat();
        let pieces = encoded.chunks(CONTENT_BYTES_MAX).chain([&b""[..]]);
        assert_eq!(out, pieces.flat_map(|content| record(record_type::PARAMS, content, 0)).collect::<Vec<_>>());
    }
    out.clear();
    write_stdin_header(3, &mut out);
    out.extend_from_slice(b"abc");
    write_stdin_end(&mut out);
    assert_eq!(out, [record(record_type::STDIN, b"abc", 0), record(record_type::STDIN, b"", 0)].concat());
}

proptest! {
    #[test]
    fn the_same_in_any_pieces(
        records in prop::collection::vec((prop::bool::ANY, "[a-z]{1,40}", 0_u8..9), 0..8),
        padding_bytes in 0_u8..20,
        piece_bytes in 1_usize..50,
    ) {
        let mut input = Vec::new();
        let mut expect = ApplicationOutput::default();
        for (is_output, text, padding_bytes) in &records {
            let kind = if *is_output { record_type::STDOUT } else { record_type::STDERR };
            input.extend(record(kind, text.as_bytes(), *padding_bytes));
            *if *is_output { &mut expect.output } else { &mut expect.error } += text;
        }
        input.extend(end(3, 0, padding_bytes));
        expect.ended = Some(FastCgiEnd { application_status: 3, protocol_status: ProtocolStatus::Complete });
        prop_assert_eq!(read(&input, piece_bytes), Ok(expect));
    }

    #[test]
    fn whatever_comes(input in prop::collection::vec(prop::num::u8::ANY, 0..200), piece_bytes in 1_usize..20) {
        let whole = read(&input, usize::MAX - 1_000).is_ok();
        prop_assert_eq!(read(&input, piece_bytes).is_ok(), whole);
    }
}
