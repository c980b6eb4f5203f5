//! The first process of a container: with it all others would end, so that after an upgrade it stays, passes on signals, and
//! waits for those who have nobody else to.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::launcher;

/// Whether this process is the first of its container.
pub(super) fn is_first_process() -> bool {
    std::process::id() == 1
}

/// Stays until no child is left. Returns whether the last one ended well.
///
/// # Errors
/// Signals can't be listened to.
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
        // Also those whose parents have ended: they are this process' children now.
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((_, status))) if status.exit_status() == Some(launcher::EXIT_CODE.into()) => {}
                Ok(Some((_, status))) => ended_well = status.exit_status() == Some(0),
                Ok(None) => break,
                Err(_) => return Ok(ended_well),
            }
        }
        let [terminate, interrupt, quit, hangup, user1, user2] = &mut passed_on;
        let told = tokio::select! {
            _ = children.recv() => continue,
            _ = terminate.0.recv() => terminate.1,
            _ = interrupt.0.recv() => interrupt.1,
            _ = quit.0.recv() => quit.1,
            _ = hangup.0.recv() => hangup.1,
            _ = user1.0.recv() => user1.1,
            _ = user2.0.recv() => user2.1,
        };
        pass_on(told);
    }
}

/// Sends a signal to the newest child: the one that serves. What others have under way they answer, and end.
pub(super) fn pass_on(signal: Signal) {
    let children = std::fs::read_to_string("/proc/self/task/1/children").unwrap_or_default();
    if let Some(newest) = children.split_whitespace().filter_map(|pid| pid.parse().ok()).max().and_then(Pid::from_raw) {
        // It may just have ended.
        let _ = kill_process(newest, signal);
    }
}

/// Passes a signal on to the process that has taken over.
pub(super) fn pass_on_to(process: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
