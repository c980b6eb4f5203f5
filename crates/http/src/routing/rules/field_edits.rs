//! Rules that set, add and remove header fields of requests and responses.

use std::borrow::Cow;

use expression::{Groups, Verdict};
use wire::http::forwarding::{is_named_by_connection, is_same_field};
use wire::http::{FieldSpan, KnownField, Method, Request, RequestHead, Span, path};

use super::{RewrittenTarget, RoutedFacts, Visit};
use crate::config::{FieldAction, FieldEdit, Template, TemplatePiece, TlsPiece};
use crate::handler::{FieldChange, Response, Routed};
use crate::log::LogClient;

/// Error: the value of a field would end its line, or cannot be told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnsafeValue;

/// Computes the changes of a request's fields by the edits for one of these paths.
///
/// # Errors
/// A value has CR, LF or NUL (RFC 9110, section 5.5), or it or its condition cannot be told. The request must then be rejected. Without the change, the
/// upstream would use the value that the client sent in that field.
pub(crate) fn request_changes(
    edits: &[FieldEdit],
    paths: &[&[u8]],
    routed: &Routed<'_>,
    visit: &Visit,
) -> Result<Vec<FieldChange>, UnsafeValue> {
    let changes = changes(edits, paths, RoutedFacts::new(routed).with_visit(visit), routed, visit, |unknown| unknown)?;
    if changes.iter().any(|change| change.value.iter().any(is_unsafe)) {
        return Err(UnsafeValue);
    }
    Ok(changes)
}

/// Computes the changes of a response's fields by the edits for one of these paths. CR, LF and NUL become spaces (RFC
/// 9110, section 5.5). An edit whose value cannot be told is left out.
pub(crate) fn response_changes(
    edits: &[FieldEdit],
    paths: &[&[u8]],
    routed: &Routed<'_>,
    visit: &Visit,
    response: &Response,
) -> Vec<FieldChange> {
    let facts = RoutedFacts::new(routed).with_visit(visit).with_response(response);
    let mut changes = changes(edits, paths, facts, routed, visit, |_| Ok(None)).unwrap_or_default();
    for byte in changes.iter_mut().flat_map(|change| &mut change.value).filter(|byte| is_unsafe(byte)) {
        *byte = b' ';
    }
    changes
}

fn is_unsafe(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n' | 0)
}

/// Change of an edit, or nothing, or the error of its value.
type EditResult = Result<Option<FieldChange>, UnsafeValue>;

fn changes(
    edits: &[FieldEdit],
    paths: &[&[u8]],
    facts: RoutedFacts<'_>,
    routed: &Routed<'_>,
    visit: &Visit,
    on_unknown: fn(EditResult) -> EditResult,
) -> Result<Vec<FieldChange>, UnsafeValue> {
    let mut changes = Vec::new();
    for edit in edits.iter().filter(|edit| paths.iter().any(|path| edit.path.matches(path))) {
        let mut groups = None;
        if let Some(when) = &edit.when {
            let (verdict, found) = when.evaluate_with_groups(&facts);
            match verdict {
                Verdict::True => groups = Some(found),
                Verdict::False => continue,
                Verdict::Unknown => {
                    changes.extend(on_unknown(Err(UnsafeValue))?);
                    continue;
                }
            }
        }
        let Some(action) = edit.action else {
            changes.retain(|change: &FieldChange| !change.name.eq_ignore_ascii_case(&edit.name));
            continue;
        };
        let mut value = Vec::new();
        let change = match write_value(&edit.value, (&facts, groups.as_ref()), routed, visit, &mut value) {
            Ok(()) => Some(FieldChange { action, name: edit.name.clone(), value }),
            Err(error) => on_unknown(Err(error))?,
        };
        changes.extend(change);
    }
    Ok(changes)
}

fn write_value(
    template: &Template,
    (facts, groups): (&RoutedFacts<'_>, Option<&Groups>),
    routed: &Routed<'_>,
    visit: &Visit,
    out: &mut Vec<u8>,
) -> Result<(), UnsafeValue> {
    for piece in &template.pieces {
        match piece {
            TemplatePiece::Literal(text) => out.extend_from_slice(text.as_bytes()),
            TemplatePiece::Host => out.extend_from_slice(routed.host),
            TemplatePiece::Scheme => out.extend_from_slice(routed.scheme().as_bytes()),
            TemplatePiece::Tls(piece) => {
                if let Some(tls) = routed.tls {
                    let record = tls.record();
                    let text = match piece {
                        TlsPiece::Version => record.version,
                        TlsPiece::CipherSuite => record.cipher_suite,
                        TlsPiece::ServerName => record.server_name,
                        TlsPiece::Client => record.client,
                    };
                    out.extend_from_slice(text.as_bytes());
                }
            }
            TemplatePiece::Path => path::encode(routed.path, out),
            TemplatePiece::Query => {
                if let Some(query) = routed.query {
                    out.push(b'?');
                    out.extend_from_slice(query);
                }
            }
            TemplatePiece::Client => {
                if let LogClient::Ip(address) = visit.client() {
                    out.extend_from_slice(address.ip().to_string().as_bytes());
                }
            }
            TemplatePiece::User => out.extend_from_slice(visit.signed_in_user()),
            TemplatePiece::RequestId => out.extend_from_slice(visit.request_id().as_bytes()),
            TemplatePiece::Field(name) => {
                out.extend_from_slice(routed.request.field_by_name(name.as_bytes()).unwrap_or_default());
            }
            // The configuration does not allow these pieces in values of fields.
            TemplatePiece::Rest
            | TemplatePiece::FurtherQuery
            | TemplatePiece::Argument(_)
            | TemplatePiece::Group(_) => {}
            TemplatePiece::Variable(variable) => {
                out.extend_from_slice(&variable.read(facts, groups).map_err(|_| UnsafeValue)?);
            }
        }
    }
    Ok(())
}

/// Makes a request head with the rewritten target, if any, and the changed fields. Returns it with the bytes that it
/// refers to.
pub(crate) fn change_request(
    request: &Request<'_>,
    target: Option<&RewrittenTarget>,
    changes: &[FieldChange],
) -> (RequestHead, Vec<u8>) {
    change_request_to(request, (request.method(), request.method_name()), target, changes)
}

/// Makes the head as [`change_request`] does, with another method.
pub(crate) fn change_request_to(
    request: &Request<'_>,
    (method, method_name): (Method, &[u8]),
    target: Option<&RewrittenTarget>,
    changes: &[FieldChange],
) -> (RequestHead, Vec<u8>) {
    let lines = changed_lines(request, changes);
    let withheld = changes.iter().filter(|change| change.action == FieldAction::Set && change.value.is_empty());
    let mut bytes = Vec::with_capacity(512);
    let mut append = |text: &[u8]| {
        let start = bytes.len();
        bytes.extend_from_slice(text);
        Span::new(start, bytes.len())
    };
    let mut head = RequestHead::default();
    head.method = method;
    head.method_name = append(method_name);
    head.target = match target {
        Some(target) => append(&target.encoded()),
        None => append(request.target()),
    };
    head.target_asked = target.map(|_| append(request.target_asked()));
    head.version = request.head.version;
    head.had_credentials = request.head.has_credentials();
    head.identity = append(request.head.identity.of(request.bytes));
    for EditedLine { name, value, is_set_here } in lines {
        let known = KnownField::from_name(name);
        head.push(FieldSpan { name: append(name), value: append(&value), known, is_set_here });
    }
    let before = request.head.withheld.iter().map(|name| name.of(request.bytes));
    head.withheld = before.chain(withheld.map(|change| change.name.as_bytes())).map(append).collect();
    (head, bytes)
}

/// Makes the head of a request that an authentication server has permitted, with the fields that it got from it.
pub(crate) fn identified_request(
    request: &Request<'_>,
    changes: &[FieldChange],
    identity: &[FieldChange],
) -> (RequestHead, Vec<u8>) {
    let (mut head, mut bytes) = change_request(request, None, changes);
    let start = bytes.len();
    for FieldChange { name, value, .. } in identity.iter().filter(|field| !field.value.is_empty()) {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'=');
        bytes.extend_from_slice(value);
        // No value has a line feed.
        bytes.push(b'\n');
    }
    head.identity = Span::new(start, bytes.len());
    (head, bytes)
}

/// Field line; `is_set_here` is true if a rule of this server set it.
struct EditedLine<'a> {
    name: &'a [u8],
    value: Cow<'a, [u8]>,
    is_set_here: bool,
}

/// Returns the field lines of a request after these changes.
fn changed_lines<'a>(request: &Request<'a>, changes: &'a [FieldChange]) -> Vec<EditedLine<'a>> {
    let connection = connection_without(request, changes);
    let mut lines = Vec::with_capacity(request.head.fields.len() + changes.len());
    for field in &request.head.fields {
        let (name, value) = (field.name.of(request.bytes), field.value.of(request.bytes));
        match &connection {
            Some(_) if field.known == KnownField::Connection => {}
            Some(_) if is_nominated(request, name) && changes.iter().any(|change| is_same(name, &change.name)) => {}
            _ => lines.push(EditedLine { name, value: value.into(), is_set_here: field.is_set_here }),
        }
    }
    if let Some(connection) = connection.filter(|options| !options.is_empty()) {
        lines.push(EditedLine { name: b"Connection", value: connection.into(), is_set_here: false });
    }
    for FieldChange { action, name, value } in changes {
        let is_there = |line: &EditedLine<'_>| is_same(line.name, name);
        match action {
            FieldAction::Set => lines.retain(|line| !is_there(line)),
            FieldAction::Default if lines.iter().any(is_there) => continue,
            FieldAction::Add | FieldAction::Default => {}
        }
        if !value.is_empty() {
            lines.push(EditedLine { name: name.as_bytes(), value: value.into(), is_set_here: true });
        }
    }
    lines
}

/// Returns true if a name stands for the changed field. Names with underscores instead of hyphens match, too. Otherwise
/// a client could add a second field that the upstream treats as the same.
fn is_same(name: &[u8], changed: &str) -> bool {
    is_same_field(name, changed.as_bytes())
}

fn is_nominated(request: &Request<'_>, name: &[u8]) -> bool {
    is_named_by_connection(name, request.field_lines(KnownField::Connection))
}

/// Returns the options of Connection without the changed fields; `None` if it names none of them. A field that
/// Connection names is not forwarded (RFC 9110, section 7.6.1). A client must not remove fields that this server sets
/// for the upstream.
fn connection_without(request: &Request<'_>, changes: &[FieldChange]) -> Option<Vec<u8>> {
    if !changes.iter().any(|change| is_nominated(request, change.name.as_bytes())) {
        return None;
    }
    let options = request.field_lines(KnownField::Connection).flat_map(|line| line.split(|&byte| byte == b','));
    let is_kept = |option: &&[u8]| !changes.iter().any(|change| is_same(option, &change.name));
    Some(options.map(<[u8]>::trim_ascii).filter(is_kept).collect::<Vec<_>>().join(&b", "[..]))
}

#[cfg(test)]
mod tests {
    use wire::http::{Fields, Status};

    use super::*;
    use crate::handler::{BuiltResponse, change_fields};
    use crate::routing::rules::tests::{RuleTestRequest, rules};

    const HEAD: &str = "GET /a%20b?c HTTP/1.1\r\nHost: H\r\nX-A: 1\r\nx-a: 2\r\nAuthorization: Basic x\r\n\r\n";

    /// Returns the fields that handlers see after these edits.
    fn request_fields(text: &str) -> String {
        let rules = rules(text);
        let request = RuleTestRequest::new(HEAD);
        let routed = request.routed();
        let visit = Visit::for_tests(LogClient::Ip("192.0.2.1:1".parse().unwrap()), "anna");
        let changes = request_changes(&rules.request_fields, &[routed.path], &routed, &visit).unwrap();
        let (head, bytes) = change_request(&routed.request, None, &changes);
        let edited = Request { head: &head, bytes: &bytes };
        assert_eq!((edited.method_name(), edited.target()), (&b"GET"[..], &b"/a%20b?c"[..]));
        for field in &head.fields {
            let name = field.name.of(&bytes);
            assert_eq!(field.known, KnownField::from_name(name));
            assert!(edited.field_by_name(name).is_some());
        }
        let lines = head.fields.iter().map(|field| [field.name.of(&bytes), field.value.of(&bytes)].join(&b": "[..]));
        lines.map(|line| String::from_utf8(line).unwrap()).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn of_requests() {
        let check = |text: &str, expect: &str| assert_eq!(request_fields(text), expect, "{text}");
        check("", "Host: H; X-A: 1; x-a: 2; Authorization: Basic x");
        check(r#"request-header "X-A" """#, "Host: H; Authorization: Basic x");
        check(r#"request-header "X-A" "3""#, "Host: H; Authorization: Basic x; X-A: 3");
        check(r#"request-header "x_a" "3""#, "Host: H; Authorization: Basic x; x_a: 3");
        check(r#"request-header "X-A" "3" action="add""#, "Host: H; X-A: 1; x-a: 2; Authorization: Basic x; X-A: 3");
        check(r#"request-header "X-A" "3" action="default""#, "Host: H; X-A: 1; x-a: 2; Authorization: Basic x");
        check(r#"request-header "/other/*" "X-A" "3""#, "Host: H; X-A: 1; x-a: 2; Authorization: Basic x");
        check(
            "request-header \"Authorization\" \"\"\nrequest-header \"X-A\" \"\"\n\
             request-header \"B\" \"{client} {host} {path} {query} {user} {request.header.x-a}|{request.header.none}\"",
            "Host: H; B: 192.0.2.1 h /a%20b ?c anna 1|",
        );
    }

    /// Regression test for issue 17. If a client could have an edit dropped, upstreams would trust its own value of the
    /// field.
    #[test]
    fn an_unsafe_value_rejects_the_request() {
        let text = "request-header \"X-User\" \"{user}\"\nresponse-header \"X-User\" \"{user}\"";
        let (rules, request) = (rules(text), RuleTestRequest::new(HEAD));
        let routed = request.routed();
        for (user, expect) in [("an\r\nna", "an  na"), ("a\0", "a "), ("\n", " ")] {
            let visit = Visit::for_tests(LogClient::Unix, user);
            assert_eq!(
                request_changes(&rules.request_fields, &[routed.path], &routed, &visit),
                Err(UnsafeValue),
                "{user:?}"
            );
            let changes = response_changes(
                &rules.response_fields,
                &[routed.path],
                &routed,
                &visit,
                &Response::Built(BuiltResponse::new(Status::OK)),
            );
            assert_eq!(changes[0].value, expect.as_bytes(), "{user:?}");
        }
        let visit = Visit::for_tests(LogClient::Unix, "anna\t\x7f");
        assert!(request_changes(&rules.request_fields, &[routed.path], &routed, &visit).is_ok());
    }

    #[test]
    fn a_rewritten_target_is_one_that_parses_to_itself() {
        let request = RuleTestRequest::new(HEAD);
        for (path, query, expect) in [
            (&b"/"[..], None, &b"/"[..]),
            (b"/a b/\xff?#%", None, b"/a%20b/%FF%3F%23%25"),
            (b"/a", Some(&b"b=c%20d&e"[..]), b"/a?b=c%20d&e"),
            (b"/a", Some(b""), b"/a?"),
        ] {
            let target = RewrittenTarget { path: path.to_vec(), query: query.map(<[u8]>::to_vec) };
            let (head, bytes) = change_request(&request.routed().request, Some(&target), &[]);
            assert_eq!(head.target.of(&bytes), expect);
            let parsed = wire::http::RequestTarget::parse(expect, head.method).unwrap();
            assert_eq!(path::normalise(parsed.path, &mut Vec::new()), Ok(path));
            assert_eq!(parsed.query, query);
        }
    }

    #[test]
    fn hidden_credentials_are_not_forgotten() {
        let request = RuleTestRequest::new(HEAD);
        let hide = FieldChange { action: FieldAction::Set, name: "Authorization".into(), value: Vec::new() };
        let (head, _) = change_request(&request.routed().request, None, &[hide]);
        assert!(!head.has(KnownField::Authorization) && head.has_credentials());
    }

    #[test]
    fn of_responses() {
        let check = |text: &str, expect: &[(&str, &str)]| {
            let rules = rules(text);
            let request = RuleTestRequest::new(HEAD);
            let routed = request.routed();
            let visit = Visit::for_tests(LogClient::Unix, "");
            let mut fields = Fields::new();
            fields.push("A", "1");
            fields.push("a", "2");
            change_fields(
                &mut fields,
                &response_changes(
                    &rules.response_fields,
                    &[routed.path],
                    &routed,
                    &visit,
                    &Response::Built(BuiltResponse::new(Status::OK)),
                ),
            );
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let found: Vec<_> = fields.iter().map(|(name, value)| (text(name), text(value))).collect();
            let expect: Vec<_> = expect.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            assert_eq!(found, expect);
        };
        check(r#"response-header "A" "3""#, &[("A", "3")]);
        check(r#"response-header "A" """#, &[]);
        check(r#"response-header "A" "3" action="add""#, &[("A", "1"), ("a", "2"), ("A", "3")]);
        check(r#"response-header "A" "3" action="default""#, &[("A", "1"), ("a", "2")]);
        check(r#"response-header "B" "3" action="default""#, &[("A", "1"), ("a", "2"), ("B", "3")]);
        check(r#"response-header "B" "{client}" action="add""#, &[("A", "1"), ("a", "2")]);
    }

    #[test]
    fn a_request_has_one_id() {
        let rules = rules("request-header \"A\" \"{request_id}\"\nresponse-header \"A\" \"{request_id}\"");
        let request = RuleTestRequest::new(HEAD);
        let routed = request.routed();
        let visit = Visit::for_tests(LogClient::Unix, "");
        let id = |edits: &[FieldEdit], visit: &Visit| {
            request_changes(edits, &[routed.path], &routed, visit).unwrap()[0].value.clone()
        };
        let first = id(&rules.request_fields, &visit);
        assert_eq!(first, id(&rules.response_fields, &visit));
        assert!(first.len() == 32 && first.iter().all(u8::is_ascii_hexdigit));
        assert_ne!(first, id(&rules.request_fields, &Visit::for_tests(LogClient::Unix, "")));
    }
}
