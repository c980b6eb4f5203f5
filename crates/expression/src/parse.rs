//! From text to values and conditions.

use std::net::IpAddr;
use std::ops::Range;

use crate::condition::{Comparison, Instruction, NESTING_MAX, Test};
use crate::lex::{ConditionToken, ConditionTokenKind, tokens};
use crate::value::Piece;
use crate::variable::Place;
use crate::{
    Condition, ExpressionError, Fact, Network, Regex, TEXT_BYTES_MAX, Value, Variable, nearest, variable_names,
};

/// Most tests of a condition.
const TESTS_MAX: usize = 256;

/// Words that are no variables.
const WORDS: [&str; 9] = ["and", "or", "not", "all", "any", "in", "matches", "contains", "starts-with"];

/// Operators, for messages.
const OPERATORS: &str = "operators are `==`, `!=`, `<`, `<=`, `>`, `>=`, `starts-with`, `ends-with`, `contains`, \
                         `matches`, `in` and `not in`";

/// Reads the name of a variable, as in `{NAME}`.
///
/// # Errors
/// The fault of the name.
pub fn parse_variable(name: &str, place: Place) -> Result<Variable, ExpressionError> {
    Variable::parse(name, place).map_err(|(message, help)| ExpressionError::new(0..name.len(), message).help(help))
}

/// Reads a value: a text with variables in braces. `{{` and `}}` are braces.
///
/// # Errors
/// The fault of the text.
pub fn parse_value(text: &str, place: Place) -> Result<Value, ExpressionError> {
    check_length(text)?;
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut at = 0;
    while let Some(found) = text[at..].find(['{', '}']) {
        literal.push_str(&text[at..at + found]);
        let open = at + found;
        let brace = &text[open..=open];
        at = open + 1;
        if text[at..].starts_with(brace) {
            literal.push_str(brace);
            at += 1;
            continue;
        }
        let end = text[at..].find('}').filter(|_| brace == "{").ok_or_else(|| {
            ExpressionError::new(open..open + 1, "this brace has no counterpart")
                .help("write `{name}`, or `{{` for a brace")
        })?;
        let name = &text[at..at + end];
        let variable = parse_variable(name, place).map_err(|error| ExpressionError { span: at..at + end, ..error })?;
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal).into_bytes().into()));
        }
        pieces.push(Piece::Variable(variable));
        at += end + 1;
    }
    literal.push_str(&text[at..]);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal.into_bytes().into()));
    }
    Ok(Value::new(pieces))
}

/// Reads and compiles a condition.
///
/// # Errors
/// The fault of the text.
pub fn parse_condition(text: &str, place: Place) -> Result<Condition, ExpressionError> {
    check_length(text)?;
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, end: text.len(), place, program: Vec::new(), tests: 0 };
    parser.any_of_all(0)?;
    if let Some(token) = parser.tokens.get(parser.at) {
        let error = ExpressionError::new(token.span.clone(), format!("unexpected {}", shown(&token.kind)));
        return Err(error.help(format!("join conditions with `and` or `or`; {OPERATORS}")));
    }
    Ok(Condition::new(text, parser.program))
}

fn check_length(text: &str) -> Result<(), ExpressionError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ExpressionError::new(
            0..text.len(),
            format!("the expression has more than {TEXT_BYTES_MAX} bytes"),
        )
        .help("use a `map`, which may have many cases"));
    }
    Ok(())
}

struct Parser<'t> {
    tokens: &'t [ConditionToken],
    at: usize,
    /// Length of the text.
    end: usize,
    place: Place,
    program: Vec<Instruction>,
    tests: usize,
}

impl Parser<'_> {
    /// `a or b`
    fn any_of_all(&mut self, depth: usize) -> Result<(), ExpressionError> {
        if depth >= NESTING_MAX {
            let error = ExpressionError::new(self.span(), "the condition is nested too deeply");
            return Err(error.help("use a `map` for a part of it"));
        }
        self.all_of(depth)?;
        while self.word("or") {
            self.joined(Instruction::Or, |parser| parser.all_of(depth))?;
        }
        Ok(())
    }

    /// `a and b`
    fn all_of(&mut self, depth: usize) -> Result<(), ExpressionError> {
        self.one(depth)?;
        while self.word("and") {
            self.joined(Instruction::And, |parser| parser.one(depth))?;
        }
        Ok(())
    }

    /// Adds the second operand, which is passed over if the first decides.
    fn joined(
        &mut self,
        join: Instruction,
        operand: impl FnOnce(&mut Self) -> Result<(), ExpressionError>,
    ) -> Result<(), ExpressionError> {
        let jump = self.program.len();
        let is_and = join == Instruction::And;
        self.program.push(Instruction::Not);
        operand(self)?;
        self.program.push(join);
        let target = self.program.len();
        self.program[jump] = if is_and { Instruction::JumpIfFalse(target) } else { Instruction::JumpIfTrue(target) };
        Ok(())
    }

    /// `not a`, `(a)`, `all(a, b)`, `any(a, b)`, or a test.
    fn one(&mut self, depth: usize) -> Result<(), ExpressionError> {
        if depth >= NESTING_MAX {
            return self.any_of_all(depth);
        }
        if self.word("not") {
            self.one(depth + 1)?;
            self.program.push(Instruction::Not);
            return Ok(());
        }
        for (name, join) in [("all", Instruction::And), ("any", Instruction::Or)] {
            if self.is_word(name) {
                self.at += 1;
                self.expect("(")?;
                self.any_of_all(depth + 1)?;
                while self.symbol(",") {
                    self.joined(join.clone(), |parser| parser.any_of_all(depth + 1))?;
                }
                return self.expect(")");
            }
        }
        if self.symbol("(") {
            self.any_of_all(depth + 1)?;
            return self.expect(")");
        }
        let test = self.test()?;
        self.tests += 1;
        if self.tests > TESTS_MAX {
            let error = ExpressionError::new(self.span(), format!("the condition has more than {TESTS_MAX} tests"));
            return Err(error.help("use `in` with a list, or a `map`"));
        }
        self.program.push(Instruction::Test(test.0));
        if test.1 {
            self.program.push(Instruction::Not);
        }
        Ok(())
    }

    /// A test, and whether it is negated.
    fn test(&mut self) -> Result<(Test, bool), ExpressionError> {
        let value = self.operand()?;
        let Some(token) = self.tokens.get(self.at) else { return Ok((Test::Present(value), false)) };
        let is_negated =
            self.is_word("not") && self.tokens.get(self.at + 1).is_some_and(|next| next.kind == word("in"));
        if is_negated {
            self.at += 1;
        }
        let operator = match &self.tokens[self.at].kind {
            ConditionTokenKind::Word(word) => word.as_str(),
            ConditionTokenKind::Symbol(symbol) => symbol,
            ConditionTokenKind::Text(_) | ConditionTokenKind::Number(_) => {
                let error = ExpressionError::new(token.span.clone(), "an operator is missing before this");
                return Err(error.help(OPERATORS));
            }
        };
        self.at += 1;
        let comparison = match operator {
            "==" | "!=" => {
                let is_negated = operator == "!=";
                let span = self.span();
                let other = self.operand()?;
                if value.as_client()
                    && let Some(text) = other.as_literal()
                {
                    return Ok((Test::InNetworks(value, Box::new([network(text, span)?])), is_negated));
                }
                return Ok((Test::Equals(value, other), is_negated));
            }
            "starts-with" => return Ok((Test::StartsWith(value, self.operand()?), false)),
            "ends-with" => return Ok((Test::EndsWith(value, self.operand()?), false)),
            "contains" => return Ok((Test::Contains(value, self.operand()?), false)),
            "matches" => return Ok((self.matches(value)?, false)),
            "in" => return Ok((self.list(value)?, is_negated)),
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            "and" | "or" | ")" | "," => {
                self.at -= 1;
                return Ok((Test::Present(value), false));
            }
            _ => {
                let error = ExpressionError::new(token.span.clone(), format!("`{operator}` is not an operator"));
                let operators = ["starts-with", "ends-with", "contains", "matches", "in", "and", "or"];
                let near = nearest(operator, operators.into_iter());
                return Err(error.help(near.map_or(OPERATORS.into(), |near| format!("did you mean `{near}`?"))));
            }
        };
        Ok((Test::Number(value, comparison, self.operand()?), false))
    }

    fn matches(&mut self, value: Value) -> Result<Test, ExpressionError> {
        let span = self.span();
        let text = self.text("a regular expression in single quotes")?;
        let regex = Regex::new(&text).map_err(|error| {
            let full = error.to_string();
            // The last line says it; those before show where, in lines of their own.
            let last = full.lines().last().unwrap_or_default();
            let reason = last.strip_prefix("error: ").unwrap_or(last);
            ExpressionError::new(span, format!("`{text}` is not a regular expression: {reason}")).help(
                "the syntax is that of https://docs.rs/regex; write a backslash twice in quotes, once in `#\"…\"#`",
            )
        })?;
        Ok(Test::Matches(value, regex))
    }

    /// `in ('a', 'b')`
    fn list(&mut self, value: Value) -> Result<Test, ExpressionError> {
        self.expect("(")?;
        let mut texts: Vec<(String, Range<usize>)> = Vec::new();
        loop {
            let span = self.span();
            let text = match self.tokens.get(self.at).map(|token| &token.kind) {
                Some(ConditionTokenKind::Number(number)) => {
                    self.at += 1;
                    number.to_string()
                }
                _ => self.text("a text in single quotes")?,
            };
            texts.push((text, span));
            if !self.symbol(",") {
                break;
            }
        }
        self.expect(")")?;
        // One network makes all of them networks: compared as a text, it would never match.
        let is_network =
            |text: &str| text.split_once('/').is_some_and(|(address, _)| address.parse::<IpAddr>().is_ok());
        let are_networks = texts.iter().any(|(text, _)| is_network(text));
        if value.as_client() || are_networks {
            let networks: Result<Vec<_>, _> =
                texts.into_iter().map(|(text, span)| network(text.as_bytes(), span)).collect();
            return Ok(Test::InNetworks(value, networks?.into()));
        }
        Ok(Test::OneOf(value, texts.into_iter().map(|(text, _)| text.into_bytes().into()).collect()))
    }

    /// A variable, text or number.
    fn operand(&mut self) -> Result<Value, ExpressionError> {
        let Some(token) = self.tokens.get(self.at) else {
            let error = ExpressionError::new(self.span(), "the condition ends too early");
            return Err(error.help("write, for example, `method == 'GET'`"));
        };
        let value = match &token.kind {
            ConditionTokenKind::Text(text) => Value::literal(text),
            ConditionTokenKind::Number(number) => Value::literal(number.to_string()),
            ConditionTokenKind::Word(name) => {
                let variable = parse_variable(name, self.place).map_err(|error| {
                    let help = match name.contains('.') {
                        false if WORDS.contains(&name.as_str()) => {
                            Some(format!("a variable or text comes before `{name}`"))
                        }
                        false if nearest(name, variable_names()).is_none() => Some(format!(
                            "write texts in single quotes: `'{name}'`; {}",
                            error.help.unwrap_or_default()
                        )),
                        _ => error.help,
                    };
                    ExpressionError { span: token.span.clone(), help, message: error.message }
                })?;
                if matches!(variable, Variable::Group(_)) {
                    let error = ExpressionError::new(
                        token.span.clone(),
                        "conditions cannot test groups of their own expressions",
                    );
                    return Err(error.help("match the whole value with one regular expression"));
                }
                if matches!(variable, Variable::Fact(Fact::RequestId)) {
                    let error =
                        ExpressionError::new(token.span.clone(), "`request_id` is random, so no condition can test it");
                    return Err(error.help("test another variable"));
                }
                Value::new(vec![Piece::Variable(variable)])
            }
            ConditionTokenKind::Symbol(symbol) => {
                let error = ExpressionError::new(token.span.clone(), format!("unexpected `{symbol}`"));
                return Err(error.help("a variable or a text in single quotes comes here"));
            }
        };
        self.at += 1;
        Ok(value)
    }

    fn text(&mut self, expected: &str) -> Result<String, ExpressionError> {
        match self.tokens.get(self.at).map(|token| &token.kind) {
            Some(ConditionTokenKind::Text(text)) => {
                self.at += 1;
                Ok(text.clone())
            }
            found => {
                let found = found.map_or("the end".into(), shown);
                Err(ExpressionError::new(self.span(), format!("expected {expected}, found {found}")))
            }
        }
    }

    /// Place of the next token.
    fn span(&self) -> Range<usize> {
        self.tokens.get(self.at).map_or(self.end.saturating_sub(1)..self.end, |token| token.span.clone())
    }

    fn is_word(&self, expected: &str) -> bool {
        self.tokens.get(self.at).is_some_and(|token| token.kind == word(expected))
    }

    /// Takes the word, if it is next.
    fn word(&mut self, expected: &str) -> bool {
        let is_next = self.is_word(expected);
        self.at += usize::from(is_next);
        is_next
    }

    /// Takes the symbol, if it is next.
    fn symbol(&mut self, expected: &'static str) -> bool {
        let is_next = self.tokens.get(self.at).is_some_and(|token| token.kind == ConditionTokenKind::Symbol(expected));
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, expected: &'static str) -> Result<(), ExpressionError> {
        if self.symbol(expected) {
            return Ok(());
        }
        let found = self.tokens.get(self.at).map_or("the end".into(), |token| shown(&token.kind));
        Err(ExpressionError::new(self.span(), format!("expected `{expected}`, found {found}")))
    }
}

fn word(text: &str) -> ConditionTokenKind {
    ConditionTokenKind::Word(text.into())
}

fn shown(kind: &ConditionTokenKind) -> String {
    match kind {
        ConditionTokenKind::Word(text) => format!("`{text}`"),
        ConditionTokenKind::Text(text) => format!("`'{text}'`"),
        ConditionTokenKind::Number(number) => format!("`{number}`"),
        ConditionTokenKind::Symbol(symbol) => format!("`{symbol}`"),
    }
}

fn network(text: &[u8], span: Range<usize>) -> Result<Network, ExpressionError> {
    let text = String::from_utf8_lossy(text);
    Network::parse(&text).ok_or_else(|| {
        ExpressionError::new(span, format!("`{text}` is not an address or network"))
            .help("write, for example, `'192.0.2.1'`, `'192.0.2.0/24'` or `'2001:db8::/32'`")
    })
}
