//! Paths that a guard applies to: paths that match its pattern, and paths that an upstream may treat as one of them.
//!
//! Guards (`allow` and `deny`, limits, `basic-auth`) are evaluated for each [`GuardedPath`] of a request, one at a time
//! and in order. The strictest verdict counts, so another reading of a path can only restrict access.

use wire::http::readings::{Reading, original_of_precompressed, readings};

use crate::config::PathPattern;

/// Path that guards are evaluated for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardedPath<'p> {
    path: &'p [u8],
    /// True if the path is read as by a server that ignores letter case and a slash at the end; `path` is then folded.
    is_folded: bool,
    /// Path of the precompressed file, if `path` is that of its original.
    precompressed: Option<&'p [u8]>,
}

/// Path that differs from the request's path, but that guards are evaluated for as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherPath {
    path: Vec<u8>,
    is_folded: bool,
    /// True if the segments are the same, written in another way.
    is_spelling: bool,
}

/// Path pattern of a guard.
#[derive(Clone, Debug)]
pub(crate) struct GuardPattern {
    pattern: PathPattern,
    /// Pattern for folded paths.
    folded: PathPattern,
}

/// Settings for other readings of paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings {
    /// True if a pattern may match another path after folding, even if folding does not change the path.
    has_foldable_pattern: bool,
    /// True if any rule applies to some paths only. Other rules do not depend on readings.
    is_needed: bool,
}

impl<'p> GuardedPath<'p> {
    /// Path of a request, or the path after a rewrite.
    pub(crate) fn asked(path: &'p [u8]) -> Self {
        Self { path, is_folded: false, precompressed: None }
    }

    /// Bytes of the path; folded if letter case is ignored.
    pub(crate) fn path(self) -> &'p [u8] {
        self.path
    }

    /// Returns this path, and that of the original if it may be the path of a precompressed file (`/a.html.gz`). Rules
    /// that keep clients from the original apply to both, because both have the same content.
    pub(crate) fn with_original(self) -> impl Iterator<Item = Self> {
        let original = original_of_precompressed(self.path);
        let original = original.map(|path| Self { path, precompressed: Some(self.path), ..self });
        std::iter::once(self).chain(original)
    }
}

impl OtherPath {
    /// Path that a request had before it was changed.
    pub(crate) fn spelling(path: &[u8]) -> Self {
        Self { path: path.to_vec(), is_folded: false, is_spelling: true }
    }

    /// Path in the form for guards.
    pub(crate) fn guarded(&self) -> GuardedPath<'_> {
        GuardedPath { path: &self.path, is_folded: self.is_folded, precompressed: None }
    }

    /// Bytes of the path; folded if [`Self::is_folded`] is true.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// True if letter case was folded, so that it may differ from the client's.
    pub(crate) fn is_folded(&self) -> bool {
        self.is_folded
    }

    /// True if the segments are the request's, written in another way.
    pub(crate) fn is_spelling(&self) -> bool {
        self.is_spelling
    }
}

impl Readings {
    /// Derives the settings from the patterns of guards and of field edits. `has_conditions` is true if a guard has a
    /// condition.
    pub(crate) fn new<'g>(
        guards: impl Iterator<Item = &'g GuardPattern>,
        mut edits: impl Iterator<Item = &'g PathPattern>,
        has_conditions: bool,
    ) -> Self {
        let is_needed = has_conditions || edits.any(|path| *path != PathPattern::Any);
        // A condition may test a path in any letter case.
        let mut readings = Self { is_needed, has_foldable_pattern: has_conditions };
        for guard in guards.filter(|guard| guard.pattern != PathPattern::Any) {
            readings.is_needed = true;
            readings.has_foldable_pattern |= match (&guard.pattern, &guard.folded) {
                (PathPattern::Regex(regex), _) => regex.to_string().bytes().any(|byte| !is_folded(byte)),
                (pattern, folded) => pattern != folded,
            };
        }
        readings
    }

    /// True if some rule depends on readings of paths.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Returns the paths that guards are evaluated for in addition to the path itself. `scripts` are the parts of the
    /// path that are programs.
    pub(crate) fn of<'p>(&self, path: &[u8], scripts: impl Iterator<Item = &'p [u8]>) -> Vec<OtherPath> {
        if !self.is_needed {
            return scripts.map(OtherPath::spelling).collect();
        }
        let mut read = readings(path);
        for script in scripts {
            match read.iter_mut().find(|known| known.path == script) {
                Some(known) => known.is_spelling = true,
                None => read.push(Reading { path: script.to_vec(), is_spelling: true }),
            }
        }
        let is_foldable = |path: &[u8]| self.has_foldable_pattern || path.iter().any(|byte| !is_folded(*byte));
        let whole = is_foldable(path).then(|| fold(path));
        let parts = read.iter().filter(|reading| is_foldable(&reading.path)).map(|reading| fold(&reading.path));
        let mut folded: Vec<_> = whole.into_iter().chain(parts).collect();
        folded.sort_unstable();
        folded.dedup();
        let others =
            read.into_iter().map(|Reading { path, is_spelling }| OtherPath { path, is_folded: false, is_spelling });
        let folded = folded.into_iter().map(|path| OtherPath { path, is_folded: true, is_spelling: false });
        others.chain(folded).collect()
    }
}

impl GuardPattern {
    /// Makes the guard for the paths of this pattern.
    pub(crate) fn new(pattern: &PathPattern) -> Self {
        let folded = |text: &String| String::from_utf8(fold(text.as_bytes())).unwrap_or_else(|_| text.clone());
        let without_slash = |text: String| match text.strip_suffix('/') {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => text,
        };
        let folded = match pattern {
            PathPattern::Any => PathPattern::Any,
            PathPattern::Exact(path) => PathPattern::Exact(without_slash(folded(path))),
            PathPattern::Prefix(path) => PathPattern::Prefix(folded(path)),
            PathPattern::Suffix(end) => PathPattern::Suffix(without_slash(folded(end))),
            PathPattern::Regex(regex) => PathPattern::Regex(regex.ignoring_case()),
        };
        Self { pattern: pattern.clone(), folded }
    }

    /// Returns true if the guard applies to a path.
    pub(crate) fn holds_for(&self, guarded: GuardedPath<'_>) -> bool {
        self.guards(guarded.path, guarded.is_folded)
    }

    /// Returns true if the guard, which is the first for this path, decides about the request. A guard that also applies
    /// to the path of the precompressed file does not: the first guard for that path decides.
    pub(crate) fn decides(&self, guarded: GuardedPath<'_>) -> bool {
        guarded.precompressed.is_none_or(|path| !self.guards(path, guarded.is_folded))
    }

    fn guards(&self, path: &[u8], is_folded: bool) -> bool {
        if is_folded { self.folded.guards(path) } else { self.pattern.guards(path) }
    }
}

fn is_folded(byte: u8) -> bool {
    byte.is_ascii() && !byte.is_ascii_uppercase()
}

/// Folds a path as file systems and servers do that ignore case. Bytes that are not UTF-8 stay.
fn fold(path: &[u8]) -> Vec<u8> {
    if path.is_ascii() {
        return path.to_ascii_lowercase();
    }
    let mut folded = Vec::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        // U+017F and U+0131 become ASCII by upper case alone. U+0130 becomes ASCII by lower case, with a combining dot
        // that some languages drop. The Kelvin sign becomes ASCII by lower case.
        let lower =
            chunk.valid().replace('\u{130}', "i").to_lowercase().replace('\u{131}', "i").replace('\u{17f}', "s");
        folded.extend_from_slice(lower.as_bytes());
        folded.extend_from_slice(chunk.invalid());
    }
    folded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::rejected;

    const OFFICE: &str = "192.0.2.1";
    const ELSEWHERE: &str = "203.0.113.1";

    /// Guard patterns that match `/panel/wp-login.php`.
    const PATTERNS: [&str; 9] = [
        "/panel/wp-login.php",
        "/Panel/WP-login.php",
        "/panel/*",
        "/panel/wp-*",
        "*.php",
        "*.PHP",
        "*/wp-login.php",
        "~^/panel/wp-login\\\\.php$",
        "~^/PANEL/.*[.]php$",
    ];

    /// Suffixes of a segment that some servers ignore.
    const SEGMENT_ENDS: [&str; 8] = [";", ";jsessionid=1", ".", " ", ". .", "\t", "::$DATA", "\u{a0}"];

    /// Suffixes of the path that some servers ignore or treat as PATH_INFO or as a query.
    const PATH_ENDS: [&str; 10] = ["", "/", "/x", "/x/y.css", "/a.b/c.d/", "\n", "?x", "?x/y.css", "#x", "\\x"];

    /// Strategy for spellings of `/panel/wp-login.php` that some servers treat as that path.
    fn spellings() -> impl Strategy<Value = String> {
        let end = || prop_oneof![2 => Just(""), 1 => proptest::sample::select(&SEGMENT_ENDS[..])];
        let slash = prop_oneof![3 => Just("/"), 1 => Just("\\")];
        let case = || proptest::collection::vec(any::<bool>(), 12);
        let parts = (case(), end(), slash, case(), end(), proptest::sample::select(&PATH_ENDS[..]));
        parts.prop_map(|(case, directory_end, slash, file_case, file_end, end)| {
            let (directory, file) = (in_case("panel", &case), in_case("wp-login.php", &file_case));
            format!("/{directory}{directory_end}{slash}{file}{file_end}{end}")
        })
    }

    fn in_case(text: &str, upper: &[bool]) -> String {
        text.chars().zip(upper).map(|(char, upper)| if *upper { char.to_ascii_uppercase() } else { char }).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn every_spelling_of_a_guarded_path_is_guarded(path in spellings()) {
            for pattern in PATTERNS {
                prop_assert_eq!(rejected(&format!("deny all path=\"{pattern}\""), &path, ELSEWHERE), Some(403), "{}", pattern);
                let password = format!("basic-auth \"{pattern}\" \"/nonexistent\"");
                prop_assert_eq!(rejected(&password, &path, ELSEWHERE), Some(401), "{}", pattern);
            }
        }
    }

    #[test]
    fn a_guard_holds_for_its_paths_and_no_others() {
        let check = |pattern: &str, held: &[&str], others: &[&str]| {
            let rule = format!("deny all path=\"{pattern}\"");
            held.iter().for_each(|path| assert_eq!(rejected(&rule, path, ELSEWHERE), Some(403), "{pattern} {path}"));
            others.iter().for_each(|path| assert_eq!(rejected(&rule, path, ELSEWHERE), None, "{pattern} {path}"));
        };
        check(
            "/exact",
            &["/exact", "/exact/", "/EXACT", "/exact;x/", "/exact."],
            &["/", "/exactly", "/exact/x", "/x/exact"],
        );
        check("/panel/", &["/panel/", "/panel", "/Panel"], &["/panel/x", "/panels"]);
        check("/panel/*", &["/panel", "/panel/", "/panel/x", "/PANEL/x"], &["/panels", "/x/panel/"]);
        check("*.php", &["/a.php", "/a.php/b", "/A.PHP", "/a.php.", "/x/a.php;y"], &["/a.phps", "/php", "/a/php/b"]);
        check("/cgi-bin/status", &["/cgi-bin/status", "/cgi-bin/status/x"], &["/cgi-bin/statuses", "/cgi-bin/"]);
        check("/\u{17f}ecret", &["/secret", "/\u{17f}ecret"], &["/ecret"]);
        check("/key", &["/\u{212a}ey", "/KEY"], &["/ey"]);
        check("/admin", &["/adm\u{130}n", "/adm\u{131}n", "/ADM\u{130}N"], &["/admn"]);
        check("/adm\u{131}n", &["/admin", "/adm\u{131}n"], &["/adm"]);
        check("/sch\u{f6}n", &["/SCH\u{d6}N"], &["/schon"]);
        check("*/", &["/", "/a/"], &["/a", "/a/b"]);
        // A pattern can require the exact case.
        check("~(?-i)^/Key$", &["/Key", "/Key/"], &["/key", "/KEY"]);
    }

    #[test]
    fn other_readings_admit_no_client() {
        let office = "allow \"192.0.2.0/24\" path=\"/office/*\"\ndeny all";
        let check = |rules: &str, path: &str, client: &str, expect: Option<u16>| {
            assert_eq!(rejected(rules, path, client), expect, "{rules} {path} {client}");
        };
        check(office, "/office/a", OFFICE, None);
        check(office, "/office/a", ELSEWHERE, Some(403));
        for path in ["/OFFICE/a", "/x/..;/office/a", "/office;x/a", "/office.", "/Office"] {
            check(office, path, OFFICE, Some(403));
        }
        let page = "allow all path=\"/page.html\"\ndeny all";
        check(page, "/page.html", ELSEWHERE, None);
        for path in ["/page.html/", "/page.html/x", "/PAGE.html", "/page.html;x", "/page.html.", "/page.html?x"] {
            check(page, path, ELSEWHERE, Some(403));
        }
        // A client that may access all readings of a path is admitted.
        let both = "allow \"192.0.2.0/24\" path=\"/panel\"\ndeny all path=\"/panel\"";
        check(both, "/PANEL/", OFFICE, None);
        check(both, "/PANEL/", ELSEWHERE, Some(403));
        // Path without a password below a path that needs one.
        let open = "basic-auth \"/members/open/*\" off\nbasic-auth \"/members/*\" \"/nonexistent\"";
        check(open, "/members/open/a", ELSEWHERE, None);
        check(open, "/members/OPEN/a", ELSEWHERE, Some(401));
        check(open, "/members/open;/a", ELSEWHERE, Some(401));
    }

    #[test]
    fn guards_of_a_file_hold_for_its_precompressed_form() {
        let check = |rules: &str, path: &str, client: &str, expect: Option<u16>| {
            assert_eq!(rejected(rules, path, client), expect, "{rules} {path} {client}");
        };
        for end in ["gz", "br", "zst", "GZ", "gz/", "gz.", "gz/x"] {
            let path = format!("/page.html.{end}");
            check("deny all path=\"/page.html\"", &path, ELSEWHERE, Some(403));
            check("deny all path=\"*.html\"", &path, ELSEWHERE, Some(403));
            check("deny all path=\"~[.]html$\"", &path, ELSEWHERE, Some(403));
            check("basic-auth \"/PAGE.html\" \"/nonexistent\"", &path, ELSEWHERE, Some(401));
            let office = "allow \"192.0.2.0/24\" path=\"/page.html\"\ndeny all path=\"/page.html\"";
            check(office, &path, OFFICE, None);
            check(office, &path, ELSEWHERE, Some(403));
            let either = "allow \"192.0.2.0/24\"\ndeny all\nbasic-auth \"/page.html\" \"/nonexistent\" satisfy=\"any\"";
            check(either, &path, OFFICE, None);
            let shut = format!("deny all path=\"/page.html\" satisfy=\"all\"\n{either}");
            check(&shut, &path, OFFICE, Some(403));
            check(&shut, &path, ELSEWHERE, Some(403));
            // A password lifts the rule before it, but not this one.
            let behind = format!("deny all\ndeny all path=\"/page.html\" satisfy=\"all\"\n{either}");
            check(&behind, &path, ELSEWHERE, Some(403));
        }
        let either = "deny all\nbasic-auth \"/page.html\" \"/nonexistent\" satisfy=\"any\"";
        check(either, "/page.html", ELSEWHERE, Some(401));
        let others = "deny all path=\"/page.html\"\ndeny all path=\"/\"";
        for path in ["/page.html.gzip", "/page.html.txt.gz", "/page.gz", "/page.htm.gz", "/.gz"] {
            check(others, path, ELSEWHERE, None);
        }
        // The rules of the compressed file itself come first.
        let archives = "allow all path=\"*.gz\"\ndeny all path=\"/files/*\"";
        check(archives, "/files/a.tar.gz", ELSEWHERE, None);
        check(archives, "/files/a.tar", ELSEWHERE, Some(403));
        check("allow all path=\"/a.tar.gz\"\ndeny all", "/a.tar.gz", ELSEWHERE, None);
        let open = "basic-auth \"*.gz\" off\nbasic-auth \"/files/*\" \"/nonexistent\"";
        check(open, "/files/a.tar.gz", ELSEWHERE, None);
    }

    /// Issue 23: redirects told their target before the password.
    #[test]
    fn redirects_may_wait_for_a_password() {
        for (target, rule, expect) in [
            ("after-auth=on", "basic-auth \"/go\" \"/nonexistent\"", Some(401)),
            ("after-auth=on", "basic-auth \"/go\" off", Some(302)),
            ("after-auth=on", "deny all", Some(403)),
            ("after-auth=off", "basic-auth \"/go\" \"/nonexistent\"", Some(302)),
        ] {
            let rules = format!("redirect \"/go\" \"https://a.example/\" {target}\n{rule}");
            assert_eq!(rejected(&rules, "/go", ELSEWHERE), expect, "{rules}");
        }
    }

    #[test]
    fn limits_count_a_request_once() {
        let limit = "rate-limit \"/login\" \"1/h\"\nrate-limit \"*\" \"1/h\"";
        for path in ["/login", "/LOGIN/", "/login;a/", "/login. "] {
            assert_eq!(rejected(limit, path, ELSEWHERE), None, "{path}");
        }
        let shown = super::Readings::new(
            [super::GuardPattern::new(&crate::config::PathPattern::Any)].iter(),
            std::iter::empty(),
            false,
        );
        assert_eq!(shown.of(b"/A;b/", std::iter::empty()), [], "nothing is read where no path is guarded");
    }
}
