//! Duties of process 1 of a container. When it ends, the kernel kills all others. So after an upgrade it stays,
//! forwards signals and reaps orphaned processes.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::launcher;

/// True if this process is process 1 of its container.
pub(super) fn is_first_process() -> bool {
    std::process::id() == 1
}

/// Waits until no child is left. Returns true if the last server ended successfully.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(super) async fn stay() -> std::io::Result<bool> {
    let mut children = signal(SignalKind::child())?;
    let mut passed_on = [
        (signal(SignalKind::terminate())?, Signal::TERM),
        (signal(SignalKind::interrupt())?, Signal::INT),
        (signal(SignalKind::quit())?, Signal::QUIT),
        (signal(SignalKind::hangup())?, Signal::HUP),
        (signal(SignalKind::user_defined1())?, Signal::USR1),
        (signal(SignalKind::user_defined2())?, Signal::USR2),
    ];
    let mut ended_well = true;
    loop {
        // Includes orphans, which the kernel makes children of this process.
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((_, status))) if status.exit_status() == Some(launcher::EXIT_CODE.into()) => {}
                Ok(Some((_, status))) => ended_well = status.exit_status() == Some(0),
                Ok(None) => break,
                Err(_) => return Ok(ended_well),
            }
        }
        let [terminate, interrupt, quit, hangup, user1, user2] = &mut passed_on;
        let reported = tokio::select! {
            _ = children.recv() => continue,
            _ = terminate.0.recv() => terminate.1,
            _ = interrupt.0.recv() => interrupt.1,
            _ = quit.0.recv() => quit.1,
            _ = hangup.0.recv() => hangup.1,
            _ = user1.0.recv() => user1.1,
            _ = user2.0.recv() => user2.1,
        };
        pass_on(reported);
    }
}

/// Sends a signal to the newest child, which is the serving process. Older ones complete their open requests and end.
pub(super) fn pass_on(signal: Signal) {
    let children = std::fs::read_to_string("/proc/self/task/1/children").unwrap_or_default();
    if let Some(newest) = children.split_whitespace().filter_map(|pid| pid.parse().ok()).max().and_then(Pid::from_raw) {
        // The child may just have ended.
        let _ = kill_process(newest, signal);
    }
}

/// Sends a signal to the process that has taken over.
pub(super) fn pass_on_to(process: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
