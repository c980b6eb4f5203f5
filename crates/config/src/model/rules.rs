//! Rules before and after handlers: the model. `routing::rules` applies them, in the order that its documentation
//! gives.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use wire::http::Status;

use super::{ForwardConfig, HostPattern};
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
    /// Limits on requests in progress: all matches count.
    pub request_limits: Vec<RequestLimit>,
    /// Redirects and rewrites: the first that fits is applied.
    pub rewrites: Vec<Rewrite>,
    /// Redirects clients without TLS to the same URL with `https`; `None` is the default.
    pub redirects_to_https: Option<bool>,
    /// Host that clients of the site's other names are redirected to.
    pub canonical_host: Option<HostPattern>,
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
            || self.passwords.iter().any(|rule| rule.file.is_some() && is_for(&rule.path))
            || self.forward_auths.iter().any(|rule| rule.auth.is_some() && is_for(&rule.path))
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

/// Addresses that begin with the same bits. An IPv4 address mapped into IPv6 (RFC 4291, section 2.5.5.2) is one of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network(IpNet);

/// Limit on the frequency of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimit {
    /// Paths of the limit.
    pub path: PathPattern,
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
    /// Adds `Set-Cookie` of a response that permits the request to the response for the client.
    pub passes_cookies: bool,
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
    /// Name of the field.
    pub name: String,
    /// The value; an empty one takes the field away.
    pub value: Template,
    /// Change of the field.
    pub action: FieldAction,
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

/// A regular expression over bytes. Searching takes time in proportion to the text, whatever the expression. A dot is any
/// byte, be it a line feed or no UTF-8: nothing that clients put into a path keeps `^/admin/.*$` from fitting.
#[derive(Clone, Debug)]
pub struct Regex(regex::bytes::Regex);

/// Most memory that a compiled regular expression may take, in bytes: some ten thousand of what people write.
const REGEX_BYTES_MAX: usize = 1 << 20;

impl Regex {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The expression's error.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        let mut builder = regex::bytes::RegexBuilder::new(text);
        builder.unicode(false).dot_matches_new_line(true).size_limit(REGEX_BYTES_MAX).build().map(Self)
    }

    /// Expression without regard to letter case, unless it says `(?-i)` itself.
    pub fn ignoring_case(&self) -> Self {
        let mut builder = regex::bytes::RegexBuilder::new(self.0.as_str());
        builder.unicode(false).dot_matches_new_line(true).case_insensitive(true);
        // Some expressions of Unicode classes are too large then; these mind the case.
        builder.size_limit(4 * REGEX_BYTES_MAX).build().map_or_else(|_| self.clone(), Self)
    }

    /// The compiled expression.
    pub fn get(&self) -> &regex::bytes::Regex {
        &self.0
    }
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Regex {}

impl Hash for Regex {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_str().hash(state);
    }
}

impl fmt::Display for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl Network {
    /// The network that begins with the address's first bits; `None` if there are not so many.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Option<Self> {
        let (address, prefix_bits) = match address {
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) if prefix_bits >= MAPPED_BITS => (IpAddr::V4(v4), prefix_bits - MAPPED_BITS),
                _ => (address, prefix_bits),
            },
            IpAddr::V4(_) => (address, prefix_bits),
        };
        Some(Self(IpNet::new(address, prefix_bits).ok()?.trunc()))
    }

    /// First address; all bits after the prefix are 0.
    pub fn first(&self) -> IpAddr {
        self.0.addr()
    }

    /// Length of the prefix, in bits: at most 32 for IPv4 and 128 for IPv6.
    pub fn prefix_bits(&self) -> u8 {
        self.0.prefix_len()
    }

    /// First and last address, as numbers of [`number_of`].
    pub fn range(&self) -> (u128, u128) {
        (number_of(self.0.network()), number_of(self.0.broadcast()))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Bits before the IPv4 address in an IPv6 address that it is mapped into.
const MAPPED_BITS: u8 = 96;

/// An address as a number: of IPv6 itself, of IPv4 the one it is mapped into (RFC 4291, section 2.5.5.2), so that each
/// client has one however its connection came.
pub fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from_be_bytes(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => u128::from_be_bytes(v6.octets()),
    }
}

/// An IPv4 address mapped into IPv6 as itself.
pub fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

impl Template {
    /// A text without placeholders.
    pub fn literal(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { pieces: if text.is_empty() { Vec::new() } else { vec![TemplatePiece::Literal(text)] } }
    }
}

impl RuleConditions {
    /// Returns `true` if only the path of a request counts.
    pub fn is_of_path_only(&self) -> bool {
        self.methods.is_none() && self.query.is_none() && self.field.is_none()
    }
}

impl RulesConfig {
    /// The paths of all rules that keep requests from handlers.
    pub fn guarding(&self) -> impl Iterator<Item = &PathPattern> {
        let clients = self.internals.iter().chain(&self.clients).map(|rule| &rule.path);
        let limits = self.rate_limits.iter().map(|limit| &limit.path);
        let more_limits = self.request_limits.iter().map(|limit| &limit.path);
        let passwords = self.passwords.iter().map(|rule| &rule.path);
        let auths = self.forward_auths.iter().map(|rule| &rule.path);
        clients.chain(limits).chain(more_limits).chain(passwords).chain(auths)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_path_is_beyond_a_dot() {
        let regex = Regex::new("^/admin/.*$").unwrap();
        for path in
            [&b"/admin/"[..], b"/admin/a", b"/admin/\n", b"/admin/a\r\nb", b"/admin/\xff", "/admin/ä".as_bytes()]
        {
            assert!(regex.get().is_match(path), "{path:?}");
        }
        assert!(!regex.get().is_match(b"/admin"));
    }

    #[test]
    fn networks() {
        let check = |address: &str, bits: u8, expect: Option<(&str, &str, &str)>| {
            let network = Network::new(address.parse().unwrap(), bits);
            let found = network.map(|network| (network.to_string(), network.range()));
            let number = |text: &str| number_of(text.parse().unwrap());
            let expect = expect.map(|(text, first, last)| (text.to_owned(), (number(first), number(last))));
            assert_eq!(found, expect, "{address}/{bits}");
        };
        check("10.1.2.3", 8, Some(("10.0.0.0/8", "10.0.0.0", "10.255.255.255")));
        check("10.1.2.3", 32, Some(("10.1.2.3/32", "10.1.2.3", "10.1.2.3")));
        check("10.1.2.3", 0, Some(("0.0.0.0/0", "0.0.0.0", "255.255.255.255")));
        check("10.1.2.3", 33, None);
        check("2001:db8::1", 32, Some(("2001:db8::/32", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")));
        check("::1", 128, Some(("::1/128", "::1", "::1")));
        check("::1", 0, Some(("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")));
        check("::1", 129, None);
        check("::ffff:10.1.2.3", 104, Some(("10.0.0.0/8", "10.0.0.0", "10.255.255.255")));
        // Wider than what is mapped: all of IPv4 is in it.
        check("::ffff:0.0.0.0", 80, Some(("::/80", "::", "::ffff:ffff:ffff")));
    }
}
