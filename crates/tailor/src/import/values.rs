//! Values of the expressions in scripts.

use super::script::{Expression, ScriptTemplatePiece};
use super::write::literal;

/// Maximum size of a value, because a short script can double a value many times.
const VALUE_BYTES_MAX: usize = 16 << 20;

/// Value of an expression, as far as it is known before the script runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScriptValue {
    /// Template of a scenario file.
    Text(String),
    Number(f64),
    Bool(bool),
    Table(Vec<(String, ScriptValue)>),
    /// A random number that is an index of a list of this length.
    RandomIndex,
    /// A random number between two bounds.
    Random(f64, f64),
    /// Part of the response to a request, by the request's place.
    Response(usize, ResponsePart),
    Nothing,
}

/// Part of a response.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ResponsePart {
    Whole,
    Fields,
    /// JSON pointer.
    Json(String),
    Header(String),
}

impl ScriptValue {
    /// Member of a table.
    pub(super) fn member(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Table(entries) => entries.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Approximate size in bytes.
    fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Text(text) => text.len(),
                Self::Table(entries) => entries.iter().map(|(key, value)| key.len() + value.size()).sum(),
                _ => 0,
            }
    }

    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// Meaning of names and calls in a script.
pub(super) trait Evaluator {
    /// Value of a name.
    fn name(&self, name: &str) -> Option<ScriptValue>;

    /// Value of a call.
    fn call(&mut self, function: &Expression, arguments: &[Expression]) -> Result<ScriptValue, String>;

    /// Member of a value that is no table.
    fn member(&mut self, base: ScriptValue, name: &str) -> Result<ScriptValue, String>;

    /// Name of the variable that has a part of a response.
    fn capture(&mut self, request: usize, part: &ResponsePart) -> Result<String, String>;

    /// Index of the element that this pass over the script chooses at random from a list of this length.
    fn choose(&mut self, length: usize) -> Result<usize, String>;

    /// Evaluates the entries of a table. Its size is checked after each one, before the next takes memory.
    fn table<'a>(&mut self, entries: impl Iterator<Item = (String, &'a Expression)>) -> Result<ScriptValue, String> {
        let mut size = 0;
        let entries = entries.map(|(key, value)| {
            let value = self.evaluate(value)?;
            size += key.len() + value.size();
            check_size(size)?;
            Ok((key, value))
        });
        Ok(ScriptValue::Table(entries.collect::<Result<_, String>>()?))
    }

    /// Evaluates an expression. The error says what has no translation.
    fn evaluate(&mut self, expression: &Expression) -> Result<ScriptValue, String> {
        Ok(match expression {
            Expression::Text(text) => ScriptValue::Text(literal(text)),
            Expression::Number(number) => ScriptValue::Number(*number),
            Expression::Template(pieces) => {
                let mut out = String::new();
                for piece in pieces {
                    out += &match piece {
                        ScriptTemplatePiece::Text(text) => literal(text),
                        ScriptTemplatePiece::Value(value) => self.text(value)?,
                    };
                    check_size(out.len())?;
                }
                ScriptValue::Text(out)
            }
            Expression::Name(name) => match name.as_str() {
                "true" => ScriptValue::Bool(true),
                "false" => ScriptValue::Bool(false),
                "nil" | "null" | "undefined" => ScriptValue::Nothing,
                name => self.name(name).ok_or_else(|| format!("`{name}` has no value that is known before the run"))?,
            },
            Expression::Member(base, member) => {
                let (base, member) = (self.evaluate(base)?, self.evaluate(member)?);
                match (&base, &member) {
                    (ScriptValue::Table(entries), ScriptValue::RandomIndex) => {
                        let chosen = self.choose(entries.len())?;
                        entries.get(chosen).map_or(ScriptValue::Nothing, |(_, value)| value.clone())
                    }
                    (ScriptValue::Table(entries), ScriptValue::Text(name))
                        if name == "length" && base.member(name).is_none() =>
                    {
                        ScriptValue::Number(entries.len() as f64)
                    }
                    _ => {
                        let name = self.text_of(member)?;
                        match base.member(&name).cloned() {
                            Some(value) => value,
                            None if matches!(base, ScriptValue::Table(_)) => ScriptValue::Nothing,
                            None => self.member(base, &name)?,
                        }
                    }
                }
            }
            Expression::Call(function, arguments) => self.call(function, arguments)?,
            Expression::Table(entries) => self.table(entries.iter().map(|(key, value)| (key.clone(), value)))?,
            Expression::List(values) => {
                self.table(values.iter().enumerate().map(|(index, value)| (index.to_string(), value)))?
            }
            Expression::Unary("#", list) => match self.evaluate(list)? {
                ScriptValue::Table(entries) => ScriptValue::Number(entries.len() as f64),
                _ => return Err("a length".to_owned()),
            },
            Expression::Unary("-", number) => match self.evaluate(number)?.number() {
                Some(number) => ScriptValue::Number(-number),
                None => return Err("arithmetic with a value that is not known before the run".to_owned()),
            },
            Expression::Binary(operator, left, right) => self.binary(operator, left, right)?,
            Expression::Function(..) => return Err("a function as a value".to_owned()),
            Expression::Unary(operator, _) => return Err(format!("the operator `{operator}`")),
        })
    }

    /// Evaluates an operation of two operands.
    fn binary(&mut self, operator: &str, left: &Expression, right: &Expression) -> Result<ScriptValue, String> {
        if matches!(operator, "||" | "or" | "??") {
            return match self.evaluate(left) {
                Ok(ScriptValue::Nothing | ScriptValue::Bool(false)) | Err(_) => self.evaluate(right),
                Ok(value) => Ok(value),
            };
        }
        let (left, right) = (self.evaluate(left)?, self.evaluate(right)?);
        if let (ScriptValue::Random(low, high), Some(number)) = (&left, right.number()) {
            return match operator {
                "*" => Ok(ScriptValue::Random(low * number, high * number)),
                "+" => Ok(ScriptValue::Random(low + number, high + number)),
                "/" if number != 0.0 => Ok(ScriptValue::Random(low / number, high / number)),
                _ => Err("arithmetic with a random number".to_owned()),
            };
        }
        if operator == ".." || (operator == "+" && (is_text(&left) || is_text(&right))) {
            let text = self.text_of(left)? + &self.text_of(right)?;
            check_size(text.len())?;
            return Ok(ScriptValue::Text(text));
        }
        match (left, right) {
            (ScriptValue::Number(left), ScriptValue::Number(right)) => Ok(ScriptValue::Number(match operator {
                "+" => left + right,
                "-" => left - right,
                "*" => left * right,
                "/" => left / right,
                _ => return Err(format!("the operator `{operator}`")),
            })),
            _ => Err("arithmetic with a value that is not known before the run".to_owned()),
        }
    }

    /// Evaluates an expression to a template.
    fn text(&mut self, expression: &Expression) -> Result<String, String> {
        let value = self.evaluate(expression)?;
        self.text_of(value)
    }

    /// Converts a value to a template.
    fn text_of(&mut self, value: ScriptValue) -> Result<String, String> {
        match value {
            ScriptValue::Text(text) => Ok(text),
            ScriptValue::Number(number) => Ok(number.to_string()),
            ScriptValue::Bool(is_true) => Ok(is_true.to_string()),
            ScriptValue::Random(..) | ScriptValue::RandomIndex => Ok("${random}".to_owned()),
            ScriptValue::Response(request, part) => Ok(format!("${{{}}}", self.capture(request, &part)?)),
            ScriptValue::Table(_) => Err("a table as a text".to_owned()),
            ScriptValue::Nothing => Err("a missing value as a text".to_owned()),
        }
    }

    /// Evaluates the text of a table's entries.
    fn entries(&mut self, value: ScriptValue) -> Result<Vec<(String, String)>, String> {
        match value {
            ScriptValue::Table(entries) => {
                entries.into_iter().map(|(key, value)| Ok((key, self.text_of(value)?))).collect()
            }
            ScriptValue::Nothing => Ok(Vec::new()),
            _ => Err("a value that is no table".to_owned()),
        }
    }
}

fn check_size(bytes: usize) -> Result<(), String> {
    if bytes > VALUE_BYTES_MAX { Err(format!("a value of more than {VALUE_BYTES_MAX} bytes")) } else { Ok(()) }
}

fn is_text(value: &ScriptValue) -> bool {
    matches!(value, ScriptValue::Text(_) | ScriptValue::Response(..))
}
