//! Texts with places for variables.

use super::session::SessionValues;

/// Text with places for variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestTemplate(pub Vec<TemplatePart>);

/// Part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    /// Fixed bytes.
    Text(Vec<u8>),
    /// Value of a variable.
    Variable(usize),
    /// Value of a variable, with all bytes except letters, digits and `-._~` as `%XX`.
    Encoded(usize),
    /// Number of the run.
    Run,
    /// Random number of 32 bits.
    Random,
}

/// Place in a request, which decides what bytes are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplatePlace {
    Target,
    Field,
    Content,
}

impl RequestTemplate {
    /// Appends the text with the values of a session.
    pub(super) fn write(&self, place: TemplatePlace, values: &mut SessionValues<'_>, out: &mut Vec<u8>) {
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text),
                TemplatePart::Variable(variable) => write_value(values.of(*variable), place, out),
                TemplatePart::Encoded(variable) => percent_encode(values.of(*variable), is_unreserved, out),
                TemplatePart::Run => out.extend_from_slice(values.run.to_string().as_bytes()),
                TemplatePart::Random => out.extend_from_slice(values.rng.u32(..).to_string().as_bytes()),
            }
        }
    }
}

fn write_value(value: &[u8], place: TemplatePlace, out: &mut Vec<u8>) {
    match place {
        TemplatePlace::Content => out.extend_from_slice(value),
        // A line break would end the field.
        TemplatePlace::Field => out.extend(value.iter().filter(|&&byte| byte >= b' ' || byte == b'\t')),
        // Everything that has a place in a path or query (RFC 3986) stays.
        TemplatePlace::Target => {
            let is_legal = |byte: u8| is_unreserved(byte) || b"/?:@!$&'()*+,;=%[]".contains(&byte);
            percent_encode(value, is_legal, out);
        }
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn percent_encode(value: &[u8], is_legal: impl Fn(u8) -> bool, out: &mut Vec<u8>) {
    for &byte in value {
        match is_legal(byte) {
            true => out.push(byte),
            false => {
                let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_place() {
        let values = vec![b"a b/\r\n&\xc3".to_vec()];
        for (part, place, expect) in [
            (TemplatePart::Variable(0), TemplatePlace::Content, &b"a b/\r\n&\xc3"[..]),
            (TemplatePart::Variable(0), TemplatePlace::Field, b"a b/&\xc3"),
            (TemplatePart::Variable(0), TemplatePlace::Target, b"a%20b/%0D%0A&%C3"),
            (TemplatePart::Encoded(0), TemplatePlace::Content, b"a%20b%2F%0D%0A%26%C3"),
            (TemplatePart::Run, TemplatePlace::Target, b"7"),
            (TemplatePart::Text(b"x y".to_vec()), TemplatePlace::Content, b"x y"),
        ] {
            let mut out = Vec::new();
            let mut rng = fastrand::Rng::with_seed(1);
            let mut values = SessionValues { values: &values, run: 7, rng: &mut rng };
            RequestTemplate(vec![part.clone()]).write(place, &mut values, &mut out);
            assert_eq!(out, expect, "{part:?} {place:?}");
        }
    }
}
