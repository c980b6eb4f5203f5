//! Values: texts with variables.

use std::borrow::Cow;

use crate::variable::Variable;
use crate::{ExpressionReference, FactSource, VALUE_BYTES_MAX};

/// A text with variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    pieces: Box<[Piece]>,
}

/// A piece of a [`Value`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As written.
    Literal(Box<[u8]>),
    /// The value of a variable.
    Variable(Variable),
}

/// The value cannot be told: a fact is ambiguous, or the value is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// Group of a regular expression, by number or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group(Box<str>);

/// Texts that the groups of a regular expression matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Number and name of each group, and its text.
    list: Vec<(String, Vec<u8>)>,
}

impl Group {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.into())
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

impl Groups {
    /// The groups of this expression in a text; `None` if it does not match.
    pub(crate) fn of(regex: &regex::bytes::Regex, text: &[u8]) -> Option<Self> {
        let captures = regex.captures(text)?;
        let text_of = |index: usize| captures.get(index).map_or(&b""[..], |group| group.as_bytes()).to_vec();
        let mut list = Vec::new();
        for (index, name) in regex.capture_names().enumerate() {
            list.push((index.to_string(), text_of(index)));
            list.extend(name.map(|name| (name.to_owned(), text_of(index))));
        }
        Some(Self { list })
    }

    fn get(&self, group: &Group) -> &[u8] {
        self.list.iter().find(|(name, _)| *name == *group.0).map_or(b"", |(_, text)| text)
    }
}

impl Variable {
    /// The value for a request. Groups are those of the condition that held before.
    ///
    /// # Errors
    /// The value cannot be told.
    pub fn read<'a>(
        &'a self,
        fields: &'a dyn FactSource,
        groups: Option<&'a Groups>,
    ) -> Result<Cow<'a, [u8]>, Unknown> {
        let read = match self {
            Self::Fact(fact) => fields.fact(fact).ok_or(Unknown)?,
            Self::Map(map) => map.get().ok_or(Unknown)?.read(fields)?,
            Self::Secret(secret) => Cow::Borrowed(secret.get().ok_or(Unknown)?),
            Self::Group(group) => Cow::Borrowed(groups.map_or(&b""[..], |groups| groups.get(group))),
            Self::Environment(_, value) => Cow::Borrowed(&**value),
        };
        if read.len() > VALUE_BYTES_MAX { Err(Unknown) } else { Ok(read) }
    }
}

impl Value {
    pub(crate) fn new(pieces: Vec<Piece>) -> Self {
        Self { pieces: pieces.into() }
    }

    /// A text without variables.
    pub fn literal(text: impl AsRef<[u8]>) -> Self {
        let text = text.as_ref();
        Self { pieces: if text.is_empty() { Box::default() } else { Box::new([Piece::Literal(text.into())]) } }
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The text if there are no variables.
    pub fn as_literal(&self) -> Option<&[u8]> {
        match &*self.pieces {
            [] => Some(b""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The value for a request, without a copy if it is a single piece.
    ///
    /// # Errors
    /// The value cannot be told.
    pub fn read<'a>(
        &'a self,
        fields: &'a dyn FactSource,
        groups: Option<&'a Groups>,
    ) -> Result<Cow<'a, [u8]>, Unknown> {
        match &*self.pieces {
            [] => Ok(Cow::Borrowed(b"")),
            [Piece::Literal(text)] => Ok(Cow::Borrowed(text)),
            [Piece::Variable(variable)] => variable.read(fields, groups),
            pieces => {
                let mut joined = Vec::with_capacity(64);
                for piece in pieces {
                    match piece {
                        Piece::Literal(text) => joined.extend_from_slice(text),
                        Piece::Variable(variable) => joined.extend_from_slice(&variable.read(fields, groups)?),
                    }
                    if joined.len() > VALUE_BYTES_MAX {
                        return Err(Unknown);
                    }
                }
                Ok(Cow::Owned(joined))
            }
        }
    }

    /// Variables of the value.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Variable(variable) => Some(variable),
            Piece::Literal(_) => None,
        })
    }

    /// References to maps and secrets.
    pub fn references(&self) -> impl Iterator<Item = ExpressionReference> {
        self.variables().filter_map(Variable::reference)
    }

    /// Returns `true` if the operator has written all that the value can be.
    pub fn is_of_operator(&self) -> bool {
        self.variables().all(Variable::is_of_operator)
    }

    /// Returns `true` if the value has groups of a regular expression.
    pub(crate) fn has_groups(&self) -> bool {
        self.variables().any(|variable| matches!(variable, Variable::Group(_)))
    }
}

impl Variable {
    /// The reference, if the variable is one.
    pub fn reference(&self) -> Option<ExpressionReference> {
        match self {
            Self::Map(map) => Some(ExpressionReference::Map(map.clone())),
            Self::Secret(secret) => Some(ExpressionReference::Secret(secret.clone())),
            Self::Fact(_) | Self::Group(_) | Self::Environment(..) => None,
        }
    }
}
