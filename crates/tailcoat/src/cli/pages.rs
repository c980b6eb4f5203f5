//! Commands that print completions, manual pages and the reference.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{CliArguments, EXIT_FAILURE, fail, print};
use crate::config;

/// Options of `reference`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat reference forward
  tailcoat reference --search proxy_read_timeout
  tailcoat reference > configuration.md")]
pub(super) struct Reference {
    /// Print this option alone
    #[arg(value_name = "OPTION", conflicts_with = "search")]
    option: Option<String>,
    /// Find options by name, by their names in nginx, Apache and Caddy, or by words of their texts
    #[arg(short, long, value_name = "WORDS", num_args = 1..)]
    search: Vec<String>,
}

impl Reference {
    /// Prints the whole reference as Markdown, one option, or the results of a search.
    pub(super) fn run(&self) -> ExitCode {
        if let Some(option) = &self.option {
            return match config::reference_of(option) {
                Ok(text) => print(&text),
                Err(message) => fail(message),
            };
        }
        if self.search.is_empty() {
            return print(&config::reference());
        }
        let words = self.search.join(" ");
        match config::search(&words) {
            Some(text) => print(&text),
            None => {
                eprintln!("tailcoat: no option matches `{words}`; try fewer or other words");
                ExitCode::from(EXIT_FAILURE)
            }
        }
    }
}

/// Prints the completions of a shell (`completions`).
pub(super) fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CliArguments::command(), "tailcoat", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints the manual page of the program, or writes all pages into a directory (`man`).
pub(super) fn man(directory: Option<PathBuf>) -> ExitCode {
    let result = match directory {
        Some(directory) => write_pages(&directory),
        None => page(CliArguments::command(), "tailcoat").map(|page| vec![(String::new(), page)]),
    };
    match result.as_deref() {
        Ok([(name, page)]) if name.is_empty() => print(page),
        Ok(pages) => print(&pages.iter().map(|(name, _)| format!("{name}\n")).collect::<String>()),
        Err(error) => fail(error),
    }
}

/// Writes the pages of the program, of each command and of the configuration; returns their files and texts.
fn write_pages(directory: &Path) -> io::Result<Vec<(String, String)>> {
    std::fs::create_dir_all(directory)?;
    let mut pages = vec![("tailcoat.kdl.5".to_owned(), config::manual())];
    let mut program = CliArguments::command();
    program.build();
    add_pages(&program, "tailcoat", &mut pages)?;
    for (name, text) in &mut pages {
        let file = directory.join(&name);
        std::fs::write(&file, &text)?;
        *name = file.display().to_string();
    }
    Ok(pages)
}

fn add_pages(command: &clap::Command, name: &str, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    pages.push((format!("{name}.1"), page(command.clone(), name)?));
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        add_pages(inner, &format!("{name}-{}", inner.get_name()), pages)?;
    }
    Ok(())
}

fn page(command: clap::Command, name: &str) -> io::Result<String> {
    let mut page = Vec::new();
    Man::new(command).title(name.to_uppercase()).section("1").render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    // clap_mangen calls the text after the options EXTRA.
    let page = page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n");
    Ok(match page.contains("\nExit codes:\n") {
        true => page.replace("\nExit codes:\n", "\n.SH \"EXIT STATUS\"\n") + MORE_OF_PROGRAM,
        false => page,
    })
}

/// Sections of the program's manual page that its help does not have.
const MORE_OF_PROGRAM: &str = r#".SH SIGNALS
.TP
\fBSIGTERM\fR, \fBSIGINT\fR
Stops accepting connections, waits up to \fBgrace\-time\fR for open requests, and exits. A second signal exits at once.
.TP
\fBSIGQUIT\fR
Stops likewise, but waits without a limit.
.TP
\fBSIGHUP\fR
Reloads the configuration. One with errors changes nothing.
.TP
\fBSIGUSR2\fR
Starts the binary at the same path, and exits when the new process serves.
.TP
\fBSIGUSR1\fR
Reopens the access logs after rotation.
.SH FILES
.TP
\fI/etc/tailcoat/tailcoat.kdl\fR
Configuration file, unless \fB\-c\fR names another.
.SH "SEE ALSO"
\fBtailcoat.kdl\fR(5), \fBtailcoat\-serve\fR(1), \fBtailcoat\-run\fR(1), \fBtailcoat\-check\fR(1)
"#;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Verbs with which a command's help may begin.
    const VERBS: &[&str] = &[
        "Apply",
        "Ban",
        "Change",
        "Check",
        "Compile",
        "Convert",
        "Create",
        "Create,",
        "End",
        "Explain",
        "Find",
        "Follow",
        "Format",
        "Hash",
        "Lift",
        "List",
        "Print",
        "Purge",
        "Remove",
        "Replace",
        "Run",
        "Send",
        "Serve",
        "Show",
        "Start",
        "Trace",
        "Translate",
    ];

    fn check_help(command: &clap::Command, path: &str) {
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            let path = format!("{path} {}", inner.get_name());
            let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
            let verb = about.split(' ').next().unwrap_or_default();
            assert!(VERBS.contains(&verb), "the help of `{path}` must begin with a verb: {about}");
            assert!(about.len() <= 110 && !about.contains('\n') && !about.ends_with('.'), "{path}: {about}");
            for argument in inner.get_arguments() {
                assert!(
                    argument.get_help().is_some() || argument.is_hide_set() || inner.is_hide_set(),
                    "{path}: {argument}"
                );
            }
            check_help(inner, &path);
        }
    }

    #[test]
    fn the_help_of_each_command_is_one_line_that_begins_with_a_verb() {
        let mut program = CliArguments::command();
        program.build();
        check_help(&program, "tailcoat");
    }

    #[test]
    fn main_commands_have_examples_that_they_understand() {
        let mut program = CliArguments::command();
        program.build();
        for name in ["serve", "run", "check", "fmt", "import", "status", "reference", "set", "drain", "ban"] {
            let command = program.find_subcommand(name).unwrap_or_else(|| panic!("there is no `{name}`"));
            if name == "import" && cfg!(not(feature = "import")) {
                continue;
            }
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let mut lines = examples.lines();
            assert_eq!(lines.next(), Some("Examples:"), "{name}");
            for line in lines {
                // Redirections are the shell's.
                let words = line.split_whitespace().take_while(|word| !word.starts_with(['<', '>']));
                let parsed = CliArguments::try_parse_from(words);
                assert!(parsed.is_ok(), "`{line}`: {parsed:?}");
            }
            let page = page(command.clone(), name).unwrap();
            assert!(page.contains(".SH EXAMPLES"), "{page}");
        }
    }
}
