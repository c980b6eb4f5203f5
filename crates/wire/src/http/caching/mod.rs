//! Decisions of a shared cache (RFC 9111): storage, freshness, reuse, validation, and invalidation. The module stores
//! no responses and reads no clock; both are arguments.

mod directives;
mod freshness;
mod invalidation;
mod reuse;
mod storage;
mod tags;
mod targeted;
mod update;
mod vary;

pub use directives::{RequestDirectives, ResponseDirectives};
pub use freshness::{DELTA_SECONDS_MAX, Freshness, Reception, age_field};
pub use invalidation::{invalidates, resolve};
pub use reuse::{ReuseDecision, reuse, serves_on_error};
pub use storage::{Defaults, StoredResponseMeta, UncacheableReason, storage};
pub use tags::{CacheTag, TAGS_MAX};
pub use update::{
    HeadUpdate, head_update, is_same_representation, is_update_of, stored_fields, updated_fields, write_validators,
};
pub use vary::{Vary, write_selecting_value};

#[cfg(test)]
mod tests {
    use crate::http::{Fields, KnownField, Method, Request, RequestHead, Span};

    /// Creates fields with these names and values.
    pub(super) fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in lines {
            fields.push(name, *value);
        }
        fields
    }

    /// Calls `read` with a GET that has these fields.
    pub(super) fn with_request<T>(lines: &[(&str, &str)], read: impl FnOnce(&Request<'_>) -> T) -> T {
        with_method(Method::Get, lines, read)
    }

    /// Calls `read` with a request that has these fields.
    pub(super) fn with_method<T>(method: Method, lines: &[(&str, &str)], read: impl FnOnce(&Request<'_>) -> T) -> T {
        let (mut head, mut bytes) = (RequestHead::default(), Vec::new());
        head.method = method;
        for (name, value) in lines {
            let name_start = bytes.len();
            bytes.extend_from_slice(name.as_bytes());
            let value_start = bytes.len();
            bytes.extend_from_slice(value.as_bytes());
            let known = KnownField::from_name(name.as_bytes());
            head.push_field(Span::new(name_start, value_start), Span::new(value_start, bytes.len()), known);
        }
        read(&Request { head: &head, bytes: &bytes })
    }
}
