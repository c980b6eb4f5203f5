//! Parser of scripts. A statement that it does not understand becomes [`StatementKind::Other`], and the parser goes on
//! after it.

use super::lexer::{ScriptToken, tokens};
use super::{Expression, ScriptLanguage, ScriptTemplatePiece, Statement, StatementKind};

/// Maximum nesting of expressions and blocks.
const DEPTH_MAX: usize = 100;
/// Maximum height of the tree of a statement, which chains such as `a + b + c` make high without nesting.
const HEIGHT_MAX: usize = 400;

/// Parses a script.
///
/// # Errors
/// The script has a token that the language does not have, or is nested too deeply.
pub(in crate::import) fn parse(text: &str, language: ScriptLanguage) -> Result<Vec<Statement>, String> {
    let mut parser = Parser { tokens: tokens(text, language)?, at: 0, language, depth: 0, height: 0 };
    let statements = parser.block(None);
    match parser.depth > DEPTH_MAX {
        true => Err(format!("line {}: more than {DEPTH_MAX} levels of nesting", parser.line())),
        false => Ok(statements),
    }
}

/// Operators with their precedences.
const OPERATORS: [(&str, u8); 21] = [
    ("||", 1),
    ("??", 1),
    ("or", 1),
    ("&&", 2),
    ("and", 2),
    ("===", 3),
    ("!==", 3),
    ("==", 3),
    ("!=", 3),
    ("~=", 3),
    ("<", 4),
    (">", 4),
    ("<=", 4),
    (">=", 4),
    ("..", 5),
    ("+", 6),
    ("-", 6),
    ("*", 7),
    ("/", 7),
    ("%", 7),
    ("^", 8),
];

/// Words that begin a block in Lua, which `end` or `until` ends.
const LUA_BLOCKS: [&str; 4] = ["if", "do", "function", "repeat"];

struct Parser {
    tokens: Vec<(ScriptToken, usize)>,
    at: usize,
    language: ScriptLanguage,
    /// Nesting of the current place; more than [`DEPTH_MAX`] after the limit was exceeded.
    depth: usize,
    /// Upper bound for the height of all trees that were parsed within the current place.
    height: usize,
}

/// The parser does not understand the statement.
struct NotUnderstood;

type Parsed<T> = Result<T, NotUnderstood>;

impl Parser {
    fn peek(&self) -> Option<&ScriptToken> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(ScriptToken::Sign(found)) if *found == sign)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(ScriptToken::Name(found)) if found == word)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let is_next = self.is_sign(sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is_next = self.is_word(word);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &str) -> Parsed<()> {
        if self.take_sign(sign) { Ok(()) } else { Err(NotUnderstood) }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.peek() {
            Some(ScriptToken::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(NotUnderstood),
        }
    }

    /// Runs a part of the parser one level deeper.
    fn nest<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            // Nothing after it is parsed, and the depth stays.
            self.at = self.tokens.len();
            return Err(NotUnderstood);
        }
        let outer = std::mem::take(&mut self.height);
        let result = parse(self);
        self.height = outer.max(self.height + 1);
        if self.depth <= DEPTH_MAX {
            self.depth -= 1;
        }
        result
    }

    /// Adds a link to a chain, such as an operator or a member.
    fn link(&mut self) -> Parsed<()> {
        self.height += 1;
        if self.height > HEIGHT_MAX { Err(NotUnderstood) } else { Ok(()) }
    }

    /// Statements up to an end, which is taken, or up to the end of the script.
    fn block(&mut self, end: Option<&ScriptToken>) -> Vec<Statement> {
        let mut statements = Vec::new();
        while let Some(token) = self.peek() {
            if Some(token) == end {
                self.at += 1;
                break;
            }
            if self.take_sign(";") {
                continue;
            }
            let (start, line) = (self.at, self.line());
            let kind = self.nest(Self::statement).unwrap_or_else(|NotUnderstood| {
                if self.depth <= DEPTH_MAX {
                    self.at = start;
                    self.skip_statement(end);
                }
                StatementKind::Other
            });
            statements.push(Statement { line, kind });
        }
        statements
    }

    fn statement(&mut self) -> Parsed<StatementKind> {
        let kind = match self.language {
            ScriptLanguage::Lua => self.lua_statement(),
            ScriptLanguage::JavaScript => self.javascript_statement(),
        }?;
        // In both languages a statement ends with its line, a semicolon, or its block.
        let is_end = match self.tokens.get(self.at) {
            None | Some((ScriptToken::Sign(";" | "}"), _)) => true,
            Some((ScriptToken::Name(name), _)) if name == "end" => true,
            Some((_, line)) => *line > self.tokens[self.at - 1].1,
        };
        if is_end { Ok(kind) } else { Err(NotUnderstood) }
    }

    fn javascript_statement(&mut self) -> Parsed<StatementKind> {
        if self.take_word("import") {
            self.at -= 1;
            self.skip_statement(None);
            return Ok(StatementKind::Import);
        }
        let is_default = self.take_word("export") && self.take_word("default");
        if self.take_word("const") || self.take_word("let") || self.take_word("var") {
            let name = self.name()?;
            self.expect("=")?;
            return Ok(StatementKind::Declare { name, value: self.expression(0)? });
        }
        let _ = self.take_word("async");
        if self.take_word("function") {
            let name = if is_default { self.name().unwrap_or_default() } else { self.name()? };
            let (_, body) = self.function_rest()?;
            return Ok(StatementKind::Function { name: if is_default { "default".to_owned() } else { name }, body });
        }
        if is_default {
            return match self.expression(0)? {
                Expression::Function(_, body) => Ok(StatementKind::Function { name: "default".to_owned(), body }),
                _ => Err(NotUnderstood),
            };
        }
        self.simple_statement()
    }

    fn lua_statement(&mut self) -> Parsed<StatementKind> {
        let is_local = self.take_word("local");
        if self.take_word("function") {
            let mut name = self.name()?;
            while self.take_sign(".") || self.take_sign(":") {
                name = format!("{name}.{}", self.name()?);
            }
            let (_, body) = self.function_rest()?;
            return Ok(StatementKind::Function { name, body });
        }
        if is_local {
            let name = self.name()?;
            self.expect("=")?;
            return Ok(StatementKind::Declare { name, value: self.expression(0)? });
        }
        self.simple_statement()
    }

    /// Parses a statement that both languages have.
    fn simple_statement(&mut self) -> Parsed<StatementKind> {
        const WORDS: [&str; 14] = [
            "if", "for", "while", "do", "switch", "try", "throw", "class", "repeat", "break", "goto", "else", "end",
            "until",
        ];
        if WORDS.iter().any(|word| self.is_word(word)) {
            return Err(NotUnderstood);
        }
        if self.take_word("return") {
            return Ok(StatementKind::Return(self.expression(0)?));
        }
        let target = self.expression(0)?;
        for (sign, operator) in [("++", "+"), ("+=", "+")] {
            if self.take_sign(sign) {
                let step = if sign == "++" { Expression::Number(1.0) } else { self.expression(0)? };
                let value = Expression::Binary(operator, Box::new(target.clone()), Box::new(step));
                return Ok(StatementKind::Assign { target, value });
            }
        }
        match self.take_sign("=") {
            true => Ok(StatementKind::Assign { target, value: self.expression(0)? }),
            false => Ok(StatementKind::Evaluate(target)),
        }
    }

    /// Skips a statement: its blocks, and the rest of its last line.
    fn skip_statement(&mut self, end: Option<&ScriptToken>) {
        let (start, mut depth) = (self.at, 0usize);
        while let Some((token, line)) = self.tokens.get(self.at) {
            let is_new_line = self.at > start && *line > self.tokens[self.at - 1].1;
            // The block of an `else` belongs to the statement.
            let is_continued = matches!(token, ScriptToken::Name(name) if ["else", "catch", "finally", "while"].contains(&name.as_str()))
                && self.at > start
                && matches!(self.tokens[self.at - 1].0, ScriptToken::Sign("}"));
            let is_member = matches!(token, ScriptToken::Sign("." | "?." | "{"));
            if depth == 0 && (Some(token) == end && self.at > start || is_new_line && !is_continued && !is_member) {
                return;
            }
            let is_lua = self.language == ScriptLanguage::Lua;
            match token {
                ScriptToken::Sign("(" | "[" | "{") => depth += 1,
                ScriptToken::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
                ScriptToken::Name(name) if is_lua && LUA_BLOCKS.contains(&name.as_str()) => depth += 1,
                ScriptToken::Name(name) if is_lua && (name == "end" || name == "until") => {
                    depth = depth.saturating_sub(1)
                }
                ScriptToken::Sign(";") if depth == 0 => {
                    self.at += 1;
                    return;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn expression(&mut self, precedence_min: u8) -> Parsed<Expression> {
        self.nest(|parser| {
            let mut left = parser.operand()?;
            while let Some((operator, precedence)) = parser.operator().filter(|(_, it)| *it > precedence_min) {
                parser.at += 1;
                let right = parser.expression(precedence)?;
                parser.link()?;
                left = Expression::Binary(operator, Box::new(left), Box::new(right));
            }
            Ok(left)
        })
    }

    fn operator(&self) -> Option<(&'static str, u8)> {
        let text = match self.peek()? {
            ScriptToken::Sign(sign) => sign,
            ScriptToken::Name(name) => name.as_str(),
            _ => return None,
        };
        OPERATORS.iter().find(|(operator, _)| *operator == text).copied()
    }

    /// Parses an operand with its members and calls.
    fn operand(&mut self) -> Parsed<Expression> {
        for (sign, word) in [("!", "not"), ("-", "-"), ("#", "#")] {
            if self.take_sign(sign) || self.take_word(word) {
                return Ok(Expression::Unary(sign, Box::new(self.expression(8)?)));
            }
        }
        let mut operand = self.primary()?;
        loop {
            self.link()?;
            let is_same_line = self.tokens.get(self.at).is_some_and(|(_, line)| *line == self.tokens[self.at - 1].1);
            operand = if self.take_sign(".") || self.take_sign("?.") || (is_same_line && self.is_method()) {
                Expression::Member(Box::new(operand), Box::new(Expression::Text(self.name()?)))
            } else if is_same_line && self.take_sign("[") {
                let index = self.expression(0)?;
                self.expect("]")?;
                Expression::Member(Box::new(operand), Box::new(index))
            } else if is_same_line && self.take_sign("(") {
                let arguments = self.list(")")?;
                Expression::Call(Box::new(operand), arguments)
            } else {
                return Ok(operand);
            };
        }
    }

    /// Takes the colon of a method call in Lua.
    fn is_method(&mut self) -> bool {
        self.language == ScriptLanguage::Lua && self.take_sign(":")
    }

    fn primary(&mut self) -> Parsed<Expression> {
        let Some(token) = self.peek().cloned() else { return Err(NotUnderstood) };
        if self.is_arrow() {
            return self.arrow();
        }
        self.at += 1;
        match token {
            ScriptToken::Text(text) => Ok(Expression::Text(text)),
            ScriptToken::Number(number) => Ok(Expression::Number(number)),
            ScriptToken::Template(pieces) => self.template(&pieces),
            ScriptToken::Name(name) if name == "function" => {
                let (parameters, body) = self.function_rest()?;
                Ok(Expression::Function(parameters, body))
            }
            ScriptToken::Name(name) if name == "new" || name == "await" => Err(NotUnderstood),
            ScriptToken::Name(name) => Ok(Expression::Name(name)),
            ScriptToken::Sign("(") => {
                let inner = self.expression(0)?;
                self.expect(")")?;
                Ok(inner)
            }
            ScriptToken::Sign("[") if self.language == ScriptLanguage::JavaScript => {
                Ok(Expression::List(self.list("]")?))
            }
            ScriptToken::Sign("{") => self.table(),
            ScriptToken::Sign(_) => Err(NotUnderstood),
        }
    }

    fn template(&mut self, pieces: &[(String, String)]) -> Parsed<Expression> {
        let mut parts = Vec::new();
        for (text, code) in pieces {
            if !text.is_empty() {
                parts.push(ScriptTemplatePiece::Text(text.clone()));
            }
            if !code.is_empty() {
                let tokens = tokens(code, self.language).map_err(|_| NotUnderstood)?;
                let mut inner = Parser { tokens, at: 0, language: self.language, depth: self.depth, height: 0 };
                let value = inner.expression(0)?;
                self.height = self.height.max(inner.height);
                if inner.peek().is_some() {
                    return Err(NotUnderstood);
                }
                parts.push(ScriptTemplatePiece::Value(value));
            }
        }
        Ok(Expression::Template(parts))
    }

    /// True at the parameters of an arrow function.
    fn is_arrow(&self) -> bool {
        let token = |ahead: usize| self.tokens.get(self.at + ahead).map(|(token, _)| token);
        match token(0) {
            Some(ScriptToken::Name(_)) => token(1) == Some(&ScriptToken::Sign("=>")),
            Some(ScriptToken::Sign("(")) => {
                let is_parameter = |token: &ScriptToken| matches!(token, ScriptToken::Name(_) | ScriptToken::Sign(","));
                let count = (1..).take_while(|ahead| token(*ahead).is_some_and(is_parameter)).count();
                token(count + 1) == Some(&ScriptToken::Sign(")")) && token(count + 2) == Some(&ScriptToken::Sign("=>"))
            }
            _ => false,
        }
    }

    fn arrow(&mut self) -> Parsed<Expression> {
        let parameters = match self.take_sign("(") {
            true => self.parameters()?,
            false => vec![self.name()?],
        };
        self.expect("=>")?;
        if self.take_sign("{") {
            return Ok(Expression::Function(parameters, self.block(Some(&ScriptToken::Sign("}")))));
        }
        let line = self.line();
        let value = self.expression(0)?;
        Ok(Expression::Function(parameters, vec![Statement { line, kind: StatementKind::Return(value) }]))
    }

    /// Parses parameters up to the parenthesis that ends them.
    fn parameters(&mut self) -> Parsed<Vec<String>> {
        let mut names = Vec::new();
        while !self.take_sign(")") {
            names.push(self.name()?);
            if !self.take_sign(",") && !self.is_sign(")") {
                return Err(NotUnderstood);
            }
        }
        Ok(names)
    }

    /// Parses parameters and body.
    fn function_rest(&mut self) -> Parsed<(Vec<String>, Vec<Statement>)> {
        self.expect("(")?;
        let parameters = self.parameters()?;
        let end = match self.language {
            ScriptLanguage::Lua => ScriptToken::Name("end".to_owned()),
            ScriptLanguage::JavaScript => {
                self.expect("{")?;
                ScriptToken::Sign("}")
            }
        };
        Ok((parameters, self.block(Some(&end))))
    }

    /// Parses expressions up to the sign that ends them.
    fn list(&mut self, end: &'static str) -> Parsed<Vec<Expression>> {
        let mut values = Vec::new();
        while !self.take_sign(end) {
            values.push(self.expression(0)?);
            if !self.take_sign(",") && !self.is_sign(end) {
                return Err(NotUnderstood);
            }
        }
        Ok(values)
    }

    fn table(&mut self) -> Parsed<Expression> {
        let separator = if self.language == ScriptLanguage::Lua { "=" } else { ":" };
        let mut entries = Vec::new();
        while !self.take_sign("}") {
            let key = match self.peek().cloned() {
                Some(ScriptToken::Name(name)) => Some(name),
                Some(ScriptToken::Text(text)) => Some(text),
                Some(ScriptToken::Number(number)) => Some(number.to_string()),
                Some(ScriptToken::Sign("[")) => match (self.tokens.get(self.at + 1), self.tokens.get(self.at + 2)) {
                    (Some((ScriptToken::Text(text), _)), Some((ScriptToken::Sign("]"), _))) => {
                        let text = text.clone();
                        self.at += 2;
                        Some(text)
                    }
                    _ => return Err(NotUnderstood),
                },
                _ => None,
            };
            let has_separator =
                matches!(self.tokens.get(self.at + 1), Some((ScriptToken::Sign(sign), _)) if *sign == separator);
            match key.filter(|_| has_separator) {
                Some(key) => {
                    self.at += 2;
                    entries.push((key, self.expression(0)?));
                }
                None => {
                    let value = self.expression(0)?;
                    let key = match &value {
                        Expression::Name(name) if self.language == ScriptLanguage::JavaScript => name.clone(),
                        _ if self.language == ScriptLanguage::Lua => (entries.len() + 1).to_string(),
                        _ => return Err(NotUnderstood),
                    };
                    entries.push((key, value));
                }
            }
            if !self.take_sign(",") && !self.take_sign(";") && !self.is_sign("}") {
                return Err(NotUnderstood);
            }
        }
        Ok(Expression::Table(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str, language: ScriptLanguage) -> Vec<StatementKind> {
        parse(text, language).unwrap().into_iter().map(|statement| statement.kind).collect()
    }

    fn text(text: &str) -> Expression {
        Expression::Text(text.to_owned())
    }

    fn name(name: &str) -> Expression {
        Expression::Name(name.to_owned())
    }

    #[test]
    fn lua() {
        let statements = kinds(
            "wrk.headers[\"A\"] = 'b'\nlocal n = 0\nrequest = function()\n  n = n + 1\n  return wrk.format('GET', '/' .. n)\nend\n\
             function done(summary, latency)\n  if summary then\n    print(1)\n  end\nend\nt = { a = 1, ['b'] = 2 }\n\
             for i = 1, 2 do\n  x()\nend\ninit()",
            ScriptLanguage::Lua,
        );
        let StatementKind::Assign { target, value } = &statements[0] else { panic!("{statements:?}") };
        assert_eq!((target.path(), value), (vec!["wrk", "headers", "A"], &text("b")));
        let StatementKind::Assign { value: Expression::Function(_, body), .. } = &statements[2] else {
            panic!("{statements:?}")
        };
        let StatementKind::Return(Expression::Call(function, arguments)) = &body[1].kind else { panic!("{body:?}") };
        assert_eq!((function.path(), &arguments[0]), (vec!["wrk", "format"], &text("GET")));
        assert_eq!(arguments[1], Expression::Binary("..", Box::new(text("/")), Box::new(name("n"))));
        let StatementKind::Function { name: done, body } = &statements[3] else { panic!("{statements:?}") };
        assert_eq!((done.as_str(), &body[0].kind, body.len()), ("done", &StatementKind::Other, 1));
        assert!(matches!(&statements[4], StatementKind::Assign { value: Expression::Table(it), .. } if it.len() == 2));
        assert_eq!(statements[5], StatementKind::Other);
        assert_eq!(statements[6], StatementKind::Evaluate(Expression::Call(Box::new(name("init")), vec![])));
    }

    #[test]
    fn javascript() {
        let statements = kinds(
            "import http from 'k6/http'\nimport { a,\n b } from 'k6';\nexport const options = { vus: 10, 'a-b': [1, 2] };\n\
             export default function () {\n  const r = http.get(`${base}/x`)\n  check(r, { 'ok': (r) => r.status === 200 });\n\
               if (r.status !== 200) {\n    fail()\n  } else {\n    ok()\n  }\n  sleep(1)\n}\nexport function setup() { return 1 }\n\
             const x = a ? b : c\nlet n = 0; n++",
            ScriptLanguage::JavaScript,
        );
        assert_eq!(statements[..2], [StatementKind::Import, StatementKind::Import]);
        assert!(matches!(&statements[2], StatementKind::Declare { name, .. } if name == "options"));
        let StatementKind::Function { name: function, body } = &statements[3] else { panic!("{statements:?}") };
        assert_eq!((function.as_str(), body.len()), ("default", 4), "{body:?}");
        assert_eq!((&body[2].kind, body[2].line, body[3].line), (&StatementKind::Other, 8, 13));
        let StatementKind::Declare { value: Expression::Call(_, arguments), .. } = &body[0].kind else {
            panic!("{body:?}")
        };
        let template = [ScriptTemplatePiece::Value(name("base")), ScriptTemplatePiece::Text("/x".into())];
        assert_eq!(arguments[0], Expression::Template(template.to_vec()));
        assert!(matches!(&statements[4], StatementKind::Function { name, .. } if name == "setup"));
        assert_eq!(statements[5], StatementKind::Other);
        assert!(matches!(&statements[7], StatementKind::Assign { .. }), "{statements:?}");
    }

    /// A chain of 100,000 links would overflow the stack where its tree is dropped.
    #[test]
    fn long_chains_are_not_understood() {
        for link in ["+a", ".a", "[a]", "(a)"] {
            let script = |count: usize| format!("x = a{}", link.repeat(count));
            assert_eq!(kinds(&script(100_000), ScriptLanguage::JavaScript), [StatementKind::Other], "{link}");
            assert_ne!(kinds(&script(200), ScriptLanguage::JavaScript), [StatementKind::Other], "{link}");
        }
        let nested = (0..90).fold("a".to_owned(), |inner, _| format!("({inner}){}", "+a".repeat(100)));
        assert_eq!(kinds(&format!("x = {nested}"), ScriptLanguage::JavaScript), [StatementKind::Other]);
    }

    #[test]
    fn deep_nesting_is_an_error() {
        for language in [ScriptLanguage::Lua, ScriptLanguage::JavaScript] {
            for (open, close) in [("(", ")"), ("{a=", "}"), ("f(", ")"), ("function() return ", " end")] {
                let text = format!("x = {}1{}", open.repeat(5_000), close.repeat(5_000));
                // An error, or a statement that is not understood; never a stack overflow.
                let _ = parse(&text, language);
            }
            assert!(parse(&format!("x = {}", "(".repeat(5_000)), language).unwrap_err().contains("levels of nesting"));
        }
    }
}
