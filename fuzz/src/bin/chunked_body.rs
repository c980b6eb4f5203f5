//! Chunked content: the same however it is split, and what the grammar of RFC 9112, section 7.1 says it is.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::h1::{BodyDecoder, BodyFraming, BodyLimits};

const LIMITS: BodyLimits =
    BodyLimits { body_bytes_max: 1 << 20, extension_bytes_max: 1 << 20, trailer_bytes_max: 1 << 20 };

fuzz_target!(|input: &[u8]| {
    let whole = decode(input, input.len());
    for step in [1, 2, 3, 7] {
        assert_eq!(decode(input, step), whole);
    }
    assert_eq!(whole.ok().flatten(), model(input));
});

/// The content and the length of the message, `None` if it is incomplete, or the status that rejects it.
fn decode(input: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, u16> {
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked).unwrap();
    let (mut content, mut at) = (Vec::new(), 0);
    while at < input.len() {
        let piece = &input[at..(at + step).min(input.len())];
        let decoded = decoder.decode(piece, &LIMITS).map_err(|rejection| rejection.status.code())?;
        assert!(decoded.consumed_bytes > 0 && decoded.content.end <= decoded.consumed_bytes);
        content.extend_from_slice(&piece[decoded.content]);
        at += decoded.consumed_bytes;
        if decoded.is_complete {
            return Ok(Some((content, at)));
        }
    }
    Ok(None)
}

/// The grammar, line by line, of a complete and valid message.
fn model(input: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut content = Vec::new();
    let mut rest = input;
    loop {
        let line = take_line(&mut rest)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = usize::from_str_radix(str::from_utf8(&line[..digits]).ok()?, 16).ok()?;
        if (size as u64).saturating_add(content.len() as u64) > LIMITS.body_bytes_max
            || !are_extensions(&line[digits..])
        {
            return None;
        }
        if size == 0 {
            break;
        }
        content.extend_from_slice(rest.get(..size)?);
        rest = rest[size..].strip_prefix(b"\r\n")?;
    }
    loop {
        let line = take_line(&mut rest)?;
        if line.is_empty() {
            return Some((content, input.len() - rest.len()));
        }
        let colon = line.iter().position(|byte| *byte == b':')?;
        if !is_token(&line[..colon]) || !line[colon + 1..].iter().all(|byte| is_text(*byte)) {
            return None;
        }
    }
}

/// A line without its CRLF; none may have CR or LF of its own.
fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, after) = (&rest[..end], &rest[end + 2..]);
    *rest = after;
    (!line.contains(&b'\r') && !line.contains(&b'\n')).then_some(line)
}

/// `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`
fn are_extensions(mut text: &[u8]) -> bool {
    while !text.is_empty() {
        let Some(after) = skip_blank(text).strip_prefix(b";") else { return false };
        let Some(after) = skip_token(skip_blank(after)) else { return false };
        text = after;
        if let Some(after) = skip_blank(text).strip_prefix(b"=") {
            let value = skip_blank(after);
            let Some(after) = skip_token(value).or_else(|| skip_quoted(value)) else { return false };
            text = after;
        }
    }
    true
}

fn skip_blank(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(text.len());
    &text[end..]
}

fn skip_token(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().position(|byte| !is_token(&[*byte])).unwrap_or(text.len());
    (end > 0).then(|| &text[end..])
}

fn skip_quoted(text: &[u8]) -> Option<&[u8]> {
    let mut rest = text.strip_prefix(b"\"")?;
    loop {
        match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', byte, after @ ..] | [byte, after @ ..] if is_text(*byte) => rest = after,
            _ => return None,
        }
    }
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
