//! The notation for bytes in case files: escapes, variables and repetitions.

use std::collections::HashMap;

/// Values of the variables that `let` and `each` lines define.
pub(crate) type Variables = HashMap<String, Vec<u8>>;

/// The bytes that a piece of a case file stands for.
///
/// - `\r \n \t \0 \\ \{ \xHH`: that byte; `\s`: a space (where one at the end of a line would not be seen); `\e`: nothing
/// - `{name}`: a variable; `{#name}`, `{#xname}`: its length, decimal or hexadecimal
/// - `{text*N}`: `text` N times (escapes allowed in it)
pub(crate) fn unescape(text: &str, variables: &Variables) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let special = &rest[at..];
        rest = if special.starts_with('\\') {
            unescape_backslash(special, &mut bytes)?
        } else {
            unescape_braces(special, variables, &mut bytes)?
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

fn unescape_backslash<'a>(text: &'a str, bytes: &mut Vec<u8>) -> Result<&'a str, String> {
    let byte = match text.as_bytes().get(1) {
        Some(b'r') => b'\r',
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b's') => b' ',
        Some(b'0') => 0,
        Some(b'\\') => b'\\',
        Some(b'{') => b'{',
        Some(b'e') => return Ok(&text[2..]),
        Some(b'x') => {
            let digits = text.get(2..4).ok_or_else(|| format!("two digits are missing after \\x: {text}"))?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| format!("not two hexadecimal digits: {digits}"))?);
            return Ok(&text[4..]);
        }
        _ => return Err(format!("unknown escape: {text}")),
    };
    bytes.push(byte);
    Ok(&text[2..])
}

fn unescape_braces<'a>(text: &'a str, variables: &Variables, bytes: &mut Vec<u8>) -> Result<&'a str, String> {
    let end = text.find('}').ok_or_else(|| format!("no }} for {text}"))?;
    let inner = &text[1..end];
    let lookup = |name: &str| variables.get(name).ok_or_else(|| format!("no variable {name}"));
    if let Some((piece, times)) = inner.rsplit_once('*') {
        let times: usize = times.parse().map_err(|_| format!("not a number of repetitions: {times}"))?;
        bytes.extend(unescape(piece, variables)?.repeat(times));
    } else if let Some(name) = inner.strip_prefix("#x") {
        bytes.extend(format!("{:x}", lookup(name)?.len()).into_bytes());
    } else if let Some(name) = inner.strip_prefix('#') {
        bytes.extend(lookup(name)?.len().to_string().into_bytes());
    } else {
        bytes.extend_from_slice(lookup(inner)?);
    }
    Ok(&text[end + 1..])
}

/// Bytes in the notation of case files, for people to read; long runs of one byte are folded.
pub fn escape(bytes: &[u8]) -> String {
    const RUN_MIN: usize = 24;
    let mut text = String::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let run = bytes[at..].iter().take_while(|byte| **byte == bytes[at]).count();
        let one = match bytes[at] {
            b'\r' => "\\r".into(),
            b'\n' => "\\n".into(),
            b'\t' => "\\t".into(),
            b'\\' => "\\\\".into(),
            byte @ 0x20..=0x7e => char::from(byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        };
        if run >= RUN_MIN {
            text.push_str(&format!("{{{one}*{run}}}"));
            at += run;
        } else {
            text.push_str(&one);
            at += 1;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Variables, escape, unescape};

    #[test]
    fn notation() {
        let variables = Variables::from([("v".to_owned(), b"0123456789".to_vec())]);
        for (text, expect) in [
            ("plain", &b"plain"[..]),
            ("\\r\\n\\t\\0\\\\\\s\\e\\{", b"\r\n\t\0\\ {"),
            ("\\x00\\xfFz", b"\0\xffz"),
            ("a{v}b", b"a0123456789b"),
            ("{#v} {#xv}", b"10 a"),
            ("{ab*3}", b"ababab"),
            ("{\\r\\n*2}", b"\r\n\r\n"),
        ] {
            assert_eq!(unescape(text, &variables).as_deref(), Ok(expect), "{text}");
        }
        for wrong in ["\\q", "\\x4", "{none}", "{v", "{a*b}"] {
            assert!(unescape(wrong, &variables).is_err(), "{wrong}");
        }
    }

    #[test]
    fn escaped_for_people() {
        assert_eq!(escape(b"a\r\n\x00\xff\\"), "a\\r\\n\\x00\\xff\\\\");
        assert_eq!(escape(&[b'a'; 30]), "{a*30}");
    }
}
