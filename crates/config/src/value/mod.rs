//! Kinds of values: reads them from KDL, checks them, and describes them to people.

mod discovery;
mod gateway;
mod log;
mod module;
mod network;
mod open_redirect;
mod parse;
mod rules;
mod store;
mod traces;
mod upstream;
mod web;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use expression::{ExpressionReference, MapPattern, Place};
use wire::http::Status;

pub(super) use gateway::parse_user;
pub(super) use log::parse_log_format;
pub use log::{LOG_FIELDS, SYSLOG_FACILITIES};
pub(super) use network::{all_addresses, parse_listen_text as parse_listen};
pub(super) use open_redirect::{Openness, openness};
pub(super) use parse::{Wrong, meant_size, parse, parse_time};
pub use rules::is_own_request_field;
pub(super) use rules::{check_target, parse_network, with_variables};
pub(super) use upstream::parse_server_address;
pub(super) use web::parse_pattern;

use crate::model::discovery::{DiscoveredPort, DiscoverySource};
use crate::model::gateway::ProgramUser;
use crate::model::module::{CompiledDirectory, OutgoingHost};
use crate::model::store::{StoreEndpoint, StorePlace};
use crate::model::traces::CollectorUrl;
use crate::model::upstream::{HashKey, UpstreamServerAddress};
use crate::model::*;

/// Kind of an option's parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueKind {
    /// `on` or `off`.
    Flag,
    /// A whole number.
    Count { min: u64, max: u64 },
    /// A whole number, or `auto`.
    CountOrAuto { min: u64, max: u64 },
    /// A number from 0 to 1.
    Ratio,
    /// URL of a collector.
    CollectorUrl,
    /// Address of a store.
    Store,
    /// URL of an engine of a store.
    StoreEndpoint,
    /// A number of bytes.
    Size { min: u64, max: u64 },
    /// A number of bytes, or `auto`.
    SizeOrAuto { min: u64, max: u64 },
    /// A length of time.
    Duration { min: Duration, max: Duration },
    /// A length of time, or `auto`.
    DurationOrAuto { min: Duration, max: Duration },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// A host name, or `*.` and one.
    Host,
    /// The end of a host name, from a dot on.
    HostSuffix,
    /// An address to listen on.
    Listen,
    /// An IPv4 address.
    Ipv4Address,
    /// Permissions in octal digits.
    Mode,
    /// Address of an upstream server.
    ServerAddress,
    /// Source of an upstream's servers.
    DiscoverySource,
    /// Port of the servers that a source names.
    DiscoveredPort,
    /// Address of a name server.
    Resolver,
    /// A server's address or the name of an upstream.
    ForwardTarget,
    /// As `ForwardTarget`, of a server that runs scripts.
    GatewayTarget,
    /// The name of a user, or its number.
    ProgramUser,
    /// User of the server, which may be root.
    ServerUser,
    /// The name of a group, or its number.
    ProgramGroup,
    /// The name of a variable of scripts.
    VariableName,
    /// Value of `Host` in forwarded requests.
    ForwardHost,
    /// The name of a protocol that a connection may change to, or `off`.
    UpgradeProtocol,
    /// The name of a proxy in Via.
    ProxyName,
    /// Key of a hash that picks a server.
    HashKey,
    /// Name of a cookie.
    CookieName,
    /// A test of a cookie.
    CookieTest,
    /// A text to look for.
    SearchText,
    /// A host that modules may send requests to.
    OutgoingHost,
    /// The name of an environment variable.
    EnvironmentName,
    /// Directory of compiled modules.
    CompiledDirectory,
    /// Path and query of a request.
    RequestTarget,
    /// A path pattern.
    PathPattern,
    /// A path pattern or a content type.
    FieldMatch,
    /// Name of a response field.
    FieldName,
    /// Value of a response field.
    FieldValue,
    /// A status code from `min` to `max`.
    Status { min: u16, max: u16 },
    /// A status code that redirects.
    RedirectStatus,
    /// Error statuses: `404`, `"5xx"`, `"500-504"`.
    StatusRange,
    /// A directory, which may depend on the host.
    Root,
    /// A path below a site's root.
    SitePath,
    /// The front of request paths.
    PathPrefix,
    /// An error page: below the root if it begins with a slash, else a file.
    ErrorPageFile,
    /// Name of a file without a directory.
    FileName,
    /// A file.
    File,
    /// A file, whose last part may contain a `*`.
    FileGlob,
    /// Extension of a file name.
    Extension,
    /// A content type.
    MediaType,
    /// Target of a redirect.
    RedirectTarget,
    /// Target of a rewrite.
    RewriteTarget,
    /// Methods, or all others.
    Methods,
    /// A test of a query.
    QueryTest,
    /// A test of a field.
    FieldTest,
    /// Name of a field of requests.
    RequestFieldName,
    /// Value of a field, with placeholders.
    FieldTemplate(Place),
    /// A condition of the expression language.
    Condition(Place),
    /// A value of the expression language.
    Expression(Place),
    /// Pattern of a map's case.
    MapPattern,
    /// Name of a map, secret or snippet.
    Name,
    /// Clients by address.
    Client,
    /// So many in a period.
    Rate,
    /// Key by which requests are counted.
    LimitKey,
    /// A file of users and hashes of their passwords, or none.
    PasswordFile,
    /// Names of header fields that are copied, each perhaps to another name.
    FieldCopies,
    /// Origin of requests, or `*`.
    Origin,
    /// Target of an access log.
    LogTarget,
    /// Format of a log.
    LogFormat,
}

impl ValueKind {
    /// For a person: `a size, such as "16KiB", from 1 KiB to 1 MiB`.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Flag => "`on` or `off`".into(),
            Self::Count { min, max } => format!("a number{}", range(&min, &max, max == u64::MAX)),
            Self::CountOrAuto { min, max } => format!("`auto` or a number{}", range(&min, &max, false)),
            Self::Ratio => "a number from 0 to 1".into(),
            Self::Store => "the address of a store, such as `\"valkey://HOST\"`".into(),
            Self::StoreEndpoint => "a URL such as `\"https://HOST:PORT\"`".into(),
            Self::CollectorUrl => "the URL of a collector, such as `\"http://HOST:4318\"`".into(),
            Self::Size { min, max } => {
                format!("a size such as `\"16KiB\"`{}", range(&format_size(min), &format_size(max), max == u64::MAX))
            }
            Self::SizeOrAuto { min, max } => format!("`auto` or {}", Self::Size { min, max }.describe()),
            Self::Duration { min, max } => {
                format!("a time such as `\"30s\"`{}", range(&format_duration(min), &format_duration(max), false))
            }
            Self::DurationOrAuto { min, max } => format!("`auto` or {}", Self::Duration { min, max }.describe()),
            Self::Choice(words) => one_of(words),
            Self::Text => "a text".into(),
            Self::Host => "a host name, or `*.` and a host name".into(),
            Self::HostSuffix => "end of a host name, beginning with a dot".into(),
            Self::Listen => "a port, `\"ADDRESS:PORT\"`, `\"unix:PATH\"` or `\"systemd:NAME\"`".into(),
            Self::Ipv4Address => "an IPv4 address".into(),
            Self::Mode => "permissions in octal, such as `\"660\"`".into(),
            Self::DiscoverySource => "a source such as `\"srv:NAME\"` or `\"consul://HOST/SERVICE\"`".into(),
            Self::DiscoveredPort => "a port, or the name of one".into(),
            Self::Resolver => "an address of a name server, such as `\"10.0.0.2:53\"`".into(),
            Self::ServerAddress => "a server, such as `\"http://HOST:PORT\"` or `\"unix:PATH\"`".into(),
            Self::ForwardTarget => "`\"http://HOST:PORT\"`, `\"unix:PATH\"` or the name of an upstream".into(),
            Self::GatewayTarget => "`\"unix:PATH\"`, `\"tcp://HOST:PORT\"` or the name of an upstream".into(),
            Self::ProgramUser | Self::ServerUser => "the name of a user, or its number".into(),
            Self::ProgramGroup => "the name of a group, or its number".into(),
            Self::VariableName => "the name of a variable: letters, digits and `_`".into(),
            Self::ForwardHost => "`keep`, `upstream` or a host".into(),
            Self::UpgradeProtocol => "the name of a protocol, or `off`".into(),
            Self::ProxyName => "a name such as `\"edge\"`".into(),
            Self::CookieName => "the name of a cookie".into(),
            Self::CookieTest => "`\"NAME\"` or `\"NAME=VALUE\"`".into(),
            Self::SearchText => "a text of 1 to 1024 bytes".into(),
            Self::HashKey => "`address`, `\"field:NAME\"` or `\"cookie:NAME\"`".into(),
            Self::OutgoingHost => "a host such as `\"api.example.com\"`, `\"*.example.com\"` or `\"HOST:PORT\"`".into(),
            Self::EnvironmentName => "the name of an environment variable".into(),
            Self::CompiledDirectory => "a directory, `auto` or `off`".into(),
            Self::RequestTarget => "a path, optionally with a query".into(),
            Self::PathPattern => "a path (`\"/a\"`, `\"/a/*\"`, `\"*.css\"`, `\"*\"`, `\"~EXPRESSION\"`)".into(),
            Self::FieldMatch => {
                "a path (`\"/a\"`, `\"/a/*\"`, `\"*.css\"`, `\"~EXPRESSION\"`) or type (`\"text/css\"`, `\"image/*\"`)"
                    .into()
            }
            Self::FieldName => "the name of a response header field".into(),
            Self::FieldValue => "the value of a header field".into(),
            Self::Status { min, max } => format!("a status{}", range(&min, &max, false)),
            Self::RedirectStatus => "301, 302, 303, 307 or 308".into(),
            Self::StatusRange => {
                "a status (`404`), a class (`\"5xx\"`) or a range (`\"500-504\"`), from 400 to 599".into()
            }
            Self::Root => "a directory; `{host}` is the host, `{host:N}` its first N letters".into(),
            Self::SitePath => "a path below the root, beginning with a slash, or `off`".into(),
            Self::PathPrefix => "a path prefix, beginning with a slash".into(),
            Self::ErrorPageFile => {
                "a path below the root (`\"/404.html\"`) or a file elsewhere (`\"file:404.html\"`)".into()
            }
            Self::FileName => "the name of a file".into(),
            Self::File => "a file".into(),
            Self::FileGlob => "a file, or `\"DIRECTORY/*.kdl\"`".into(),
            Self::Extension => "an extension without the dot".into(),
            Self::MediaType => "a content type such as `\"text/markdown\"`".into(),
            Self::RedirectTarget => "a path or URL, with placeholders".into(),
            Self::RewriteTarget => "a path with or without a query, with placeholders".into(),
            Self::Methods => "methods such as `\"GET HEAD\"`; `\"!GET HEAD\"` means all others".into(),
            Self::QueryTest => {
                "`\"NAME\"`, `\"NAME=VALUE\"`, or `\"~EXPRESSION\"` for the whole query; `!` before it negates it"
                    .into()
            }
            Self::FieldTest => {
                "`\"NAME\"`, `\"NAME: VALUE\"` or `\"NAME: ~EXPRESSION\"`; `!` before it negates it".into()
            }
            Self::RequestFieldName => "the name of a request header field".into(),
            Self::FieldTemplate(_) => "the value of a header field, with placeholders".into(),
            Self::Condition(_) => "a condition, such as `\"method == 'GET' and not cookie.session\"`".into(),
            Self::Expression(_) => "a text with variables in braces, such as `\"{host}{path}\"`".into(),
            Self::MapPattern => {
                "a text, its start (`\"/a/*\"`), its end (`\"*.css\"`) or a regular expression (`\"~EXPRESSION\"`)"
                    .into()
            }
            Self::Name => "a name of letters, digits, `-` and `_`".into(),
            Self::Client => "an address, a network such as `\"192.0.2.0/24\"`, `all`, `unix` or `\"file:PATH\"`".into(),
            Self::Rate => "a rate such as `\"10/s\"`, `\"300/m\"` or `\"1000/h\"`".into(),
            Self::LimitKey => "`address`, `network`, `host`, `\"field:NAME\"`, `\"cookie:NAME\"`, `ja4`, `http2-fingerprint`, `asn` or `country`".into(),
            Self::Origin => "an origin, such as `\"https://a.example\"`, `\"https://*.a.example\"` or `\"*\"`".into(),
            Self::FieldCopies => "names of header fields, such as `\"Remote-User Remote-Groups\"`".into(),
            Self::PasswordFile => "a file of users and password hashes, or `off`".into(),
            Self::LogTarget => "a file, `stdout`, `syslog`, `\"syslog:FACILITY\"` or `off`".into(),
            Self::LogFormat => format!("{}, or a template such as `\"{{host}} {{status}}\"`", one_of(LOG_FORMATS)),
        }
    }
}

/// Names of the access log formats.
pub(super) const LOG_FORMATS: &[&str] = &["combined", "common", "json", "w3c", "xferlog", "binary"];

/// A value that was read and checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OptionValue {
    Flag(bool),
    Auto,
    Number(u64),
    Ratio(f64),
    CollectorUrl(CollectorUrl),
    Store(StorePlace),
    StoreEndpoint(StoreEndpoint),
    Duration(Duration),
    Text(String),
    Host(HostPattern),
    Listen(Vec<Listen>),
    ServerAddress(UpstreamServerAddress),
    DiscoverySource(DiscoverySource),
    DiscoveredPort(DiscoveredPort),
    Resolver(SocketAddr),
    HashKey(HashKey),
    /// Name, and value unless any fits.
    CookieTest((String, Option<String>)),
    ProgramUser(ProgramUser),
    OutgoingHost(OutgoingHost),
    CompiledDirectory(CompiledDirectory),
    PathPattern(PathPattern),
    FieldMatch(FieldMatch),
    Status(Status),
    StatusRange((u16, u16)),
    Root(Vec<RootPiece>),
    ErrorPageFile(ErrorPageFile),
    File(PathBuf),
    /// `None` is `off`.
    LogTarget(Option<AccessLogTarget>),
    LogFormat(AccessLogFormat),
    Template(Template),
    Condition(Condition),
    Expression(expression::Value),
    MapPattern(MapPattern),
    Methods(RuleTest<Vec<String>>),
    QueryTest(RuleTest<QueryTest>),
    FieldTest(RuleTest<FieldTest>),
    Clients(rules::Clients),
    Rate(Rate),
    LimitKey(LimitKey),
    /// `None` is `off`.
    PasswordFile(Option<PathBuf>),
    FieldCopies(Vec<FieldCopy>),
    Origin(OriginPattern),
}

impl OptionValue {
    /// References to maps and secrets.
    pub(crate) fn references(&self) -> Vec<ExpressionReference> {
        match self {
            Self::Template(template) => template.variables().filter_map(|variable| variable.reference()).collect(),
            Self::Condition(condition) => condition.references().collect(),
            Self::Expression(value) => value.references().collect(),
            _ => Vec::new(),
        }
    }
}

/// The values of a node, by the names of the option's parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Values {
    /// Parameter, value, and where in the text it stands.
    pub(super) list: Vec<(&'static str, OptionValue, Range<usize>)>,
}

/// Defines an accessor for each kind of value. A value of another kind counts as left out: a test of each option's
/// example shows that its table gives the kind that its setter reads.
macro_rules! accessors {
    ($($name:ident: $variant:ident -> $type:ty;)*) => {$(
        pub(super) fn $name(&self, parameter: &str) -> Option<$type> {
            match self.get(parameter)? {
                OptionValue::$variant(value) => Some(value.clone()),
                _ => None,
            }
        }
    )*};
}

/// As `accessors`, for all values of a parameter.
macro_rules! list_accessors {
    ($($name:ident: $variant:ident -> $type:ty;)*) => {$(
        pub(super) fn $name(&self, parameter: &str) -> Vec<$type> {
            let values = self.all(parameter).filter_map(|(value, _)| match value {
                OptionValue::$variant(value) => Some(value.clone()),
                _ => None,
            });
            values.collect()
        }
    )*};
}

impl Values {
    /// The first value of a parameter.
    pub(super) fn get(&self, parameter: &str) -> Option<&OptionValue> {
        self.all(parameter).next().map(|(value, _)| value)
    }

    /// All values of a parameter, and where they stand.
    pub(super) fn all(&self, parameter: &str) -> impl Iterator<Item = (&OptionValue, &Range<usize>)> {
        self.list.iter().filter(move |(name, ..)| *name == parameter).map(|(_, value, span)| (value, span))
    }

    /// All addresses to listen on of a parameter.
    pub(super) fn listens(&self, parameter: &str) -> Vec<Listen> {
        self.listen_lists(parameter).into_iter().flatten().collect()
    }

    /// All clients of a parameter, and the files that some of them are from.
    pub(super) fn clients(&self, parameter: &str) -> (Vec<ClientPattern>, Vec<PathBuf>) {
        let (mut patterns, mut files) = (Vec::new(), Vec::new());
        for (value, _) in self.all(parameter) {
            let OptionValue::Clients(clients) = value else { continue };
            patterns.extend_from_slice(&clients.patterns);
            files.extend(clients.file.clone());
        }
        (patterns, files)
    }

    /// Value of a flag; without a value, it is on.
    pub(super) fn on(&self) -> bool {
        self.flag("on").unwrap_or(true)
    }

    /// A number as the type of a setting. The range of its parameter fits that type.
    pub(super) fn integer<T: TryFrom<u64> + Default>(&self, parameter: &str) -> T {
        self.number(parameter).and_then(|number| T::try_from(number).ok()).unwrap_or_default()
    }

    /// Value of an option that is a length of time.
    pub(super) fn time(&self) -> Duration {
        self.duration("time").unwrap_or_default()
    }

    /// A number; `None` is `auto`.
    pub(super) fn number_or_auto(&self, parameter: &str) -> Option<u64> {
        match self.get(parameter) {
            Some(OptionValue::Auto) => None,
            _ => self.number(parameter),
        }
    }

    /// A length of time; `None` is `auto`.
    pub(super) fn duration_or_auto(&self, parameter: &str) -> Option<Duration> {
        match self.get(parameter) {
            Some(OptionValue::Auto) => None,
            _ => self.duration(parameter),
        }
    }

    /// Limit on a request body.
    pub(super) fn body_bytes_max(&self, parameter: &str) -> BodyBytesMax {
        self.number_or_auto(parameter).map_or(BodyBytesMax::Auto, BodyBytesMax::Bytes)
    }

    accessors! {
        flag: Flag -> bool;
        number: Number -> u64;
        ratio: Ratio -> f64;
        collector_url: CollectorUrl -> CollectorUrl;
        store: Store -> StorePlace;
        store_endpoint: StoreEndpoint -> StoreEndpoint;
        duration: Duration -> Duration;
        text: Text -> String;
        server_address: ServerAddress -> UpstreamServerAddress;
        discovery_source: DiscoverySource -> DiscoverySource;
        discovered_port: DiscoveredPort -> DiscoveredPort;
        resolver: Resolver -> SocketAddr;
        hash_key: HashKey -> HashKey;
        cookie_test: CookieTest -> (String, Option<String>);
        program_user: ProgramUser -> ProgramUser;
        compiled_directory: CompiledDirectory -> CompiledDirectory;
        path_pattern: PathPattern -> PathPattern;
        field_match: FieldMatch -> FieldMatch;
        status: Status -> Status;
        root: Root -> Vec<RootPiece>;
        error_page_file: ErrorPageFile -> ErrorPageFile;
        file: File -> PathBuf;
        log_target: LogTarget -> Option<AccessLogTarget>;
        log_format: LogFormat -> AccessLogFormat;
        template: Template -> Template;
        condition: Condition -> Condition;
        expression: Expression -> expression::Value;
        map_pattern: MapPattern -> MapPattern;
        methods: Methods -> RuleTest<Vec<String>>;
        query_test: QueryTest -> RuleTest<QueryTest>;
        field_test: FieldTest -> RuleTest<FieldTest>;
        rate: Rate -> Rate;
        limit_key: LimitKey -> LimitKey;
        password_file: PasswordFile -> Option<PathBuf>;
        field_copies: FieldCopies -> Vec<FieldCopy>;
    }

    list_accessors! {
        texts: Text -> String;
        origins: Origin -> OriginPattern;
        hosts: Host -> HostPattern;
        listen_lists: Listen -> Vec<Listen>;
        outgoing_hosts: OutgoingHost -> OutgoingHost;
        path_patterns: PathPattern -> PathPattern;
        files: File -> PathBuf;
        statuses: Status -> Status;
        status_ranges: StatusRange -> (u16, u16);
    }
}

/// A size as it is written: `16KiB`.
pub fn format_size(bytes: u64) -> String {
    let (unit, size) = parse::SIZE_UNITS
        .iter()
        .rev()
        .find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size))
        .unwrap_or(&parse::SIZE_UNITS[0]);
    format!("{}{unit}", bytes / size)
}

/// A duration as it is written: `30s`.
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis() as u64;
    let (unit, length) = parse::DURATION_UNITS
        .iter()
        .rev()
        .find(|(_, length)| milliseconds >= *length && milliseconds.is_multiple_of(*length))
        .unwrap_or(&parse::DURATION_UNITS[0]);
    format!("{}{unit}", milliseconds / length)
}

/// `a`, `b` or `c`.
pub(super) fn one_of(words: &[&str]) -> String {
    list(words, "or")
}

/// `a`, `b` and `c`.
pub(super) fn all_of(words: &[&str]) -> String {
    list(words, "and")
}

fn list(words: &[&str], conjunction: &str) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} {conjunction} {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn range(min: &impl ToString, max: &impl ToString, open: bool) -> String {
    match (min.to_string().as_str(), open) {
        ("0", true) => String::new(),
        (min, true) => format!(", at least {min}"),
        (min, false) => format!(", from {min} to {}", max.to_string()),
    }
}
