//! `import`: the configuration of another server, in ours.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::configuration::print_findings;
use super::{EXIT_CONFIG, EXIT_REJECTED, EXIT_TRANSLATION, fail, print};
use crate::import::{self, ImportOutcome, Imported, NewFile, Remark};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat import /etc/nginx/nginx.conf -o tailcoat.kdl
  tailcoat import /etc/caddy/Caddyfile -o tailcoat.kdl
  tailcoat import --needless /etc/apache2/apache2.conf > tailcoat.kdl")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Import {
    #[cfg(feature = "gateway")]
    #[command(subcommand)]
    other: Option<OtherImport>,

    /// Configuration of nginx, Caddy or Apache, or a .htaccess file; included files are read too
    #[arg(value_name = "FILE", required = true)]
    file: Option<PathBuf>,

    /// File to write, which must not exist yet [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also list directives that need nothing here, and why
    #[arg(long)]
    needless: bool,
}

/// Imports that do not make a configuration.
#[cfg(feature = "gateway")]
#[derive(Debug, clap::Subcommand)]
enum OtherImport {
    /// Print Ingresses of Kubernetes as resources of Gateway API, and list what differs
    Ingress(super::import_ingress::ImportIngress),
}

impl Import {
    /// Prints the configuration, and on standard error what to know about it.
    pub(super) fn run(mut self) -> ExitCode {
        #[cfg(feature = "gateway")]
        if let Some(OtherImport::Ingress(import)) = self.other.take() {
            return import.run();
        }
        // The parser wants a file, unless there is a command.
        let file = self.file.take().unwrap_or_default();
        let imported = match import::from_file(&file) {
            Ok(imported) => imported,
            Err(error) => {
                fail(error);
                return ExitCode::from(EXIT_CONFIG);
            }
        };
        let written = match &self.output {
            None => print(&imported.text),
            Some(file) => write(file, &imported.text),
        };
        self.report(&imported);
        for new in &imported.files {
            self.add_file(new);
        }
        if written != ExitCode::SUCCESS {
            return written;
        }
        let rejects = imported.remarks.iter().any(|remark| matches!(remark.outcome, ImportOutcome::Rejected(_)));
        match (imported.diagnostics.has_error(), rejects) {
            (true, _) => ExitCode::from(EXIT_TRANSLATION),
            (false, true) => ExitCode::from(EXIT_REJECTED),
            (false, false) => ExitCode::SUCCESS,
        }
    }

    /// Writes a file that the configuration needs beside it, or prints it as text to save.
    fn add_file(&self, new: &NewFile) {
        let directory = self.output.as_deref().and_then(Path::parent);
        match directory.map(|directory| directory.join(&new.name)) {
            Some(path) if write(&path, &new.content) == ExitCode::SUCCESS => {
                eprintln!("tailcoat: wrote {}", path.display())
            }
            Some(_) => {}
            None => eprintln!("Save these lines as {} beside the configuration:\n{}", new.name, new.content),
        }
    }

    fn report(&self, imported: &Imported) {
        let of = |is_meant: fn(&ImportOutcome) -> bool| -> Vec<&Remark> {
            imported.remarks.iter().filter(|remark| is_meant(&remark.outcome)).collect()
        };
        let rejected = of(|outcome| matches!(outcome, ImportOutcome::Rejected(_)));
        let left = of(|outcome| matches!(outcome, ImportOutcome::Left(_)));
        let needless = of(|outcome| matches!(outcome, ImportOutcome::Needless(_)));
        print_remarks("Rejected paths, because their rules or handlers cannot be translated:", &rejected);
        print_remarks("Not translated:", &left);
        if self.needless {
            print_remarks("Needs nothing here:", &needless);
        }
        print_findings(&imported.diagnostics);
        let hint = if self.needless || needless.is_empty() { "" } else { " (list them with --needless)" };
        eprintln!("tailcoat: {}{hint}", summary(left.len(), rejected.len(), needless.len()));
        for note in &imported.absent {
            eprintln!("tailcoat: note: {note}");
        }
        if imported.diagnostics.has_error() {
            eprintln!("tailcoat: the translation has errors; fix them before you run it");
        }
    }
}

/// Numbers of directives: not translated, replaced by a rejection, and needless.
fn summary(left: usize, rejected: usize, needless: usize) -> String {
    let of = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    format!(
        "{}, {} replaced by a rejection, {} nothing here",
        of(left, "directive was not translated", "directives were not translated"),
        of(rejected, "is", "are"),
        of(needless, "needs", "need"),
    )
}

fn write(file: &Path, text: &str) -> ExitCode {
    match File::create_new(file).and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fail(format_args!("{} already exists; name another file", file.display()))
        }
        Err(error) => fail(format_args!("{}: {error}", file.display())),
    }
}

fn print_remarks(heading: &str, remarks: &[&Remark]) {
    if !remarks.is_empty() {
        eprintln!("{heading}");
        remarks.iter().for_each(|remark| eprintln!("  {remark}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let expect = "1 directive was not translated, 1 is replaced by a rejection, 1 needs nothing here";
        assert_eq!(summary(1, 1, 1), expect);
        let expect = "0 directives were not translated, 2 are replaced by a rejection, 3 need nothing here";
        assert_eq!(summary(0, 2, 3), expect);
    }
}
