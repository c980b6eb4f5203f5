//! The program that changes records in DNS.

use std::process::Stdio;

use tokio::process::Command;
use tokio::time::timeout;

use crate::config::DnsHook;

/// Most of what the program says that is told, in bytes.
const OUTPUT_BYTES_MAX: usize = 1_000;

/// What is to be done with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add,
    Remove,
}

/// Has a TXT record added or removed.
///
/// # Errors
/// The program can't be started, failed, or took too long: for a person, with what it said.
pub(super) async fn run(hook: &DnsHook, change: Change, name: &str, value: &str) -> Result<(), String> {
    let verb = match change {
        Change::Add => "add",
        Change::Remove => "remove",
    };
    let program = hook.program.display();
    let mut command = Command::new(&hook.program);
    command.args(&hook.arguments).args([verb, name, value]);
    // What is dropped when the time is up is ended.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = match timeout(hook.timeout, command.output()).await {
        Ok(output) => output.map_err(|error| format!("{program}: {error}"))?,
        Err(_) => return Err(format!("{program} {verb} took longer than its `timeout`")),
    };
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said[..said.len().min(OUTPUT_BYTES_MAX)]).trim().to_owned();
    Err(format!("{program} {verb} {name}: {}{}{said}", output.status, if said.is_empty() { "" } else { ": " }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn check(script: &str, expect: Result<(), &str>) {
        let hook = DnsHook {
            program: "/bin/sh".into(),
            arguments: ["-c", script, "hook"].map(str::to_owned).to_vec(),
            timeout: Duration::from_secs(1),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let result = runtime.block_on(run(&hook, Change::Add, "_acme-challenge.a.example", "value"));
        match expect {
            Ok(()) => assert_eq!(result, Ok(()), "{script}"),
            Err(part) => assert!(result.as_ref().is_err_and(|error| error.contains(part)), "{script}: {result:?}"),
        }
    }

    #[test]
    fn hooks() {
        check(r#"test "$*" = "add _acme-challenge.a.example value""#, Ok(()));
        check("echo no such zone >&2; exit 3", Err("exit status: 3: no such zone"));
        check("exec sleep 60", Err("took longer"));
        check("kill -9 $$", Err("signal: 9"));
        check("yes | head -c 100000 >&2; exit 1", Err("exit status: 1"));
    }

    #[test]
    fn programs_that_are_not_there() {
        let hook = DnsHook { program: "/nowhere".into(), arguments: Vec::new(), timeout: Duration::from_secs(1) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(run(&hook, Change::Remove, "a", "b")).unwrap_err().starts_with("/nowhere: "));
    }
}
