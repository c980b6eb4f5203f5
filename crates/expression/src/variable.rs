//! Names of variables, and the places that know them.

use crate::nearest;
use crate::reference::{MapRef, SecretRef};
use crate::value::Group;

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// A fact of the request.
    Fact(Fact),
    /// `map.NAME`: the value that a map gives.
    Map(MapRef),
    /// `secret.NAME`: the content of a file.
    Secret(SecretRef),
    /// `match.1`, `match.NAME`: a group of the regular expression that matched last.
    Group(Group),
    /// `env.NAME`: an environment variable, read with the configuration.
    Environment(String, Box<[u8]>),
}

/// A fact of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// `method`
    Method,
    /// `host`: lower case, without the port.
    Host,
    /// `host.1`: a label of the host, counted from 1.
    HostLabel(u16),
    /// `scheme`: `https` or `http`.
    Scheme,
    /// `path`: decoded.
    Path,
    /// `path.1`: a segment of the path, counted from 1.
    PathSegment(u16),
    /// `query`: as it was sent, without `?`.
    Query,
    /// `query.NAME`: an argument, decoded.
    Argument(String),
    /// `request.header.NAME`: a header field; lines of the same name are joined with commas.
    Field(String),
    /// `cookie.NAME`
    Cookie(String),
    /// `client`: the client's address.
    Client,
    /// `user`: the user whose password was right.
    User,
    /// `request_id`
    RequestId,
    /// `http_version`: `1.0`, `1.1`, `2` or `3`.
    HttpVersion,
    /// `tls_version` and others: empty without TLS.
    Tls(TlsFact),
    /// `status`: of the response.
    Status,
    /// `cache_status`: what the response cache did, as logs have it; empty without one.
    CacheStatus,
    /// `response.header.NAME`: a header field of the response; lines of the same name are joined with commas.
    ResponseField(String),
    /// `bot_class` and others: what the handling of bots has found; empty without it.
    Bot(BotFact),
    /// `ja4`: the fingerprint of the TLS handshake; empty without TLS.
    Ja4,
    /// `http2_fingerprint`: of the beginning of an HTTP/2 connection over TLS; otherwise empty.
    Http2Fingerprint,
    /// `country`: of the client's address, by the database of countries; empty if it is unknown.
    Country,
    /// `asn`: number of the network operator, by the database of autonomous systems; empty if it is unknown.
    Asn,
}

/// A fact that the handling of bots has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BotFact {
    /// `bot_class`
    Class,
    /// `bot_score`
    Score,
    /// `bot_name`: the crawler that the client claims to be, or the agent that has signed the request.
    Name,
    /// `bot_signals`: their names, separated by commas.
    Signals,
}

/// A fact of the TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFact {
    /// `tls_version`
    Version,
    /// `tls_cipher_suite`
    CipherSuite,
    /// `tls_server_name`: the name that the client asked for (SNI).
    ServerName,
    /// `tls_client`: subject of the client's certificate.
    Client,
}

/// Place of an expression, which decides on its variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A rule that is applied before the client has proven who it is.
    Guard,
    /// A rule or handler after the guards.
    Request,
    /// A map, which rules of all kinds may use. Facts of the response are empty until there is one.
    Map,
    /// A rule for responses, or a log.
    Response,
}

/// Names with a meaning of their own.
const NAMES: [(&str, Fact); 23] = [
    ("method", Fact::Method),
    ("host", Fact::Host),
    ("scheme", Fact::Scheme),
    ("path", Fact::Path),
    ("query", Fact::Query),
    ("client", Fact::Client),
    ("user", Fact::User),
    ("request_id", Fact::RequestId),
    ("http_version", Fact::HttpVersion),
    ("tls_version", Fact::Tls(TlsFact::Version)),
    ("tls_cipher_suite", Fact::Tls(TlsFact::CipherSuite)),
    ("tls_server_name", Fact::Tls(TlsFact::ServerName)),
    ("tls_client", Fact::Tls(TlsFact::Client)),
    ("status", Fact::Status),
    ("cache_status", Fact::CacheStatus),
    ("bot_class", Fact::Bot(BotFact::Class)),
    ("bot_score", Fact::Bot(BotFact::Score)),
    ("bot_name", Fact::Bot(BotFact::Name)),
    ("bot_signals", Fact::Bot(BotFact::Signals)),
    ("ja4", Fact::Ja4),
    ("http2_fingerprint", Fact::Http2Fingerprint),
    ("country", Fact::Country),
    ("asn", Fact::Asn),
];

/// Beginnings of names that continue as the user likes.
const FAMILIES: [&str; 10] = [
    "host.N",
    "path.N",
    "query.NAME",
    "request.header.NAME",
    "response.header.NAME",
    "cookie.NAME",
    "map.NAME",
    "env.NAME",
    "secret.NAME",
    "match.N",
];

/// Names of all variables, for people.
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name).chain(FAMILIES)
}

/// Reason for which a name is no variable here, and how to fix it.
pub(crate) type VariableFault = (String, String);

impl Variable {
    /// The variable of this name.
    pub(crate) fn parse(name: &str, place: Place) -> Result<Self, VariableFault> {
        let variable = Self::of_name(name)?;
        match (&variable, place) {
            (Self::Fact(fact @ (Fact::Status | Fact::CacheStatus)), Place::Guard | Place::Request) => {
                let name = if *fact == Fact::Status { "status" } else { "cache_status" };
                Err((
                    "there is no status before the response".into(),
                    format!("use `{name}` in `response-header` and logs"),
                ))
            }
            (Self::Fact(Fact::ResponseField(_)), Place::Guard | Place::Request) => {
                Err(("there is no response yet".into(), "use `response.header` in `response-header`".into()))
            }
            (Self::Fact(Fact::User), Place::Guard | Place::Map) => Err((
                "this rule is applied before a password has shown who the user is".into(),
                "test another variable, such as `client`".into(),
            )),
            _ => Ok(variable),
        }
    }

    fn of_name(name: &str) -> Result<Self, VariableFault> {
        if let Some((_, fact)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(Self::Fact(fact.clone()));
        }
        let family = FAMILIES.iter().find_map(|family| {
            let (start, _) = family.rsplit_once('.')?;
            Some((start, name.strip_prefix(start)?.strip_prefix('.')?))
        });
        match family {
            Some((start @ ("path" | "host"), part)) => match part.parse() {
                Ok(number @ 1..=64) if start == "path" => Ok(Self::Fact(Fact::PathSegment(number))),
                Ok(number @ 1..=64) => Ok(Self::Fact(Fact::HostLabel(number))),
                _ => Err((
                    format!("`{part}` is not a number of a part of the {start}"),
                    format!("write `{start}.1` for the first part, up to `{start}.64`"),
                )),
            },
            Some((start, "")) => Err((format!("`{name}` needs a name"), format!("write, for example, `{start}.a`"))),
            Some(("query", argument)) => Ok(Self::Fact(Fact::Argument(argument.into()))),
            Some(("request.header", field)) if is_token(field) => Ok(Self::Fact(Fact::Field(field.into()))),
            Some(("response.header", field)) if is_token(field) => Ok(Self::Fact(Fact::ResponseField(field.into()))),
            Some(("cookie", cookie)) if is_token(cookie) => Ok(Self::Fact(Fact::Cookie(cookie.into()))),
            Some(("map", map)) => Ok(Self::Map(MapRef::new(map))),
            Some(("secret", secret)) => Ok(Self::Secret(SecretRef::new(secret))),
            Some(("match", group)) => Ok(Self::Group(Group::new(group))),
            Some(("env", variable)) => match std::env::var_os(variable) {
                Some(value) => {
                    Ok(Self::Environment(variable.into(), std::os::unix::ffi::OsStringExt::into_vec(value).into()))
                }
                None => Err((
                    format!("the environment has no variable `{variable}`"),
                    "set it before the start, such as with `Environment=` of systemd".into(),
                )),
            },
            Some((_, rest)) => {
                Err((format!("`{rest}` is not a name"), "names have letters, digits, `-` and `_`".into()))
            }
            None => Err((format!("`{name}` is not a variable"), help_for(name))),
        }
    }

    /// The name, as in the configuration.
    pub fn name(&self) -> String {
        match self {
            Self::Fact(Fact::PathSegment(number)) => format!("path.{number}"),
            Self::Fact(Fact::HostLabel(number)) => format!("host.{number}"),
            Self::Fact(Fact::Argument(name)) => format!("query.{name}"),
            Self::Fact(Fact::Field(name)) => format!("request.header.{name}"),
            Self::Fact(Fact::ResponseField(name)) => format!("response.header.{name}"),
            Self::Fact(Fact::Cookie(name)) => format!("cookie.{name}"),
            Self::Fact(fact) => NAMES.iter().find(|(_, known)| known == fact).map_or("", |(name, _)| name).into(),
            Self::Map(map) => format!("map.{}", map.name()),
            Self::Secret(secret) => format!("secret.{}", secret.name()),
            Self::Group(group) => format!("match.{}", group.name()),
            Self::Environment(name, _) => format!("env.{name}"),
        }
    }

    /// Returns `true` if clients cannot choose the value: the operator has written all that it can be.
    pub fn is_of_operator(&self) -> bool {
        match self {
            Self::Fact(_) | Self::Group(_) => false,
            Self::Map(map) => map.get().is_some_and(|map| map.is_of_operator()),
            Self::Secret(_) | Self::Environment(..) => true,
        }
    }
}

/// Variables of other servers, and what they are called here.
const FOREIGN: [(&str, &str); 16] = [
    ("uri", "path"),
    ("request_uri", "path"),
    ("request_method", "method"),
    ("remote_addr", "client"),
    ("client_ip", "client"),
    ("remote_ip", "client"),
    ("remote_user", "user"),
    ("args", "query"),
    ("query_string", "query"),
    ("http_host", "host"),
    ("server_name", "host"),
    ("ssl_protocol", "tls_version"),
    ("ssl_server_name", "tls_server_name"),
    ("ssl_client_s_dn", "tls_client"),
    ("protocol", "http_version"),
    ("ip", "client"),
];

fn help_for(name: &str) -> String {
    if let Some((_, ours)) = FOREIGN.iter().find(|(foreign, _)| *foreign == name) {
        return format!("write `{ours}`");
    }
    for (start, ours) in [
        ("http_", "request.header."),
        ("http.request.header.", "request.header."),
        ("header.", "request.header."),
        ("cookie_", "cookie."),
        ("arg_", "query."),
    ] {
        if let Some(rest) = name.strip_prefix(start) {
            return format!(
                "write `{ours}{}`",
                if start == "http_" { rest.replace('_', "-") } else { rest.to_owned() }
            );
        }
    }
    match nearest(name, variable_names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            format!("variables are {}", variable_names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns `true` for a token of RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
