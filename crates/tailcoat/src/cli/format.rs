//! `fmt`: configuration files in their canonical form.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::configuration::print_findings;
use super::{EXIT_CONFIG, EXIT_FAILURE, fail, print};
use crate::config;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat fmt site.kdl
  tailcoat fmt --check *.kdl")]
pub(super) struct Format {
    /// Files to format in place; with none or `-`, format standard input to standard output
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// List unformatted files without changing them, and exit with 1 if there are any
    #[arg(long)]
    check: bool,
}

impl Format {
    /// Formats all files. The worst result of one is the result of all.
    pub(super) fn run(self) -> ExitCode {
        let files = if self.files.is_empty() { vec![PathBuf::from("-")] } else { self.files };
        let mut worst = 0;
        for file in files {
            if let Err(code) = format(&file, self.check) {
                worst = worst.max(code);
            }
        }
        ExitCode::from(worst)
    }
}

fn format(file: &Path, check: bool) -> Result<(), u8> {
    let is_stream = file == Path::new("-");
    let name = if is_stream { "<stdin>".to_owned() } else { file.display().to_string() };
    let failed = |error: io::Error| {
        fail(format_args!("{name}: {error}"));
        EXIT_FAILURE
    };
    let mut bytes = Vec::new();
    // One byte above the limit is enough for the error.
    let limit = config::TEXT_BYTES_MAX as u64 + 1;
    let read = if is_stream {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(failed)?;
    let formatted = config::format_bytes(&name, bytes.clone()).map_err(|diagnostics| {
        print_findings(&diagnostics);
        EXIT_CONFIG
    })?;
    match (check, formatted.as_bytes() == bytes) {
        (true, true) => Ok(()),
        (true, false) => {
            print(&format!("{name}\n"));
            Err(EXIT_FAILURE)
        }
        (false, _) if is_stream => {
            print(&formatted);
            Ok(())
        }
        (false, true) => Ok(()),
        (false, false) => replace(file, &formatted).map_err(failed),
    }
}

/// Replaces a file atomically: readers get the old text or the new. A symbolic link stays one.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = fs::canonicalize(file)?;
    let mut beside = file.clone().into_os_string();
    beside.push(format!(".{}.new", std::process::id()));
    let written = File::create_new(&beside).and_then(|mut new| {
        new.set_permissions(fs::metadata(&file)?.permissions())?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&beside, &file)
    });
    if written.is_err() {
        // The error has been printed; a failed cleanup adds nothing.
        let _ = fs::remove_file(&beside);
    }
    written
}
