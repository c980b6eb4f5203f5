//! Configuration text, made of lines with values and blocks.

use std::fmt::Write;

/// A line of a configuration, and its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KdlNode {
    name: &'static str,
    values: Vec<ImportedValue>,
    properties: Vec<(&'static str, ImportedValue)>,
    /// Nodes in its block.
    pub(super) children: Vec<KdlNode>,
    /// True if an empty block is written, too.
    needs_block: bool,
    comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ImportedValue {
    /// Stands in quotation marks.
    Text(String),
    /// A number, or a word such as `off`.
    Word(String),
}

impl ImportedValue {
    /// The value, unquoted.
    fn text(&self) -> &str {
        let (Self::Text(text) | Self::Word(text)) = self;
        text
    }
}

impl KdlNode {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            values: Vec::new(),
            properties: Vec::new(),
            children: Vec::new(),
            needs_block: false,
            comment: None,
        }
    }

    /// A line with a text as its first value.
    pub(super) fn with(name: &'static str, text: impl AsRef<str>) -> Self {
        Self::new(name).text(text)
    }

    /// A text as the next value.
    pub(super) fn text(mut self, text: impl AsRef<str>) -> Self {
        self.values.push(ImportedValue::Text(text.as_ref().to_owned()));
        self
    }

    /// Texts as the next values.
    pub(super) fn texts(self, texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        texts.into_iter().fold(self, |node, text| node.text(text))
    }

    /// A number, or a word such as `off`, as the next value.
    pub(super) fn word(mut self, word: impl ToString) -> Self {
        self.values.push(ImportedValue::Word(word.to_string()));
        self
    }

    pub(super) fn property(mut self, name: &'static str, text: impl AsRef<str>) -> Self {
        self.properties.push((name, ImportedValue::Text(text.as_ref().to_owned())));
        self
    }

    pub(super) fn word_property(mut self, name: &'static str, word: impl ToString) -> Self {
        self.properties.push((name, ImportedValue::Word(word.to_string())));
        self
    }

    /// Adds a comment before the line.
    pub(super) fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Adds a comment before an existing one.
    pub(super) fn add_comment(&mut self, comment: &str) {
        let said = self.comment.take().unwrap_or_default();
        self.comment = Some(format!("{comment}\n{said}").trim_matches('\n').to_owned());
    }

    pub(super) fn block(mut self, children: Vec<KdlNode>) -> Self {
        self.children = children;
        self
    }

    /// Adds the block of an option that must have one, such as `site`.
    pub(super) fn required_block(self, children: Vec<KdlNode>) -> Self {
        Self { children, needs_block: true, ..self }
    }

    pub(super) fn has_values(&self) -> bool {
        !self.values.is_empty()
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns `true` if the other node has the same name and, except for the last, the same values.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let but_last = |node: &Self| node.values[..node.values.len().saturating_sub(1)].to_vec();
        self.name == other.name && but_last(self) == but_last(other)
    }

    /// Pattern of its paths: the property `path`, or the first value.
    pub(super) fn pattern(&self) -> &str {
        self.property_text("path").unwrap_or(self.first_value())
    }

    /// First value, unquoted.
    pub(super) fn first_value(&self) -> &str {
        self.values.first().map_or("", ImportedValue::text)
    }

    /// Last value, unquoted.
    pub(super) fn last_value(&self) -> &str {
        self.values.last().map_or("", ImportedValue::text)
    }

    /// Returns `true` if one of its values is this text, in any letter case.
    pub(super) fn has_value(&self, text: &str) -> bool {
        self.values.iter().any(|value| value.text().eq_ignore_ascii_case(text))
    }

    /// With another text as its first value.
    pub(super) fn with_first_value(mut self, text: &str) -> Self {
        if let Some(value) = self.values.first_mut() {
            *value = ImportedValue::Text(text.to_owned());
        }
        self
    }

    /// With what is made of its last value.
    pub(super) fn with_last_value(mut self, make: impl FnOnce(&str) -> String) -> Self {
        if let Some(ImportedValue::Text(value) | ImportedValue::Word(value)) = self.values.last_mut() {
            *value = make(value);
        }
        self
    }

    /// Returns `true` if its first value is this text.
    pub(super) fn is_for(&self, text: &str) -> bool {
        matches!(self.values.first(), Some(ImportedValue::Text(value)) if value == text)
    }

    /// The line with another name, and one more text after its values.
    pub(super) fn with_name(&self, name: &'static str, text: &str) -> Self {
        Self { name, ..self.clone() }.text(text)
    }

    pub(super) fn has_properties(&self) -> bool {
        !self.properties.is_empty()
    }

    pub(super) fn has_property(&self, name: &str) -> bool {
        self.properties.iter().any(|(other, _)| *other == name)
    }

    /// The value of a property.
    pub(super) fn property_text(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(other, _)| *other == name).map(|(_, value)| value.text())
    }

    /// Adds a condition, beside one that it has.
    pub(super) fn add_condition(&mut self, when: &str) {
        match self.properties.iter_mut().find(|(name, _)| *name == "when") {
            Some((_, ImportedValue::Text(text) | ImportedValue::Word(text))) => {
                *text = format!("({text}) and ({when})")
            }
            None => self.properties.push(("when", ImportedValue::Text(when.to_owned()))),
        }
    }

    /// Returns `true` if it has this condition.
    pub(super) fn is_when(&self, when: &str) -> bool {
        self.properties.iter().any(|(name, value)| *name == "when" && *value == ImportedValue::Text(when.to_owned()))
    }

    /// Returns `true` if it sets a header field only where there is none.
    pub(super) fn is_default_of(&self, field: &str) -> bool {
        let is_field = |value: &ImportedValue| matches!(value, ImportedValue::Text(text) if text == field);
        let is_default = |(name, value): &(&str, ImportedValue)| {
            *name == "action" && matches!(value, ImportedValue::Word(word) if word == "default")
        };
        self.values.iter().any(is_field) && self.properties.iter().any(is_default)
    }

    /// The other node with this one's property of a name.
    pub(super) fn copied_property(&self, mut other: KdlNode, name: &str) -> KdlNode {
        other.properties.extend(self.properties.iter().filter(|(own, _)| *own == name).cloned());
        other
    }

    /// The node without a property, and the text of that.
    pub(super) fn without_property(mut self, name: &str) -> (Self, Option<String>) {
        let at = self.properties.iter().position(|(own, _)| *own == name);
        let text = at.map(|at| self.properties.remove(at).1.text().to_owned());
        (self, text)
    }

    /// Properties, for another node.
    pub(super) fn into_properties(self) -> Vec<(&'static str, ImportedValue)> {
        self.properties
    }

    pub(super) fn with_properties(mut self, properties: Vec<(&'static str, ImportedValue)>) -> Self {
        self.properties.extend(properties);
        self
    }

    /// Returns `true` if it applies to all paths of this pattern, without conditions.
    pub(super) fn is_rule_of(&self, pattern: &str) -> bool {
        matches!(self.values.first(), Some(ImportedValue::Text(value)) if value == pattern)
            && self.properties.iter().all(|(name, _)| *name == "status")
    }

    fn has_block(&self) -> bool {
        self.needs_block || !self.children.is_empty()
    }

    fn write(&self, depth: usize, text: &mut String) {
        let indent = "    ".repeat(depth);
        for line in self.comment.iter().flat_map(|comment| comment.lines()) {
            // The comment must end where its line does.
            let _ = writeln!(text, "{indent}// {}", line.replace(|one| one != '\t' && is_special(one), "?"));
        }
        let _ = write!(text, "{indent}{}", self.name);
        for value in &self.values {
            text.push(' ');
            value.write(text);
        }
        for (name, value) in &self.properties {
            let _ = write!(text, " {name}=");
            value.write(text);
        }
        if !self.has_block() {
            text.push('\n');
            return;
        }
        text.push_str(" {\n");
        self.children.iter().for_each(|child| child.write(depth + 1, text));
        let _ = writeln!(text, "{indent}}}");
    }
}

impl ImportedValue {
    fn write(&self, text: &mut String) {
        match self {
            Self::Word(value) if is_word(value) => text.push_str(value),
            // A word of nginx's configuration that is none here is a text, so that `check` can point at it.
            Self::Text(value) | Self::Word(value) => text.push_str(&quote(value)),
        }
    }
}

/// The configuration's text; an empty line is between blocks.
pub(super) fn write(nodes: &[KdlNode]) -> String {
    let mut text = String::new();
    for (index, node) in nodes.iter().enumerate() {
        if index > 0 && (node.has_block() || nodes[index - 1].has_block()) {
            text.push('\n');
        }
        node.write(0, &mut text);
    }
    text
}

/// True for a number, or a word of letters that needs no quotation marks.
fn is_word(text: &str) -> bool {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    is_number || is_name
}

/// True for characters that end a line of KDL, or that KDL forbids (KDL 2, "Newline" and "Disallowed Literal Code Points").
fn is_special(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A text of KDL; one with backslashes or quotation marks is raw, so that expressions stay as they are read.
fn quote(text: &str) -> String {
    if text.contains(is_special) {
        return format!("\"{}\"", text.escape_default().to_string().replace("\\'", "'"));
    }
    if !text.contains(['\\', '"']) {
        return format!("\"{text}\"");
    }
    let hashes = (1..).map(|count| "#".repeat(count)).find(|hashes| !text.contains(&format!("\"{hashes}")));
    // Enough signs exceed any run of them after a quotation mark in the text.
    let hashes = hashes.unwrap_or_default();
    format!("{hashes}\"{text}\"{hashes}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_what_they_were() {
        let check = |text: &str, expect: &str| assert_eq!(quote(text), expect);
        check("/srv/www", "\"/srv/www\"");
        check(r"~\.php$", r##"#"~\.php$"#"##);
        check("a\"b", "#\"a\"b\"#");
        check("a\"#b", "##\"a\"#b\"##");
        check("two\nlines", "\"two\\nlines\"");
        check("a\u{2028}b\u{202e}'", "\"a\\u{2028}b\\u{202e}'\"");
    }

    /// Found by fuzzing (issue 17): text after such a character was configuration.
    #[test]
    fn comments_end_with_their_lines() {
        for end in ['\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}', '\0', '\u{202e}'] {
            let node = KdlNode::new("browse").comment(format!("a\tb{end}listen 80"));
            assert_eq!(write(&[node]), "// a\tb?listen 80\nbrowse\n", "{end:?}");
        }
    }

    #[test]
    fn words_are_no_way_out_of_a_line() {
        for (word, expect) in [("404", "404"), ("off", "off"), ("4a4", "\"4a4\""), ("a } b", "\"a } b\""), ("", "\"\"")]
        {
            assert_eq!(write(&[KdlNode::new("browse").word(word)]), format!("browse {expect}\n"));
        }
    }

    #[test]
    fn blocks_stand_apart() {
        let site = KdlNode::with("site", "example.com").block(vec![KdlNode::new("listen").word(80)]);
        let server = KdlNode::new("server-x").block(vec![KdlNode::new("workers").word("auto").comment("each core")]);
        let expect = "site \"example.com\" {\n    listen 80\n}\n\nserver-x {\n    // each core\n    workers auto\n}\n";
        assert_eq!(write(&[site, server]), expect);
    }

    /// Found by fuzzing (issue 17): a site without lines had no block.
    #[test]
    fn empty_blocks_are_written_where_one_is_required() {
        let check = |node: KdlNode, expect: &str| assert_eq!(write(&[node]), expect);
        check(KdlNode::new("site").required_block(Vec::new()), "site {\n}\n");
        check(KdlNode::with("forward", "http://b").block(Vec::new()), "forward \"http://b\"\n");
    }
}
