//! Redirects that can be made to lead to another host by what is in a request ("open redirects"): a link to a site that
//! people trust then leads them anywhere.

use crate::model::PathPattern;
use crate::model::rules::{Template, TemplatePiece};

/// Ability of requests to choose the host of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Openness {
    /// No.
    Closed,
    /// Depends on what a group of a regular expression can match.
    Doubtful,
    /// Yes.
    Open,
}

/// Returns the ability of requests for paths of this pattern to choose the host of this redirect target.
pub(crate) fn openness(path: &PathPattern, target: &Template) -> Openness {
    let mut places = vec![ReferencePosition::Start];
    let mut found = Openness::Closed;
    for piece in &target.pieces {
        let mut next = Vec::new();
        for place in places {
            found = found.max(place.step(piece, path, &mut next));
        }
        next.sort_unstable();
        next.dedup();
        places = next;
    }
    found
}

/// End of the text so far within a reference (RFC 3986, section 4.1). Browsers treat `\` as `/`, and skip any number of
/// slashes before a host (WHATWG URL, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReferencePosition {
    Start,
    /// After one slash at the start: another would begin a host.
    Slash,
    /// After the slashes before a host.
    HostStart,
    /// In a host, or the port or user beside it.
    Host,
    /// After all that, or in the scheme.
    Past,
}

impl ReferencePosition {
    /// Goes on to where the text can end with this piece; tells what the piece could do.
    fn step(self, piece: &TemplatePiece, path: &PathPattern, next: &mut Vec<Self>) -> Openness {
        let mut go_on = |places: &[Self]| {
            next.extend_from_slice(places);
            Openness::Closed
        };
        match (self, piece) {
            (_, TemplatePiece::Literal(text)) => go_on(&[self.after_literal(text)]),
            (Self::Past, _) => go_on(&[Self::Past]),
            // A map of fixed values, an environment variable: no client can choose them.
            (_, TemplatePiece::Variable(variable)) if variable.is_of_operator() => match self {
                Self::Start | Self::Slash => go_on(&[self, Self::Host, Self::Past]),
                _ => go_on(&[self]),
            },
            // Slashes at the start are joined when the target is written.
            (Self::Slash, TemplatePiece::Variable(_)) => go_on(&[self, Self::Past]),
            // One of two words.
            (Self::Start, TemplatePiece::Scheme) => go_on(&[Self::Start]),
            (Self::Slash, TemplatePiece::Scheme) => go_on(&[Self::Past]),
            (Self::HostStart | Self::Host, TemplatePiece::Scheme) => go_on(&[Self::Host]),
            // A host is what the client has come to already.
            (Self::Slash | Self::Start, TemplatePiece::Host) => go_on(&[Self::Past]),
            (Self::HostStart | Self::Host, TemplatePiece::Host) => go_on(&[Self::Host]),
            (Self::Start, TemplatePiece::Path) if may_be_root(path) => go_on(&[Self::Slash, Self::Past]),
            (Self::Start | Self::Host, TemplatePiece::Path) => go_on(&[Self::Past]),
            // Either may be empty; else it begins with `?` or `&`, which in a host could be part of a user's name.
            (Self::Start | Self::Slash | Self::Host, TemplatePiece::Query) => go_on(&[self, Self::Past]),
            (Self::Start | Self::Slash, TemplatePiece::FurtherQuery) => go_on(&[self, Self::Past]),
            (Self::Start | Self::Slash, TemplatePiece::Rest) if !may_begin_with_slash(path) => {
                go_on(&[self, Self::Past])
            }
            (Self::Start | Self::Slash, TemplatePiece::Group(name)) if is_after_first_slash(path, name) => {
                go_on(&[self, Self::Past])
            }
            (Self::Start | Self::Slash, TemplatePiece::Group(_)) => {
                go_on(&[self, Self::Past]);
                Openness::Doubtful
            }
            _ => Openness::Open,
        }
    }

    fn after_literal(self, text: &str) -> Self {
        // A scheme's slashes are those before a host.
        let (place, text) = match (self, text.split_once("://")) {
            (Self::Start, Some((scheme, rest))) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                (Self::HostStart, rest)
            }
            _ => (self, text),
        };
        text.chars().fold(place, |place, character| match (place, character) {
            (Self::Start, '/' | '\\') => Self::Slash,
            (Self::Slash | Self::HostStart, '/' | '\\') => Self::HostStart,
            (Self::HostStart | Self::Host, character) if !matches!(character, '/' | '\\' | '?' | '#') => Self::Host,
            _ => Self::Past,
        })
    }
}

/// Returns `true` if `/` is such a path. No path has two slashes in a row, so after another slash it is the end.
fn may_be_root(path: &PathPattern) -> bool {
    match path {
        PathPattern::Any => true,
        PathPattern::Exact(path) | PathPattern::Prefix(path) | PathPattern::Suffix(path) => path == "/",
        PathPattern::Regex(regex) => regex.get().is_match(b"/"),
    }
}

/// Returns `true` if the text that `*` matches may begin with a slash.
fn may_begin_with_slash(path: &PathPattern) -> bool {
    matches!(path, PathPattern::Prefix(prefix) if !prefix.ends_with('/'))
}

/// Returns `true` if this group begins right after the first slash of a path, as in `^/(.*)$`.
fn is_after_first_slash(path: &PathPattern, name: &str) -> bool {
    let PathPattern::Regex(regex) = path else { return false };
    let first_name = regex.get().capture_names().nth(1).flatten();
    regex.get().as_str().starts_with("^/(") && (name == "1" || first_name == Some(name))
}

#[cfg(test)]
mod tests {
    use super::super::web::parse_path_pattern;
    use super::*;
    use crate::value::rules::{REDIRECT_STARTS, parse_target};

    #[test]
    fn open_redirects() {
        let check = |path: &str, target: &str, expect: Openness| {
            let Ok(template) = parse_target(target, REDIRECT_STARTS) else { panic!("{target} is no target") };
            let Ok(pattern) = parse_path_pattern(path) else { panic!("{path} is no path") };
            assert_eq!(openness(&pattern, &template), expect, "{path} {target}");
        };
        use Openness::*;
        for target in [
            "/new/{rest}",
            "/{rest}",
            "/{query}",
            "{path}",
            "{path}{query}",
            "/new{path}",
            "/{host}/{rest}",
            "https://{host}{path}",
            "https://{host}/{rest}",
            "https://{host}:8443{path}{query}",
            "{scheme}://{host}{path}",
            "{scheme}://example.com/{rest}",
            "/{scheme}/{rest}",
            "https://example.com{path}",
            "https://example.com{query}",
            "https://example.com/?next={query.next}",
            "https://www.{host}{path}",
            "//cdn.example/{rest}",
        ] {
            check("/old/*", target, Closed);
        }
        for target in [
            "//{rest}",
            "/{path}",
            "/{query}{path}",
            "/{query.next}",
            "//{query.next}",
            "///{rest}",
            "https://{path}",
            "{scheme}://{rest}",
            "{scheme}://{host}{rest}",
            "https://{rest}",
            "https://{1}.example.com/",
            "https://{host}.{query.a}/",
            "https://{query}{path}",
            "https://{host}{rest}",
            "https://example.com{rest}",
            "https://example.com.{rest}",
            "https://example.com:{rest}/",
            "https://example.com{&query}",
            "https://{query.host}/",
        ] {
            check("/old/*", target, Open);
        }
        check("/old*", "/{rest}", Open);
        check("/old*", "/new/{rest}", Closed);
        check("*", "/{rest}", Closed);
        check("/docs", "{path}/", Closed);
        check("/", "{path}/{query.next}", Open);
        check("~^/(.*)\\.html$", "/{1}", Closed);
        check("~^/(?<name>.*)\\.html$", "/{name}", Closed);
        check("~^/old(.*)$", "/{1}", Doubtful);
        check("~^/old(.*)$", "/new{1}", Closed);
        check("~^/old(.*)$", "https://example.com{1}", Open);
    }
}
