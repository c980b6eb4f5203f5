//! Index of path patterns. The patterns that can match a path are found in steps that depend on the length of the path,
//! not on the number of patterns.

use crate::config::PathPattern;

/// Patterns up to this number are compared one by one, because that is faster than an index.
const LINEAR_MAX: usize = 8;

/// Patterns in order, with an index of their fixed texts.
#[derive(Debug, Default)]
pub(crate) struct PathIndex {
    patterns: Vec<PathPattern>,
    /// Exact paths, starts, and the fixed starts of regular expressions; empty without an index.
    starts: TextTree,
    /// Ends, in reverse.
    ends: TextTree,
    /// Patterns without fixed text: `*` and other regular expressions.
    others: Vec<u32>,
}

/// Texts with common starts, each with the positions of its patterns.
#[derive(Debug)]
struct TextTree {
    /// The first is the root.
    nodes: Vec<TextNode>,
}

#[derive(Debug, Default)]
struct TextNode {
    /// Bytes after those of the parent.
    text: Box<[u8]>,
    /// First byte of each child, in order, and its index.
    children: Vec<(u8, u32)>,
    /// Patterns of this text and nothing more.
    exact: Vec<u32>,
    /// Patterns of all texts that begin so.
    open: Vec<u32>,
}

impl PathIndex {
    /// Indexes these patterns.
    pub(crate) fn new(patterns: Vec<PathPattern>) -> Self {
        let mut index = Self { patterns, ..Self::default() };
        if index.patterns.len() <= LINEAR_MAX {
            return index;
        }
        for (at, pattern) in index.patterns.iter().enumerate() {
            let at = at as u32;
            match pattern {
                PathPattern::Exact(path) => index.starts.node(path.as_bytes()).exact.push(at),
                PathPattern::Prefix(start) => index.starts.node(start.as_bytes()).open.push(at),
                PathPattern::Suffix(end) => {
                    let reverse: Vec<u8> = end.bytes().rev().collect();
                    index.ends.node(&reverse).open.push(at);
                }
                PathPattern::Regex(regex) => match fixed_start(&regex.to_string()) {
                    "" => index.others.push(at),
                    start => index.starts.node(start.as_bytes()).open.push(at),
                },
                PathPattern::Any => index.others.push(at),
            }
        }
        index
    }

    /// Position of the first pattern from `from` on that matches the path and fits otherwise.
    #[inline]
    pub(crate) fn find(&self, path: &[u8], from: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let is_found = |&at: &usize| self.patterns[at].matches(path) && fits(at);
        if self.patterns.len() <= LINEAR_MAX {
            return (from..self.patterns.len()).find(is_found);
        }
        let mut from = from;
        loop {
            let at = self.candidate(path, from as u32, |_| {})? as usize;
            if is_found(&at) {
                return Some(at);
            }
            from = at + 1;
        }
    }

    /// The first pattern from `from` on whose fixed text the path has. `step` is called for each node that is looked at.
    fn candidate(&self, path: &[u8], from: u32, mut step: impl FnMut(&TextNode)) -> Option<u32> {
        let mut found = next(&self.others, from);
        let mut see = |list: &[u32]| found = [found, next(list, from)].into_iter().flatten().min();
        self.starts.walk(path.iter().copied(), |node, is_end| {
            step(node);
            see(&node.open);
            if is_end {
                see(&node.exact);
            }
        });
        self.ends.walk(path.iter().rev().copied(), |node, _| {
            step(node);
            see(&node.open);
        });
        found
    }
}

/// The first position from `from` on.
fn next(list: &[u32], from: u32) -> Option<u32> {
    list.get(list.partition_point(|at| *at < from)).copied()
}

impl Default for TextTree {
    fn default() -> Self {
        Self { nodes: vec![TextNode::default()] }
    }
}

impl TextTree {
    /// The node of this text, which is made if there is none.
    fn node(&mut self, text: &[u8]) -> &mut TextNode {
        let (mut at, mut rest) = (0, text);
        while let Some(first) = rest.first() {
            let position = self.nodes[at].children.binary_search_by_key(first, |(byte, _)| *byte);
            let child = match position {
                Ok(position) => self.nodes[at].children[position].1 as usize,
                Err(position) => {
                    let child = self.add(TextNode { text: rest.into(), ..TextNode::default() });
                    self.nodes[at].children.insert(position, (*first, child));
                    return &mut self.nodes[child as usize];
                }
            };
            let common = self.nodes[child].text.iter().zip(rest).take_while(|(one, other)| one == other).count();
            if common < self.nodes[child].text.len() {
                self.split(child, common);
            }
            (at, rest) = (child, &rest[common..]);
        }
        &mut self.nodes[at]
    }

    fn add(&mut self, node: TextNode) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Splits a node, so that it keeps this much of its text and has the rest as a child.
    fn split(&mut self, at: usize, length: usize) {
        let whole = std::mem::take(&mut self.nodes[at]);
        let (start, end) = whole.text.split_at(length);
        let first = end[0];
        let (start, end): (Box<[u8]>, Box<[u8]>) = (start.into(), end.into());
        let child = self.add(TextNode { text: end, ..whole });
        self.nodes[at] = TextNode { text: start, children: vec![(first, child)], ..TextNode::default() };
    }

    /// Visits the nodes whose texts a text begins with; `true` for the one that is the whole text.
    fn walk(&self, mut text: impl ExactSizeIterator<Item = u8> + Clone, mut visit: impl FnMut(&TextNode, bool)) {
        let mut node = &self.nodes[0];
        loop {
            visit(node, text.len() == 0);
            let Some(first) = text.clone().next() else { return };
            let Ok(position) = node.children.binary_search_by_key(&first, |(byte, _)| *byte) else { return };
            node = &self.nodes[node.children[position].1 as usize];
            if text.len() < node.text.len() || !node.text.iter().all(|byte| text.next() == Some(*byte)) {
                return;
            }
        }
    }
}

/// Text that each match of a regular expression begins with; empty if it need not begin at the start of a path.
fn fixed_start(regex: &str) -> &str {
    let Some(rest) = regex.strip_prefix('^') else { return "" };
    // An alternative may begin otherwise, and flags change the meaning of what follows.
    if rest.contains('|') || rest.contains("(?") || rest.contains('#') {
        return "";
    }
    let is_special = |byte: u8| b"\\.+*?()[]{}^$ \t\n\r".contains(&byte);
    let end = rest.bytes().position(is_special).unwrap_or(rest.len());
    // A repetition may make the last character optional, which may have several bytes.
    match rest.as_bytes().get(end) {
        Some(b'*' | b'?' | b'{') => rest[..end].char_indices().next_back().map_or("", |(at, _)| &rest[..at]),
        _ => &rest[..end],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Regex;

    fn pattern(text: &str) -> PathPattern {
        match (text.strip_prefix('~'), text.strip_prefix('*'), text.strip_suffix('*')) {
            (Some(regex), ..) => PathPattern::Regex(Regex::new(regex).unwrap()),
            (_, Some(""), _) => PathPattern::Any,
            (_, Some(end), _) => PathPattern::Suffix(end.into()),
            (.., Some(start)) => PathPattern::Prefix(start.into()),
            _ => PathPattern::Exact(text.into()),
        }
    }

    #[test]
    fn fixed_starts() {
        for (regex, expect) in [
            ("^/api/v[0-9]/", "/api/v"),
            ("^/a", "/a"),
            ("^/ab?c", "/a"),
            ("^/ab*c", "/a"),
            ("^/ab+c", "/ab"),
            ("^/ä?", "/"),
            ("^/ab{0}", "/a"),
            ("^/a|/b", ""),
            ("(?i)^/a", ""),
            ("^(?i)/a", ""),
            ("^/a(?i)b", ""),
            ("^/a\\.b", "/a"),
            ("/a", ""),
            ("^", ""),
            ("^.*", ""),
        ] {
            assert_eq!(fixed_start(regex), expect, "{regex}");
        }
    }

    /// Number of nodes and bytes that a search looks at.
    fn steps(index: &PathIndex, path: &str) -> usize {
        let mut steps = 0;
        index.candidate(path.as_bytes(), 0, |node| steps += 1 + node.text.len());
        steps
    }

    /// A site of ten thousand routes costs no more than one of ten.
    #[test]
    fn steps_do_not_depend_on_the_number_of_routes() {
        let routes = |count: usize| {
            let patterns = (0..count).map(|number| match number % 4 {
                0 => format!("/tenant-{number}/api/*"),
                1 => format!("/tenant-{number}/exact"),
                2 => format!("~^/tenant-{number}/v[0-9]+/"),
                _ => format!("*.ext{number}"),
            });
            PathIndex::new(patterns.map(|text| pattern(&text)).collect())
        };
        let paths = ["/tenant-4/api/users/1", "/tenant-5/exact", "/tenant-6/v12/x", "/a/b.ext7", "/none/of/these"];
        let (few, many) = (routes(12), routes(10_000));
        for (expect, path) in paths.iter().enumerate() {
            let found = |index: &PathIndex| index.find(path.as_bytes(), 0, |_| true);
            let expect = (expect < 4).then_some(expect + 4);
            assert_eq!((found(&few), found(&many)), (expect, expect), "{path}");
            let (of_few, of_many) = (steps(&few, path), steps(&many, path));
            // A node for each byte in both trees at most, and each of its bytes.
            assert!(of_many <= 4 * path.len() + 2, "{path}: {of_few}, {of_many}");
            assert!(of_many <= of_few + 2 * path.len(), "{path}: {of_few}, {of_many}");
        }
    }

    proptest! {
        #[test]
        fn as_one_by_one(
            patterns in proptest::collection::vec("(/[ab]{0,3}){1,2}\\*?|\\*[ab.]{0,3}|~\\^?/[ab]{0,2}(b\\?|a\\*|\\.)?", 9..40),
            path in "(/[ab.]{0,3}){1,3}",
            from in 0_usize..40,
        ) {
            let patterns: Vec<_> = patterns.iter().map(|text| pattern(text)).collect();
            let expect = (from..patterns.len()).find(|at| patterns[*at].matches(path.as_bytes()));
            prop_assert_eq!(PathIndex::new(patterns).find(path.as_bytes(), from, |_| true), expect);
        }
    }
}
