//! Rules before and after handlers: the model. `routing::rules` applies them, in the order that its documentation
//! gives.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use expression::{Condition, Network, Regex, Variable, number_of, unmapped};
use wire::http::Status;

use super::bots::BotsConfig;
use super::{Cors, ForwardConfig, HostPattern};
use crate::PathPattern;

/// The rules of a site, or of all sites.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RulesConfig {
    /// Paths that clients cannot request. They come before [`clients`](Self::clients).
    pub internals: Vec<ClientRule>,
    /// Access by address: the first match decides.
    pub clients: Vec<ClientRule>,
    /// Limits on the frequency of requests: all matches count.
    pub rate_limits: Vec<RateLimit>,
    /// Bans of clients whose requests are rejected too often.
    pub auto_bans: Vec<AutoBan>,
    /// Handling of bots; `None` without the option, `Some(None)` for `off`.
    pub bots: Option<Option<Arc<BotsConfig>>>,
    /// Limits on requests in progress: all matches count.
    pub request_limits: Vec<RequestLimit>,
    /// Redirects and rewrites: the first that fits is applied.
    pub rewrites: Vec<Rewrite>,
    /// Redirects clients without TLS to the same URL with `https`; `None` is the default.
    pub redirects_to_https: Option<bool>,
    /// Host that clients of the site's other names are redirected to.
    pub canonical_host: Option<HostPattern>,
    /// Cross-origin resource sharing; `None` leaves it to handlers.
    pub cors: Option<Arc<Cors>>,
    /// `Strict-Transport-Security` of responses over TLS.
    pub strict_transport_security: Option<String>,
    /// Paths that need a password: the first match counts.
    pub passwords: Vec<PasswordRule>,
    /// Paths for which another server authorizes each request: the first match counts.
    pub forward_auths: Vec<ForwardAuthRule>,
    /// Changes of the fields that handlers see, in order.
    pub request_fields: Vec<FieldEdit>,
    /// Changes of the fields of responses, in order.
    pub response_fields: Vec<FieldEdit>,
}

impl RulesConfig {
    /// Returns `true` if a rule guards this path: by address, by password or by forward authentication.
    pub fn guards(&self, path: &PathPattern) -> bool {
        let PathPattern::Exact(path) = path else { return false };
        let is_for = |pattern: &PathPattern| pattern.guards(path.as_bytes());
        self.clients.iter().filter(|rule| rule.keeps_all_out()).any(|rule| is_for(&rule.path))
            || self.passwords.iter().any(|rule| rule.file.is_some() && rule.when.is_none() && is_for(&rule.path))
            || self.forward_auths.iter().any(|rule| rule.auth.is_some() && rule.when.is_none() && is_for(&rule.path))
    }
}

/// Access rule for clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientRule {
    /// Paths of the rule.
    pub path: PathPattern,
    /// Under which conditions: all must hold.
    pub conditions: RuleConditions,
    /// Allows the clients; otherwise rejects them.
    pub is_allowed: bool,
    /// Holds only for the path that the client sent, not for paths that other options lead to.
    pub is_internal: bool,
    /// Rejects clients with a password, too, where an address or a password is enough.
    pub is_final: bool,
    /// Clients of the rule.
    pub clients: Vec<ClientPattern>,
    /// Files that some of them are from.
    pub files: Vec<PathBuf>,
    /// Status for rejected clients.
    pub status: Status,
}

impl ClientRule {
    /// True if no client may come that no rule before it lets in.
    pub fn keeps_all_out(&self) -> bool {
        !self.is_allowed
            && !self.is_internal
            && self.conditions.is_of_path_only()
            && self.clients.contains(&ClientPattern::All)
    }
}

/// Clients of an access rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPattern {
    /// Any.
    All,
    /// Processes of this machine, over a unix socket.
    Unix,
    /// By address.
    Network(Network),
}

/// Limit on the frequency of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimit {
    /// Paths of the limit.
    pub path: PathPattern,
    /// Condition on the request; `None` if there is none.
    pub when: Option<Condition>,
    /// Permitted frequency.
    pub rate: Rate,
    /// Requests that may come at once.
    pub burst: u32,
    /// Key by which requests are counted.
    pub key: LimitKey,
    /// Status for requests above the limit.
    pub status: Status,
    /// Keys that are remembered at the same time.
    pub keys_max: usize,
    /// Only logs requests above the limit.
    pub is_dry_run: bool,
}

/// Ban of clients whose requests are rejected too often.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoBan {
    /// Paths whose responses count.
    pub path: PathPattern,
    /// Condition on the response; `None` if there is none.
    pub when: Option<Condition>,
    /// Rejections that lead to a ban, in a period.
    pub rate: Rate,
    /// Statuses of rejections.
    pub statuses: Vec<Status>,
    /// Time of a ban.
    pub time: Duration,
    /// Action against a banned client.
    pub action: BanAction,
    /// Clients that are remembered at the same time.
    pub keys_max: usize,
    /// Only logs clients that would be banned.
    pub is_dry_run: bool,
}

/// Action against connections and requests of a banned client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BanAction {
    /// Connections are closed at once, and requests get status 403.
    #[default]
    Reject,
    /// Connections are closed without a response.
    Close,
    /// Connections are kept, and get a byte from time to time.
    Tarpit,
    /// Further requests are limited to a rate: so many in a number of seconds.
    Limit(u32, u32),
}

impl BanAction {
    /// The action of this text, as [`Display`](fmt::Display) writes it.
    pub fn from_text(text: &str) -> Option<Self> {
        Some(match text {
            "reject" => Self::Reject,
            "close" => Self::Close,
            "tarpit" => Self::Tarpit,
            _ => {
                let (count, seconds) = text.strip_prefix("limit:")?.split_once(':')?;
                Self::Limit(count.parse().ok()?, seconds.parse().ok()?)
            }
        })
    }
}

impl fmt::Display for BanAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reject => f.write_str("reject"),
            Self::Close => f.write_str("close"),
            Self::Tarpit => f.write_str("tarpit"),
            Self::Limit(count, seconds) => write!(f, "limit:{count}:{seconds}"),
        }
    }
}

/// So many in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of requests in the period; at least 1.
    pub count: u32,
    /// In which time.
    pub period: Duration,
}

/// Limit on requests in progress, from their heads to the ends of their responses.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestLimit {
    /// Paths of the limit.
    pub path: PathPattern,
    /// Condition on the request; `None` if there is none.
    pub when: Option<Condition>,
    /// Maximum number of requests in progress.
    pub requests_max: u32,
    /// Key by which requests are counted.
    pub key: LimitKey,
    /// Status for requests above the limit.
    pub status: Status,
    /// Only logs requests above the limit.
    pub is_dry_run: bool,
}

/// Key by which a limit counts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitKey {
    /// The client's address; of an IPv6 address the first 64 bits, for the rest is the client's to choose.
    Client,
    /// The client's network: the first 24 bits of an IPv4 address, the first 48 of an IPv6 address.
    Network,
    /// The host that the request is for.
    Host,
    /// A fact, such as the fingerprint of the TLS handshake; where there is none, the client.
    Fact(expression::Fact),
    /// The value of a field; where there is none, the client.
    Field(String),
    /// The value of a cookie; where there is none, the client.
    Cookie(String),
}

/// A redirect or rewrite.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewrite {
    /// Of which paths.
    pub path: PathPattern,
    /// Under which conditions: all must hold.
    pub conditions: RuleConditions,
    /// Target: a path with or without a query; for redirects also a URL.
    pub target: Template,
    /// The status of a redirect; `None` for a rewrite, which the client doesn't see.
    pub status: Option<Status>,
    /// A redirect waits until passwords and authentication servers have let the client in.
    pub is_after_auth: bool,
}

/// Conditions on a request in addition to its path.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RuleConditions {
    /// Methods that match, or do not.
    pub methods: Option<RuleTest<Vec<String>>>,
    /// Test of the query.
    pub query: Option<RuleTest<QueryTest>>,
    /// A field.
    pub field: Option<RuleTest<FieldTest>>,
    /// A condition of the expression language.
    pub when: Option<Condition>,
    /// No handler has it.
    pub is_missing: bool,
}

/// A test that must hold, or must not.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleTest<T> {
    /// Negates the test.
    pub is_negated: bool,
    /// The test.
    pub of: T,
}

/// A test of a query.
#[derive(Clone, Debug, PartialEq)]
pub enum QueryTest {
    /// An argument of this name.
    Has(String),
    /// An argument of this name and value, as clients send them.
    Equals(String, String),
    /// The whole, as it was sent and without `?`, matches.
    Matches(Regex),
}

/// A test of a request's field. Of several lines, one must fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldTest {
    /// Name of the field.
    pub name: String,
    /// Required value; `None` if the field must only exist.
    pub value: Option<TextTest>,
}

/// A test of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum TextTest {
    /// This.
    Equals(String),
    /// Texts that match.
    Matches(Regex),
}

/// Password rule for paths.
#[derive(Clone, Debug, PartialEq)]
pub struct PasswordRule {
    /// Paths of the rule.
    pub path: PathPattern,
    /// Condition on the request; `None` if there is none.
    pub when: Option<Condition>,
    /// Users and hashes of their passwords; `None` if these paths need none.
    pub file: Option<PathBuf>,
    /// Name that browsers show when they ask for the password.
    pub realm: String,
    /// Passes the credentials to handlers.
    pub passes_credentials: bool,
    /// True if an address or a password is enough.
    pub is_alternative: bool,
}

/// Forward authentication of paths: a server decides on each request.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardAuthRule {
    /// Paths of the rule.
    pub path: PathPattern,
    /// Condition on the request; `None` if there is none.
    pub when: Option<Condition>,
    /// The server and its request; `None` if these paths need none.
    pub auth: Option<ForwardAuth>,
}

/// An authentication server, and what its responses mean.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardAuth {
    /// Forwarding to the server: its upstream and the time for its response.
    pub forward: Box<ForwardConfig>,
    /// Path and query of its requests.
    pub target: String,
    /// Fields of its responses that requests get. Clients cannot send them.
    pub copies: Vec<FieldCopy>,
    /// Redirect for clients whose requests get a 401; `None` passes the 401 on.
    pub login: Option<Box<Rewrite>>,
    /// Turns a 401 with `Location` into a redirect.
    pub follows_location: bool,
    /// Adds `Set-Cookie` of a response that permits the request to the response for the client.
    pub passes_cookies: bool,
    /// Protocol of the questions.
    pub protocol: AuthProtocol,
    /// Bytes of a request's content that the server gets; 0 is none.
    pub body_bytes_max: u32,
    /// Names of the fields of requests that the server gets in addition to `Host` and `Authorization`; none is all.
    pub asked_fields: Vec<String>,
}

/// Protocol of the questions to an authentication server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthProtocol {
    /// A request for each request.
    #[default]
    Http,
    /// Envoy's `ext_authz` over gRPC.
    Grpc,
}

impl ForwardAuth {
    /// Bytes of content that a server can get, at most.
    pub const BODY_BYTES_MAX: u32 = 1 << 20;
}

/// A field that is copied from an authentication server's response to the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldCopy {
    /// Name in the response.
    pub from: String,
    /// Name in the request.
    pub to: String,
}

/// A change of fields.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldEdit {
    /// Of requests for which paths, or of their responses.
    pub path: PathPattern,
    /// Condition on the request; `None` if there is none.
    pub when: Option<Condition>,
    /// Name of the field.
    pub name: String,
    /// The value; an empty one takes the field away.
    pub value: Template,
    /// Change of the field; `None` undoes what earlier edits of this name would change.
    pub action: Option<FieldAction>,
}

/// Change of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldAction {
    /// Replaces all lines of this name.
    Set,
    /// A line more.
    Add,
    /// Adds the field if it is missing.
    Default,
}

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Template {
    /// The pieces, in order.
    pub pieces: Vec<TemplatePiece>,
}

/// A piece of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePiece {
    /// As written.
    Literal(String),
    /// `{host}`
    Host,
    /// `{scheme}`: `https` if the client came with TLS, else `http`.
    Scheme,
    /// `{path}`, percent-encoded.
    Path,
    /// `{rest}`: the text that the `*` of the path pattern matched.
    Rest,
    /// `{query}`: the query with `?`, or nothing.
    Query,
    /// `{&query}`: the query with `&`, or nothing.
    FurtherQuery,
    /// `{query.NAME}`: an argument of the query, as it was sent.
    Argument(String),
    /// `{1}` or `{name}`: what a group of the path's regular expression matched.
    Group(String),
    /// `{client}`: the client's address; nothing over a unix socket.
    Client,
    /// `{tls_version}` and the like: nothing without TLS.
    Tls(TlsPiece),
    /// `{user}`: the user whose password was right.
    User,
    /// `{request_id}`: 32 hexadecimal digits, the same for all fields of a request and its response.
    RequestId,
    /// `{request.header.NAME}`: a field of the request, as the client sent it.
    Field(String),
    /// A variable of the expression language.
    Variable(Variable),
}

/// Facts of a TLS connection for placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPiece {
    /// The version.
    Version,
    /// The cipher suite.
    CipherSuite,
    /// Server name that the client requested (SNI).
    ServerName,
    /// The subject of the client's certificate.
    Client,
}

impl Template {
    /// A text without placeholders.
    pub fn literal(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { pieces: if text.is_empty() { Vec::new() } else { vec![TemplatePiece::Literal(text)] } }
    }
}

impl Template {
    /// Variables of the expression language.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Variable(variable) => Some(variable),
            _ => None,
        })
    }
}

impl RuleConditions {
    /// Returns `true` if only the path of a request counts.
    pub fn is_of_path_only(&self) -> bool {
        self.methods.is_none() && self.query.is_none() && self.field.is_none() && self.when.is_none()
    }
}

impl RulesConfig {
    /// Returns `true` if a rule counts requests or rejections.
    pub fn has_limits(&self) -> bool {
        !(self.rate_limits.is_empty() && self.request_limits.is_empty() && self.auto_bans.is_empty())
    }

    /// The paths of all rules that keep requests from handlers.
    pub fn guarding(&self) -> impl Iterator<Item = &PathPattern> {
        let clients = self.internals.iter().chain(&self.clients).map(|rule| &rule.path);
        let limits = self.rate_limits.iter().map(|limit| &limit.path);
        let more_limits = self.request_limits.iter().map(|limit| &limit.path);
        let passwords = self.passwords.iter().map(|rule| &rule.path);
        let auths = self.forward_auths.iter().map(|rule| &rule.path);
        clients.chain(limits).chain(more_limits).chain(passwords).chain(auths)
    }

    /// Returns `true` if a rule that keeps requests from handlers has a condition.
    pub fn has_conditional_guard(&self) -> bool {
        self.internals.iter().chain(&self.clients).any(|rule| rule.conditions.when.is_some())
            || self.rate_limits.iter().any(|limit| limit.when.is_some())
            || self.request_limits.iter().any(|limit| limit.when.is_some())
            || self.passwords.iter().any(|rule| rule.when.is_some())
            || self.forward_auths.iter().any(|rule| rule.when.is_some())
    }

    /// Upstreams of forward authentication.
    pub fn auth_upstreams(&self) -> impl Iterator<Item = &String> {
        self.forward_auths.iter().filter_map(|rule| rule.auth.as_ref()).map(|auth| &auth.forward.upstream)
    }

    /// Returns `true` if there are no conditions.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
