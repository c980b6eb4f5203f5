//! The expression language of the configuration: values with variables, maps, and conditions.
//!
//! The crate knows no protocol. [`FactSource`] gives it the facts of a request; [`Condition`] and [`Value`] are compiled
//! when the configuration is read, and evaluated for each request. Text, compiled expressions and results are bounded,
//! and regular expressions take linear time.

mod condition;
mod lex;
mod map;
mod network;
mod parse;
mod reference;
mod regular;
#[cfg(test)]
mod tests;
mod value;
mod variable;

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;

pub use condition::{Condition, Verdict};
pub use map::{Map, MapBuilder, MapFault, MapPattern, bind};
pub use network::{Network, number_of, unmapped};
pub use parse::{parse_condition, parse_value, parse_variable};
pub use reference::{ExpressionReference, MapRef, Secret, SecretRef};
pub use regular::Regex;
pub use value::{Groups, Piece, Unknown, Value};
pub use variable::{BotFact, Fact, Place, TlsFact, Variable, variable_names};

/// Most bytes of an expression's text.
pub const TEXT_BYTES_MAX: usize = 8 << 10;

/// Most bytes of a value that an expression reads or makes. A longer one counts as unknown.
pub const VALUE_BYTES_MAX: usize = 16 << 10;

/// Facts of a request, as an expression sees them.
pub trait FactSource {
    /// Value of a fact. A fact that the request lacks, such as a missing header field, is empty. `None` means that its
    /// value cannot be told, such as that of an argument that is sent twice.
    fn fact(&self, fact: &Fact) -> Option<Cow<'_, [u8]>>;

    /// Address of the client; `None` if it has none.
    fn client(&self) -> Option<IpAddr>;
}

/// Fault of an expression's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Sentence without a full stop: the fault.
    pub message: String,
    /// Way to fix it.
    pub help: Option<String>,
    /// Bytes of the text that it is about.
    pub span: Range<usize>,
}

impl ExpressionError {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, span }
    }

    fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// The nearest of these names, if one is near enough to be what was meant.
pub(crate) fn nearest<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase();
    // Long texts are no misspelt names, and the distance takes the product of the lengths.
    if wrong.len() > 64 {
        return None;
    }
    let near = names.map(|name| (strsim::osa_distance(&wrong, name), name));
    near.filter(|(distance, name)| *distance <= name.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|near| near.1)
}
