//! Rules of a robots.txt file (RFC 9309).

/// Bytes of a file that are read; the rest is ignored (RFC 9309, section 2.5, asks for at least 500 KiB).
pub const ROBOTS_BYTES_MAX: usize = 512 << 10;

/// Rules of a robots.txt file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Robots {
    groups: Vec<Group>,
}

/// Rules for some crawlers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    /// Product tokens in lower case; `*` is for crawlers without a group of their own.
    agents: Vec<Vec<u8>>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    allows: bool,
    /// Decoded texts, with any bytes between two of them.
    parts: Vec<Vec<u8>>,
    /// True if nothing may follow the last part.
    is_anchored: bool,
    /// Length of the pattern; the longest that matches decides.
    length: usize,
}

impl Robots {
    /// Reads a file. Lines that are no rules are ignored, as crawlers do.
    pub fn parse(text: &[u8]) -> Self {
        let text = &text[..text.len().min(ROBOTS_BYTES_MAX)];
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut groups: Vec<Group> = Vec::new();
        // Agents that follow each other share the rules that come next.
        let mut names_agents = false;
        for line in text.split(|byte| matches!(byte, b'\n' | b'\r')) {
            let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
            let Some(colon) = memchr::memchr(b':', line) else { continue };
            let (key, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
            let is_rule = key.eq_ignore_ascii_case(b"allow") || key.eq_ignore_ascii_case(b"disallow");
            if key.eq_ignore_ascii_case(b"user-agent") {
                if !names_agents {
                    groups.push(Group::default());
                }
                names_agents = true;
                if let Some(group) = groups.last_mut() {
                    group.agents.push(product_token(value).to_ascii_lowercase());
                }
            } else if is_rule {
                names_agents = false;
                if let Some(group) = groups.last_mut().filter(|_| !value.is_empty()) {
                    group.rules.push(Rule::parse(key.eq_ignore_ascii_case(b"allow"), value));
                }
            }
        }
        Self { groups }
    }

    /// Returns true if the crawler with this product token may request a target: path and query, as sent.
    pub fn allows(&self, agent: &str, target: &[u8]) -> bool {
        let agent = agent.to_ascii_lowercase();
        let of = |name: &[u8]| {
            let is_of = move |group: &&Group| group.agents.iter().any(|known| known == name);
            self.groups.iter().filter(is_of).collect::<Vec<_>>()
        };
        let mut groups = of(agent.as_bytes());
        if groups.is_empty() {
            groups = of(b"*");
        }
        if groups.is_empty() || target == b"/robots.txt" {
            return true;
        }
        let target = decoded(target);
        let fitting = groups.iter().flat_map(|group| &group.rules).filter(|rule| rule.matches(&target));
        // Of rules of the same length, one that allows wins (RFC 9309, section 2.2.2).
        fitting.max_by_key(|rule| (rule.length, rule.allows)).is_none_or(|rule| rule.allows)
    }
}

impl Rule {
    fn parse(allows: bool, pattern: &[u8]) -> Self {
        let (pattern, is_anchored) = match pattern.strip_suffix(b"$") {
            Some(rest) => (rest, true),
            None => (pattern, false),
        };
        let parts = pattern.split(|byte| *byte == b'*').map(decoded).collect();
        Self { allows, parts, is_anchored, length: pattern.len() }
    }

    fn matches(&self, target: &[u8]) -> bool {
        let Some((first, others)) = self.parts.split_first() else { return true };
        let Some(mut rest) = target.strip_prefix(first.as_slice()) else { return false };
        let Some((last, between)) = others.split_last() else { return !self.is_anchored || rest.is_empty() };
        for part in between {
            let Some(at) = memchr::memmem::find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
        match self.is_anchored {
            true => rest.ends_with(last),
            false => memchr::memmem::find(rest, last).is_some(),
        }
    }
}

/// Letters, `-` and `_` at the beginning of a value (RFC 9309, section 2.2.1), or `*`.
fn product_token(value: &[u8]) -> &[u8] {
    if value.first() == Some(&b'*') {
        return b"*";
    }
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let end = value.iter().position(|byte| !is_part(byte)).unwrap_or(value.len());
    &value[..end]
}

/// Text with its percent-encoding removed, so that both sides of a comparison have the same form.
fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let pair = after.first_chunk::<2>().filter(|_| byte == b'%');
        match pair.and_then(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)) {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[2..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules() {
        let check = |text: &str, agent: &str, target: &str, expect: bool| {
            assert_eq!(
                Robots::parse(text.as_bytes()).allows(agent, target.as_bytes()),
                expect,
                "{text:?} {agent} {target}"
            );
        };
        let text = "User-agent: *\nDisallow: /private\nUser-Agent: GoodBot\nUser-agent: otherbot # and\nAllow: /\n\
                    User-agent: BadBot/2.0\nDisallow: /\nAllow: /open$\nDisallow:\n";
        check(text, "any", "/private/a", false);
        check(text, "any", "/public", true);
        check(text, "goodbot", "/private", true);
        check(text, "OTHERBOT", "/private", true);
        check(text, "badbot", "/a", false);
        check(text, "badbot", "/open", true);
        check(text, "badbot", "/open/more", false);
        check(text, "badbot", "/robots.txt", true);
        // RFC 9309, section 5.2: the longest match.
        let text = "User-Agent: foobot\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif\n";
        check(text, "foobot", "/example/page/", true);
        check(text, "foobot", "/example/page/disallowed.gif", false);
        // RFC 9309, section 2.2.3: special characters.
        let text = "User-Agent: foobot\nDisallow: *.gif$\nAllow: /publications/\nDisallow: /a/*/b?c=\nDisallow: /x%2a";
        check(text, "foobot", "/a.gif", false);
        check(text, "foobot", "/a.gif?x", true);
        check(text, "foobot", "/publications/a.gif", true);
        check(text, "foobot", "/a/1/2/b?c=3", false);
        check(text, "foobot", "/a/b?c=3", true);
        check(text, "foobot", "/x*", false);
        check(text, "foobot", "/xy", true);
        // RFC 9309, section 2.2.2: percent-encoding.
        check("user-agent:*\ndisallow:/foo/bar?baz=https://foo.bar", "a", "/foo/bar?baz=https%3A%2F%2Ffoo.bar", false);
        check("user-agent:*\ndisallow:/\u{30c4}", "a", "/%E3%83%84", false);
        check("user-agent:*\ndisallow:/%62", "a", "/b", false);
        // Groups of the same crawler are one; rules before all groups are none.
        check(
            "Disallow: /\nUser-agent: a\nDisallow: /1\nUser-agent: b\nDisallow: /2\nUser-agent: a\nDisallow: /3",
            "a",
            "/3",
            false,
        );
        check("Disallow: /", "a", "/", true);
        check("\u{feff}User-agent: *\r\nDisallow: /\r\n", "a", "/", false);
        check("User-agent: *\nCrawl-delay: 1\nSitemap: /s\nDisallow: /", "a", "/a", false);
    }

    proptest! {
        /// No file and no target leads to a panic, and a rule for the whole site rejects everything.
        #[test]
        fn random_files(text: Vec<u8>, target: Vec<u8>) {
            Robots::parse(&text).allows("a", &target);
            let target = [b"/", &target[..]].concat();
            prop_assume!(target != b"/robots.txt");
            let all = Robots::parse(b"User-agent: *\nDisallow: /");
            prop_assert!(!all.allows("a", &target));
        }
    }
}
