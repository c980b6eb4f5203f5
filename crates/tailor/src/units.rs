//! Numbers with units: parsing of options, and formatting for reports.

use std::time::Duration;

/// Parses a whole number: `100`, `56k`, `1.5M` or `2G` (powers of 1,000).
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    let number = parse_number(text)?;
    // A tolerance, because 1.1k is not exactly 1,100.
    if (number - number.round()).abs() > 1e-6 {
        return Err(format!("`{text}` is not a whole number"));
    }
    Ok(number.round() as u64)
}

/// Parses a number: `0.5`, `100`, `56k`, `1.5M` or `2G` (powers of 1,000).
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1e6),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if number >= 0.0 && number * factor < 1e18 => Ok(number * factor),
        _ => Err(format!("`{text}` is not a number like 100, 56k or 1.5M")),
    }
}

/// Parses `500us`, `5ms`, `2s`, `1m30s` or `24h`; a number without a unit is in seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 6] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let invalid = || format!("`{text}` is not a time like 500us, 5ms, 2s, 1m30s or 24h");
    let (mut rest, mut seconds) = (text, 0.0);
    loop {
        let digits = rest.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|it: char| !it.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let factor = match unit {
            // Only a time without any unit is in seconds.
            "" if rest.len() == text.len() && after.is_empty() => 1.0,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?.1,
        };
        seconds += number.parse::<f64>().map_err(|_| invalid())? * factor;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    if seconds < 1e9 { Ok(Duration::from_secs_f64(seconds)) } else { Err(invalid()) }
}

/// Parses `0.3` or `30%`.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let (number, factor) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    match number.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&(number * factor)) => Ok(number * factor),
        _ => Err(format!("`{text}` is not a share from 0 to 1, or 0% to 100%")),
    }
}

/// Parses `10` or `5-15`.
pub(crate) fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.parse(), high.parse()) {
        (Ok(low), Ok(high)) if 0 < low && low <= high => Ok((low, high)),
        _ => Err(format!("`{text}` is not a number or a range like 5-15")),
    }
}

/// Formats nanoseconds in a fitting unit, with three significant digits.
pub(crate) fn format_nanos(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{} us", three_digits(n / 1e3)),
        n if n < 1e9 => format!("{} ms", three_digits(n / 1e6)),
        n => format!("{} s", three_digits(n / 1e9)),
    }
}

/// Formats a rate per second; rates below 100 get three significant digits.
pub(crate) fn format_rate(rate: f64) -> String {
    if rate < 100.0 { three_digits(rate) } else { format_count(rate.round() as u64) }
}

/// Formats bytes in powers of 1,024.
pub(crate) fn format_bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{} {}", three_digits(value), UNITS[unit]) }
}

/// Formats a number of things, such as `1 connection` and `2 connections`.
pub(crate) fn format_number_of(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", format_count(count))
}

/// Formats a rate in bits per second.
pub(crate) fn format_bits(bits_per_second: f64) -> String {
    match bits_per_second {
        bits if bits < 1e6 => format!("{:.0} kbit/s", bits / 1e3),
        bits if bits < 1e7 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{:.0} Mbit/s", bits / 1e6),
    }
}

/// Formats a whole number with commas between thousands.
pub(crate) fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats seconds since 1970 as date and time in UTC.
pub(crate) fn format_date(unix_seconds: f64) -> String {
    // Records of the year 10000 have no date.
    let Ok(date) = time::OffsetDateTime::from_unix_timestamp(unix_seconds as i64) else { return String::new() };
    let (day, month) = (date.day(), u8::from(date.month()));
    format!("{}-{month:02}-{day:02} {:02}:{:02} UTC", date.year(), date.hour(), date.minute())
}

fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Parses a number above 0.
pub(crate) fn parse_positive(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("must be more than 0".into()),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: PartialEq + std::fmt::Debug, E>(
        parse: impl Fn(&str) -> Result<T, E>,
        cases: impl IntoIterator<Item = (&'static str, Option<T>)>,
    ) {
        for (text, expect) in cases {
            assert_eq!(parse(text).ok(), expect, "{text}");
        }
    }

    #[test]
    fn counts() {
        check(
            parse_count,
            [
                ("100", Some(100)),
                ("56k", Some(56_000)),
                ("1.5M", Some(1_500_000)),
                ("1.1k", Some(1_100)),
                ("0.5", None),
                ("1.0005k", None),
                ("-1", None),
                ("k", None),
            ],
        );
    }

    #[test]
    fn durations() {
        let nanos = |nanos: u64| Some(Duration::from_nanos(nanos));
        check(
            parse_duration,
            [
                ("5ms", nanos(5_000_000)),
                ("500us", nanos(500_000)),
                ("2", nanos(2_000_000_000)),
                ("1m", nanos(60_000_000_000)),
                ("0.5s", nanos(500_000_000)),
                ("1m30s", nanos(90_000_000_000)),
                ("1h0.5s20ms", nanos(3_600_520_000_000)),
                ("", None),
                ("1m30", None),
                ("1 m", None),
                ("1.2.3s", None),
                ("s", None),
                ("-1s", None),
                ("1d", None),
            ],
        );
    }

    #[test]
    fn shares_and_ranges() {
        check(parse_share, [("0.3", Some(0.3)), ("30%", Some(0.3)), ("1", Some(1.0)), ("1.1", None), ("-1%", None)]);
        check(parse_range, [("10", Some((10, 10))), ("5-15", Some((5, 15))), ("0", None), ("5-4", None), ("-", None)]);
    }

    #[test]
    fn printing() {
        for (nanos, expect) in
            [(999, "999 ns"), (1_234, "1.23 us"), (56_789_000, "56.8 ms"), (123_456_000_000, "123 s")]
        {
            assert_eq!(format_nanos(nanos), expect);
        }
        for (count, expect) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(format_count(count), expect);
        }
        assert_eq!((format_bytes(512.0), format_bytes(1536.0)), ("512 B".into(), "1.50 KiB".into()));
    }
}
