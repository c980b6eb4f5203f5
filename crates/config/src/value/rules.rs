//! Values of rules: clients, rates, keys, conditions, texts with placeholders.

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use expression::{
    ExpressionError, ExpressionReference, MapPattern, Place, Value, parse_condition, parse_value, parse_variable,
};

use super::parse::{Wrong, not_empty, split_placeholders};
use super::web::{is_token, parse_field_name, parse_field_value};
use crate::model::PathPattern;
use crate::model::rules::*;
use crate::regular_file::{is_denied, open_regular};
use crate::suggest::{did_you_mean, nearest};

/// Most bytes of a list of networks.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// Clients of one argument of `allow` or `deny`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clients {
    /// Patterns of the clients.
    pub(crate) patterns: Vec<ClientPattern>,
    /// The file that says so.
    pub(crate) file: Option<PathBuf>,
}

pub(super) fn parse_clients(text: &str, directory: &Path) -> Result<Clients, Wrong> {
    let one = |pattern: ClientPattern| Ok(Clients { patterns: vec![pattern], file: None });
    match text {
        "all" => one(ClientPattern::All),
        "unix" => one(ClientPattern::Unix),
        _ => match text.strip_prefix("file:") {
            Some(file) => read_list(directory.join(not_empty(file)?)),
            None => one(ClientPattern::Network(parse_network(text)?)),
        },
    }
}

/// Reads a list: one network or address a line, with comments after `#` or `;`, the usual format of published lists.
fn read_list(file: PathBuf) -> Result<Clients, Wrong> {
    let wrong = |problem: String| Wrong::new(format!("{}: {problem}", file.display()));
    let read = open_regular(&file).and_then(|open| {
        let mut text = String::new();
        open.take(LIST_BYTES_MAX + 1).read_to_string(&mut text).map(|_| text)
    });
    let text = read.map_err(|error| Wrong { is_denied: is_denied(&error), ..wrong(error.to_string()) })?;
    if text.len() as u64 > LIST_BYTES_MAX {
        return Err(wrong(format!("it has more than {}", super::format_size(LIST_BYTES_MAX))));
    }
    let mut patterns = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let network = line.split(['#', ';']).next().unwrap_or_default().trim();
        if !network.is_empty() {
            let network = list_entry(network)
                .ok_or_else(|| wrong(format!("line {}: `{network}` is not an address or network", number + 1)))?;
            patterns.push(ClientPattern::Network(network));
        }
    }
    Ok(Clients { patterns, file: Some(file) })
}

/// Line of a list. Bits after the prefix, which some lists have, are ignored.
fn list_entry(text: &str) -> Option<Network> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    Network::new(address, bits.map_or(Some(width), |bits| bits.parse().ok())?)
}

pub(crate) fn parse_network(text: &str) -> Result<Network, Wrong> {
    const HELP: &str = "write, for example, `\"192.0.2.1\"`, `\"192.0.2.0/24\"` or `\"2001:db8::/32\"`";
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let wrong = || {
        let is_path = text.starts_with(['/', '*', '~']);
        let help = if is_path { format!("paths have a name: write `path=\"{text}\"`") } else { HELP.to_owned() };
        Wrong::help(format!("`{text}` is not an address or network"), help)
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) => bits
            .parse()
            .ok()
            .filter(|bits| *bits <= width)
            .ok_or_else(|| Wrong::new(format!("`{text}` needs a prefix length from 0 to {width}")))?,
        None => width,
    };
    let network = Network::new(address, bits).ok_or_else(wrong)?;
    if network.first() != unmapped(address) {
        return Err(Wrong::help(
            format!("`{text}` has bits after its prefix"),
            format!("write `\"{network}\"` for the network, or `\"{address}\"` for the address"),
        ));
    }
    Ok(network)
}

/// Units of rates, in seconds.
const RATE_UNITS: &[(&str, u64)] = &[("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];

/// Most requests of a rate. Together with the shortest period this is one a microsecond, the unit that is counted in.
const RATE_COUNT_MAX: u32 = 1_000_000;

pub(super) fn parse_rate(text: &str) -> Result<Rate, Wrong> {
    let wrong = || {
        Wrong::help(
            format!("`{text}` is not a rate"),
            format!(
                "write a number from 1 to {RATE_COUNT_MAX} and a unit: `\"10/s\"`, `\"300/m\"`, `\"1000/h\"`, `\"5/d\"`"
            ),
        )
    };
    let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
    let seconds = RATE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    let count = count.parse().ok().filter(|count| (1..=RATE_COUNT_MAX).contains(count)).ok_or_else(wrong)?;
    Ok(Rate { count, period: Duration::from_secs(seconds) })
}

pub(super) fn parse_limit_key(text: &str) -> Result<LimitKey, Wrong> {
    match (text, text.strip_prefix("field:"), text.strip_prefix("cookie:")) {
        ("address", ..) => Ok(LimitKey::Client),
        ("network", ..) => Ok(LimitKey::Network),
        ("host", ..) => Ok(LimitKey::Host),
        ("ja4", ..) => Ok(LimitKey::Fact(expression::Fact::Ja4)),
        ("http2-fingerprint", ..) => Ok(LimitKey::Fact(expression::Fact::Http2Fingerprint)),
        ("country", ..) => Ok(LimitKey::Fact(expression::Fact::Country)),
        ("asn", ..) => Ok(LimitKey::Fact(expression::Fact::Asn)),
        (_, Some(name), _) if is_token(name) => Ok(LimitKey::Field(name.to_owned())),
        (.., Some(name)) if is_token(name) => Ok(LimitKey::Cookie(name.to_owned())),
        _ => Err(Wrong::help(
            format!("requests cannot be counted by `{text}`"),
            "write `address`, `network`, `host`, `\"field:NAME\"`, `\"cookie:NAME\"`, `ja4`, `http2-fingerprint`, `asn` or `country`",
        )),
    }
}

/// Takes a leading `!` off, and reads the rest.
fn parse_test<'t, T>(text: &'t str, parse: impl FnOnce(&'t str) -> Result<T, Wrong>) -> Result<RuleTest<T>, Wrong> {
    match text.strip_prefix('!') {
        Some(rest) => parse(rest).map(|of| RuleTest { is_negated: true, of }),
        None => parse(text).map(|of| RuleTest { is_negated: false, of }),
    }
}

pub(super) fn parse_methods(text: &str) -> Result<RuleTest<Vec<String>>, Wrong> {
    parse_test(text, |text| {
        let methods: Vec<_> = text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        match methods.iter().find(|method| !is_token(method)) {
            None if !methods.is_empty() => Ok(methods),
            _ => Err(Wrong::help(
                format!("`{text}` is not a list of methods"),
                "write, for example, `\"GET HEAD\"` or `\"!POST\"`",
            )),
        }
    })
}

pub(super) fn parse_query_test(text: &str) -> Result<RuleTest<QueryTest>, Wrong> {
    parse_test(text, |text| {
        if let Some(regex) = text.strip_prefix('~') {
            return parse_regex(regex).map(QueryTest::Matches);
        }
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if name.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"&#?".contains(&byte)) {
            return Err(Wrong::help(
                format!("`{text}` is not a query argument"),
                "write `\"NAME\"` or `\"NAME=VALUE\"` as clients send them, or `\"~EXPRESSION\"`",
            ));
        }
        Ok(match value {
            Some(value) => QueryTest::Equals(name.to_owned(), value.to_owned()),
            None => QueryTest::Has(name.to_owned()),
        })
    })
}

pub(super) fn parse_field_test(text: &str) -> Result<RuleTest<FieldTest>, Wrong> {
    parse_test(text, |text| {
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name, Some(value.trim())),
            None => (text, None),
        };
        if !is_token(name) {
            return Err(Wrong::help(
                format!("`{name}` is not the name of a header field"),
                "write `\"NAME\"`, `\"NAME: VALUE\"` or `\"NAME: ~EXPRESSION\"`",
            ));
        }
        let value = value.map(|value| match value.strip_prefix('~') {
            Some(regex) => parse_regex(regex).map(TextTest::Matches),
            None => parse_field_value(value).map(TextTest::Equals),
        });
        Ok(FieldTest { name: name.to_owned(), value: value.transpose()? })
    })
}

pub(super) fn parse_regex(text: &str) -> Result<Regex, Wrong> {
    Regex::new(not_empty(text)?).map_err(|error| {
        let full = error.to_string();
        // The last line says it; those before show where, in lines of their own.
        let last = full.lines().last().unwrap_or_default();
        let reason = last.strip_prefix("error: ").unwrap_or(last);
        Wrong::help(
            format!("`{text}` is not a regular expression: {reason}"),
            "the syntax is that of https://docs.rs/regex; write a backslash twice in quotes, once in `#\"…\"#`",
        )
    })
}

/// Reads where a redirect or rewrite leads.
pub(super) fn parse_target(text: &str, starts: &[&str]) -> Result<Template, Wrong> {
    let target = parse_field_value(text)?;
    if !starts.iter().any(|start| target.starts_with(start)) || target.contains([' ', '#', '\\']) || !target.is_ascii()
    {
        return Err(Wrong::help(
            format!("`{text}` is not a path{}", if starts.len() > 2 { " or URL" } else { "" }),
            "write, for example, `\"/new/{rest}\"`, percent-encoded where needed",
        ));
    }
    if let Some(foreign) = foreign_placeholder(&target) {
        return Err(Wrong::help(
            format!("`{foreign}` is not a placeholder"),
            "write `{1}` for a group of a regular expression, `{rest}` for what the `*` matched, `{host}`, `{path}`, \
             `{query}`; write `%24` for a dollar sign",
        ));
    }
    let mut pieces = Vec::new();
    for (is_placeholder, piece) in split_placeholders(&target)? {
        match (is_placeholder, piece) {
            (false, "") => {}
            (false, _) => pieces.push(TemplatePiece::Literal(piece.to_owned())),
            (true, _) => pieces.push(parse_target_placeholder(piece)?),
        }
    }
    // Browsers treat text after further slashes as the host.
    if let Some((_, authority)) = target.split_once("://")
        && !target.starts_with('/')
        && (authority.is_empty() || authority.starts_with(['/', '?']))
    {
        return Err(Wrong::new(format!("`{text}` has no host")));
    }
    check_secrets(&pieces)?;
    Ok(Template { pieces })
}

const SECRETS_HELP: &str = "use secrets in `request-header` and in conditions";

/// Secrets are for upstreams; clients would see them in a URL.
fn check_secrets(pieces: &[TemplatePiece]) -> Result<(), Wrong> {
    match pieces.iter().any(|piece| matches!(piece, TemplatePiece::Variable(Variable::Secret(_)))) {
        true => Err(Wrong::help("clients would see this secret", SECRETS_HELP)),
        false => Ok(()),
    }
}

/// Reads the name of a variable.
fn parse_named(name: &str, place: Place) -> Result<Variable, Wrong> {
    parse_variable(name, place).map_err(|error| Wrong {
        help: error.help,
        at: None,
        ..Wrong::new(format!("`{{{name}}}` is not a placeholder here: {}", error.message))
    })
}

/// Names without a dot that are variables, unless a group of the path's expression has the same name.
const TARGET_VARIABLES: &[&str] =
    &["method", "client", "http_version", "tls_version", "tls_cipher_suite", "tls_server_name", "tls_client"];

/// Makes variables of the names in a target that are no groups of the path's expression.
pub(crate) fn with_variables(path: &PathPattern, mut target: Template) -> Template {
    let groups = groups_of(path);
    for piece in &mut target.pieces {
        if let TemplatePiece::Group(name) = piece
            && !groups.contains(name)
            && TARGET_VARIABLES.contains(&name.as_str())
            && let Ok(variable) = parse_variable(name, Place::Guard)
        {
            *piece = TemplatePiece::Variable(variable);
        }
    }
    target
}

fn groups_of(path: &PathPattern) -> Vec<String> {
    let PathPattern::Regex(regex) = path else { return Vec::new() };
    let names = regex.get().capture_names().flatten().map(str::to_owned);
    (1..regex.get().captures_len()).map(|index| index.to_string()).chain(names).collect()
}

/// Reads a condition.
pub(super) fn parse_when(text: &str, place: Place) -> Result<Condition, Wrong> {
    parse_condition(text, place).map_err(of_expression)
}

/// Reads a value of the expression language, which may be of a map, and so in responses.
pub(super) fn parse_expression(text: &str, place: Place) -> Result<Value, Wrong> {
    let value = parse_value(text, place).map_err(of_expression)?;
    let has_secret = value.references().any(|reference| matches!(reference, ExpressionReference::Secret(_)));
    match has_secret {
        true => Err(Wrong::help("clients could see this secret", SECRETS_HELP)),
        false => Ok(value),
    }
}

fn of_expression(error: ExpressionError) -> Wrong {
    Wrong { message: error.message, help: error.help, is_denied: false, at: Some(error.span) }
}

/// Reads the pattern of a map's case, in the forms of path patterns.
pub(super) fn parse_map_pattern(text: &str) -> Result<MapPattern, Wrong> {
    if let Some(regex) = text.strip_prefix('~') {
        return parse_regex(regex).map(MapPattern::Regex);
    }
    Ok(match (text.strip_prefix('*'), text.strip_suffix('*')) {
        (Some(suffix), None) => MapPattern::Suffix(suffix.into()),
        (None, Some(prefix)) => MapPattern::Prefix(prefix.into()),
        _ => MapPattern::Exact(text.into()),
    })
}

/// Placeholder of another server: `$1`, `$host`.
fn foreign_placeholder(target: &str) -> Option<&str> {
    let at = target.find('$')?;
    let rest = &target[at + 1..];
    let length =
        rest.find(|character: char| !character.is_ascii_alphanumeric() && character != '_').unwrap_or(rest.len());
    (length > 0).then(|| &target[at..at + 1 + length])
}

/// Valid beginnings of a redirect's target.
pub(super) const REDIRECT_STARTS: &[&str] =
    &["/", "{path}", "http://", "https://", "{scheme}://", "{map.", "{env.", "{secret."];

/// Valid beginnings of a rewrite's target.
pub(super) const REWRITE_STARTS: &[&str] = &["/", "{path}"];

fn parse_target_placeholder(name: &str) -> Result<TemplatePiece, Wrong> {
    Ok(match name {
        "host" => TemplatePiece::Host,
        "scheme" => TemplatePiece::Scheme,
        "path" => TemplatePiece::Path,
        "rest" => TemplatePiece::Rest,
        "query" => TemplatePiece::Query,
        "&query" => TemplatePiece::FurtherQuery,
        _ => match name.strip_prefix("query.") {
            Some(argument) if !argument.is_empty() => TemplatePiece::Argument(argument.to_owned()),
            _ if name.contains('.') => TemplatePiece::Variable(parse_named(name, Place::Guard)?),
            // That there is such a group in the path's expression is checked when both are known.
            _ if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') => {
                TemplatePiece::Group(name.to_owned())
            }
            _ => {
                return Err(Wrong::help(
                    format!("`{{{name}}}` is not a placeholder here"),
                    did_you_mean(name, TARGET_PLACEHOLDERS),
                ));
            }
        },
    })
}

/// Placeholders of a target, in addition to those for groups of a regular expression.
const TARGET_PLACEHOLDERS: &[&str] = &["host", "scheme", "path", "rest", "query", "&query", "query.NAME"];

/// Fault of the placeholders of a target for this path.
pub(crate) fn check_target(path: &PathPattern, target: &Template) -> Option<Wrong> {
    let groups = groups_of(path);
    target.pieces.iter().find_map(|piece| match piece {
        TemplatePiece::Group(name) if groups.contains(name) => None,
        TemplatePiece::Group(name) if name.bytes().all(|byte| byte.is_ascii_digit()) => Some(Wrong::help(
            format!("there is no group {name} in the path's regular expression"),
            "write groups in parentheses; they are counted from 1",
        )),
        TemplatePiece::Group(name) => {
            let known: Vec<&str> =
                TARGET_PLACEHOLDERS.iter().copied().chain(groups.iter().map(String::as_str)).collect();
            Some(Wrong::help(format!("`{{{name}}}` is not a placeholder here"), did_you_mean(name, &known)))
        }
        TemplatePiece::Rest if matches!(path, PathPattern::Exact(_) | PathPattern::Regex(_)) => Some(Wrong::help(
            "`{rest}` is what the `*` of the path matched, but the path has no `*`",
            "write `{path}`, or `{1}` for the first group of a regular expression",
        )),
        _ => None,
    })
}

/// Reads the value of a field, with placeholders; `{{` and `}}` are braces.
pub(super) fn parse_field_template(text: &str, place: Place) -> Result<Template, Wrong> {
    let text = parse_field_value(text)?;
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            literal.push_str(brace);
            rest = after;
            continue;
        }
        let name = rest.split_once('}').filter(|_| brace == "{").map(|(name, after)| {
            rest = after;
            name
        });
        let piece = parse_field_placeholder(name.unwrap_or_default(), place)?;
        if !literal.is_empty() {
            pieces.push(TemplatePiece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(piece);
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(TemplatePiece::Literal(literal));
    }
    if place == Place::Response {
        check_secrets(&pieces)?;
    }
    Ok(Template { pieces })
}

fn parse_field_placeholder(name: &str, place: Place) -> Result<TemplatePiece, Wrong> {
    Ok(match name {
        "host" => TemplatePiece::Host,
        "scheme" => TemplatePiece::Scheme,
        "path" => TemplatePiece::Path,
        "query" => TemplatePiece::Query,
        "tls_version" => TemplatePiece::Tls(TlsPiece::Version),
        "tls_cipher_suite" => TemplatePiece::Tls(TlsPiece::CipherSuite),
        "tls_server_name" => TemplatePiece::Tls(TlsPiece::ServerName),
        "tls_client" => TemplatePiece::Tls(TlsPiece::Client),
        "client" => TemplatePiece::Client,
        "user" => TemplatePiece::User,
        "request_id" => TemplatePiece::RequestId,
        _ => match name.strip_prefix("request.header.") {
            Some(field) if is_token(field) => TemplatePiece::Field(field.to_owned()),
            _ if matches!(name, "method" | "http_version" | "status" | "cache_status") || name.contains('.') => {
                TemplatePiece::Variable(parse_named(name, place)?)
            }
            _ => {
                let names: Vec<_> = FIELD_PLACEHOLDERS.iter().map(|name| format!("`{{{name}}}`")).collect();
                let help = match nearest(name, FIELD_PLACEHOLDERS) {
                    Some(_) => did_you_mean(name, FIELD_PLACEHOLDERS),
                    None => format!("placeholders are {}; write `{{{{` for a brace", names.join(", ")),
                };
                return Err(Wrong::help(format!("`{{{name}}}` is not a placeholder here"), help));
            }
        },
    })
}

const FIELD_PLACEHOLDERS: &[&str] = &[
    "host",
    "scheme",
    "path",
    "query",
    "client",
    "user",
    "request_id",
    "tls_version",
    "tls_cipher_suite",
    "tls_server_name",
    "tls_client",
    "request.header.NAME",
    "method",
    "http_version",
    "path.N",
    "query.NAME",
    "cookie.NAME",
    "host.N",
    "map.NAME",
    "env.NAME",
    "secret.NAME",
    "match.N",
];

/// Reads the name of a request's field that may be changed.
pub(super) fn parse_request_field_name(text: &str) -> Result<String, Wrong> {
    if !is_token(text) {
        return Err(Wrong::new(format!("`{text}` is not the name of a header field (RFC 9110, section 5.1)")));
    }
    if is_own_request_field(text) {
        return Err(Wrong::new(format!("`{text}` controls how the request is sent, and cannot be changed")));
    }
    Ok(text.to_owned())
}

/// Reads the names of copied fields, separated by spaces. `A>B` copies field `A` to field `B`.
pub(super) fn parse_field_copies(text: &str) -> Result<Vec<FieldCopy>, Wrong> {
    let copy = |word: &str| {
        let (from, to) = word.split_once('>').unwrap_or((word, word));
        parse_field_name(from)?;
        Ok(FieldCopy { from: from.to_owned(), to: parse_request_field_name(to)? })
    };
    text.split([' ', ',']).filter(|word| !word.is_empty()).map(copy).collect()
}

/// Returns `true` if the server alone sets this request header field.
pub fn is_own_request_field(name: &str) -> bool {
    OWN_REQUEST_FIELDS.contains(&name.to_ascii_lowercase().as_str())
}

/// Fields of a request that frame it, or are of the connection.
const OWN_REQUEST_FIELDS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T>(result: Result<T, Wrong>) -> String {
        result.err().map(|wrong| wrong.message).unwrap_or_default()
    }

    #[test]
    fn lists_of_clients() {
        let directory = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(directory.path().join("list"), text).unwrap();
            parse_clients("file:list", directory.path())
        };
        let networks = |text: &str| {
            let clients = read(text).unwrap();
            assert_eq!(clients.file.as_deref(), Some(&*directory.path().join("list")));
            let shown = clients.patterns.iter().map(|pattern| match pattern {
                ClientPattern::Network(network) => network.to_string(),
                other => panic!("{other:?}"),
            });
            shown.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(networks("# none\n\n ; either\n"), "");
        assert_eq!(
            networks("192.0.2.1\n198.51.100.7/24 ; SBL1\r\n2001:db8::1/32 # x\n"),
            "192.0.2.1/32 198.51.100.0/24 2001:db8::/32"
        );
        assert!(message(read("192.0.2.1\nexample.com\n")).contains("line 2: `example.com` is not an address"));
        assert!(message(read("192.0.2.1/33")).contains("line 1"));
        assert!(message(parse_clients("file:none", directory.path())).contains("No such file"));
        assert!(!message(parse_clients("file:", directory.path())).is_empty());
    }

    #[test]
    fn clients() {
        let check = |text: &str, expect: &str| match parse_clients(text, Path::new("/")).map(|of| of.patterns[0]) {
            Ok(ClientPattern::Network(network)) => assert_eq!(network.to_string(), expect),
            Ok(other) => assert_eq!(format!("{other:?}"), expect),
            Err(wrong) => assert!(wrong.message.contains(expect), "{text}: {}", wrong.message),
        };
        check("all", "All");
        check("unix", "Unix");
        check("192.0.2.1", "192.0.2.1/32");
        check("192.0.2.0/24", "192.0.2.0/24");
        check("::1", "::1/128");
        check("::ffff:192.0.2.1", "192.0.2.1/32");
        check("0.0.0.0/0", "0.0.0.0/0");
        check("192.0.2.1/24", "has bits after its prefix");
        check("2001:db8::1/32", "has bits after its prefix");
        check("192.0.2.0/33", "needs a prefix length");
        check("192.0.2.0/", "needs a prefix length");
        check("192.0.2.0/-1", "needs a prefix length");
        check("192.0.2", "is not an address");
        check("example.com", "is not an address");
        check("", "is not an address");
        check("[::1]", "is not an address");
    }

    #[test]
    fn rates() {
        let check = |text: &str, expect: Option<(u32, u64)>| {
            let found = parse_rate(text).ok().map(|rate| (rate.count, rate.period.as_secs()));
            assert_eq!(found, expect, "{text}");
        };
        check("10/s", Some((10, 1)));
        check("300/m", Some((300, 60)));
        check("1000000/h", Some((1_000_000, 3_600)));
        check("1/d", Some((1, 86_400)));
        for text in ["", "10", "/s", "0/s", "-1/s", "10/w", "10 /s", "1000001/s", "1.5/s"] {
            check(text, None);
        }
    }

    #[test]
    fn targets() {
        let check = |text: &str, starts: &[&str], expect: &str| {
            let found = message(parse_target(text, starts));
            assert!(if expect.is_empty() { found.is_empty() } else { found.contains(expect) }, "{text}: {found}");
        };
        for text in ["/a", "{path}", "/a/{rest}{query}", "/a?b={query.b}{&query}", "/{1}/{year}", "/a?x={path}"] {
            check(text, REWRITE_STARTS, "");
            check(text, REDIRECT_STARTS, "");
        }
        for text in [
            "https://{host}{path}{query}",
            "https://{host}:8443{path}",
            "https://example.com",
            "https://example.com/{1}",
            "https://example.com?{1}",
            "http://www.{host}/{rest}",
        ] {
            check(text, REDIRECT_STARTS, "");
            check(text, REWRITE_STARTS, "is not a path");
        }
        for (text, expect) in [
            ("", "is not a path"),
            ("a", "is not a path"),
            ("{host}/", "is not a path"),
            ("/a b", "is not a path"),
            ("/ä", "is not a path"),
            ("/a#b", "is not a path"),
            ("/a\\b", "is not a path"),
            ("/a\r\nSet-Cookie: x", "control"),
            ("/{", "brace"),
            ("/{a-b}", "not a placeholder"),
            ("/{}", "not a placeholder"),
            ("https://", "no host"),
            ("https:///{rest}", "no host"),
            ("https://?{rest}", "no host"),
        ] {
            check(text, REDIRECT_STARTS, expect);
        }
    }

    #[test]
    fn groups_of_the_path() {
        let check = |path: PathPattern, target: &str, expect: &str| {
            let target = parse_target(target, REDIRECT_STARTS).unwrap();
            let found = check_target(&path, &target).map(|wrong| wrong.message).unwrap_or_default();
            assert!(if expect.is_empty() { found.is_empty() } else { found.contains(expect) }, "{found}");
        };
        let regex = |text| PathPattern::Regex(Regex::new(text).unwrap());
        check(regex("^/(?<year>[0-9]+)/(.*)"), "/{year}/{1}/{2}", "");
        check(regex("^/(.*)"), "/{2}", "no group 2");
        check(regex("^/(.*)"), "/{year}", "`{year}` is not a placeholder");
        check(regex("^/(.*)"), "/{rest}", "has no `*`");
        check(PathPattern::Any, "/{1}", "no group 1");
        check(PathPattern::Any, "/{quary}", "`{quary}` is not a placeholder");
        check(PathPattern::Exact("/a".into()), "/{rest}", "has no `*`");
        check(PathPattern::Prefix("/a/".into()), "/{rest}", "");
    }

    #[test]
    fn field_values() {
        let literal = |text: &str| TemplatePiece::Literal(text.into());
        let check = |text: &str, expect: &[TemplatePiece]| {
            assert_eq!(parse_field_template(text, Place::Request).unwrap().pieces, expect)
        };
        check("", &[]);
        check("nosniff", &[literal("nosniff")]);
        check("a {client}, {user}", &[literal("a "), TemplatePiece::Client, literal(", "), TemplatePiece::User]);
        check("{request.header.X-Id}", &[TemplatePiece::Field("X-Id".into())]);
        check("{{\"a\": {{}}}} {host}", &[literal("{\"a\": {}} "), TemplatePiece::Host]);
        for text in ["{\"a\": 1}", "{", "}", "{}", "{{}", "{unknown}", "{client", "a\r\nb", "a\0"] {
            assert!(parse_field_template(text, Place::Request).is_err(), "{text:?}");
        }
    }

    #[test]
    fn conditions() {
        let check = |found: String, expect: &str| {
            assert!(if expect.is_empty() { found.is_empty() } else { found.contains(expect) }, "{found}");
        };
        for text in ["GET", "GET HEAD", "!POST PUT"] {
            check(message(parse_methods(text)), "");
        }
        check(message(parse_methods("")), "is not a list of methods");
        check(message(parse_methods("!")), "is not a list of methods");
        check(message(parse_methods("GET,HEAD")), "is not a list of methods");
        for text in ["id", "id=5", "id=", "!id", "~^p=[0-9]+$", "!~a"] {
            check(message(parse_query_test(text)), "");
        }
        check(message(parse_query_test("")), "not a query argument");
        check(message(parse_query_test("a&b")), "not a query argument");
        check(message(parse_query_test("~(")), "unclosed group");
        for text in ["Cookie", "!Cookie", "X-Forwarded-Proto: http", "Cookie: ~logged_in", "!User-Agent: ~(?i)bot"] {
            check(message(parse_field_test(text)), "");
        }
        check(message(parse_field_test("a b")), "not the name");
        check(message(parse_field_test("Cookie: ~[")), "unclosed");
        check(message(parse_regex("(?=a)")), "look-around");
        check(message(parse_regex("(a{1000}){1000}")), "size limit");
    }
}
