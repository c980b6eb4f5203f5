//! Values about access logs. Their words are the configuration's; that the log knows the same is tested there.

use std::path::Path;

use super::parse::{Wrong, not_empty, parse_choice};
use super::web::is_token;
use super::{LOG_FORMATS, one_of};
use crate::config::model::*;
use crate::config::suggest::{did_you_mean, nearest};

/// Fields of templates, and what they mean.
pub const LOG_FIELDS: &[(&str, &str)] = &[
    ("client", "Address of the client; `unix:` over a unix socket"),
    ("client_port", "Port of the client"),
    ("user", "User that access control found"),
    ("time", "Time of the request, in UTC, as in the combined format: 21/Nov/2026:07:41:51 +0000"),
    ("time_rfc3339", "The same as in RFC 3339: 2026-11-21T07:41:51.123456Z"),
    ("time_unix", "The same in seconds since 1970: 1795246911.123456"),
    ("request", "Method, target and version; for what is not a request, its first line"),
    ("method", "Method"),
    ("target", "Target, as it was sent"),
    ("path", "Target up to the first question mark"),
    ("query", "Target behind the first question mark"),
    ("version", "HTTP/1.0, HTTP/1.1, HTTP/2.0, HTTP/3.0"),
    ("host", "Host, in lower case, without port"),
    ("status", "Status of the response"),
    ("bytes", "Bytes of content sent"),
    (
        "duration_us",
        "Microseconds from the end of the request's head until the kernel took the response; 0 if that was at once",
    ),
    ("duration_ms", "The same in milliseconds: 1.234"),
    ("duration_s", "The same in seconds: 0.001234"),
    ("referer", "Referer"),
    ("user_agent", "User-Agent"),
    ("tls_version", "Version of TLS: TLSv1.3, TLSv1.2"),
    ("tls_cipher_suite", "Cipher suite: TLS13_AES_128_GCM_SHA256"),
    ("tls_server_name", "The name of a server that the client asked for (SNI)"),
    ("tls_client", "Subject of the client's certificate (RFC 4514): CN=anna,O=Example"),
    (
        "upstream",
        "The server that the request was forwarded to: the last that was tried, or the upstream's name if none was there",
    ),
    ("upstream_status", "Status of that server's answer"),
    ("upstream_tries", "How many connections to servers were wanted"),
    ("upstream_connect_us", "Microseconds from when the first was wanted until one was there"),
    ("upstream_first_byte_us", "From then until the head of the answer was there"),
    ("upstream_duration_us", "From then until all of the answer was there"),
    ("upstream_connect_s", "The same in seconds, as nginx's `$upstream_connect_time` has it: 0.001234"),
    ("upstream_first_byte_s", "As `$upstream_header_time`"),
    ("upstream_duration_s", "As `$upstream_response_time`"),
    (
        "cache_status",
        "What the cache before that server did: `hit`, `miss`, `expired`, `revalidated`, `stale` or `bypass`",
    ),
    ("request_id", "The identifier that `{request_id}` of `request-header` or `response-header` has given the request"),
    ("trace_id", "The trace that the request belongs to, where there is a block `traces`: 32 digits"),
    ("span_id", "The span of the request in it: 16 digits"),
    ("completion", "Whether all of the answer was sent: `complete`, or `aborted`, by whomever"),
];

/// What the name of a field of the request begins with in a template.
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
        "stdout" => AccessLogTarget::Stdout,
        "syslog" => AccessLogTarget::Syslog("daemon".into()),
        _ => match text.strip_prefix("syslog:") {
            Some(facility) => AccessLogTarget::Syslog(parse_choice(facility, &SYSLOG_FACILITIES)?),
            None => AccessLogTarget::File(directory.join(not_empty(text)?)),
        },
    }))
}

/// Reads the format of an access log.
pub(in crate::config) fn parse_log_format(text: &str) -> Result<AccessLogFormat, Wrong> {
    Ok(match text {
        "combined" => AccessLogFormat::Combined,
        "common" => AccessLogFormat::Common,
        "json" => AccessLogFormat::Json,
        "w3c" => AccessLogFormat::W3c,
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
        return Err(Wrong::new("a log line can't have control characters but tabs"));
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
            return Err(Wrong::help("a brace lacks its partner", "a brace itself is written twice: `{{` or `}}`"));
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
        None => format!("there are {}, and `request.header.NAME`", one_of(&names)),
    };
    Err(Wrong::help(format!("no log field is called `{name}`"), help))
}
