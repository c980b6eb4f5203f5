//! `log`: what can be done with access logs.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::control::{ServerSocket, not_given, unexpected};
use super::{EXIT_FAILURE, fail, print};
use crate::config::{AccessLogFormat, log_format_from_text};
use crate::control::{self, ControlOrder, ControlReport};
use crate::log::{ConvertError, ConvertReport, RecordFilter, convert};

#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Convert a binary access log to text
    Convert(Convert),
    /// Follow requests of the running server until interrupted
    Tail(TailArgs),
    /// Trace new HTTP/3 connections of a client, as qlog (JSON text sequences), until interrupted
    Quic(QuicArgs),
}

impl LogCommand {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        match self {
            Self::Tail(tail) => tail.run(of_top),
            Self::Quic(quic) => quic.run(of_top),
            Self::Convert(convert) => convert.run(),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat log tail --status 5xx
  tailcoat log tail --slower-than 500 --format json")]
pub(super) struct TailArgs {
    #[command(flatten)]
    server: ServerSocket,

    /// Show only this status or class: `404`, `5xx`, `400-499`
    #[arg(long, value_name = "STATUS", value_parser = statuses)]
    status: Option<(u16, u16)>,

    /// Show only this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// Show only requests for this host
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Show only targets with this prefix
    #[arg(long, value_name = "PREFIX")]
    path: Option<String>,

    /// Show only this client; a text that ends with a dot or colon is a prefix of addresses
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,

    /// Show only requests that took at least this time, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value = "0")]
    slower_than: u64,

    /// Output format: `combined`, `common`, `json`, or a template such as `{client} {status}`
    #[arg(short, long, value_name = "FORMAT", default_value = "combined", value_parser = checked_format)]
    format: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat log quic 192.0.2.7 > trace.sqlog")]
pub(super) struct QuicArgs {
    /// Address, or network such as `192.0.2.0/24`
    client: String,

    #[command(flatten)]
    server: ServerSocket,
}

impl QuicArgs {
    fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        match self.server.find(of_top) {
            Ok(socket) => follow(&socket, &ControlOrder::TraceQuic { client: self.client }),
            Err(code) => code,
        }
    }
}

impl TailArgs {
    fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let filter = RecordFilter {
            status: self.status,
            method: self.method,
            host: self.host.map(|host| host.to_ascii_lowercase()),
            target_prefix: self.path,
            client: self.client,
            duration_us_min: self.slower_than.saturating_mul(1_000),
        };
        match self.server.find(of_top) {
            Ok(socket) => follow(&socket, &ControlOrder::TailLog { filter, format: self.format }),
            Err(code) => code,
        }
    }
}

/// Shows what a server logs until it ends, and what the process does that takes its place.
fn follow(socket: &Path, order: &ControlOrder) -> ExitCode {
    std::thread::scope(|scope| {
        let mut code = ExitCode::SUCCESS;
        let mut successor = None;
        let mut is_rejected = false;
        let mut each = |report| {
            code = match report {
                ControlReport::Logged(line) => print(&(line + "\n")),
                ControlReport::Missed(count) => {
                    eprintln!("tailcoat: skipped {count} lines: the output was too slow");
                    ExitCode::SUCCESS
                }
                ControlReport::Succeeded => {
                    eprintln!("tailcoat: a new process took over; its lines follow");
                    successor = Some(scope.spawn(|| follow(socket, order)));
                    ExitCode::SUCCESS
                }
                ControlReport::Rejected(reason) => {
                    is_rejected = true;
                    fail(reason)
                }
                report => unexpected(&report),
            };
            Ok(())
        };
        match (control::give(socket, order, &mut each), successor) {
            // After an upgrade, the new process continues.
            (_, Some(successor)) => successor.join().unwrap_or(ExitCode::FAILURE),
            (Err(error), None) if error.kind() != io::ErrorKind::UnexpectedEof => not_given(socket, &error),
            (_, None) => {
                if !is_rejected {
                    eprintln!("tailcoat: the server stopped");
                }
                code
            }
        }
    })
}

/// A status, or a range of them.
fn statuses(text: &str) -> Result<(u16, u16), String> {
    let number = |text: &str| text.parse().ok().filter(|status| (100..=599).contains(status));
    let range = match (text.strip_suffix("xx"), text.split_once('-')) {
        (Some(class), _) => number(&format!("{class}00")).map(|from| (from, from + 99)),
        (None, Some((from, to))) => number(from).zip(number(to)),
        (None, None) => number(text).map(|status| (status, status)),
    };
    range.filter(|(from, to)| from <= to).ok_or_else(|| "give a status as 404, 5xx or 400-499".to_owned())
}

/// The format as it was written, for the server reads it again.
fn checked_format(text: &str) -> Result<String, String> {
    text_format(text).map(|_| text.to_owned())
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat log convert access.bin --format json -o access.json")]
pub(super) struct Convert {
    /// Binary access log; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    input: PathBuf,

    /// File to write, which must not exist yet [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Output format: `combined`, `common`, `json`, `w3c`, `xferlog`, or a template such as `{client} {status}`
    #[arg(short, long, value_name = "FORMAT", default_value = "combined", value_parser = text_format)]
    format: AccessLogFormat,
}

fn text_format(text: &str) -> Result<AccessLogFormat, String> {
    match log_format_from_text(text)? {
        AccessLogFormat::Binary => Err(ConvertError::NotText.to_string()),
        format => Ok(format),
    }
}

impl Convert {
    /// Converts all valid records. Damage is reported, and makes the exit code 1.
    fn run(self) -> ExitCode {
        let shown = self.input.display();
        let input: Box<dyn Read> = if self.input == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            match File::open(&self.input) {
                Ok(file) => Box::new(file),
                Err(error) => return fail(format_args!("{shown}: {error}")),
            }
        };
        let converted = match &self.output {
            None => convert(input, io::stdout().lock(), &self.format),
            Some(output) => match File::create_new(output) {
                Ok(file) => convert(input, file, &self.format),
                Err(error) => return fail(format_args!("{}: {error}", output.display())),
            },
        };
        match converted {
            Ok(report) => tell(&report, &self.input),
            // A reader that went away (`| head`) has what it wanted.
            Err(ConvertError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => fail(format_args!("{shown}: {error}")),
        }
    }
}

fn tell(report: &ConvertReport, input: &Path) -> ExitCode {
    if report.is_of_another_format() {
        return fail(format_args!(
            "{}: not a binary access log; only logs with `format=\"binary\"` need to be converted",
            input.display()
        ));
    }
    for damage in &report.damage {
        fail(format_args!("{}: {damage}", input.display()));
    }
    if report.skipped_bytes == 0 {
        return ExitCode::SUCCESS;
    }
    fail(format_args!(
        "{}: converted {} records, skipped {} bytes",
        input.display(),
        report.records,
        report.skipped_bytes
    ));
    ExitCode::from(EXIT_FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_statuses() {
        for (text, expect) in [
            ("404", Some((404, 404))),
            ("5xx", Some((500, 599))),
            ("400-499", Some((400, 499))),
            ("499-400", None),
            ("6xx", None),
            ("xx", None),
            ("all", None),
        ] {
            assert_eq!(statuses(text).ok(), expect, "{text}");
        }
    }
}
