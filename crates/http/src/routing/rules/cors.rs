//! Cross-origin resource sharing (Fetch standard, section 3.2): answers to preflight requests, and fields of responses.

use wire::http::{Method, Status};

use crate::config::{Cors, FieldAction, OriginPattern};
use crate::handler::{BuiltResponse, FieldChange, Routed};

/// Answers a preflight request; `None` for any other request.
pub(super) fn preflight(cors: &Cors, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
    let field = |name: &str| routed.request.field_by_name(name.as_bytes());
    if routed.request.method() != Method::Options {
        return None;
    }
    let method = field("access-control-request-method")?;
    let mut response = BuiltResponse::new(Status::NO_CONTENT);
    let Some(origin) = allowed_origin(cors, field("origin")?) else { return Some(response) };
    push_origin(cors, origin, |name, value| _ = response.fields.push(name, value));
    let mut push = |name: &'static str, list: &[String], asked: &[u8]| {
        let value = match list {
            [] => return,
            // With credentials, `*` is a name like any other.
            list if list.iter().any(|item| item == "*") && cors.allows_credentials => asked.to_vec(),
            list => list.join(", ").into_bytes(),
        };
        if !value.is_empty() {
            response.fields.push(name, value);
        }
    };
    push("Access-Control-Allow-Methods", &cors.methods, method);
    let headers = field("access-control-request-headers").unwrap_or_default();
    push("Access-Control-Allow-Headers", &cors.headers, headers);
    if let Some(seconds) = cors.age_max_seconds {
        response.fields.push("Access-Control-Max-Age", seconds.to_string());
    }
    Some(response)
}

/// Fields of the response to a request of another origin.
pub(super) fn response_changes(cors: &Cors, routed: &Routed<'_>) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    let origin = routed.request.field_by_name(b"origin").and_then(|origin| allowed_origin(cors, origin));
    let Some(origin) = origin else {
        // A cache must not give other origins this response, which lacks their fields.
        if !allows_all_alike(cors) {
            changes.push(change(FieldAction::Add, "Vary", b"Origin".to_vec()));
        }
        return changes;
    };
    push_origin(cors, origin, |name, value| {
        let action = if name == "Vary" { FieldAction::Add } else { FieldAction::Set };
        changes.push(change(action, name, value));
    });
    if !cors.exposed_headers.is_empty() {
        let value = cors.exposed_headers.join(", ").into_bytes();
        changes.push(change(FieldAction::Set, "Access-Control-Expose-Headers", value));
    }
    changes
}

fn change(action: FieldAction, name: &str, value: Vec<u8>) -> FieldChange {
    FieldChange { action, name: name.to_owned(), value }
}

/// The origin, if its scripts may read responses.
fn allowed_origin<'o>(cors: &Cors, origin: &'o [u8]) -> Option<&'o [u8]> {
    cors.origins.iter().any(|pattern| pattern.matches(origin)).then_some(origin)
}

/// True if all origins get the same fields.
fn allows_all_alike(cors: &Cors) -> bool {
    cors.origins.contains(&OriginPattern::Any) && !cors.allows_credentials
}

fn push_origin(cors: &Cors, origin: &[u8], mut push: impl FnMut(&'static str, Vec<u8>)) {
    if allows_all_alike(cors) {
        push("Access-Control-Allow-Origin", b"*".to_vec());
        return;
    }
    push("Access-Control-Allow-Origin", origin.to_vec());
    push("Vary", b"Origin".to_vec());
    if cors.allows_credentials {
        push("Access-Control-Allow-Credentials", b"true".to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::rules::tests::RuleTestRequest;

    fn cors() -> Cors {
        Cors {
            origins: vec![OriginPattern::parse("https://*.a.example").unwrap()],
            methods: vec!["GET".into(), "PUT".into()],
            headers: vec!["X-A".into()],
            exposed_headers: vec!["X-B".into()],
            allows_credentials: false,
            age_max_seconds: Some(60),
        }
    }

    /// Fields of the response to a preflight, or `-`.
    fn answer(cors: &Cors, head: &str) -> String {
        let request = RuleTestRequest::new(&format!("{head}\r\nHost: h\r\n\r\n"));
        let Some(response) = preflight(cors, &request.routed()) else { return "-".into() };
        assert_eq!(response.status.code(), 204);
        let lines = response.fields.iter().map(|(name, value)| [name, value].join(&b": "[..]));
        String::from_utf8(lines.collect::<Vec<_>>().join(&b"; "[..])).unwrap()
    }

    #[test]
    fn preflights() {
        let head = |fields: &str| format!("OPTIONS / HTTP/1.1\r\nOrigin: https://x.a.example{fields}");
        let asks = "\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-c";
        let any = || vec!["*".to_owned()];
        let all = Cors { origins: vec![OriginPattern::Any], methods: any(), headers: any(), ..cors() };
        let with_credentials = Cors { allows_credentials: true, ..all.clone() };
        for (cors, head, expect) in [
            (cors(), head(""), "-"),
            (cors(), "GET / HTTP/1.1\r\nOrigin: https://x.a.example\r\nAccess-Control-Request-Method: PUT".into(), "-"),
            (
                cors(),
                head(asks),
                "Access-Control-Allow-Origin: https://x.a.example; Vary: Origin; Access-Control-Allow-Methods: GET, PUT; \
                 Access-Control-Allow-Headers: X-A; Access-Control-Max-Age: 60",
            ),
            (
                cors(),
                "OPTIONS / HTTP/1.1\r\nOrigin: https://b.example\r\nAccess-Control-Request-Method: PUT".into(),
                "",
            ),
            (
                all,
                head(asks),
                "Access-Control-Allow-Origin: *; Access-Control-Allow-Methods: *; Access-Control-Allow-Headers: *; \
                 Access-Control-Max-Age: 60",
            ),
            (
                with_credentials,
                head(asks),
                "Access-Control-Allow-Origin: https://x.a.example; Vary: Origin; Access-Control-Allow-Credentials: true; \
                 Access-Control-Allow-Methods: PUT; Access-Control-Allow-Headers: x-c; Access-Control-Max-Age: 60",
            ),
        ] {
            assert_eq!(answer(&cors, &head), expect, "{head}");
        }
    }

    #[test]
    fn fields_of_responses() {
        let changes = |origin: &str| {
            let request = RuleTestRequest::new(&format!("GET / HTTP/1.1\r\nHost: h{origin}\r\n\r\n"));
            let changes = response_changes(&cors(), &request.routed());
            let texts = changes
                .into_iter()
                .map(|change| format!("{}: {}", change.name, String::from_utf8(change.value).unwrap()));
            texts.collect::<Vec<_>>().join("; ")
        };
        assert_eq!(changes(""), "Vary: Origin");
        assert_eq!(changes("\r\nOrigin: https://b.example"), "Vary: Origin");
        assert_eq!(
            changes("\r\nOrigin: https://x.a.example"),
            "Access-Control-Allow-Origin: https://x.a.example; Vary: Origin; Access-Control-Expose-Headers: X-B"
        );
    }
}
