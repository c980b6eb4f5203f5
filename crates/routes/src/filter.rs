//! Filters: what happens to requests of a rule or a backend, and to their responses.

use serde::{Deserialize, Serialize};

/// A filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// Changes header fields of requests.
    RequestHeaders(FieldChanges),
    /// Changes header fields of responses.
    ResponseHeaders(FieldChanges),
    /// Responds with a redirect. No backend gets the request.
    Redirect(Redirect),
    /// Changes host and path of requests.
    Rewrite(RouteRewrite),
    /// Sends copies of requests to another backend. Several may follow each other.
    Mirror(RouteMirror),
    /// Cross-origin resource sharing.
    Cors(RouteCors),
    /// Asks a server whether to accept the request.
    ExternalAuth(ExternalAuth),
    /// Responds with a fixed status.
    Respond(RouteResponse),
}

/// Changes of header fields: first `set`, then `add`, then `remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldChanges {
    /// Names and values that replace all lines of the name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<(String, String)>,
    /// Names and values of additional lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<(String, String)>,
    /// Names of fields to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Redirect. Parts that are `None` stay those of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// `http` or `https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<String>,
    /// Host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Port; `None` is the default one of `scheme` if that is given, else the listener's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewrite>,
    /// Query without `?`, which replaces that of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Status: 301, 302, 303, 307 or 308; `None` is 302.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// Change of host and path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRewrite {
    /// Value of `Host` for the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Path for the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathRewrite>,
}

/// Change of a path. The query stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathRewrite {
    /// Replaces the whole path.
    Full(String),
    /// Replaces the prefix that the rule's match has, by segment.
    Prefix(String),
    /// Replaces the whole path by a template: `$1` is what the first group of the match's regular expression has found.
    Groups(String),
}

/// Copies of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteMirror {
    /// Name of a backend in the snapshot.
    pub backend: String,
    /// Copied part of the requests, as numerator and denominator: `(42, 100)` is 42 percent.
    #[serde(default = "all", skip_serializing_if = "is_all")]
    pub fraction: (u32, u32),
}

/// Cross-origin resource sharing (Fetch standard). An empty list allows nothing more than a simple request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteCors {
    /// Origins: `https://a.example`, with `*.` for all hosts below, or `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_origins: Vec<String>,
    /// Methods, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_methods: Vec<String>,
    /// Header fields of requests, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_headers: Vec<String>,
    /// Header fields of responses that scripts may read, or `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose_headers: Vec<String>,
    /// Permits cookies and other credentials.
    #[serde(default)]
    pub allow_credentials: bool,
    /// Seconds for which clients may keep the response to a preflight request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<u32>,
}

/// Server that decides on requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalAuth {
    /// Name of a backend in the snapshot.
    pub backend: String,
    /// Protocol of its requests.
    pub kind: ExternalAuthKind,
    /// Header fields of the request that it gets, in addition to those of the protocol; none is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<String>,
    /// Header fields of its response that the backend gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<String>,
    /// URL of a login page, to which clients are redirected instead of a 401, with the URL of the request in the argument
    /// `rd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Bytes of content that it gets; 0 is none.
    #[serde(default)]
    pub body_bytes_max: u64,
}

/// Protocol of external authorization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExternalAuthKind {
    /// A request over HTTP for this path and query; 2xx permits.
    Http(String),
    /// Envoy's `ext_authz` over gRPC.
    Grpc,
}

/// Fixed response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteResponse {
    /// Status.
    pub status: u16,
    /// Content, as plain text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

fn all() -> (u32, u32) {
    (1, 1)
}

fn is_all(fraction: &(u32, u32)) -> bool {
    *fraction == all()
}

impl RouteMirror {
    /// Copied part, from 0 to 1.
    pub fn share(&self) -> f64 {
        let (numerator, denominator) = self.fraction;
        (f64::from(numerator) / f64::from(denominator.max(1))).min(1.0)
    }
}
