//! Messages of `--message`, for WebSocket and gRPC.

/// Message of the command line or of a file.
#[derive(Debug, PartialEq)]
pub(super) struct LoadMessage {
    pub(super) content: Vec<u8>,
    /// True for text, false for binary data.
    pub(super) is_text: bool,
}

/// Maximum nesting of protobuf messages.
const DEPTH_MAX: usize = 100;

/// Message as it is written: a text, `hex:` with hexadecimal digits, or `@FILE`.
pub(super) fn parse(text: &str) -> Result<LoadMessage, String> {
    if let Some(digits) = text.strip_prefix("hex:") {
        return Ok(LoadMessage { content: parse_hex(digits)?, is_text: false });
    }
    match text.strip_prefix('@') {
        None => Ok(LoadMessage { content: text.as_bytes().to_vec(), is_text: true }),
        Some(path) => {
            let content = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            let is_text = std::str::from_utf8(&content).is_ok();
            Ok(LoadMessage { content, is_text })
        }
    }
}

/// Message of gRPC: `hex:`, `@FILE`, or fields of protobuf such as `1: "world" 2: 5 3: { 1: true }`.
pub(super) fn parse_protobuf(text: &str) -> Result<Vec<u8>, String> {
    if text.starts_with("hex:") || text.starts_with('@') {
        return parse(text).map(|message| message.content);
    }
    let mut fields = FieldParser { rest: text, depth: 0 };
    let mut out = Vec::new();
    fields.fields(false, &mut out).map_err(|error| {
        format!("the message `{text}`: {error}; write fields such as 1: \"text\" 2: 5 3: {{ 1: true }}, hex:0a05... or @FILE")
    })?;
    Ok(out)
}

fn parse_hex(digits: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
        text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u8::from_str_radix(text, 16).ok())?
    };
    let bytes = digits.chunks(2).map(pair).collect::<Option<Vec<u8>>>();
    bytes.ok_or_else(|| "the digits after hex: are not pairs of hexadecimal digits".to_owned())
}

/// Parser of fields in the notation of protoscope.
struct FieldParser<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> FieldParser<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches(|it: char| it.is_whitespace() || it == ',');
    }

    fn take(&mut self, text: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'a str {
        self.skip_space();
        let is_end = |it: char| !(it.is_ascii_alphanumeric() || it == '.' || it == '-' || it == '+');
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    /// Parses fields up to the end, or up to a closing brace.
    fn fields(&mut self, is_nested: bool, out: &mut Vec<u8>) -> Result<(), String> {
        loop {
            self.skip_space();
            if self.rest.is_empty() {
                return if is_nested { Err("a `}` is missing".to_owned()) } else { Ok(()) };
            }
            if is_nested && self.take("}") {
                return Ok(());
            }
            let word = self.word();
            let number = word.parse::<u32>().ok().filter(|number| (1..1 << 29).contains(number));
            let number = number.ok_or_else(|| format!("`{word}` is not the number of a field"))?;
            if !self.take(":") {
                return Err(format!("a `:` is missing after {number}"));
            }
            self.value(u64::from(number), out)?;
        }
    }

    fn value(&mut self, number: u64, out: &mut Vec<u8>) -> Result<(), String> {
        let tag = |kind: u64, out: &mut Vec<u8>| write_varint(number << 3 | kind, out);
        if self.take("{") {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Err(format!("more than {DEPTH_MAX} levels"));
            }
            let mut content = Vec::new();
            self.fields(true, &mut content)?;
            self.depth -= 1;
            tag(2, out);
            write_varint(content.len() as u64, out);
            out.extend_from_slice(&content);
            return Ok(());
        }
        if self.take("\"") {
            let content = self.quoted()?;
            tag(2, out);
            write_varint(content.len() as u64, out);
            out.extend_from_slice(content.as_bytes());
            return Ok(());
        }
        let word = self.word();
        let invalid =
            || format!("`{word}` is no value; there are texts, integers, 1z, 1i32, 1i64, 1.5, 1.5i32, true and false");
        match word {
            "true" | "false" => {
                tag(0, out);
                write_varint(u64::from(word == "true"), out);
            }
            word if word.ends_with('z') => {
                let value: i64 = word.trim_end_matches('z').parse().map_err(|_| invalid())?;
                tag(0, out);
                write_varint(((value << 1) ^ (value >> 63)) as u64, out);
            }
            word if word.ends_with("i32") => {
                let digits = word.trim_end_matches("i32");
                let bytes = match digits.contains('.') {
                    true => digits.parse::<f32>().map(f32::to_le_bytes).map_err(|_| invalid())?,
                    false => (digits.parse::<i64>().map_err(|_| invalid())? as u32).to_le_bytes(),
                };
                tag(5, out);
                out.extend_from_slice(&bytes);
            }
            word if word.ends_with("i64") || word.contains('.') => {
                let digits = word.trim_end_matches("i64");
                let bytes = match digits.contains('.') {
                    true => digits.parse::<f64>().map(f64::to_le_bytes).map_err(|_| invalid())?,
                    false => digits.parse::<i64>().map(i64::to_le_bytes).map_err(|_| invalid())?,
                };
                tag(1, out);
                out.extend_from_slice(&bytes);
            }
            word => {
                let value = word.parse::<i64>().map(|value| value as u64).or_else(|_| word.parse::<u64>());
                let value = value.map_err(|_| invalid())?;
                tag(0, out);
                write_varint(value, out);
            }
        }
        Ok(())
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut out = String::new();
        let mut characters = self.rest.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(out);
                }
                '\\' => match characters.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, 't')) => out.push('\t'),
                    Some((_, other)) => out.push(other),
                    None => break,
                },
                character => out.push(character),
            }
        }
        Err("a text has no end".to_owned())
    }
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        for (text, expect) in [
            ("", &b""[..]),
            ("1: \"world\"", b"\x0a\x05world"),
            ("1: \"a\\\"\" 2: 150, 3: { 1: true }", b"\x0a\x02a\"\x10\x96\x01\x1a\x02\x08\x01"),
            ("16: 0", b"\x80\x01\x00"),
            ("1: -1", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
            ("1: -2z 2: 1z", b"\x08\x03\x10\x02"),
            ("1: 1i32 2: 1.5i32", b"\x0d\x01\0\0\0\x15\0\0\xc0\x3f"),
            ("1: 1i64 2: 1.5", b"\x09\x01\0\0\0\0\0\0\0\x11\0\0\0\0\0\0\xf8\x3f"),
            ("hex:0a 05", b"\x0a\x05"),
        ] {
            assert_eq!(parse_protobuf(text).as_deref(), Ok(expect), "{text}");
        }
        let deep = format!("{}{}", "1: {".repeat(200), "}".repeat(200));
        for (text, expect) in [
            ("a: 1", "`a` is not the number of a field"),
            ("0: 1", "`0` is not the number of a field"),
            ("1 2", "a `:` is missing after 1"),
            ("1: x", "`x` is no value"),
            ("1: {2: 3", "a `}` is missing"),
            ("1: \"a", "a text has no end"),
            ("hex:0", "pairs of hexadecimal digits"),
            ("hex:+1", "pairs of hexadecimal digits"),
            ("@/nonexistent", "No such file"),
            (&deep, "more than 100 levels"),
        ] {
            let error = parse_protobuf(text).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
