use super::Span;

/// The fields of a message that is made, in order, in no version's form yet: each version's encoder writes them its own
/// way. All lines share one piece of memory, for a message has some ten of them.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    name: Span,
    value: Span,
}

impl Fields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// No fields yet, and memory for so many bytes of names and values in so many lines.
    pub fn with_capacity(bytes: usize, lines: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), lines: Vec::with_capacity(lines) }
    }

    /// Takes all lines away; the memory stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lines.clear();
    }

    /// Adds a line. The caller sees to it that name and value are what RFC 9110, section 5.5 allows: values that come
    /// from outside must have been checked, above all for CR, LF and NUL.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        let line = Line { name: self.append(name.as_ref()), value: self.append(value.as_ref()) };
        self.lines.push(line);
        self
    }

    fn append(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, self.bytes.len())
    }

    /// Replaces all lines of this name (in any case) by one; an empty value only takes them away.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.remove(name.as_ref());
        if !value.as_ref().is_empty() {
            self.push(name, value);
        }
        self
    }

    /// Takes away all lines of this name, in any case.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) {
        let Self { bytes, lines } = self;
        lines.retain(|line| !line.name.of(bytes).eq_ignore_ascii_case(name.as_ref()));
    }

    /// Takes away all lines but those with such names.
    pub fn retain(&mut self, is_kept: impl Fn(&[u8]) -> bool) {
        let Self { bytes, lines } = self;
        lines.retain(|line| is_kept(line.name.of(bytes)));
    }

    /// The value of the first line of this name, in any case.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.iter().find(|(other, _)| other.eq_ignore_ascii_case(name.as_ref())).map(|(_, value)| value)
    }

    /// Whether there is a line of this name, in any case.
    pub fn has(&self, name: impl AsRef<[u8]>) -> bool {
        self.get(name).is_some()
    }

    /// The values of all lines of this name (in any case), in order.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Name and value of each line, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.iter().map(|line| (line.name.of(&self.bytes), line.value.of(&self.bytes)))
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
    use super::Fields;

    #[test]
    fn lines() {
        let mut fields = Fields::new();
        fields.push("A", "1").push("b", "2").push("a", "3");
        assert_eq!(fields.values(b"A").collect::<Vec<_>>(), [b"1", b"3"]);
        fields.set("a", "4");
        let mut expect = Fields::new();
        expect.push("b", "2").push("a", "4");
        assert_eq!(fields, expect);
        fields.set("B", "");
        assert!(!fields.has("b"));
        assert_eq!(fields.get("A"), Some(&b"4"[..]));
    }
}
