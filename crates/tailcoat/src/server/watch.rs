//! Reloads when the configuration's files change, if that is wanted.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::config::FileStates;
use crate::control::{ControlOrder, ControlReply, ControlRequest};

/// How often files are looked at. What has changed is read when it is the same at the next look: nobody writes it any more.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Orders a reload whenever files of this configuration are not as they were before they were `read`, until nobody takes
/// orders any more.
pub(super) async fn watch(path: PathBuf, mut read: FileStates, orders: UnboundedSender<ControlRequest>) {
    let mut seen = read.clone();
    loop {
        sleep(LOOK_INTERVAL).await;
        let before = seen.clone();
        // A panic is the end of it.
        let Ok(now) = spawn_blocking(move || before.look_again()).await else { return };
        let is_settled = now == seen;
        seen = now;
        if !is_settled || seen == read {
            continue;
        }
        // It may include others now. They are looked at before they are read, so that no change is missed between.
        let path = path.clone();
        let Ok(states) = spawn_blocking(move || FileStates::of(&path)).await else { return };
        (read, seen) = (states.clone(), states);
        if orders
            .send(ControlRequest { order: ControlOrder::Reload { is_fancy: false }, reply: ControlReply::to_nobody() })
            .is_err()
        {
            return;
        }
    }
}
