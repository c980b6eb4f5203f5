//! The request as a module gets it.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use wire::h1::BodyFraming;
use wire::http::{Fields, KnownField};

use crate::config::ClientFields;
use crate::handler::Routed;
use crate::handler::forward::{host_and_port, is_passed_on, push_client_fields, push_trace_fields, target};

/// The authority of a request that names none (HTTP/1.0): each has one for a module.
const NO_HOST: &str = "localhost";

/// Makes the request but for its content. `None` if it can't be told to a module: there are bytes in a target that are in
/// none (RFC 3986, section 2).
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

/// The target in absolute form: what the module is told are its parts.
fn uri(routed: &Routed<'_>) -> Option<Uri> {
    let path = PathAndQuery::from_maybe_shared(Bytes::from(target(routed, "").into_owned())).ok()?;
    let host = Some(host_and_port(routed)).filter(|host| !host.is_empty()).unwrap_or(NO_HOST.as_bytes());
    // The scheme is told apart from it; here it only has to be one.
    Uri::builder().scheme("http").authority(host).path_and_query(path).build().ok()
}

fn fields(routed: &Routed<'_>, framing: BodyFraming, client_fields: ClientFields) -> HeaderMap {
    let bytes = routed.request.bytes;
    let mut fields = HeaderMap::with_capacity(routed.request.head.fields.len() + 4);
    for field in &routed.request.head.fields {
        let (name, value) = (field.name.of(bytes), field.value.of(bytes));
        // The server waits for nobody, and has said "continue" when the content comes.
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
        // A name that it doesn't know would be copied.
        match (CLIENT_FIELDS.iter().find(|(known, _)| *known == name), HeaderValue::from_bytes(value)) {
            (Some((_, name)), Ok(value)) => {
                let _ = fields.try_append(name, value);
            }
            _ => append(&mut fields, name, value),
        }
    }
    fields
}

/// Names of the fields that are told of each client, which the library doesn't know.
static CLIENT_FIELDS: [(&[u8], HeaderName); 3] = [
    (b"X-Forwarded-For", HeaderName::from_static("x-forwarded-for")),
    (b"X-Forwarded-Host", HeaderName::from_static("x-forwarded-host")),
    (b"X-Forwarded-Proto", HeaderName::from_static("x-forwarded-proto")),
];

/// Adds a line. What the library can't hold is none that a request may have: it was checked when it was parsed.
fn append(fields: &mut HeaderMap, name: &[u8], value: &[u8]) {
    if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
        // Fails if there are more than 32,768.
        let _ = fields.try_append(name, value);
    }
}

/// Trailer fields as a module gets them.
pub(super) fn module_trailers(trailers: &Fields) -> HeaderMap {
    let mut fields = HeaderMap::new();
    trailers.iter().for_each(|(name, value)| append(&mut fields, name, value));
    fields
}
