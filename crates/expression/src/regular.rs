use std::fmt;
use std::hash::{Hash, Hasher};

/// A regular expression over bytes. Searching takes time in proportion to the text, whatever the expression. A dot is any
/// byte, be it a line feed or no UTF-8: nothing that clients put into a path keeps `^/admin/.*$` from fitting.
#[derive(Clone, Debug)]
pub struct Regex(regex::bytes::Regex);

/// Most memory that a compiled regular expression may take, in bytes: some ten thousand of what people write.
const REGEX_BYTES_MAX: usize = 1 << 20;

impl Regex {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The expression's error.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        let mut builder = regex::bytes::RegexBuilder::new(text);
        builder.unicode(false).dot_matches_new_line(true).size_limit(REGEX_BYTES_MAX).build().map(Self)
    }

    /// One expression that matches what any of these does, for a single search. `None` if one of them has flags or named
    /// groups, which the others must not share, or if all are too large together.
    pub fn any_of<'r>(all: impl Iterator<Item = &'r Self>) -> Option<Self> {
        let parts: Vec<_> = all.map(|one| one.0.as_str()).collect();
        let is_plain = !parts.is_empty() && !parts.iter().any(|part| part.contains("(?"));
        is_plain.then(|| Self::new(&format!("(?:{})", parts.join(")|(?:"))).ok())?
    }

    /// Expression without regard to letter case, unless it says `(?-i)` itself.
    pub fn ignoring_case(&self) -> Self {
        let mut builder = regex::bytes::RegexBuilder::new(self.0.as_str());
        builder.unicode(false).dot_matches_new_line(true).case_insensitive(true);
        // Some expressions of Unicode classes are too large then; these mind the case.
        builder.size_limit(4 * REGEX_BYTES_MAX).build().map_or_else(|_| self.clone(), Self)
    }

    /// The compiled expression.
    pub fn get(&self) -> &regex::bytes::Regex {
        &self.0
    }
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Regex {}

impl Hash for Regex {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

impl fmt::Display for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_path_is_beyond_a_dot() {
        let regex = Regex::new("^/admin/.*$").unwrap();
        for path in
            [&b"/admin/"[..], b"/admin/a", b"/admin/\n", b"/admin/a\r\nb", b"/admin/\xff", "/admin/ä".as_bytes()]
        {
            assert!(regex.get().is_match(path), "{path:?}");
        }
        assert!(!regex.get().is_match(b"/admin"));
    }

    #[test]
    fn one_expression_for_several() {
        let any_of = |texts: &[&str]| {
            let all: Vec<_> = texts.iter().map(|text| Regex::new(text).unwrap()).collect();
            Regex::any_of(all.iter())
        };
        let any = any_of(&["^/a|b$", "c"]).unwrap();
        let matched = ["/a", "xb", "xc", "x/a", "bx"].map(|path| any.get().is_match(path.as_bytes()));
        assert_eq!(matched, [true, true, true, false, false]);
        for texts in [&[][..], &["a", "(?i)b"], &["(?x)a # b"], &["(?<name>a)", "(?<name>b)"], &["[a-z]{9999}"; 9]] {
            assert_eq!(any_of(texts), None, "{texts:?}");
        }
    }
}
