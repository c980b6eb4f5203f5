//! `import`: the configuration of another server, in ours.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::configuration::print_findings;
use super::{EXIT_CONFIG, EXIT_FAILURE, fail, print};
use crate::import::{self, Imported, Outcome};

#[derive(Debug, Args)]
pub(super) struct Import {
    /// Configuration of nginx, such as /etc/nginx/nginx.conf; what it includes is read too
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write the configuration into this file, which must not be there yet, instead of printing it
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also tell which directives need nothing here, and why
    #[arg(long)]
    needless: bool,
}

impl Import {
    /// Prints the configuration, and what is left over as one line each on standard error.
    pub(super) fn run(self) -> ExitCode {
        let imported = match import::from_nginx(&self.file) {
            Ok(imported) => imported,
            Err(error) => {
                fail(error);
                return ExitCode::from(EXIT_CONFIG);
            }
        };
        let written = match &self.output {
            None => print(&imported.text),
            Some(file) => {
                let written = File::create_new(file).and_then(|mut file| file.write_all(imported.text.as_bytes()));
                match written {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => {
                        fail(format_args!("{}: {error}", file.display()));
                        return ExitCode::from(EXIT_FAILURE);
                    }
                }
            }
        };
        self.report(&imported);
        written
    }

    fn report(&self, imported: &Imported) {
        let mut counts = (0, 0);
        for remark in &imported.remarks {
            match remark.outcome {
                Outcome::Left(_) => {
                    counts.0 += 1;
                    eprintln!("{remark}");
                }
                Outcome::Needless(_) => {
                    counts.1 += 1;
                    if self.needless {
                        eprintln!("{remark}");
                    }
                }
            }
        }
        print_findings(&imported.diagnostics);
        let (left, needless) = counts;
        let hint = if self.needless || needless == 0 { "" } else { " (--needless tells which)" };
        eprintln!("tailcoat: {left} directives were not translated, {needless} need nothing here{hint}");
    }
}
