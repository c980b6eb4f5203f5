//! HTTP archives (HAR 1.2), as browsers save them.

use serde::Deserialize;

use super::write::literal;
use super::{Imported, ImportedRequest, ImportedScenario, ImportedStep};
use crate::bench::target::Url;

/// Shortest pause between two requests that counts as a user's, in seconds. Shorter ones are the browser's.
const THINK_MIN: f64 = 0.1;
/// Methods that scenario files have.
pub(super) const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

#[derive(Deserialize)]
struct Archive {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    started_date_time: String,
    /// Milliseconds.
    #[serde(default)]
    time: Option<f64>,
    request: Request,
    #[serde(default)]
    response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<Pair>,
    post_data: Option<PostData>,
}

#[derive(Deserialize)]
struct Pair {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct PostData {
    text: Option<String>,
}

#[derive(Default, Deserialize)]
struct Response {
    #[serde(default)]
    status: u16,
}

/// Imports the requests to one server, in the order in which they began.
pub(super) fn import(text: &str, name: &str, host: Option<&str>) -> Result<Imported, String> {
    let archive: Archive = serde_json::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|error| format!("not an HTTP archive (HAR): {error}"))?;
    let mut entries = archive.log.entries;
    entries.sort_by(|a, b| a.started_date_time.cmp(&b.started_date_time));
    let mut imported = Imported::default();
    let mut steps = Vec::new();
    // Time at which all earlier requests had ended.
    let mut ended: Option<f64> = None;
    let mut has_cookies = false;
    for entry in entries {
        let request = &entry.request;
        let label = format!("{} {}", request.method, shorten(&request.url));
        let is_wanted = |url: &Url| host.is_none_or(|host| host == url.host || host == url.authority());
        match Url::parse(&request.url) {
            Ok(url) if is_wanted(&url) => {}
            Ok(_) => {
                imported.skip(None, format!("{label}: another server"));
                continue;
            }
            Err(_) => {
                imported.skip(None, format!("{label}: not a URL of http or https"));
                continue;
            }
        }
        if !METHODS.contains(&request.method.as_str()) {
            imported.skip(None, format!("{label}: scenarios have no method {}", request.method));
            continue;
        }
        if entry.response.status == 0 {
            imported.skip(None, format!("{label}: has no response"));
            continue;
        }
        let target = match imported.target(&literal(&request.url)) {
            Ok(target) => target,
            Err(reason) => {
                imported.skip(None, format!("{label}: {reason}"));
                continue;
            }
        };
        if let Some(start) = parse_time(&entry.started_date_time) {
            if let Some(pause) = ended.map(|ended| start - ended).filter(|pause| *pause >= THINK_MIN) {
                steps.push(ImportedStep::Think(pause, pause));
            }
            let end = start + entry.time.unwrap_or(0.0).max(0.0) / 1e3;
            ended = Some(ended.unwrap_or(end).max(end));
        }
        let mut fields = Vec::new();
        for Pair { name, value } in &request.headers {
            has_cookies |= name.eq_ignore_ascii_case("cookie");
            if is_own(name) {
                fields.push((name.clone(), literal(value)));
            }
        }
        let passes = (200..400).contains(&entry.response.status);
        steps.push(ImportedStep::Request(ImportedRequest {
            method: request.method.clone(),
            target,
            fields,
            body: request.post_data.as_ref().and_then(|data| data.text.as_deref()).map(literal),
            statuses: if passes { Vec::new() } else { vec![entry.response.status] },
            ..ImportedRequest::default()
        }));
    }
    if has_cookies {
        imported.skip(None, "recorded cookies: users send only those that the server sets in their run");
    }
    imported.scenarios.push(ImportedScenario { name: name.to_owned(), steps });
    Ok(imported)
}

/// True for a field that belongs to the request, not to its connection, its user or its framing.
fn is_own(name: &str) -> bool {
    const OTHERS: [&str; 9] = [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "cookie",
        "keep-alive",
        "upgrade",
        "te",
        "proxy-connection",
    ];
    !name.starts_with(':') && !OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

fn shorten(url: &str) -> String {
    match url.char_indices().nth(80) {
        Some((at, _)) => format!("{}...", &url[..at]),
        None => url.to_owned(),
    }
}

/// Seconds since 1970 of `2026-11-27T12:34:56.789Z`, or with an offset such as `+01:00`.
fn parse_time(text: &str) -> Option<f64> {
    let (date, time) = text.split_once('T')?;
    let mut parts = date.splitn(3, '-').map(str::parse::<u16>);
    let mut part = || parts.next()?.ok();
    let (year, month, day) = (part()?, part()?, part()?);
    let month = time::Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = time::Date::from_calendar_date(i32::from(year), month, u8::try_from(day).ok()?).ok()?;
    let zone_at = time.find(['Z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let mut parts = clock.splitn(3, ':').map(str::parse::<f64>);
    let mut part = || parts.next()?.ok();
    let seconds = part()? * 3600.0 + part()? * 60.0 + part()?;
    let offset = match zone.strip_prefix(['+', '-']) {
        None => 0.0,
        Some(offset) => {
            let (hours, minutes) = offset.split_once(':')?;
            let offset = hours.parse::<f64>().ok()? * 3600.0 + minutes.parse::<f64>().ok()? * 60.0;
            if zone.starts_with('-') { -offset } else { offset }
        }
    };
    Some(date.midnight().assume_utc().unix_timestamp() as f64 + seconds - offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expect) in [
            ("1970-01-01T00:00:01.5Z", Some(1.5)),
            ("1970-01-01T01:00:00.000+01:00", Some(0.0)),
            ("1969-12-31T19:00:00-05:00", Some(0.0)),
            ("1970-13-01T00:00:00Z", None),
            ("1970-01-01", None),
            ("", None),
        ] {
            assert_eq!(parse_time(text), expect, "{text}");
        }
    }

    #[test]
    fn archives() {
        let entry = |start: &str, method: &str, url: &str, status: u16, more: &str| {
            format!(
                "{{\"startedDateTime\": \"2026-01-01T00:00:{start}Z\", \"time\": 50, \"request\": {{\"method\": \"{method}\", \
                 \"url\": \"{url}\", \"headers\": [{{\"name\": \":authority\", \"value\": \"x\"}}, {{\"name\": \"Cookie\", \
                 \"value\": \"a=b\"}}, {{\"name\": \"Accept\", \"value\": \"${{x}}\"}}]{more}}}, \"response\": {{\"status\": {status}}}}}"
            )
        };
        let entries = [
            entry("02.000", "POST", "https://a.example/b?c=d%20e", 201, ", \"postData\": {\"text\": \"x=${y}\"}"),
            entry("00.000", "GET", "https://a.example/", 200, ""),
            entry("00.020", "GET", "https://a.example/missing", 404, ""),
            entry("00.030", "GET", "https://cdn.example/x.js", 200, ""),
            entry("00.040", "PURGE", "https://a.example/x", 200, ""),
            entry("00.040", "GET", "data:image/png;base64,xyz", 200, ""),
            entry("00.040", "GET", "https://a.example/blocked", 0, ""),
        ];
        let text = format!("{{\"log\": {{\"entries\": [{}]}}}}", entries.join(","));
        let imported = import(&text, "n", None).unwrap();
        let request = |method: &str, target: &str, body: Option<&str>, statuses: &[u16]| {
            ImportedStep::Request(ImportedRequest {
                method: method.into(),
                target: target.into(),
                fields: vec![("Accept".into(), "$${x}".into())],
                body: body.map(str::to_owned),
                statuses: statuses.to_vec(),
                ..ImportedRequest::default()
            })
        };
        let ImportedStep::Think(pause, _) = imported.scenarios[0].steps[2] else { panic!("{imported:?}") };
        assert!((pause - 1.93).abs() < 1e-6, "{pause}");
        assert_eq!(imported.scenarios[0].steps[0], request("GET", "/", None, &[]));
        assert_eq!(imported.scenarios[0].steps[1], request("GET", "/missing", None, &[404]));
        assert_eq!(imported.scenarios[0].steps[3], request("POST", "/b?c=d%20e", Some("x=$${y}"), &[]));
        assert_eq!(imported.server.as_deref(), Some("https://a.example"));
        let skipped: Vec<&str> = imported.untranslated.iter().map(|it| it.text.as_str()).collect();
        assert_eq!(
            skipped,
            [
                "GET https://cdn.example/x.js: its server is not https://a.example",
                "PURGE https://a.example/x: scenarios have no method PURGE",
                "GET data:image/png;base64,xyz: not a URL of http or https",
                "GET https://a.example/blocked: has no response",
                "recorded cookies: users send only those that the server sets in their run",
            ]
        );
        let other = import(&text, "n", Some("cdn.example")).unwrap();
        assert_eq!((other.server.as_deref(), other.scenarios[0].steps.len()), (Some("https://cdn.example"), 1));
        assert!(import("{}", "n", None).unwrap_err().contains("not an HTTP archive"));
    }
}
