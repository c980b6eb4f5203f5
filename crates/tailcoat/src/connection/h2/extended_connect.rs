//! Extended CONNECT (RFC 8441): a request for another protocol than HTTP, WebSocket above all, made into what handlers know
//! from HTTP/1.1, and its answer made into what the client of HTTP/2 knows.

use base64ct::{Base64, Encoding};
use wire::h2::H2IncomingRequest;
use wire::http::{KnownField, Method, RequestHead, Span, Status};

use crate::handler::{BuiltResponse, PageFormat, Response, error_response};

/// Makes a request for a change of protocols (RFC 9110, section 7.8) of an extended CONNECT. Whether it was one.
pub(super) fn become_upgrade(request: &H2IncomingRequest, head: &mut RequestHead, text: &mut Vec<u8>) -> bool {
    let Some(protocol) = request.protocol else { return false };
    head.method = Method::Get;
    head.method_name = append(text, b"GET");
    push_field(head, text, KnownField::Connection, b"connection", b"Upgrade");
    let name = append(text, b"upgrade");
    head.push_field(name, protocol, KnownField::Upgrade);
    if protocol.of(text).eq_ignore_ascii_case(b"websocket") {
        // RFC 8441, section 5: the client has sent none; RFC 6455, section 4.1: the server wants one.
        let key = fastrand::u128(..).to_ne_bytes();
        push_field(head, text, KnownField::Other, b"sec-websocket-key", Base64::encode_string(&key).as_bytes());
    }
    true
}

/// The response as the client of an extended CONNECT has to have it. `has_tunnel`: the protocol was changed.
pub(super) fn answer_connect(response: Response, has_tunnel: bool) -> Response {
    match response {
        Response::Built(mut response) if has_tunnel => {
            // What it was about is between the server and us (RFC 8441, section 5).
            for name in ["Connection", "Upgrade", "Sec-WebSocket-Accept"] {
                response.fields.remove(name);
            }
            Response::Built(Box::new(BuiltResponse { status: Status::OK, ..*response }))
        }
        // Any success would mean that there is a tunnel (RFC 9110, section 9.3.6).
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
