//! Routes: the requests that a handler gets.

use std::cmp::Reverse;

use super::config::HandlerConfig;
use super::rules::{Regex, RuleConditions};

/// A path pattern and its handler.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteConfig {
    /// Paths of the route.
    pub path: PathPattern,
    /// Under which conditions: all must hold.
    pub conditions: RuleConditions,
    /// Handler of the route.
    pub handler: HandlerConfig,
}

impl RouteConfig {
    /// A route of all requests for these paths.
    pub fn new(path: PathPattern, handler: HandlerConfig) -> Self {
        Self { path, conditions: RuleConditions::default(), handler }
    }

    /// Key of the order of routes, the most specific first: by path, then by method, field, query and condition.
    pub(crate) fn specificity(&self) -> impl Ord + use<> {
        let path = match &self.handler {
            HandlerConfig::Gateway(gateway, _) if self.path == PathPattern::Any => &gateway.scripts,
            _ => &self.path,
        };
        let of_path = match path {
            PathPattern::Exact(_) => (0, Reverse(0)),
            PathPattern::Prefix(prefix) => (1, Reverse(prefix.len())),
            PathPattern::Regex(_) => (2, Reverse(0)),
            PathPattern::Suffix(suffix) => (3, Reverse(suffix.len())),
            PathPattern::Any => (4, Reverse(0)),
        };
        let RuleConditions { methods, field, query, when, is_missing: _ } = &self.conditions;
        let of_conditions = [methods.is_some(), field.is_some(), query.is_some(), when.is_some()];
        (of_path, of_conditions.map(Reverse))
    }
}

/// Paths after percent-decoding and removal of dot segments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathPattern {
    /// `*`: all.
    #[default]
    Any,
    /// `/a`: just this.
    Exact(String),
    /// `/a/*`: what begins with `/a/`.
    Prefix(String),
    /// `*.ext`: what ends so.
    Suffix(String),
    /// `~EXPRESSION`: what matches it, anywhere unless it says otherwise.
    Regex(Regex),
}

impl PathPattern {
    /// Returns `true` if the pattern matches this path, which is decoded and has no dot segments.
    pub fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => path == exact.as_bytes(),
            Self::Prefix(prefix) => path.starts_with(prefix.as_bytes()),
            Self::Suffix(suffix) => path.ends_with(suffix.as_bytes()),
            Self::Regex(regex) => regex.get().is_match(path),
        }
    }
}

impl PathPattern {
    /// Patterns that match the same paths as these together, with one regular expression in place of several, if possible.
    #[must_use]
    pub fn joined(patterns: &[Self]) -> Vec<Self> {
        let regexes = patterns.iter().filter_map(|pattern| match pattern {
            Self::Regex(regex) => Some(regex),
            _ => None,
        });
        match Regex::any_of(regexes) {
            Some(any) => {
                let others = patterns.iter().filter(|pattern| !matches!(pattern, Self::Regex(_))).cloned();
                others.chain([Self::Regex(any)]).collect()
            }
            None => patterns.to_vec(),
        }
    }

    /// Returns `true` if a guard of these paths also guards this one: in addition to its matches, `/a/*` guards `/a`,
    /// because most programs treat both alike.
    pub fn guards(&self, path: &[u8]) -> bool {
        let is_directory = |prefix: &String| prefix.strip_suffix('/').is_some_and(|name| name.as_bytes() == path);
        self.matches(path) || matches!(self, Self::Prefix(prefix) if is_directory(prefix))
    }
}
