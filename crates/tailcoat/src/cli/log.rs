//! `log`: what can be done with access logs.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{EXIT_FAILURE, fail};
use crate::config::{AccessLogFormat, log_format_from_text};
use crate::log::{ConvertError, ConvertReport, convert};

#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Turn a binary access log into text
    Convert(Convert),
}

impl LogCommand {
    pub(super) fn run(self) -> ExitCode {
        match self {
            Self::Convert(convert) => convert.run(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Convert {
    /// Binary log; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    input: PathBuf,

    /// File to write; it must not exist yet [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// `combined`, `common`, `json`, `w3c`, or a template such as `{client} {status}`
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
    /// Converts what can be; damage is told, and makes the exit code 1.
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
    for damage in &report.damage {
        fail(format_args!("{}: {damage}", input.display()));
    }
    if report.skipped_bytes == 0 {
        return ExitCode::SUCCESS;
    }
    fail(format_args!(
        "{}: {} records converted, {} bytes skipped",
        input.display(),
        report.records,
        report.skipped_bytes
    ));
    ExitCode::from(EXIT_FAILURE)
}
