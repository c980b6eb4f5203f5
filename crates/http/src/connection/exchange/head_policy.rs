use crate::handler::BuiltResponse;

/// Fields that the server adds to a response that was built for one request, the same in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadPolicy {
    /// True if content follows the head, or would if it were not empty.
    pub has_content: bool,
    /// True if the server adds Date.
    pub adds_date: bool,
    /// True if the server adds Server.
    pub adds_server: bool,
    /// Value of Content-Length; `None` if it is not sent.
    pub content_length: Option<u64>,
}

impl HeadPolicy {
    /// Policy for a response. `is_head` is true for a request with HEAD, `server_field` if responses have a Server
    /// field.
    pub(crate) fn of(response: &BuiltResponse, is_head: bool, server_field: bool) -> Self {
        let BuiltResponse { status, fields, body, forwarded, .. } = response;
        let has_content = !is_head && !status.has_no_content();
        Self {
            has_content,
            // Date and Server of an upstream response are forwarded unchanged (RFC 9110, sections 6.6.1 and 10.2.4).
            adds_date: forwarded.is_none() || !fields.has("Date"),
            adds_server: server_field && forwarded.is_none(),
            content_length: match forwarded {
                Some(forwarded) if !has_content => forwarded.content_length,
                _ if status.has_no_content() => None,
                _ => body.length(),
            },
        }
    }
}
