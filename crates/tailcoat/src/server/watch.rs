//! Reloads when the configuration's files change, if that is wanted.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::config;
use crate::control::{Order, Reply, Request};

/// How often files are looked at. What has changed is read when it is the same at the next look: nobody writes it any more.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What tells one state of a file from another: device, inode, size, and when it was changed.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// The files, each with its state.
type State = Vec<(PathBuf, Stamp)>;

/// Orders a reload whenever the files of this configuration have changed, until nobody takes orders any more.
pub(super) async fn watch(path: PathBuf, orders: UnboundedSender<Request>) {
    let files = |path: PathBuf| spawn_blocking(move || look(config::files_of(&path)));
    // A panic is the end of it.
    let Ok(mut read) = files(path.clone()).await else { return };
    let mut seen = read.clone();
    loop {
        sleep(LOOK_INTERVAL).await;
        let before = seen.clone();
        let Ok(now) = spawn_blocking(move || look(before.into_iter().map(|(file, _)| file))).await else { return };
        let is_settled = now == seen;
        seen = now;
        if !is_settled || seen == read {
            continue;
        }
        if orders.send(Request { order: Order::Reload { is_fancy: false }, reply: Reply::to_nobody() }).is_err() {
            return;
        }
        // It may include others now.
        let Ok(files) = files(path.clone()).await else { return };
        (read, seen) = (files.clone(), files);
    }
}

fn look(files: impl IntoIterator<Item = PathBuf>) -> State {
    files.into_iter().map(|file| (stamp(&file), file)).map(|(stamp, file)| (file, stamp)).collect()
}

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}
