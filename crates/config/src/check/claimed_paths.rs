use std::collections::{BTreeMap, HashMap};

use crate::model::PathPattern;

/// Values for paths. Those for one path are looked up by its ends, because a configuration may have thousands of patterns.
pub(crate) struct PathTable<'a, T> {
    any: Vec<T>,
    exact: HashMap<&'a str, Vec<T>>,
    /// By length.
    prefixes: BTreeMap<usize, HashMap<&'a str, Vec<T>>>,
    /// By length.
    suffixes: BTreeMap<usize, HashMap<&'a str, Vec<T>>>,
    expressions: Vec<(&'a PathPattern, T)>,
}

// Not derived: a table of values without a default has one.
impl<T> Default for PathTable<'_, T> {
    fn default() -> Self {
        let (exact, prefixes, suffixes) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { any: Vec::new(), exact, prefixes, suffixes, expressions: Vec::new() }
    }
}

impl<'a, T> PathTable<'a, T> {
    /// Adds a value for these paths.
    pub(crate) fn add(&mut self, paths: &'a PathPattern, value: T) {
        let values = match paths {
            PathPattern::Any => &mut self.any,
            PathPattern::Exact(path) => self.exact.entry(path).or_default(),
            PathPattern::Prefix(prefix) => self.prefixes.entry(prefix.len()).or_default().entry(prefix).or_default(),
            PathPattern::Suffix(suffix) => self.suffixes.entry(suffix.len()).or_default().entry(suffix).or_default(),
            PathPattern::Regex(_) => return self.expressions.push((paths, value)),
        };
        values.push(value);
    }

    /// Values whose patterns match this path.
    pub(crate) fn matching(&self, path: &str) -> impl Iterator<Item = &T> {
        let expressions = self.expressions.iter().filter(move |(pattern, _)| pattern.matches(path.as_bytes()));
        self.by_ends(Some(path), path, path).chain(expressions.map(|(_, value)| value))
    }

    /// Values whose patterns, which are no expressions, match all paths with this start and this end.
    fn by_ends(&self, exact: Option<&str>, start: &str, end: &str) -> impl Iterator<Item = &T> {
        let exact = exact.and_then(|path| self.exact.get(path));
        let prefixes = self.prefixes.range(..=start.len());
        let prefixes = prefixes.filter_map(move |(&length, known)| known.get(start.get(..length)?));
        let suffixes = self.suffixes.range(..=end.len());
        let suffixes = suffixes.filter_map(move |(&length, known)| known.get(end.get(end.len() - length..)?));
        exact.into_iter().chain(prefixes).chain(suffixes).chain([&self.any]).flatten()
    }
}

/// The paths that routes or rules take, each with the index of the first.
#[derive(Default)]
pub(crate) struct ClaimedPaths<'a>(PathTable<'a, usize>);

impl<'a> ClaimedPaths<'a> {
    /// Adds the paths of this index.
    pub(crate) fn add(&mut self, path: &'a PathPattern, index: usize) {
        self.0.add(path, index);
    }

    /// The first index that takes all these paths. A regular expression takes none for sure.
    pub(crate) fn covering(&self, path: &PathPattern) -> Option<usize> {
        let (exact, start, end) = match path {
            PathPattern::Any | PathPattern::Regex(_) => (None, "", ""),
            PathPattern::Exact(path) => (Some(path.as_str()), path.as_str(), path.as_str()),
            PathPattern::Prefix(prefix) => (None, prefix.as_str(), ""),
            PathPattern::Suffix(suffix) => (None, "", suffix.as_str()),
        };
        self.0.by_ends(exact, start, end).min().copied()
    }
}
