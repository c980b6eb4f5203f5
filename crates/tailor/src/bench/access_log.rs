//! Parser of access logs in the common and combined formats, whose requests `--replay` sends again.

use time::{Date, Month};

/// Request that an access log recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessLogEntry {
    /// Seconds since 1970.
    pub(crate) time: i64,
    pub(crate) method: String,
    pub(crate) target: String,
}

/// Returns the requests of a log by their times, and the number of lines that could not be parsed.
pub(crate) fn parse(text: &str) -> (Vec<AccessLogEntry>, usize) {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let (mut entries, mut skipped) = (Vec::new(), 0);
    for line in lines {
        match parse_line(line) {
            Some(entry) => entries.push(entry),
            None => skipped += 1,
        }
    }
    // Servers log at the end of a request, so lines can be slightly out of order.
    entries.sort_by_key(|entry| entry.time);
    (entries, skipped)
}

/// Nanoseconds from the first request to each one. Logs have whole seconds, so requests of one second are spread evenly
/// over it.
pub(crate) fn due_times(entries: &[AccessLogEntry], speed: f64) -> Vec<u64> {
    let mut times = Vec::with_capacity(entries.len());
    let first = entries.first().map_or(0, |entry| entry.time);
    for second in entries.chunk_by(|a, b| a.time == b.time) {
        for index in 0..second.len() {
            let seconds = (second[0].time - first) as f64 + index as f64 / second.len() as f64;
            times.push((seconds / speed * 1e9) as u64);
        }
    }
    times
}

/// Parses `host ident user [10/Oct/2000:13:55:36 -0700] "GET /x HTTP/1.0" 200 2326 …`.
fn parse_line(line: &str) -> Option<AccessLogEntry> {
    let (_, rest) = line.split_once('[')?;
    let (time, rest) = rest.split_once(']')?;
    let mut request = rest.trim_start().strip_prefix('"')?.split('"').next()?.split(' ');
    let (method, target) = (request.next()?, request.next()?);
    request.next()?.strip_prefix("HTTP/")?;
    let is_token = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_token || !target.starts_with('/') || target.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) {
        return None;
    }
    Some(AccessLogEntry { time: parse_time(time)?, method: method.to_owned(), target: target.to_owned() })
}

/// Parses `10/Oct/2000:13:55:36 -0700` to seconds since 1970.
fn parse_time(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (date, offset) = text.split_once(' ')?;
    let mut parts = date.split(['/', ':']);
    let day = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u8 + 1;
    let year = parts.next()?.parse().ok()?;
    let mut number = || parts.next()?.parse().ok();
    let (hour, minute, second) = (number()?, number()?, number()?);
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, day).ok()?;
    let local = date.with_hms(hour, minute, second).ok()?.assume_utc();
    let (sign, digits) = match offset.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let offset: i64 = digits.parse().ok()?;
    let offset_seconds = sign * (offset / 100 * 3600 + offset % 100 * 60);
    Some(local.unix_timestamp() - offset_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let entry = |time, method: &str, target: &str| {
            Some(AccessLogEntry { time, method: method.into(), target: target.into() })
        };
        for (line, expect) in [
            (
                r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.0" 200 2326"#,
                entry(971_211_336, "GET", "/a?b"),
            ),
            (
                r#"::1 - - [29/Feb/2024:00:00:01 +0000] "HEAD / HTTP/1.1" 200 - "-" "x""#,
                entry(1_709_164_801, "HEAD", "/"),
            ),
            (r#"h - - [01/Jan/1970:01:00:00 +0100] "POST /x HTTP/2.0" 201 0"#, entry(0, "POST", "/x")),
            (r#"h - - [01/Jan/1970:01:00:00 +0100] "-" 400 0"#, None),
            (r#"h - - [01/Jan/1970:01:00:00 +0100] "GET http://x/ HTTP/1.1" 400 0"#, None),
            (r#"h - - [01/Foo/1970:01:00:00 +0100] "GET / HTTP/1.1" 400 0"#, None),
            ("", None),
        ] {
            assert_eq!(parse_line(line), expect, "{line}");
        }
    }

    #[test]
    fn times_of_a_second_are_spread() {
        let entries: Vec<_> = [5, 5, 7]
            .map(|time| AccessLogEntry { time, method: "GET".into(), target: "/".into() })
            .into_iter()
            .collect();
        assert_eq!(due_times(&entries, 1.0), [0, 500_000_000, 2_000_000_000]);
        assert_eq!(due_times(&entries, 2.0), [0, 250_000_000, 1_000_000_000]);
    }
}
