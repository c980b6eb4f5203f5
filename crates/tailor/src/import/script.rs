//! Syntax of other load generators' scripts: the parts of Lua and JavaScript that simple scripts use.

mod lexer;
mod parser;

pub(super) use parser::parse;

/// Language of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptLanguage {
    /// Scripts of wrk.
    Lua,
    /// Scripts of k6.
    JavaScript,
}

/// Statement with the line on which it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    pub(super) line: usize,
    pub(super) kind: StatementKind,
}

/// Kind of a statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StatementKind {
    /// A name gets a value.
    Declare { name: String, value: Expression },
    /// A name, a member or an element gets a value.
    Assign { target: Expression, value: Expression },
    /// An expression is evaluated.
    Evaluate(Expression),
    /// A function returns a value.
    Return(Expression),
    /// A function gets a name. The default export of JavaScript has the name `default`.
    Function { name: String, body: Vec<Statement> },
    /// A module is imported.
    Import,
    /// Any other statement.
    Other,
}

/// Expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    Text(String),
    Number(f64),
    /// Text with expressions within it.
    Template(Vec<ScriptTemplatePiece>),
    Name(String),
    /// Member by name or by index.
    Member(Box<Self>, Box<Self>),
    Call(Box<Self>, Vec<Self>),
    /// Table with keys, in order.
    Table(Vec<(String, Self)>),
    List(Vec<Self>),
    /// Function with the names of its parameters. A function without a block returns its only statement's value.
    Function(Vec<String>, Vec<Statement>),
    /// Operation of two operands.
    Binary(&'static str, Box<Self>, Box<Self>),
    /// Operation of one operand.
    Unary(&'static str, Box<Self>),
}

/// Piece of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScriptTemplatePiece {
    Text(String),
    Value(Expression),
}

impl Expression {
    /// Name and members of a path such as `wrk.headers`, as `["wrk", "headers"]`. Empty for other expressions.
    pub(super) fn path(&self) -> Vec<&str> {
        match self {
            Self::Name(name) => vec![name],
            Self::Member(base, member) => match (base.path(), &**member) {
                (mut path, Self::Text(name)) if !path.is_empty() => {
                    path.push(name);
                    path
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}
