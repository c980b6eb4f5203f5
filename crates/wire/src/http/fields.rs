use super::Span;

/// Fields of an outgoing message in order, for the encoder of any version. All lines share one allocation, because a
/// message has about ten of them. They have the format of HTTP/1 and can be sent in one piece.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    lines: Vec<FieldLine>,
    /// True if some of the bytes belong to removed lines.
    has_gaps: bool,
}

/// Separator of name and value.
const NAME_END: &[u8] = b": ";
const LINE_END: &[u8] = b"\r\n";

#[derive(Clone, Copy, Debug)]
struct FieldLine {
    name: Span,
    value: Span,
}

impl Fields {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty list with memory for `bytes` of names and values in so many `lines`.
    pub fn with_capacity(bytes: usize, lines: usize) -> Self {
        let bytes = Vec::with_capacity(bytes + lines * (NAME_END.len() + LINE_END.len()));
        Self { bytes, lines: Vec::with_capacity(lines), has_gaps: false }
    }

    /// Allocates memory for `bytes` more of names and values in so many more `lines`, unless there is enough.
    pub fn reserve(&mut self, bytes: usize, lines: usize) {
        self.bytes.reserve(bytes + lines * (NAME_END.len() + LINE_END.len()));
        self.lines.reserve(lines);
    }

    /// Removes all lines; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lines.clear();
        self.has_gaps = false;
    }

    /// Adds a line. The caller must ensure that RFC 9110, section 5.5 allows name and value. In particular, check
    /// external values for CR, LF and NUL.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        let value = value.as_ref();
        self.push_with(name, |bytes| bytes.extend_from_slice(value))
    }

    /// Adds a line; `write_value` appends the value. The rules of [`Fields::push`] apply.
    pub fn push_with(&mut self, name: impl AsRef<[u8]>, write_value: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        let bytes = &mut self.bytes;
        let name_start = bytes.len();
        bytes.extend_from_slice(name.as_ref());
        let name = Span::new(name_start, bytes.len());
        bytes.extend_from_slice(NAME_END);
        let value_start = bytes.len();
        write_value(bytes);
        self.lines.push(FieldLine { name, value: Span::new(value_start, bytes.len()) });
        bytes.extend_from_slice(LINE_END);
        self
    }

    /// Adds a line of a parsed head with this name and value. `head` are the bytes it was parsed from. A line that is
    /// there in the form of HTTP/1 is copied in one piece. The rules of [`Fields::push`] apply.
    pub fn push_parsed(&mut self, head: &[u8], name: Span, value: Span) -> &mut Self {
        let (name_bytes, value_bytes) = (name.end() - name.start(), value.end() - value.start());
        let line = head.get(name.start()..value.end() + LINE_END.len()).filter(|line| {
            let value_start = name_bytes + NAME_END.len();
            value.start() == name.end() + NAME_END.len()
                && line[name_bytes..value_start] == *NAME_END
                && line[value_start + value_bytes..] == *LINE_END
        });
        let Some(line) = line else { return self.push(name.of(head), value.of(head)) };
        let start = self.bytes.len();
        self.bytes.extend_from_slice(line);
        let value_start = start + name_bytes + NAME_END.len();
        let (name, value) = (Span::new(start, start + name_bytes), Span::new(value_start, value_start + value_bytes));
        self.lines.push(FieldLine { name, value });
        self
    }

    /// Replaces all lines of this name with one. An empty value removes them. The name is case-insensitive.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.remove(name.as_ref());
        if !value.as_ref().is_empty() {
            self.push(name, value);
        }
        self
    }

    /// Appends a member to the list that the first line of this name has, or adds a line. The rules of
    /// [`Fields::push`] apply. The line becomes the last one, but keeps its name.
    pub fn extend_value(&mut self, name: impl AsRef<[u8]>, member: impl AsRef<[u8]>) -> &mut Self {
        let Self { bytes, lines, has_gaps } = self;
        let is_it = |line: &FieldLine| line.name.of(bytes).eq_ignore_ascii_case(name.as_ref());
        let Some(index) = lines.iter().position(is_it) else { return self.push(name, member) };
        let FieldLine { name, value } = lines.remove(index);
        let start = bytes.len();
        bytes.extend_from_within(name.start()..value.end());
        let (name, value) = (Span::new(start, start + name.end() - name.start()), start + value.start() - name.start());
        bytes.extend_from_slice(b", ");
        bytes.extend_from_slice(member.as_ref());
        lines.push(FieldLine { name, value: Span::new(value, bytes.len()) });
        bytes.extend_from_slice(LINE_END);
        *has_gaps = true;
        self
    }

    /// Removes all lines of this name, which is case-insensitive.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) {
        self.retain(|other| !other.eq_ignore_ascii_case(name.as_ref()));
    }

    /// Removes all lines for whose name `is_kept` returns `false`.
    pub fn retain(&mut self, is_kept: impl Fn(&[u8]) -> bool) {
        let Self { bytes, lines, has_gaps } = self;
        let count = lines.len();
        lines.retain(|line| is_kept(line.name.of(bytes)));
        *has_gaps |= lines.len() < count;
    }

    /// Returns the value of the first line with this name, which is case-insensitive.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.iter().find(|(other, _)| other.eq_ignore_ascii_case(name.as_ref())).map(|(_, value)| value)
    }

    /// Returns whether there is a line with this name, which is case-insensitive.
    pub fn has(&self, name: impl AsRef<[u8]>) -> bool {
        self.get(name).is_some()
    }

    /// Returns the values of all lines with this name, in order. The name is case-insensitive.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns whether there are no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns name and value of each line, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.iter().map(|line| (line.name.of(&self.bytes), line.value.of(&self.bytes)))
    }

    /// Returns the maximum number of bytes that [`write_h1`](Self::write_h1) appends.
    pub fn h1_bytes_max(&self) -> usize {
        self.bytes.len()
    }

    /// Appends all lines in the format of HTTP/1 (RFC 9112, section 5), without the empty line at the end.
    pub fn write_h1(&self, out: &mut Vec<u8>) {
        if !self.has_gaps {
            return out.extend_from_slice(&self.bytes);
        }
        for line in &self.lines {
            out.extend_from_slice(&self.bytes[line.name.start()..line.value.end() + LINE_END.len()]);
        }
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Fields {}

#[cfg(test)]
mod tests {
    use super::{Fields, Span};

    #[test]
    fn parsed_lines() {
        let head = b"A: 1\r\nb:2\r\nc:  3 \r\nd: 4\r\n";
        let mut fields = Fields::new();
        let spans = [(0..1, 3..4), (6..7, 8..9), (11..12, 15..16), (19..20, 22..23), (19..20, 22..22), (22..23, 0..0)];
        for (name, value) in spans {
            fields.push_parsed(head, Span::new(name.start, name.end), Span::new(value.start, value.end));
        }
        let mut expect = Fields::new();
        expect.push("A", "1").push("b", "2").push("c", "3").push("d", "4").push("d", "").push("4", "");
        assert_eq!(fields, expect);
        let mut out = Vec::new();
        fields.write_h1(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "A: 1\r\nb: 2\r\nc: 3\r\nd: 4\r\nd: \r\n4: \r\n");
    }

    #[test]
    fn lines() {
        let mut fields = Fields::new();
        fields.push("A", "1").push_with("b", |value| value.push(b'2')).push("a", "3");
        assert_eq!(fields.values(b"A").collect::<Vec<_>>(), [b"1", b"3"]);
        let written = |fields: &Fields| {
            let mut out = Vec::new();
            fields.write_h1(&mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(&fields), "A: 1\r\nb: 2\r\na: 3\r\n");
        fields.set("a", "4");
        assert_eq!(written(&fields), "b: 2\r\na: 4\r\n");
        let mut expect = Fields::new();
        expect.push("b", "2").push("a", "4");
        assert_eq!(fields, expect);
        fields.set("B", "");
        assert!(!fields.has("b"));
        assert_eq!(fields.get("A"), Some(&b"4"[..]));
        fields.extend_value("A", "5").extend_value("b", "6");
        assert_eq!(written(&fields), "a: 4, 5\r\nb: 6\r\n");
        fields.clear();
        fields.push("C", "");
        assert_eq!(written(&fields), "C: \r\n");
    }
}
