//! Routes: requests or connections, and the backends that get them.

use serde::{Deserialize, Serialize};

use crate::Filter;

/// A route of requests over HTTP or gRPC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Names of listeners in the snapshot.
    pub listeners: Vec<String>,
    /// Host names, exact or `*.example.com`; none is those of the listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Time of creation, in seconds since 1970. Of equal matches, that of the older route wins, then that of the lesser
    /// name.
    #[serde(default)]
    pub created: i64,
    /// Rules, in order.
    pub rules: Vec<Rule>,
}

/// A rule of a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Requests of the rule: one match is enough; none is all requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<RouteMatch>,
    /// Filters, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Filter>,
    /// Backends by weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<BackendRef>,
    /// Time limits.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Retries; `None` retries only what the backend cannot have received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RouteRetry>,
    /// Options of a site, as KDL text, for what policies add: `limit-requests`, `allow`, `basic-auth`, `compress` and
    /// others. `handle` and `forward` are not among them. Options of `forward` go into
    /// [`forward_options`](Self::forward_options).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub options: String,
    /// Options of `forward`, as KDL text: `cache`, `body-bytes-max`, `request-buffering` and others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub forward_options: String,
    /// Reason why requests of this rule are answered with 500: the controller could not resolve a filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Requests that a rule matches: all parts must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteMatch {
    /// Path; `None` is any, as `Prefix("/")`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Method, in upper case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Header fields. Of several lines of a name, one must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<ValueMatch>,
    /// Arguments of the query. Of several with the same name, the first counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<ValueMatch>,
    /// Method of gRPC; excludes `path` and `method`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
}

/// Match of a path after percent-decoding and removal of dot segments.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathMatch {
    /// Just this path.
    Exact(String),
    /// This path and those below it, by segment: `/a` matches `/a`, `/a/` and `/a/b`, but not `/ab`.
    Prefix(String),
    /// Paths that begin with this text, whatever follows.
    Start(String),
    /// Paths that match this regular expression, from their start to their end.
    Regex(String),
}

/// Match of a header field or argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueMatch {
    /// Name.
    pub name: String,
    /// Test of the value.
    pub value: ValueTest,
}

/// Test of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueTest {
    /// Just this value.
    Exact(String),
    /// Values that match this regular expression, from their start to their end.
    Regex(String),
    /// Any value.
    Present,
}

/// Match of a gRPC call. Both parts are exact, or both are regular expressions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrpcMatch {
    /// Service with its package; `None` is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Method; `None` is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// True if they are regular expressions.
    #[serde(default)]
    pub is_regex: bool,
}

/// A backend and its share of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendRef {
    /// Name of a backend in the snapshot. If it has none of that name, 500 answers the share.
    pub backend: String,
    /// Share of requests, relative to the sum of weights; 0 is none.
    pub weight: u32,
    /// Filters for requests that this backend gets, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<Filter>,
}

/// Time limits of a rule, in milliseconds; `None` is the default of the server, 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeouts {
    /// From the last byte of the request to the head of the response; otherwise the response is 504.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_ms: Option<u64>,
    /// As `request_ms`, for each try of a backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_request_ms: Option<u64>,
}

/// Retries of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRetry {
    /// Statuses of responses after which a request is retried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<u16>,
    /// Retries after the first try.
    pub attempts: u32,
    /// Least time before each retry, in milliseconds.
    #[serde(default)]
    pub backoff_ms: u64,
}

/// A route of connections (TLS, TCP) or datagrams (UDP).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamRoute {
    /// Names of listeners in the snapshot.
    pub listeners: Vec<String>,
    /// Server names for TLS, exact or `*.example.com`; none is those of the listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    /// Time of creation, as in [`Route::created`].
    #[serde(default)]
    pub created: i64,
    /// Backends by weight. A share whose backend is unknown has its connections closed.
    pub backends: Vec<BackendRef>,
    /// Time without data after which a connection is closed, in milliseconds; `None` is the default of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
}

impl BackendRef {
    /// Reference without filters.
    pub fn new(backend: impl Into<String>, weight: u32) -> Self {
        Self { backend: backend.into(), weight, filters: Vec::new() }
    }
}
