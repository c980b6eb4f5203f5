//! Caching of upstream responses: the model.

use std::time::Duration;

use wire::http::{Status, cookie_may_have_name};

/// Caching of upstream responses. Their own Cache-Control, Expires and Vary take precedence.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseCaching {
    /// Content of a response that is stored, in bytes.
    pub object_bytes_max: u64,
    /// Times for which responses without a lifetime are fresh, by status; the first match counts.
    pub default_ages: Vec<(Status, Duration)>,
    /// Caches a response without a lifetime for a tenth of the time since its Last-Modified (RFC 9111, section 4.2.2).
    pub heuristic: bool,
    /// Default time for which a stale response is served while it is validated (RFC 5861, section 3).
    pub stale_while_revalidate: Duration,
    /// Default time for which a stale response is served if the upstream fails (RFC 5861, section 4).
    pub stale_if_error: Duration,
    /// Obeys Cache-Control and Pragma of requests.
    pub request_directives: bool,
    /// Handling of responses that set cookies.
    pub set_cookie: SetCookie,
    /// Includes the host in the cache key.
    pub key_host: bool,
    /// Parameters of queries that tell responses apart; none for all but `ignored_parameters`.
    pub key_parameters: Vec<NamePattern>,
    /// Request header fields in the cache key, in addition to those of `Vary`.
    pub key_fields: Vec<Box<str>>,
    /// Cookies that do.
    pub key_cookies: Vec<Box<str>>,
    /// Parameters of queries that tell no responses apart.
    pub ignored_parameters: Vec<NamePattern>,
    /// Requests with one of these cookies are passed on, and their responses not stored.
    pub bypass_cookies: Vec<NamePattern>,
    /// Fields that are for this cache before Cache-Control (RFC 9213), in order.
    pub targeted_fields: Vec<Box<str>>,
    /// Maximum time that a request waits for another that fetches the same response.
    pub collapse_timeout: Duration,
    /// Requests that may wait for one fetch.
    pub collapse_max: usize,
    /// Adds `Cache-Status` to responses (RFC 9211).
    pub cache_status: bool,
}

/// Handling of responses that set cookies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCookie {
    /// Not stored.
    Reject,
    /// Stored without `Set-Cookie`.
    Drop,
    /// Stored as they are.
    Keep,
}

/// A name, or all names that begin in some way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    name: Box<str>,
    is_prefix: bool,
}

impl NamePattern {
    /// `name`, or `begin*`.
    pub fn new(pattern: &str) -> Self {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        Self { name: name.into(), is_prefix: name.len() < pattern.len() }
    }

    /// Returns `true` if the pattern matches this name.
    pub fn matches(&self, name: &[u8]) -> bool {
        if self.is_prefix { name.starts_with(self.name.as_bytes()) } else { name == self.name.as_bytes() }
    }

    /// Returns `true` if the pattern matches this name, letter case aside.
    pub fn matches_in_any_case(&self, name: &[u8]) -> bool {
        let begin = if self.is_prefix { name.get(..self.name.len()) } else { Some(name) };
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(self.name.as_bytes()))
    }

    /// Returns `true` if an application may read this cookie by a name that the pattern matches.
    pub fn may_name(&self, cookie: (&[u8], &[u8])) -> bool {
        cookie_may_have_name(cookie, self.name.as_bytes(), self.is_prefix)
    }
}

impl Default for ResponseCaching {
    fn default() -> Self {
        Self {
            object_bytes_max: 1 << 20,
            default_ages: Vec::new(),
            heuristic: false,
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            request_directives: false,
            set_cookie: SetCookie::Reject,
            key_host: true,
            key_parameters: Vec::new(),
            key_fields: Vec::new(),
            key_cookies: Vec::new(),
            ignored_parameters: Vec::new(),
            bypass_cookies: Vec::new(),
            targeted_fields: vec!["cdn-cache-control".into()],
            collapse_timeout: Duration::from_secs(5),
            collapse_max: 1_000,
            cache_status: false,
        }
    }
}
