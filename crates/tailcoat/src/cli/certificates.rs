//! `certificates`: the certificates of the running server, their end, and trouble with them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use time::OffsetDateTime;

use super::control::{ServerSocket, unexpected};
use super::{EXIT_FAILURE, fail, print};
use crate::config::printable;
use crate::control::{ControlOrder, ControlReport};
use crate::status::CertificateStatus;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat certificates
  tailcoat certificates --json

The exit code is 1 if a certificate has expired, or the last try to obtain or read one failed.")]
pub(super) struct CertificatesArgs {
    #[command(flatten)]
    server: ServerSocket,

    /// Print all data as JSON
    #[arg(long)]
    json: bool,
}

impl CertificatesArgs {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let mut certificates = Vec::new();
        let mut is_answered = false;
        let code = self.server.give(of_top, &ControlOrder::ListCertificates, |report| match report {
            ControlReport::Certificates(some) => {
                is_answered = true;
                certificates.extend(some);
                ExitCode::SUCCESS
            }
            report => unexpected(&report),
        });
        if !is_answered {
            return code;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let text = match self.json {
            true => {
                serde_json::to_string_pretty(&certificates).map(|text| text + "\n").map_err(|error| error.to_string())
            }
            false => Ok(table(&certificates, now)),
        };
        let printed = match text {
            Ok(text) => print(&text),
            Err(error) => fail(error),
        };
        let is_bad = |one: &CertificateStatus| {
            !one.error.is_empty() || one.not_after_unix_s.is_none_or(|not_after| not_after < now)
        };
        if certificates.iter().any(is_bad) { ExitCode::from(EXIT_FAILURE) } else { printed }
    }
}

/// Certificates for people, the most urgent first.
fn table(certificates: &[CertificateStatus], now: i64) -> String {
    if certificates.is_empty() {
        return "no certificates: no site has TLS\n".to_owned();
    }
    let rows: Vec<[String; 4]> = certificates
        .iter()
        .map(|one| {
            let expires = match one.not_after_unix_s {
                Some(end) => format!("{} ({})", date(end), distance(end - now)),
                None => "none yet".to_owned(),
            };
            let names = if one.names.is_empty() { one.site.clone() } else { one.names.join(", ") };
            [printable(&one.site), printable(&names), printable(&one.issuer), expires]
        })
        .collect();
    let heads = ["SITE", "NAMES", "ISSUER", "EXPIRES"];
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or(0).min(60)
    };
    let widths = [width(0), width(1), width(2)];
    let line = |cells: [&str; 4]| {
        let [site, names, issuer, expires] = cells;
        format!("{site:<0$}  {names:<1$}  {issuer:<2$}  {expires}\n", widths[0], widths[1], widths[2])
    };
    let mut text = line(heads);
    for (row, one) in rows.iter().zip(certificates) {
        text += &line([&row[0], &row[1], &row[2], &row[3]]);
        if !one.error.is_empty() {
            text += &format!("  last error: {}\n", printable(&one.error));
        }
        if let Some(next) = one.next_try_unix_s {
            let what = if one.error.is_empty() { "renewal" } else { "next try" };
            text += &format!("  {what}: {} ({})\n", date(next), distance(next - now));
        }
        if one.is_replaced {
            text += "  set by `tailcoat set certificate`, until the next reload\n";
        } else if !one.is_automatic {
            text += &format!("  file: {}\n", printable(&one.file));
        }
    }
    text
}

/// Date and time in UTC.
fn date(unix_seconds: i64) -> String {
    let Ok(date) = OffsetDateTime::from_unix_timestamp(unix_seconds) else { return "-".to_owned() };
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", date.hour(), date.minute())
}

/// Time until an event, or since it.
pub(super) fn distance(seconds: i64) -> String {
    let amount = match seconds.unsigned_abs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    };
    if seconds < 0 { format!("{amount} ago") } else { format!("in {amount}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_in_a_table() {
        let now = 1_795_246_911;
        let manual = CertificateStatus {
            site: "a.example".into(),
            names: vec!["a.example".into(), "www.a.example".into()],
            issuer: "Test CA".into(),
            not_after_unix_s: Some(now + 90 * 86_400),
            file: "/etc/a.pem".into(),
            ..CertificateStatus::default()
        };
        let waiting = CertificateStatus {
            site: "b.example".into(),
            is_automatic: true,
            error: "connection refused\x1b[2J".into(),
            next_try_unix_s: Some(now + 600),
            ..CertificateStatus::default()
        };
        let expect = "\
SITE       NAMES                     ISSUER   EXPIRES
b.example  b.example                          none yet
  last error: connection refused?[2J
  next try: 2026-11-21 07:51 UTC (in 10 min)
a.example  a.example, www.a.example  Test CA  2027-02-19 07:41 UTC (in 90 d)
  file: /etc/a.pem
";
        assert_eq!(table(&[waiting, manual], now), expect);
        assert_eq!(table(&[], now), "no certificates: no site has TLS\n");
    }

    #[test]
    fn distances() {
        for (seconds, expect) in
            [(0, "in 0 s"), (-5, "5 s ago"), (7_199, "in 119 min"), (86_400, "in 24 h"), (-864_000, "10 d ago")]
        {
            assert_eq!(distance(seconds), expect);
        }
    }
}
