//! Expressions of other servers, compiled once.

use std::cell::OnceCell;
use std::ops::Deref;
use std::rc::Rc;

use regex::Regex;
use regex_syntax::hir::Look;
use regex_syntax::hir::literal::Extractor;

/// An expression for paths, which is compiled when it is first needed. Copies share the result.
#[derive(Debug, Clone)]
pub(crate) struct PathExpression(Rc<CompiledOnce>);

#[derive(Debug)]
struct CompiledOnce {
    text: String,
    regex: OnceCell<Option<Regex>>,
    heads: OnceCell<Option<Vec<String>>>,
}

impl PathExpression {
    /// The compiled expression; `None` if it has an error.
    pub(crate) fn regex(&self) -> Option<&Regex> {
        let compile = || {
            #[cfg(test)]
            counted::add(1);
            Regex::new(&self.0.text).ok()
        };
        self.0.regex.get_or_init(compile).as_ref()
    }

    /// Returns `true` if a path matches.
    pub(crate) fn fits(&self, path: &str) -> bool {
        self.regex().is_some_and(|regex| regex.is_match(path))
    }

    /// Texts with one of which each match begins, if matches are only at the start of a text.
    pub(crate) fn heads(&self) -> Option<&[String]> {
        self.0.heads.get_or_init(|| heads(&self.0.text)).as_deref()
    }
}

impl From<String> for PathExpression {
    fn from(text: String) -> Self {
        Self(Rc::new(CompiledOnce { text, regex: OnceCell::new(), heads: OnceCell::new() }))
    }
}

impl Deref for PathExpression {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.text
    }
}

impl PartialEq for PathExpression {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for PathExpression {}

/// The expression of a directive, once it has been read. A copy of a directive, which may change, has none.
#[derive(Debug, Default)]
pub(crate) struct ReadOnce(OnceCell<Result<PathExpression, String>>);

impl ReadOnce {
    /// The expression, or the reason why there is none.
    pub(crate) fn get(&self, read: impl FnOnce() -> Result<String, String>) -> Result<PathExpression, String> {
        self.0.get_or_init(|| read().map(PathExpression::from)).clone()
    }
}

impl Clone for ReadOnce {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for ReadOnce {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReadOnce {}

fn heads(expression: &str) -> Option<Vec<String>> {
    let hir = regex_syntax::parse(expression).ok()?;
    if !hir.properties().look_set_prefix().contains(Look::Start) {
        return None;
    }
    let prefixes = Extractor::new().extract(&hir);
    let texts = prefixes.literals()?.iter().map(|literal| String::from_utf8(literal.as_bytes().to_vec()));
    texts.collect::<Result<Vec<_>, _>>().ok().filter(|texts| !texts.is_empty())
}

/// Number of compiled expressions and of directives looked at, for tests of the effort.
#[cfg(test)]
pub(crate) mod counted {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) fn add(steps: usize) {
        COUNT.set(COUNT.get() + steps);
    }

    /// Steps of a function.
    pub(crate) fn during(run: impl FnOnce()) -> usize {
        COUNT.set(0);
        run();
        COUNT.get()
    }
}
