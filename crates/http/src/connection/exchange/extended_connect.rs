//! Extended CONNECT (RFC 8441): a request for another protocol, most often WebSocket. The request is converted to an
//! HTTP/1.1 upgrade for handlers, and the response back to the form of HTTP/2.

use base64ct::{Base64, Encoding};
use wire::IncomingRequest;
use wire::http::{KnownField, Method, RequestHead, Span, Status};

use crate::handler::{BuiltResponse, PageFormat, Response, error_response};

/// Converts an extended CONNECT request to an upgrade request (RFC 9110, section 7.8). Returns false if the request is
/// another one.
pub(super) fn become_upgrade<Id>(request: &IncomingRequest<Id>, head: &mut RequestHead, text: &mut Vec<u8>) -> bool {
    let Some(protocol) = request.protocol else { return false };
    head.method = Method::Get;
    head.method_name = append(text, b"GET");
    push_field(head, text, KnownField::Connection, b"connection", b"Upgrade");
    let name = append(text, b"upgrade");
    head.push_field(name, protocol, KnownField::Upgrade);
    if protocol.of(text).eq_ignore_ascii_case(b"websocket") {
        // The client sends no key (RFC 8441, section 5), but the upstream requires one (RFC 6455, section 4.1).
        let key = fastrand::u128(..).to_ne_bytes();
        push_field(head, text, KnownField::Other, b"sec-websocket-key", Base64::encode_string(&key).as_bytes());
    }
    true
}

/// Converts the response for the client of an extended CONNECT. `has_tunnel` is true if the protocol was changed.
pub(super) fn answer_connect(response: Response, has_tunnel: bool) -> Response {
    match response {
        Response::Built(mut response) if has_tunnel => {
            // Fields that concern only the connection to the upstream (RFC 8441, section 5).
            for name in ["Connection", "Upgrade", "Sec-WebSocket-Accept"] {
                response.fields.remove(name);
            }
            Response::Built(Box::new(BuiltResponse { status: Status::OK, ..*response }))
        }
        // Any other successful status would mean that there is a tunnel (RFC 9110, section 9.3.6).
        Response::Built(response) if !(200..300).contains(&response.status.code()) => Response::Built(response),
        _ => Response::Built(error_response(Status::NOT_IMPLEMENTED, PageFormat::Html)),
    }
}

fn append(text: &mut Vec<u8>, bytes: &[u8]) -> Span {
    let start = text.len();
    text.extend_from_slice(bytes);
    Span::new(start, text.len())
}

fn push_field(head: &mut RequestHead, text: &mut Vec<u8>, known: KnownField, name: &[u8], value: &[u8]) {
    let (name, value) = (append(text, name), append(text, value));
    head.push_field(name, value, known);
}
