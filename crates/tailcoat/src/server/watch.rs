//! Automatic reload when a configuration file changes, if the configuration enables it.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::config::FileStates;
use crate::control::{ControlOrder, ControlReply, ControlRequest};

/// Interval of checks for changes. A changed file is read when two checks in a row find the same state: then no program
/// is writing it.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Orders a reload whenever a configuration file differs from its state in `read`. Ends when the server takes no more
/// orders.
pub(super) async fn watch(path: PathBuf, mut read: FileStates, orders: UnboundedSender<ControlRequest>) {
    let mut seen = read.clone();
    loop {
        sleep(LOOK_INTERVAL).await;
        let before = seen.clone();
        // The check panicked; stop watching.
        let Ok(now) = spawn_blocking(move || before.look_again()).await else { return };
        let is_settled = now == seen;
        seen = now;
        if !is_settled || seen == read {
            continue;
        }
        // The set of included files may have changed. Their states are taken before the reload reads them, so that no
        // later change is missed.
        let path = path.clone();
        let Ok(states) = spawn_blocking(move || FileStates::of(&path)).await else { return };
        (read, seen) = (states.clone(), states);
        if orders
            .send(ControlRequest {
                order: ControlOrder::Reload { is_fancy: false },
                reply: ControlReply::without_receiver(),
            })
            .is_err()
        {
            return;
        }
    }
}
