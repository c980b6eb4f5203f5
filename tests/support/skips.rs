//! Tests and checks that cannot run on this machine. Each is printed, and added to the list that `cargo xtask ci` prints
//! at its end. Shared by all crates that skip.

use std::io::Write;

/// Environment variable with the path of the list: one line for each skip, with name and reason, separated by a tab.
pub(crate) const LIST: &str = "TAILCOAT_SKIPS";

/// Environment variable with the programs and files that must be installed, separated by spaces. `.ci/run` sets it.
pub(crate) const REQUIRED: &str = "TAILCOAT_REQUIRED_TOOLS";

/// Reports that the current test, or a part of it, cannot run here.
#[track_caller]
pub(crate) fn skip(reason: &str) {
    // The test harness names the thread of each test. A test's own threads have no name.
    let thread = std::thread::current();
    let place = std::panic::Location::caller();
    let name = thread.name().filter(|name| *name != "main").map_or_else(|| place.file().to_owned(), str::to_owned);
    skip_as(&name, reason);
}

/// Skips because a program or file is missing.
///
/// # Panics
/// If `.ci/run` installs it: the test fails instead.
#[track_caller]
pub(crate) fn skip_without(tool: &str) {
    assert!(!is_required(tool), "{tool} is not installed, but {REQUIRED} names it");
    skip(&format!("{tool} is not installed"));
}

/// Reports a skip under this name.
pub(crate) fn skip_as(name: &str, reason: &str) {
    println!("skipped: {name}: {reason}");
    let Some(list) = std::env::var_os(LIST) else { return };
    let line = format!("{name}\t{}\n", reason.replace('\n', " "));
    // One write, because other tests may append at the same time.
    let added = std::fs::OpenOptions::new().create(true).append(true).open(&list);
    let added = added.and_then(|mut file| file.write_all(line.as_bytes()));
    added.unwrap_or_else(|error| panic!("cannot write to {}: {error}", list.display()));
}

/// True if this program or file must be installed. Directories do not count.
pub(crate) fn is_required(tool: &str) -> bool {
    is_in(tool, &std::env::var(REQUIRED).unwrap_or_default())
}

fn is_in(tool: &str, required: &str) -> bool {
    let name = |path: &'_ str| path.rsplit('/').next().unwrap_or_default().to_owned();
    required.split_whitespace().any(|required| name(required) == name(tool))
}

#[cfg(test)]
mod tests {
    #[test]
    fn tools_are_compared_by_their_last_part() {
        let required = "nginx /usr/share/perl5/CGI.pm\nwasm32-wasip2";
        for (tool, expect) in [
            ("nginx", true),
            ("/usr/sbin/nginx", true),
            ("CGI.pm", true),
            ("wasm32-wasip2", true),
            ("wasm32-wasip1", false),
            ("nginx-light", false),
        ] {
            assert_eq!(super::is_in(tool, required), expect, "{tool}");
        }
        assert!(!super::is_in("nginx", ""));
    }
}
