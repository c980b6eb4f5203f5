use std::borrow::Cow;

/// The fields of a response, in order, in no version's form yet: each version's encoder writes them its own way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    lines: Vec<(Cow<'static, str>, Vec<u8>)>,
}

impl Fields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line. The caller sees to it that name and value are what RFC 9110, section 5.5 allows: values that come
    /// from outside must have been checked, above all for CR, LF and NUL.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Vec<u8>>) -> &mut Self {
        self.lines.push((name.into(), value.into()));
        self
    }

    /// Replaces all lines of this name (in any case) by one; an empty value only takes them away.
    pub fn set(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Vec<u8>>) -> &mut Self {
        let (name, value) = (name.into(), value.into());
        self.remove(&name);
        if !value.is_empty() {
            self.push(name, value);
        }
        self
    }

    /// Takes away all lines of this name, in any case.
    pub fn remove(&mut self, name: &str) {
        self.lines.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    }

    /// The value of the first line of this name, in any case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.lines.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice())
    }

    /// Name and value of each line, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.lines.iter().map(|(name, value)| (name.as_ref(), value.as_slice()))
    }
}
