//! Directives of other servers: a name, arguments and perhaps a block.

use crate::FileLine;
use crate::expression::ReadOnce;

/// A directive with its arguments, without quotation marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directive {
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    /// Directives in its braces.
    pub(crate) block: Option<Vec<Directive>>,
    pub(crate) place: FileLine,
    /// True if its arguments had variables.
    pub(crate) had_variables: bool,
    /// Expression of a `location` or `rewrite`.
    pub(crate) expression: ReadOnce,
}

impl Directive {
    /// First argument, or an empty text.
    pub(crate) fn first(&self) -> &str {
        self.argument(0)
    }

    /// An argument, or nothing if there are not so many.
    pub(crate) fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map_or("", String::as_str)
    }

    /// The value of an argument `NAME=VALUE`.
    pub(crate) fn named(&self, name: &str) -> Option<&str> {
        self.arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.arguments.iter().any(|argument| argument == word)
    }

    pub(crate) fn children(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Quotation for people: the line without its block.
    pub(crate) fn line(&self) -> String {
        [&self.name].into_iter().chain(&self.arguments).map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// The line with its block.
    pub(crate) fn text(&self) -> String {
        let inside: Vec<String> = self.children().iter().map(Self::text).collect();
        if inside.is_empty() { self.line() } else { format!("{} {{ {} }}", self.line(), inside.join("; ")) }
    }
}
