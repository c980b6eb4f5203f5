//! Shared by the tests of allocations.

/// Request with the fields that browsers send.
pub(crate) const REQUEST: [(&str, &str); 8] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "example.com"),
    (":path", "/page.html"),
    ("user-agent", "test"),
    ("accept", "*/*"),
    ("accept-encoding", "gzip, br"),
    ("priority", "u=1, i"),
];
