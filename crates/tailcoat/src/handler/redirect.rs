//! A redirect.

use wire::http::{Status, path};

use super::{BuiltResponse, Outcome, Response, Routed};
use crate::config;

/// Sends requests elsewhere.
#[derive(Debug)]
pub struct Redirect {
    status: Status,
    pieces: Vec<Piece>,
    rest_from: usize,
}

/// A piece of a redirect's target.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Host,
    Path,
    /// The path from `rest_from` on.
    Rest,
    /// The query with its question mark; nothing if there is none.
    Query,
}

const PLACEHOLDERS: [(&str, Piece); 4] =
    [("{host}", Piece::Host), ("{path}", Piece::Path), ("{rest}", Piece::Rest), ("{query}", Piece::Query)];

impl Redirect {
    /// The handler for this configuration.
    pub fn new(config: &config::Redirect) -> Self {
        Self { status: config.status, pieces: parse(&config.target), rest_from: config.rest_from }
    }

    /// Answers a request.
    pub fn handle(&self, routed: &Routed<'_>) -> Outcome {
        if routed.host.is_empty() && self.pieces.contains(&Piece::Host) {
            // HTTP/1.0 without Host: nobody knows where to.
            return Outcome::Ready(Response::Built(BuiltResponse::new(Status::BAD_REQUEST)));
        }
        let mut response = BuiltResponse::new(self.status);
        response.fields.push("Location", self.location(routed));
        Outcome::Ready(Response::Built(response))
    }

    fn location(&self, routed: &Routed<'_>) -> Vec<u8> {
        let mut location = Vec::with_capacity(128);
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => location.extend_from_slice(text.as_bytes()),
                Piece::Host => location.extend_from_slice(routed.host),
                Piece::Path => path::encode(routed.path, &mut location),
                Piece::Rest => path::encode(routed.path.get(self.rest_from..).unwrap_or_default(), &mut location),
                Piece::Query => {
                    if let Some(query) = routed.query {
                        location.push(b'?');
                        location.extend_from_slice(query);
                    }
                }
            }
        }
        location
    }
}

fn parse(mut target: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    while !target.is_empty() {
        let next = PLACEHOLDERS.into_iter().filter_map(|(name, piece)| Some((target.find(name)?, name, piece)));
        let Some((at, name, piece)) = next.min_by_key(|(at, ..)| *at) else {
            pieces.push(Piece::Literal(target.to_owned()));
            break;
        };
        if at > 0 {
            pieces.push(Piece::Literal(target[..at].to_owned()));
        }
        pieces.push(piece);
        target = &target[at + name.len()..];
    }
    pieces
}

#[cfg(test)]
mod tests {
    use wire::http::{Request, RequestHead};

    use super::*;
    use crate::handler::{ClientLinkCell, Now};
    use crate::log::Client;

    fn location(target: &str, path: &[u8], query: Option<&[u8]>, host: &[u8]) -> Option<String> {
        let config = config::Redirect { status: Status::FOUND, target: target.to_owned(), rest_from: 5 };
        let request = Request { head: &RequestHead::default(), bytes: b"" };
        let (client, link) = (Client::Unix, &ClientLinkCell::default());
        let routed = Routed { request, path, query, host, client, link, has_next: false, now: Now::read() };
        let Outcome::Ready(Response::Built(response)) = Redirect::new(&config).handle(&routed) else { panic!() };
        response.fields.get("Location").map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn locations() {
        for (target, path, query, expect) in [
            ("/new", "/old/a", None, "/new"),
            ("/new/{rest}{query}", "/old/a/b", Some("x=1"), "/new/a/b?x=1"),
            ("/new/{rest}", "/old", None, "/new/"),
            ("https://{host}{path}{query}", "/a b", None, "https://h.example/a%20b"),
            ("{unknown}", "/", None, "{unknown}"),
        ] {
            let query = query.map(str::as_bytes);
            assert_eq!(location(target, path.as_bytes(), query, b"h.example").as_deref(), Some(expect), "{target}");
        }
        assert_eq!(location("https://{host}/", b"/", None, b""), None);
    }

    #[test]
    fn a_line_break_in_a_path_does_not_reach_the_field() {
        assert_eq!(location("{path}", b"/a\r\nSet-Cookie: x", None, b"h").as_deref(), Some("/a%0D%0ASet-Cookie:%20x"));
    }
}
