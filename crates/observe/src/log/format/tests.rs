//! Every format, with harmless and hostile requests.

use std::net::SocketAddr;

use wire::http::Status;
use wire::http::trace_context::{SpanId, TraceId};

use super::super::record::{self, FtpFlags, FtpSubject, LogClient, LogId, LogRecord, StoredRecord, Subject};
use super::super::tests::{LogTestRequest, record_of};
use super::{Formatter, LogTemplate, TemplateErrorKind};
use crate::config::AccessLogFormat;

const VALUE_BYTES_MAX: usize = 40;

fn line(format: &AccessLogFormat, record: &LogRecord<'_>) -> String {
    let mut formatter = Formatter::new(format).unwrap();
    let mut bytes = Vec::new();
    record::encode(record, &formatter.capture(), VALUE_BYTES_MAX, &mut bytes);
    let mut out = Vec::new();
    formatter.append(&StoredRecord::decode(&bytes).unwrap(), &mut out);
    String::from_utf8(out).unwrap()
}

fn template(text: &str) -> AccessLogFormat {
    AccessLogFormat::Template(text.into())
}

fn plain_request() -> LogTestRequest {
    LogTestRequest::new(b"/a?b=c", &[("Referer", b"http://example.org/"), ("User-Agent", b"curl/8.5.0 (x; y)")])
}

/// Request that tries to end quotes and lines, clear the screen, reverse the text, and hide.
fn hostile_request() -> LogTestRequest {
    LogTestRequest::new(
        b"/\" 200 1\n6.6.6.6 - -",
        &[
            ("Referer", b"\" \"forged\"\r\nline\\"),
            ("User-Agent", b"\x1b[2J\x9b2J\xe2\x80\xaeevil\x7f\x00\xff\t"),
            ("X-Id", b"7 | admin|\"\xc3\xa9\""),
        ],
    )
}

#[test]
fn plain_lines() {
    let request = plain_request();
    let check = |format: AccessLogFormat, expect: &str| {
        assert_eq!(line(&format, &record_of(LogId(0), request.subject())), format!("{expect}\n"));
    };
    check(AccessLogFormat::Common, r#"192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] "GET /a?b=c HTTP/1.1" 200 1024"#);
    check(
        AccessLogFormat::Combined,
        r#"192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] "GET /a?b=c HTTP/1.1" 200 1024 "http://example.org/" "curl/8.5.0 (x; y)""#,
    );
    check(
        AccessLogFormat::Json,
        r#"{"time":"1994-11-06T08:49:37.123456Z","client":"192.0.2.7","client_port":50000,"host":"example.com","method":"GET","target":"/a?b=c","version":"HTTP/1.1","status":200,"bytes":1024,"duration_us":1234,"referer":"http://example.org/","user_agent":"curl/8.5.0 (x; y)"}"#,
    );
    check(
        AccessLogFormat::W3c,
        r#"1994-11-06 08:49:37 192.0.2.7 - GET /a b=c HTTP/1.1 example.com 200 1024 0.001234 "curl/8.5.0 (x; y)" "http://example.org/" - - - -"#,
    );
    check(
        template("{client}:{client_port} {host} {path} {query} {duration_us} {duration_ms} {duration_s} {time_unix}"),
        "192.0.2.7:50000 example.com /a b=c 1234 1.234 0.001234 784111777.123456",
    );
    check(
        template("{{{status}}}\t{method} {version} [{time}] {time_rfc3339} {bytes} {user} \"{request}\""),
        "{200}\tGET HTTP/1.1 [06/Nov/1994:08:49:37 +0000] 1994-11-06T08:49:37.123456Z 1024 - \"GET /a?b=c HTTP/1.1\"",
    );
    check(
        template("{request.header.user-agent} {request.header.X-None} {referer}"),
        r"curl/8.5.0\x20(x;\x20y) - http://example.org/",
    );
}

/// The line has the fields of xferlog(5), and only transfers of files have one.
#[test]
fn xferlog() {
    let check = |command, path: &[u8], status: u16, flags: [bool; 2], expect: &str| {
        let flags = FtpFlags { is_ascii: flags[0], is_anonymous: flags[1] };
        let subject = Subject::Ftp(FtpSubject { command, path, flags });
        let status = Status::new(status).unwrap();
        let record = LogRecord { user: b"an n", status, ..record_of(LogId(0), subject) };
        assert_eq!(line(&AccessLogFormat::Xferlog, &record), expect);
    };
    let end = "Sun Nov  6 08:49:37 1994 1 192.0.2.7 1024";
    check("RETR", b"/a.txt", 226, [false, true], &format!("{end} /a.txt b _ o a an_n ftp 0 * c\n"));
    check("STOR", b"/a b\xff\n", 426, [true, false], &format!("{end} /a_b_ a _ i r an_n ftp 0 * i\n"));
    check("APPE", b"/a", 226, [false, false], &format!("{end} /a b _ i r an_n ftp 0 * c\n"));
    check("LIST", b"/", 226, [false, false], "");
    assert_eq!(line(&AccessLogFormat::Xferlog, &record_of(LogId(0), plain_request().subject())), "");
}

#[test]
fn outcomes() {
    let request = hostile_request();
    let check = |format: AccessLogFormat, is_complete: bool, expect: &str| {
        let record = LogRecord { request_id: "a1b2", is_complete, ..record_of(LogId(0), request.subject()) };
        let line = line(&format, &record);
        assert!(line.contains(expect), "{line}");
    };
    let template = || AccessLogFormat::Template("{status} {request_id} {completion}".to_owned());
    check(template(), true, "200 a1b2 complete\n");
    check(template(), false, "200 a1b2 aborted\n");
    check(AccessLogFormat::Json, true, r#","request_id":"a1b2","referer":"#);
    check(AccessLogFormat::Json, false, r#","request_id":"a1b2","completion":"aborted","referer":"#);
}

#[test]
fn traces() {
    let request = hostile_request();
    let trace = Some((TraceId::new(0xabc), SpanId::new(0x12)));
    let check = |format: AccessLogFormat, trace, expect: &str| {
        let record = LogRecord { trace, ..record_of(LogId(0), request.subject()) };
        let line = line(&format, &record);
        assert!(line.contains(expect), "{line}");
    };
    let template = || AccessLogFormat::Template("{status} {trace_id} {span_id}".to_owned());
    check(template(), trace, "200 00000000000000000000000000000abc 0000000000000012\n");
    check(template(), None, "200 - -\n");
    let json = r#","trace_id":"00000000000000000000000000000abc","span_id":"0000000000000012","referer":"#;
    check(AccessLogFormat::Json, trace, json);
}

#[test]
fn hostile_bytes_forge_nothing() {
    let request = hostile_request();
    let check = |format: AccessLogFormat, expect: &str| {
        let record =
            LogRecord { host: b"a b\"\n", user: b"me] \"x\nsecond line", ..record_of(LogId(0), request.subject()) };
        assert_eq!(line(&format, &record), format!("{expect}\n"));
    };
    check(
        AccessLogFormat::Combined,
        concat!(
            r#"192.0.2.7 - me]\x20\x22x [06/Nov/1994:08:49:37 +0000] "#,
            r#""GET /\x22\x20200\x201\x0A6.6.6.6\x20-\x20- HTTP/1.1" 200 1024 "#,
            r#""\x22 \x22forged\x22\x0D\x0Aline\x5C" "\x1B[2J\x9B2J\xE2\x80\xAEevil\x7F\x00\xFF\x09""#,
        ),
    );
    check(
        AccessLogFormat::Common,
        concat!(
            r#"192.0.2.7 - me]\x20\x22x [06/Nov/1994:08:49:37 +0000] "#,
            r#""GET /\x22\x20200\x201\x0A6.6.6.6\x20-\x20- HTTP/1.1" 200 1024"#,
        ),
    );
    check(
        AccessLogFormat::Json,
        concat!(
            r#"{"time":"1994-11-06T08:49:37.123456Z","client":"192.0.2.7","client_port":50000,"#,
            r#""user":"me] \"x","host":"a b\"\u000a","method":"GET","target":"/\" 200 1\u000a6.6.6.6 - -","#,
            r#""version":"HTTP/1.1","status":200,"bytes":1024,"duration_us":1234,"#,
            r#""referer":"\" \"forged\"\u000d\u000aline\\","#,
            r#""user_agent":"\u001b[2J\\x9B2J\u202eevil\u007f\u0000\\xFF\u0009"}"#,
        ),
    );
    check(
        AccessLogFormat::W3c,
        concat!(
            r#"1994-11-06 08:49:37 192.0.2.7 me]%20%22x GET /%22%20200%201%0A6.6.6.6%20-%20- - HTTP/1.1 "#,
            r#"a%20b%22%0A 200 1024 0.001234 "\x1B[2J\x9B2J\xE2\x80\xAEevil\x7F\x00\xFF\x09" "#,
            r#"""" ""forged""\x0D\x0Aline\x5C" - - - -"#,
        ),
    );
    // Quoted values escape only what could end them; unquoted ones also the separators of the text.
    check(
        template(r#"{request.header.x-id}|{request.header.x-id} "{request.header.x-id}""#),
        r#"7\x20\x7C\x20admin\x7C\x22\xC3\xA9\x22|7\x20\x7C\x20admin\x7C\x22\xC3\xA9\x22 "7 | admin|\x22\xC3\xA9\x22""#,
    );
}

/// A template that is a JSON object.
const OBJECT: &str = r#"{{"target": {target}, "as": "<{user}> {request}", "of": [{status}, {upstream_status}, "{upstream_status}"], "at": {time_rfc3339}}}"#;

#[test]
fn objects_are_objects() {
    let request = LogTestRequest::new(b"/a\"b\\", &[]);
    let record = record_of(LogId(0), request.subject());
    assert_eq!(
        line(&template(OBJECT), &record),
        concat!(
            r#"{"target": "/a\"b\\", "as": "<> GET /a\"b\\ HTTP/1.1", "of": [200, null, ""], "#,
            r#""at": "1994-11-06T08:49:37.123456Z"}"#,
            "\n"
        )
    );
    assert_eq!(
        line(&template(r#"{{"a\"\\": "\"{user}\"{target}"}}"#), &record),
        concat!(r#"{"a\"\\": "\"\"/a\"b\\"}"#, "\n")
    );
    let every: Vec<String> =
        LogTemplate::FIELDS.iter().map(|name| format!(r#""{name}": {{{name}}}, "{name} ": "{{{name}}}""#)).collect();
    let every = template(&format!("{{{{{}}}}}", every.join(", ")));
    for client in [record.client, LogClient::Unix] {
        for record in
            [LogRecord { client, ..record }, LogRecord { client, ..record_of(LogId(0), Subject::Malformed(b"\"")) }]
        {
            let line = line(&every, &record);
            let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).expect(&line);
            assert_eq!(object.len(), 2 * LogTemplate::FIELDS.len());
        }
    }
}

/// Arbitrary bytes from a client give one line in printable ASCII, and JSON that another parser reads back unchanged.
#[test]
fn any_byte_stays_in_its_line() {
    let all: Vec<u8> = (0..=255).collect();
    for chunk in all.chunks(VALUE_BYTES_MAX) {
        let request = LogTestRequest::new(chunk, &[("Referer", chunk), ("User-Agent", chunk), ("X", chunk)]);
        let record = LogRecord { host: chunk, user: chunk, ..record_of(LogId(0), request.subject()) };
        for format in [
            AccessLogFormat::Common,
            AccessLogFormat::Combined,
            AccessLogFormat::Json,
            AccessLogFormat::W3c,
            template("{user} \"{request}\" {request} {host} {referer} {request.header.x}"),
            template(OBJECT),
        ] {
            let line = line(&format, &record);
            let content = line.strip_suffix('\n').unwrap();
            assert!(content.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{format:?}: {content:?}");
            if format == AccessLogFormat::Json || format == template(OBJECT) {
                let value: serde_json::Value = serde_json::from_str(content).unwrap();
                if let Ok(text) = std::str::from_utf8(chunk) {
                    assert_eq!(value["target"], text);
                }
            }
        }
    }
}

#[test]
fn what_is_not_a_request() {
    let check = |format: AccessLogFormat, bytes: &[u8], expect: &str| {
        let record = LogRecord { status: Status::BAD_REQUEST, ..record_of(LogId(0), Subject::Malformed(bytes)) };
        assert_eq!(line(&format, &record), format!("{expect}\n"));
    };
    check(
        AccessLogFormat::Common,
        b"\x16\x03\x01 hello\r\nsecond line",
        r#"192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] "\x16\x03\x01 hello" 400 1024"#,
    );
    check(
        AccessLogFormat::Json,
        b"GET / HTTP/1.1 x\n",
        r#"{"time":"1994-11-06T08:49:37.123456Z","client":"192.0.2.7","client_port":50000,"host":"example.com","malformed":"GET / HTTP/1.1 x","status":400,"bytes":1024,"duration_us":1234}"#,
    );
    check(
        AccessLogFormat::W3c,
        b"A B",
        "1994-11-06 08:49:37 192.0.2.7 - - A%20B - - example.com 400 1024 0.001234 - - - - - -",
    );
    check(template("{request} \"{request}\" {method} {target} {version}"), b"A B", r#"A\x20B "A B" - - -"#);
    check(template("{request}"), b"", "-");
}

#[test]
fn long_values_are_cut_and_marked() {
    let target = [b'/'; VALUE_BYTES_MAX + 1];
    let agent = [b'a'; VALUE_BYTES_MAX];
    let request = LogTestRequest::new(&target, &[("User-Agent", &agent)]);
    let record = record_of(LogId(0), request.subject());
    let (slashes, agent) = ("/".repeat(VALUE_BYTES_MAX), "a".repeat(VALUE_BYTES_MAX));
    assert!(line(&AccessLogFormat::Combined, &record).contains(&format!(r#""GET {slashes}\... HTTP/1.1" "#)));
    assert!(line(&AccessLogFormat::Combined, &record).ends_with(&format!("\"{agent}\"\n")));
    assert!(line(&AccessLogFormat::Json, &record).contains(&format!(r#""target":"{slashes}\u2026""#)));
    assert!(line(&AccessLogFormat::W3c, &record).contains(&format!(r" {slashes}\... - ")));
    let record = record_of(LogId(0), Subject::Malformed(&target));
    assert!(line(&AccessLogFormat::Common, &record).contains(&format!(r#""{slashes}\..." "#)));
}

#[test]
fn clients_and_methods() {
    let request = plain_request().with_method("PROPFIND");
    let check = |client, expect: &str| {
        let record = LogRecord { client, ..record_of(LogId(0), request.subject()) };
        assert_eq!(line(&template("{client} {client_port} {method}"), &record), format!("{expect} PROPFIND\n"));
    };
    check(LogClient::Unix, "unix: -");
    check(LogClient::Ip("[2001:db8::7]:443".parse::<SocketAddr>().unwrap()), "2001:db8::7 443");
    check(LogClient::Ip("[::ffff:192.0.2.1]:80".parse::<SocketAddr>().unwrap()), "192.0.2.1 80");
}

#[test]
fn w3c_directives() {
    let mut formatter = Formatter::new(&AccessLogFormat::W3c).unwrap();
    let mut out = Vec::new();
    formatter.push_start(std::time::UNIX_EPOCH + std::time::Duration::from_secs(784_111_777), &mut out);
    formatter.push_remark(7, &mut out);
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "#Version: 1.0");
    assert_eq!(lines[1], concat!("#Software: tailcoat ", env!("CARGO_PKG_VERSION")));
    assert_eq!(lines[2], "#Date: 1994-11-06 08:49:37");
    assert_eq!(lines[4], "#Remark: 7 records were dropped before this line");
    // As many fields as a record can hold.
    let request = LogTestRequest::new(b"/", &[]);
    let entry = line(&AccessLogFormat::W3c, &record_of(LogId(0), request.subject()));
    assert_eq!(lines[3].strip_prefix("#Fields: ").unwrap().split(' ').count(), entry.split(' ').count());
}

#[test]
fn templates_with_faults() {
    let check = |text: &str, offset: usize, length: usize, message: &str| {
        let error = LogTemplate::parse(text).unwrap_err();
        assert_eq!((error.offset, error.length), (offset, length), "{text}");
        assert_eq!(error.to_string(), message, "{text}");
    };
    check("{clinet} x", 0, 8, "unknown log field `clinet`; did you mean `client`?");
    check("a {user-agent}", 2, 12, "unknown log field `user-agent`; did you mean `user_agent`?");
    check(
        "{request.header.}",
        0,
        17,
        "unknown log field `request.header.`; use client, client_port, user, \
        time, time_rfc3339, time_unix, request, method, target, path, query, version, host, status, bytes, duration_us, \
        duration_ms, duration_s, referer, user_agent, tls_version, tls_cipher_suite, tls_server_name, tls_client, upstream, \
         upstream_status, upstream_tries, \
         upstream_connect_us, upstream_first_byte_us, upstream_duration_us, upstream_connect_s, \
         upstream_first_byte_s, upstream_duration_s, cache_status, request_id, trace_id, span_id, completion, bot_class, bot_score, bot_name, bot_signals, ja4, \
         http2_fingerprint, country, asn, or request.header.NAME",
    );
    check("a {status", 2, 1, "`{` is not closed; write `{{` for a brace");
    check("a {status {x}", 2, 1, "`{` is not closed; write `{{` for a brace");
    check("a} b", 1, 1, "`}` closes nothing; write `}}` for a brace");
    check("a\nb", 1, 1, "control characters other than tabs are not allowed in a log line");
    let many: String = (0..200).map(|number| format!("{{request.header.x-{number}}}")).collect();
    assert_eq!(LogTemplate::parse(&many).unwrap_err().kind, TemplateErrorKind::TooManyRequestFields);
}

#[test]
fn every_field_has_a_meaning() {
    for (name, meaning) in crate::config::LOG_FIELDS {
        assert!(LogTemplate::parse(&format!("{{{name}}}")).is_ok(), "{name}");
        assert!(!meaning.is_empty() && meaning.trim() == *meaning, "{name}");
    }
}

/// The configuration checks formats without knowing the log; both must agree.
#[test]
fn the_configuration_takes_what_the_log_takes() {
    assert!(LogTemplate::FIELDS.iter().eq(crate::config::LOG_FIELDS.iter().map(|(name, _)| name)));
    assert_eq!(crate::log::FACILITIES, crate::config::SYSLOG_FACILITIES);
    let many = |count: usize| (0..count).map(|index| format!("{{request.header.X-{index}}}")).collect::<String>();
    let texts = [
        "{client} {{}} \"{request}\" {request.header.X-Id}\t",
        "{clint}",
        "{}",
        "{client",
        "{client}}",
        "{{client}",
        "{client}{",
        "{request.header.}",
        "{request.header.a b}",
        "{client}\n",
        "{client}\u{85}",
        "{{}}{}}",
        "{a{client}}",
        &many(127),
        &many(128),
        &format!("{}{}", many(127), "{request.header.x-1}"),
    ];
    for text in texts {
        let (config, log) = (crate::config::log_format_from_text(text), LogTemplate::parse(text));
        assert_eq!(config.is_ok(), log.is_ok(), "{text}: {config:?}, {log:?}");
    }
}
