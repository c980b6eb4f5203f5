//! Conditions, compiled to a flat program over three values: true, false and unknown.

use std::collections::HashSet;
use std::fmt;

use crate::value::{Groups, Unknown};
use crate::{ExpressionReference, Fact, FactSource, Network, Regex, Value, Variable};

/// Deepest nesting of a condition.
pub(crate) const NESTING_MAX: usize = 32;

/// A compiled condition.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    program: Box<[Instruction]>,
}

/// Result of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// The condition holds.
    True,
    /// The condition does not hold.
    #[default]
    False,
    /// A value that decides cannot be told.
    Unknown,
}

/// An instruction. Results of tests are on a stack.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Instruction {
    /// Pushes the result of a test.
    Test(Test),
    /// Negates the top.
    Not,
    /// Goes on elsewhere if the top is false.
    JumpIfFalse(usize),
    /// Goes on elsewhere if the top is true.
    JumpIfTrue(usize),
    /// Joins the two on top: both must hold.
    And,
    /// Joins the two on top: one must hold.
    Or,
}

/// A test of values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    /// Not empty.
    Present(Value),
    /// Equal.
    Equals(Value, Value),
    /// The second begins the first.
    StartsWith(Value, Value),
    /// The second ends the first.
    EndsWith(Value, Value),
    /// The second is in the first.
    Contains(Value, Value),
    /// Matches.
    Matches(Value, Regex),
    /// One of the texts.
    OneOf(Value, HashSet<Box<[u8]>>),
    /// An address of one of the networks.
    InNetworks(Value, Box<[Network]>),
    /// Comparison of numbers.
    Number(Value, Comparison, Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Verdict {
    fn of(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }

    /// Returns `true` if it holds for sure.
    pub fn is_true(self) -> bool {
        self == Self::True
    }

    /// Returns `true` unless it does not hold for sure.
    pub fn may_be_true(self) -> bool {
        self != Self::False
    }

    fn not(self) -> Self {
        match self {
            Self::True => Self::False,
            Self::False => Self::True,
            Self::Unknown => Self::Unknown,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::False, _) | (_, Self::False) => Self::False,
            (Self::True, Self::True) => Self::True,
            _ => Self::Unknown,
        }
    }

    fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }
}

impl Condition {
    pub(crate) fn new(text: &str, program: Vec<Instruction>) -> Self {
        Self { text: text.into(), program: program.into() }
    }

    /// Evaluates the condition for a request.
    pub fn evaluate(&self, fields: &dyn FactSource) -> Verdict {
        self.run(fields, None)
    }

    /// Evaluates the condition; also returns the groups of the last regular expression that matched.
    pub fn evaluate_with_groups(&self, fields: &dyn FactSource) -> (Verdict, Groups) {
        let mut groups = Groups::default();
        let verdict = self.run(fields, Some(&mut groups));
        (verdict, groups)
    }

    fn run(&self, fields: &dyn FactSource, mut groups: Option<&mut Groups>) -> Verdict {
        // Each level of nesting has at most three results: left of `or`, left of `and`, and an argument of `all` or `any`.
        let mut stack = [Verdict::False; 3 * (NESTING_MAX + 1)];
        let (mut top, mut at) = (0, 0);
        while let Some(instruction) = self.program.get(at) {
            at += 1;
            match instruction {
                Instruction::Test(test) => {
                    stack[top] = test.evaluate(fields, groups.as_deref_mut()).unwrap_or(Verdict::Unknown);
                    top += 1;
                }
                Instruction::Not => stack[top - 1] = stack[top - 1].not(),
                Instruction::JumpIfFalse(target) if stack[top - 1] == Verdict::False => at = *target,
                Instruction::JumpIfTrue(target) if stack[top - 1] == Verdict::True => at = *target,
                Instruction::JumpIfFalse(_) | Instruction::JumpIfTrue(_) => {}
                Instruction::And | Instruction::Or => {
                    top -= 1;
                    let (left, right) = (stack[top - 1], stack[top]);
                    let is_and = *instruction == Instruction::And;
                    stack[top - 1] = if is_and { left.and(right) } else { left.or(right) };
                }
            }
        }
        stack[0]
    }

    /// References to maps and secrets.
    pub fn references(&self) -> impl Iterator<Item = ExpressionReference> {
        let tests = self.program.iter().filter_map(|instruction| match instruction {
            Instruction::Test(test) => Some(test),
            _ => None,
        });
        tests.flat_map(|test| {
            let (first, second) = test.values();
            [Some(first), second].into_iter().flatten().flat_map(Value::references).collect::<Vec<_>>()
        })
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        // The program, because it has the values of maps, secrets and the environment.
        self.text == other.text && self.program == other.program
    }
}

impl Eq for Condition {}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Test {
    fn values(&self) -> (&Value, Option<&Value>) {
        match self {
            Self::Present(value) | Self::Matches(value, _) | Self::OneOf(value, _) | Self::InNetworks(value, _) => {
                (value, None)
            }
            Self::Equals(one, other)
            | Self::StartsWith(one, other)
            | Self::EndsWith(one, other)
            | Self::Contains(one, other)
            | Self::Number(one, _, other) => (one, Some(other)),
        }
    }

    fn evaluate(&self, fields: &dyn FactSource, groups: Option<&mut Groups>) -> Result<Verdict, Unknown> {
        let holds = match self {
            Self::Present(value) => !value.read(fields, None)?.is_empty(),
            Self::Equals(one, other) => one.read(fields, None)? == other.read(fields, None)?,
            Self::StartsWith(one, other) => one.read(fields, None)?.starts_with(&other.read(fields, None)?),
            Self::EndsWith(one, other) => one.read(fields, None)?.ends_with(&other.read(fields, None)?),
            Self::Contains(one, other) => {
                memchr::memmem::find(&one.read(fields, None)?, &other.read(fields, None)?).is_some()
            }
            Self::Matches(value, regex) => {
                let text = value.read(fields, None)?;
                let Some(groups) = groups else { return Ok(Verdict::of(regex.get().is_match(&text))) };
                let found = Groups::of(regex.get(), &text);
                let holds = found.is_some();
                if let Some(found) = found {
                    *groups = found;
                }
                holds
            }
            Self::OneOf(value, texts) => texts.contains(&*value.read(fields, None)?),
            Self::InNetworks(value, networks) => {
                let address = match value.as_client() {
                    // A client without an address is in no network.
                    true => match fields.client() {
                        Some(address) => address,
                        None => return Ok(Verdict::False),
                    },
                    false => {
                        let text = value.read(fields, None)?;
                        std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).ok_or(Unknown)?
                    }
                };
                networks.iter().any(|network| network.has(address))
            }
            Self::Number(one, comparison, other) => {
                let (one, other) = (number(&one.read(fields, None)?)?, number(&other.read(fields, None)?)?);
                match comparison {
                    Comparison::Less => one < other,
                    Comparison::LessOrEqual => one <= other,
                    Comparison::Greater => one > other,
                    Comparison::GreaterOrEqual => one >= other,
                }
            }
        };
        Ok(Verdict::of(holds))
    }
}

impl Value {
    /// Returns `true` if the value is the client's address, which needs no text to be compared.
    pub(crate) fn as_client(&self) -> bool {
        matches!(self.pieces(), [crate::Piece::Variable(Variable::Fact(Fact::Client))])
    }
}

fn number(text: &[u8]) -> Result<u64, Unknown> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Unknown)
}
