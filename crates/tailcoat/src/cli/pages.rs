//! Commands that print what the program knows about itself.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Arguments, fail, print};
use crate::config;

/// `completions`: the completions of a shell.
pub(super) fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tailcoat", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// `man`: the manual page of the program, or all pages into a directory.
pub(super) fn man(directory: Option<PathBuf>) -> ExitCode {
    let result = match directory {
        Some(directory) => write_pages(&directory),
        None => page(Arguments::command(), "tailcoat").map(|page| vec![(String::new(), page)]),
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
    let mut program = Arguments::command();
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
    // What stands behind the options in the help.
    Ok(match page.contains(".SH EXTRA\nExit codes:\n") {
        true => page.replace(".SH EXTRA\nExit codes:\n", ".SH \"EXIT STATUS\"\n") + MORE_OF_PROGRAM,
        false => page,
    })
}

/// What the manual page of the program has besides what its help says.
const MORE_OF_PROGRAM: &str = r#".SH SIGNALS
.TP
\fBSIGTERM\fR, \fBSIGINT\fR
Takes no more connections, waits for open requests up to \fBgrace\-time\fR, and ends. A second one ends at once.
.TP
\fBSIGQUIT\fR
The same, and waits as long as it takes.
.TP
\fBSIGHUP\fR
Reads the configuration again. One with an error changes nothing.
.TP
\fBSIGUSR2\fR
Has the program at the same path take over, and ends when that serves.
.TP
\fBSIGUSR1\fR
Opens the access logs again, after they have been moved.
.SH FILES
.TP
\fI/etc/tailcoat/tailcoat.kdl\fR
The configuration, unless \fB\-c\fR names another.
.SH "SEE ALSO"
\fBtailcoat.kdl\fR(5), \fBtailcoat\-serve\fR(1), \fBtailcoat\-run\fR(1), \fBtailcoat\-check\fR(1)
"#;
