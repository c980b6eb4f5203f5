//! Values about access logs. Their words are the configuration's; that the log knows the same is tested there.

use std::path::Path;

use super::parse::{Wrong, not_empty, parse_choice};
use super::web::is_token;
use super::{LOG_FORMATS, one_of};
use crate::model::*;
use crate::suggest::{did_you_mean, nearest};

/// Fields of templates, and what they mean.
pub const LOG_FIELDS: &[(&str, &str)] = &[
    ("client", "Address of the client; `unix:` on a Unix socket"),
    ("client_port", "Port of the client"),
    ("user", "User of `basic-auth`"),
    ("time", "Time of the request, in UTC, as in the combined format: 21/Nov/2026:07:41:51 +0000"),
    ("time_rfc3339", "Time of the request as in RFC 3339: 2026-11-21T07:41:51.123456Z"),
    ("time_unix", "Time of the request in seconds since 1970: 1795246911.123456"),
    ("request", "Method, target and version; the first line of an invalid request"),
    ("method", "Method"),
    ("target", "Target as the client sent it"),
    ("path", "Target up to the first question mark"),
    ("query", "Target after the first question mark"),
    ("version", "HTTP version: HTTP/1.0, HTTP/1.1, HTTP/2.0, HTTP/3.0"),
    ("host", "Host in lower case, without port"),
    ("status", "Status of the response"),
    ("bytes", "Bytes of the response body sent"),
    (
        "duration_us",
        "Microseconds from the end of the request's head until the kernel accepted the response; 0 if immediately",
    ),
    ("duration_ms", "`duration_us` in milliseconds: 1.234"),
    ("duration_s", "`duration_us` in seconds: 0.001234"),
    ("referer", "Referer"),
    ("user_agent", "User-Agent"),
    ("tls_version", "TLS version: TLSv1.3, TLSv1.2"),
    ("tls_cipher_suite", "Cipher suite: TLS13_AES_128_GCM_SHA256"),
    ("tls_server_name", "Server name that the client requested (SNI)"),
    ("tls_client", "Subject of the client's certificate (RFC 4514): CN=anna,O=Example"),
    ("upstream", "Upstream server of the request: the last one tried, or the upstream's name if none was available"),
    ("upstream_status", "Status of the upstream response"),
    ("upstream_tries", "Number of connections to upstream servers that were tried"),
    ("upstream_connect_us", "Microseconds until a connection to the upstream was ready"),
    ("upstream_first_byte_us", "Microseconds from then until the head of the upstream response"),
    ("upstream_duration_us", "Microseconds from then until the end of the upstream response"),
    ("upstream_connect_s", "`upstream_connect_us` in seconds, like nginx's `$upstream_connect_time`: 0.001234"),
    ("upstream_first_byte_s", "`upstream_first_byte_us` in seconds, like `$upstream_header_time`"),
    ("upstream_duration_s", "`upstream_duration_us` in seconds, like `$upstream_response_time`"),
    ("cache_status", "Result of the response cache: `hit`, `miss`, `expired`, `revalidated`, `stale` or `bypass`"),
    ("request_id", "Identifier of the request, as in `{request_id}` of `request-header` and `response-header`"),
    ("trace_id", "Trace of the request, with a block `traces`: 32 hexadecimal digits"),
    ("span_id", "Span of the request in its trace: 16 hexadecimal digits"),
    ("completion", "`complete` if the whole response was sent, otherwise `aborted`"),
    (
        "bot_class",
        "Class of the request, with `bots`: `visitor`, `exempt`, `passed`, `crawler`, `agent`, `challenged` or `rejected`",
    ),
    ("bot_score", "Score of the request, with `bots`"),
    ("bot_name", "Crawler that the client claims to be, or agent that has signed the request, with `bots`"),
    ("bot_signals", "Signals that the score is made of, with `bots`: `library,no-accept`"),
    ("ja4", "JA4 fingerprint of the TLS handshake: t13d1516h2_8daaf6152771_e5627efa2ab1"),
    (
        "http2_fingerprint",
        "Fingerprint of the beginning of an HTTP/2 connection over TLS: 1:65536;4:6291456|15663105|0|m,a,s,p",
    ),
    ("country", "Country of the client's address, with `country-database`: DE"),
    ("asn", "Number of the network operator, with `asn-database`: 64496"),
];

/// Prefix of request header fields in templates.
const REQUEST_FIELD_PREFIX: &str = "request.header.";

/// Most fields of the request in a template.
const REQUEST_FIELDS_MAX: usize = 127;

/// Facilities of syslog, by the names of syslog.conf(5).
pub const SYSLOG_FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];

pub(super) fn parse_log_target(text: &str, directory: &Path) -> Result<Option<AccessLogTarget>, Wrong> {
    Ok(Some(match text {
        "off" => return Ok(None),
        // Images for containers log there.
        "stdout" | "/dev/stdout" => AccessLogTarget::Stdout,
        "syslog" => AccessLogTarget::Syslog("daemon".into()),
        _ => match text.strip_prefix("syslog:") {
            Some(facility) => AccessLogTarget::Syslog(parse_choice(facility, &SYSLOG_FACILITIES)?),
            None => match text.split_once("://") {
                Some((scheme, rest)) if scheme.starts_with("syslog") => parse_remote(scheme, rest)?,
                _ => AccessLogTarget::File(directory.join(not_empty(text)?)),
            },
        },
    }))
}

/// Reads the URL of a remote syslog: `syslog+tls://HOST:PORT/FACILITY`.
fn parse_remote(scheme: &str, rest: &str) -> Result<AccessLogTarget, Wrong> {
    let help = "write `syslog+udp://HOST`, `syslog+tcp://HOST:PORT` or `syslog+tls://HOST:PORT/local0`";
    let known = SyslogTransport::ALL.iter().find(|(_, name, _)| *name == scheme);
    let Some((transport, _, default_port)) = known else {
        return Err(Wrong::help(format!("`{scheme}` is not a transport of syslog"), help));
    };
    let (authority, facility) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port > 0);
            (host, port.ok_or_else(|| Wrong::help("the port is not a number from 1 to 65,535", help))?)
        }
        _ => (authority, *default_port),
    };
    let is_part = |character: char| character.is_ascii_alphanumeric() || "-._:[]".contains(character);
    if host.is_empty() || !host.chars().all(is_part) {
        return Err(Wrong::help(format!("`{host}` is not a host"), help));
    }
    let facility = match facility {
        "" => "daemon".to_owned(),
        facility => parse_choice(facility, &SYSLOG_FACILITIES)?,
    };
    let (transport, host) = (*transport, host.to_owned());
    Ok(AccessLogTarget::Remote(Box::new(RemoteSyslog { transport, host, port, facility, ca_file: None })))
}

/// Reads the format of an access log.
pub(crate) fn parse_log_format(text: &str) -> Result<AccessLogFormat, Wrong> {
    Ok(match text {
        "combined" => AccessLogFormat::Combined,
        "common" => AccessLogFormat::Common,
        "json" => AccessLogFormat::Json,
        "w3c" => AccessLogFormat::W3c,
        "xferlog" => AccessLogFormat::Xferlog,
        "binary" => AccessLogFormat::Binary,
        template if template.contains('{') => {
            check_template(template)?;
            AccessLogFormat::Template(template.to_owned())
        }
        _ => {
            let help = match nearest(text, LOG_FORMATS) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("write {}, or a template such as `\"{{host}} {{status}}\"`", one_of(LOG_FORMATS)),
            };
            return Err(Wrong::help(format!("`{text}` is not a format"), help));
        }
    })
}

/// Checks a template: fields in braces, and `{{` and `}}` for braces.
fn check_template(template: &str) -> Result<(), Wrong> {
    if template.contains(|character: char| character.is_ascii_control() && character != '\t') {
        return Err(Wrong::new("a log format cannot contain control characters except tabs"));
    }
    let mut request_fields = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let tail = &rest[at..];
        if tail.starts_with("{{") || tail.starts_with("}}") {
            rest = &tail[2..];
            continue;
        }
        let Some(close) = tail.find('}').filter(|_| tail.starts_with('{')) else {
            return Err(Wrong::help("a brace is not closed", "write `{{` or `}}` for a brace"));
        };
        let name = &tail[1..close];
        match name.strip_prefix(REQUEST_FIELD_PREFIX) {
            Some(field) if is_token(field) => request_fields.push(field),
            _ => check_field(name)?,
        }
        rest = &tail[close + 1..];
    }
    request_fields.sort();
    request_fields.dedup();
    if request_fields.len() > REQUEST_FIELDS_MAX {
        return Err(Wrong::new(format!("a log line has at most {REQUEST_FIELDS_MAX} fields of the request")));
    }
    Ok(())
}

fn check_field(name: &str) -> Result<(), Wrong> {
    let names: Vec<_> = LOG_FIELDS.iter().map(|(name, _)| *name).collect();
    if names.contains(&name) {
        return Ok(());
    }
    let help = match nearest(name, &names) {
        Some(_) => did_you_mean(name, &names),
        None => format!("fields are {}, and `request.header.NAME`", one_of(&names)),
    };
    Err(Wrong::help(format!("`{name}` is not a field of access logs"), help))
}
