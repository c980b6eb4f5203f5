//! Request in the form that a module gets.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use wire::h1::BodyFraming;
use wire::http::{Fields, KnownField};

use crate::config::ClientFields;
use crate::handler::Routed;
use crate::handler::forward::{host_and_port, is_passed_on, push_client_fields, push_trace_fields, target};

/// Authority of a request without one (HTTP/1.0): a module always gets one.
const NO_HOST: &str = "localhost";

/// Builds the request without its content. `None` if its target has bytes that no URL may have (RFC 3986, section 2).
pub(super) fn module_request(
    routed: &Routed<'_>,
    framing: BodyFraming,
    client_fields: ClientFields,
) -> Option<http::Request<()>> {
    let mut request = http::Request::new(());
    *request.method_mut() = http::Method::from_bytes(routed.request.method_name()).ok()?;
    *request.uri_mut() = uri(routed)?;
    *request.headers_mut() = fields(routed, framing, client_fields);
    Some(request)
}

/// Target in absolute form; the module gets its parts.
fn uri(routed: &Routed<'_>) -> Option<Uri> {
    let path = PathAndQuery::from_maybe_shared(Bytes::from(target(routed, "").into_owned())).ok()?;
    let host = Some(host_and_port(routed)).filter(|host| !host.is_empty()).unwrap_or(NO_HOST.as_bytes());
    // The module gets the scheme separately; this one is only a placeholder.
    Uri::builder().scheme("http").authority(host).path_and_query(path).build().ok()
}

fn fields(routed: &Routed<'_>, framing: BodyFraming, client_fields: ClientFields) -> HeaderMap {
    let bytes = routed.request.bytes;
    let mut fields = HeaderMap::with_capacity(routed.request.head.fields.len() + 4);
    for field in &routed.request.head.fields {
        let (name, value) = (field.name.of(bytes), field.value.of(bytes));
        // The worker has sent 100 Continue when the content arrives.
        if field.known != KnownField::Expect && is_passed_on(routed, field, client_fields) {
            append(&mut fields, name, value);
        }
    }
    if let BodyFraming::Length(length) = framing {
        fields.insert(http::header::CONTENT_LENGTH, length.into());
    }
    let mut ours = Fields::new();
    push_client_fields(routed, client_fields, &mut ours);
    push_trace_fields(routed, false, &mut ours);
    for (name, value) in ours.iter() {
        // A name that is not in the table would be copied.
        match (CLIENT_FIELDS.iter().find(|(known, _)| *known == name), HeaderValue::from_bytes(value)) {
            (Some((_, name)), Ok(value)) => {
                let _ = fields.try_append(name, value);
            }
            _ => append(&mut fields, name, value),
        }
    }
    fields
}

/// Names of client fields that the `http` crate has no constants for.
static CLIENT_FIELDS: [(&[u8], HeaderName); 3] = [
    (b"X-Forwarded-For", HeaderName::from_static("x-forwarded-for")),
    (b"X-Forwarded-Host", HeaderName::from_static("x-forwarded-host")),
    (b"X-Forwarded-Proto", HeaderName::from_static("x-forwarded-proto")),
];

/// Adds a field line. A line that the `http` crate rejects can't occur: the request was validated.
fn append(fields: &mut HeaderMap, name: &[u8], value: &[u8]) {
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
        // Fails beyond 32,768 lines.
        let _ = fields.try_append(name, value);
    }
}

/// Trailer fields in the form that a module gets.
pub(super) fn module_trailers(trailers: &Fields) -> HeaderMap {
    let mut fields = HeaderMap::new();
    trailers.iter().for_each(|(name, value)| append(&mut fields, name, value));
    fields
}
