//! `import`: the configuration of another server, in ours.

use std::fs::{self, File};
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
            Some(file) => match write(file, &imported.text, &imported.files) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => fail(why),
            },
        };
        self.report(&imported);
        if self.output.is_none() {
            for new in &imported.files {
                eprintln!("Save these lines as {} beside the configuration:\n{}", new.name, new.content);
            }
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

/// Writes a configuration and the files that it needs beside it. None replaces a file, or uses one with other content:
/// users of another one could enter.
fn write(output: &Path, text: &str, files: &[NewFile]) -> Result<(), String> {
    let exists = |file: &Path| format!("{} already exists; name another file", file.display());
    if fs::symlink_metadata(output).is_ok() {
        return Err(exists(output));
    }
    let directory = output.parent().unwrap_or(Path::new(""));
    let mut missing = Vec::new();
    for new in files {
        let path = directory.join(&new.name);
        match fs::read(&path) {
            Ok(content) if content == new.content.as_bytes() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && path != output => missing.push((path, new)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", path.display()));
            }
            Ok(_) | Err(_) => {
                return Err(format!(
                    "the configuration needs a file {}, and there is another one; write it to another directory",
                    path.display()
                ));
            }
        }
    }
    let create = |file: &Path, text: &str| match File::create_new(file) {
        Ok(mut created) => created.write_all(text.as_bytes()).map_err(|error| format!("{}: {error}", file.display())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(file)),
        Err(error) => Err(format!("{}: {error}", file.display())),
    };
    for (path, new) in missing {
        create(&path, &new.content)?;
        eprintln!("tailcoat: wrote {}", path.display());
    }
    create(output, text)
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

    /// Issue 23: a file of passwords that was there before let its users in.
    #[test]
    fn files_of_others_are_not_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let files = [NewFile { name: "users".to_owned(), content: "anna:x\n".to_owned() }];
        fs::write(at("users"), "eve:y\n").unwrap();
        let why = write(&at("a.kdl"), "a", &files).unwrap_err();
        assert!(why.contains("there is another one") && !at("a.kdl").exists(), "{why}");
        fs::write(at("users"), "anna:x\n").unwrap();
        write(&at("a.kdl"), "a", &files).unwrap();
        assert_eq!(fs::read(at("a.kdl")).unwrap(), b"a");
        fs::remove_file(at("users")).unwrap();
        let why = write(&at("a.kdl"), "b", &files).unwrap_err();
        assert!(why.contains("already exists") && !at("users").exists(), "{why}");
        write(&at("b.kdl"), "b", &files).unwrap();
        assert_eq!(fs::read(at("users")).unwrap(), b"anna:x\n");
        assert!(write(&at("users"), "c", &files).is_err());
    }

    #[test]
    fn one_is_no_plural() {
        let expect = "1 directive was not translated, 1 is replaced by a rejection, 1 needs nothing here";
        assert_eq!(summary(1, 1, 1), expect);
        let expect = "0 directives were not translated, 2 are replaced by a rejection, 3 need nothing here";
        assert_eq!(summary(0, 2, 3), expect);
    }
}
