//! Names of tests that fail, gathered from what cargo prints, so that the end of a long log names them.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Lines kept of what each failed test says.
const LINES: usize = 6;

/// Runs `cargo test` with `command`, passes its output on, and adds to `failed` each failed test with the first lines of
/// its report. Returns whether all passed.
///
/// # Errors
///
/// The command cannot start, or its output cannot be read or passed on.
pub(crate) fn run_tests(command: &mut Command, failed: &mut Vec<String>) -> io::Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut reports = Reports::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let mut out = io::stdout().lock();
            out.write_all(&line)?;
            out.write_all(b"\n")?;
            reports.add(&String::from_utf8_lossy(&line));
        }
    }
    failed.append(&mut reports.failed);
    Ok(child.wait()?.success())
}

/// Failed tests in the lines of one run.
#[derive(Default)]
struct Reports {
    failed: Vec<String>,
    /// Lines still wanted of the newest report.
    wanted: usize,
}

impl Reports {
    fn add(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.failed.push(format!("failed {name}"));
            self.wanted = LINES;
        } else if line == "failures:" {
            self.wanted = 0;
        } else if self.wanted > 0
            && !line.trim().is_empty()
            && let Some(report) = self.failed.last_mut()
        {
            report.push_str("\n    ");
            report.push_str(line);
            self.wanted -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reports;

    #[test]
    fn failed_tests_are_named_with_their_first_lines() {
        let log = "running 2 tests\ntest a ... ok\ntest b::c ... FAILED\n\nfailures:\n\n---- b::c stdout ----\n\n\
            thread 'b::c' panicked at tests/b.rs:3:5:\nleft: 1\n2\n3\n4\n5\n6\n\nfailures:\n    b::c\n";
        let mut reports = Reports::default();
        log.lines().for_each(|line| reports.add(line));
        let report =
            "failed b::c\n    thread 'b::c' panicked at tests/b.rs:3:5:\n    left: 1\n    2\n    3\n    4\n    5";
        assert_eq!(reports.failed, [report]);
    }
}
