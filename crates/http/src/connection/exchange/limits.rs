//! Limits of messages, which are the same in each version.

use wire::h1::{BodyLimits, HeadLimits};

use crate::config;

/// Converts the limits of a connection to the form for an engine. The limit of request content depends on the handler.
pub(crate) fn message_limits(limits: &config::Limits) -> (HeadLimits, BodyLimits) {
    let head = HeadLimits {
        head_bytes_max: limits.head_bytes_max,
        fields_max: limits.fields_max,
        target_bytes_max: limits.target_bytes_max,
    };
    let body = BodyLimits {
        body_bytes_max: u64::MAX,
        extension_bytes_max: limits.head_bytes_max,
        trailer_bytes_max: limits.head_bytes_max,
    };
    (head, body)
}
