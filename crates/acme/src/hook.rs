//! Hook program that changes DNS records.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::time::{sleep, timeout};

use crate::config::DnsHook;
use crate::spawner::{SpawnOrder, Spawner, StartedProgram};

/// Bytes of the program's output that an error shows.
const OUTPUT_BYTES_MAX: usize = 1_000;

/// Interval between checks whether a program without output has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Change of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsChange {
    Add,
    Remove,
}

/// Adds or removes a TXT record.
///
/// # Errors
/// The program cannot be started, failed, or took too long; the message includes its output.
pub(super) async fn run(
    spawner: &Spawner,
    hook: &DnsHook,
    change: DnsChange,
    name: &str,
    value: &str,
) -> Result<(), String> {
    let verb = match change {
        DnsChange::Add => "add",
        DnsChange::Remove => "remove",
    };
    let program = hook.program.display();
    let mut command = Command::new(&hook.program);
    command.args(&hook.arguments).args([verb, name, value]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = spawner.start(SpawnOrder::new(command, None)).await;
    // Dropping the program at the time limit ends it.
    let (status, said) = match timeout(hook.timeout, async { listen(started?).await }).await {
        Ok(ended) => ended.map_err(|error: io::Error| format!("{program}: {error}"))?,
        Err(_) => return Err(format!("{program} {verb} took longer than its `timeout`")),
    };
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Err(format!("{program} {verb} {name}: {status}{}{said}", if said.is_empty() { "" } else { ": " }))
}

/// Waits for the end of a program; returns its status and the start of its output.
async fn listen(mut started: StartedProgram) -> io::Result<(ExitStatus, Vec<u8>)> {
    // Local invariant: the child is still there, and both streams are pipes.
    let child = started.child().ok_or(io::ErrorKind::NotFound)?;
    let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let errors = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (output, errors) = (pipe(output.into())?, pipe(errors.into())?);
    let (said, mut all) = tokio::try_join!(read_all(output), read_all(errors))?;
    all.extend(said);
    all.truncate(OUTPUT_BYTES_MAX);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, all));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn pipe(descriptor: OwnedFd) -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(descriptor)
}

/// Reads to the end, and keeps the start.
async fn read_all(mut pipe: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let (mut kept, mut piece) = (Vec::new(), [0; 1024]);
    loop {
        let count = pipe.read(&mut piece).await?;
        if count == 0 {
            return Ok(kept);
        }
        kept.extend_from_slice(&piece[..count.min(OUTPUT_BYTES_MAX - kept.len())]);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Time limit that no program of these tests reaches, however slow the machine is.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn spawner() -> std::sync::Arc<Spawner> {
        Spawner::start_threads(|| Ok(())).unwrap()
    }

    fn check(script: &str, timeout: Duration, expect: Result<(), &str>) {
        let hook = DnsHook {
            program: "/bin/sh".into(),
            arguments: ["-c", script, "hook"].map(str::to_owned).to_vec(),
            timeout,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let result = runtime.block_on(run(&spawner(), &hook, DnsChange::Add, "_acme-challenge.a.example", "value"));
        match expect {
            Ok(()) => assert_eq!(result, Ok(()), "{script}"),
            Err(part) => assert!(result.as_ref().is_err_and(|error| error.contains(part)), "{script}: {result:?}"),
        }
    }

    #[test]
    fn hooks() {
        check(r#"test "$*" = "add _acme-challenge.a.example value""#, PATIENCE, Ok(()));
        check("echo no such zone >&2; exit 3", PATIENCE, Err("exit status: 3: no such zone"));
        check("exec sleep 600", Duration::from_secs(1), Err("took longer"));
        check("kill -9 $$", PATIENCE, Err("signal: 9"));
        check("yes | head -c 100000 >&2; exit 1", PATIENCE, Err("exit status: 1"));
    }

    #[test]
    fn programs_that_are_not_there() {
        let hook = DnsHook { program: "/nowhere".into(), arguments: Vec::new(), timeout: PATIENCE };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(
            runtime
                .block_on(run(&spawner(), &hook, DnsChange::Remove, "a", "b"))
                .unwrap_err()
                .starts_with("/nowhere: ")
        );
    }
}
