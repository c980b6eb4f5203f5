//! Checks that cannot run on this machine, in one list with the tests that cannot.

#[allow(dead_code)]
#[path = "../../tests/support/skips.rs"]
mod shared;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

pub(crate) use shared::skip_as;
use shared::{LIST, REQUIRED, is_required};

/// Path of the list, from the root of the repository.
const LIST_PATH: &str = "target/skips.txt";

/// Reports that a check cannot run because a program is missing. Returns false, and reports a failure, if `.ci/run`
/// installs the program.
pub(crate) fn passes_without(name: &str, tool: &str) -> bool {
    if is_required(tool) {
        println!("FAILED: {name}: {tool} is not installed, but {REQUIRED} names it");
        return false;
    }
    skip_as(name, &format!("{tool} is not installed"));
    true
}

/// Empties the list, and starts this program again with the list in its environment, which all tests inherit. Returns
/// once that is the case.
pub(crate) fn begin_list(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> io::Result<()> {
    if std::env::var_os(LIST).is_some() {
        return Ok(());
    }
    let list = std::path::absolute(LIST_PATH)?;
    fs::create_dir_all(list.parent().unwrap_or(Path::new(".")))?;
    fs::write(&list, "")?;
    Err(Command::new(std::env::current_exe()?).args(arguments).env(LIST, list).exec())
}

/// Prints how many tests and checks were skipped, each with its reason.
pub(crate) fn print_list() {
    let text = std::env::var_os(LIST).and_then(|list| fs::read_to_string(list).ok()).unwrap_or_default();
    let skips = listed(&text);
    println!("{} skipped", skips.len());
    for (name, reason) in skips {
        println!("skipped {name}: {reason}");
    }
}

/// Names and reasons in a list, each pair once, in order.
fn listed(list: &str) -> Vec<(&str, &str)> {
    let mut skips: Vec<_> = list.lines().filter_map(|line| line.split_once('\t')).collect();
    skips.sort_unstable();
    skips.dedup();
    skips
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_skip_is_listed_once() {
        let list = "b::test\tnginx is not installed\na::test\tit takes root\nb::test\tnginx is not installed\n";
        assert_eq!(super::listed(list), [("a::test", "it takes root"), ("b::test", "nginx is not installed")]);
        assert_eq!(super::listed(""), []);
    }
}
