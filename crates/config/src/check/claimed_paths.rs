use std::collections::{BTreeMap, HashMap};

use crate::model::PathPattern;

/// The paths that routes or rules take, each with the index of the first. What covers a path is looked up by its ends, for a
/// site may have thousands of redirects.
#[derive(Default)]
pub(crate) struct ClaimedPaths<'a> {
    any: Option<usize>,
    exact: HashMap<&'a str, usize>,
    /// By length.
    prefixes: BTreeMap<usize, HashMap<&'a str, usize>>,
    /// By length.
    suffixes: BTreeMap<usize, HashMap<&'a str, usize>>,
}

impl<'a> ClaimedPaths<'a> {
    /// Adds the paths of this index.
    pub(crate) fn add(&mut self, path: &'a PathPattern, index: usize) {
        let known = match path {
            PathPattern::Any => self.any.get_or_insert(index),
            PathPattern::Exact(path) => self.exact.entry(path).or_insert(index),
            PathPattern::Prefix(prefix) => {
                self.prefixes.entry(prefix.len()).or_default().entry(prefix).or_insert(index)
            }
            PathPattern::Suffix(suffix) => {
                self.suffixes.entry(suffix.len()).or_default().entry(suffix).or_insert(index)
            }
            // A regular expression may match any of the other paths.
            PathPattern::Regex(_) => return,
        };
        debug_assert!(*known <= index, "the first is kept");
    }

    /// The first index that takes all these paths.
    pub(crate) fn covering(&self, path: &PathPattern) -> Option<usize> {
        let (exact, start, end) = match path {
            PathPattern::Any | PathPattern::Regex(_) => (None, "", ""),
            PathPattern::Exact(path) => (self.exact.get(path.as_str()), path.as_str(), path.as_str()),
            PathPattern::Prefix(prefix) => (None, prefix.as_str(), ""),
            PathPattern::Suffix(suffix) => (None, "", suffix.as_str()),
        };
        let prefixes =
            self.prefixes.range(..=start.len()).filter_map(|(&length, known)| known.get(start.get(..length)?));
        let suffixes =
            self.suffixes.range(..=end.len()).filter_map(|(&length, known)| known.get(end.get(end.len() - length..)?));
        self.any.iter().chain(exact).chain(prefixes).chain(suffixes).min().copied()
    }
}
