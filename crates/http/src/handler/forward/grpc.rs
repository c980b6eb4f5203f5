//! Errors of our own for gRPC clients, in gRPC's form: with a status other than 200, such a client must guess.

use wire::http::{Method, Status};

use crate::handler::{BuiltResponse, Routed};

/// Status codes of gRPC (doc/statuscodes.md).
const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;

/// True for gRPC requests: POST with `application/grpc`, alone or with a suffix (doc/PROTOCOL-HTTP2.md,
/// Content-Type).
pub(super) fn is_grpc(routed: &Routed<'_>) -> bool {
    if routed.request.method() != Method::Post {
        return false;
    }
    let content_type = routed.request.field_by_name(b"content-type").unwrap_or_default();
    let rest = content_type.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Builds a response that consists of trailers only.
pub(super) fn grpc_error(status: Status) -> Box<BuiltResponse> {
    // Errors that a retry may cure map to UNAVAILABLE (doc/http-grpc-status-mapping.md).
    let code = match status {
        Status::BAD_GATEWAY | Status::SERVICE_UNAVAILABLE | Status::GATEWAY_TIMEOUT => UNAVAILABLE,
        _ => INTERNAL,
    };
    let mut response = BuiltResponse::new(Status::OK);
    response.fields.push("Content-Type", "application/grpc");
    response.fields.push("Grpc-Status", code.to_string());
    response.fields.push("Grpc-Message", format!("{status} {}", status.reason()));
    response
}
