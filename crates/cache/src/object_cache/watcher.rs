use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use inotify::{Event, EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use super::WatchedDirectory;
use super::root::descriptor_path;

/// Pause after each batch of events, so that a directory that changes constantly does not keep a core busy.
const PAUSE: Duration = Duration::from_millis(2);

/// Size of the buffer for events, in bytes.
const EVENT_BUFFER_BYTES: usize = 16 << 10;

/// Notifies directories of changes inside them, as inotify reports them to a separate thread. The events are hints:
/// they make changes visible at once, but correctness does not depend on them.
#[derive(Debug)]
pub(super) struct Watcher {
    table: Arc<Mutex<WatchTable>>,
    stop: Arc<OwnedFd>,
}

struct WatchTable {
    watches: Watches,
    /// Usually one directory for each watch; more if a directory is reached by several names.
    directories: HashMap<WatchDescriptor, Vec<Weak<WatchedDirectory>>>,
    /// Maximum number of watched directories. Further directories are only checked periodically. Reaching the kernel's
    /// own limit (`fs.inotify.max_user_watches`) has the same effect.
    watches_max: usize,
    /// Number of watches at which those of unused directories are removed.
    prune_at: usize,
}

impl std::fmt::Debug for WatchTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("directories", &self.directories.len()).finish_non_exhaustive()
    }
}

impl Watcher {
    /// Starts the thread, which ends when the watcher is dropped.
    pub(super) fn start(watches_max: usize) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let table = WatchTable { watches: inotify.watches(), directories: HashMap::new(), watches_max, prune_at: 64 };
        let table = Arc::new(Mutex::new(table));
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let (thread_table, thread_stop) = (Arc::clone(&table), Arc::clone(&stop));
        thread::Builder::new()
            .name("tailcoat-watch".into())
            .spawn(move || drive_events(inotify, &thread_table, &thread_stop))?;
        Ok(Self { table, stop })
    }

    /// Watches a directory, open as `fd`, if the limits allow it.
    pub(super) fn watch(&self, fd: &OwnedFd, directory: &Arc<WatchedDirectory>) {
        let mask = WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::ATTRIB
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR
            | WatchMask::EXCL_UNLINK;
        let mut table = lock(&self.table);
        table.prune();
        if table.directories.len() >= table.watches_max {
            return;
        }
        // Fails if the kernel's limit is reached or /proc is missing; then only the periodic check finds changes.
        if let Ok(watch) = table.watches.add(descriptor_path(fd), mask) {
            let directories = table.directories.entry(watch).or_default();
            directories.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&Arc::downgrade(directory)));
            directories.push(Arc::downgrade(directory));
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Fails only if the counter is full; then the thread was notified already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

impl WatchTable {
    fn prune(&mut self) {
        if self.directories.len() < self.prune_at {
            return;
        }
        let watches = &mut self.watches;
        self.directories.retain(|watch, directories| {
            directories.retain(|directory| directory.strong_count() > 0);
            if directories.is_empty() {
                // Fails if the directory was removed, and its watch with it.
                let _ = watches.remove(watch.clone());
            }
            !directories.is_empty()
        });
        self.prune_at = (2 * self.directories.len()).clamp(64, self.watches_max.max(64));
    }

    fn on_event(&mut self, event: &Event<&std::ffi::OsStr>) {
        let of_entries = !event.mask.intersects(EventMask::MODIFY | EventMask::CLOSE_WRITE | EventMask::ATTRIB);
        let note = |directories: &Vec<Weak<WatchedDirectory>>| {
            directories.iter().filter_map(Weak::upgrade).for_each(|directory| directory.note_change(of_entries));
        };
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // Events were lost, so that any directory may have changed.
            self.directories.values().for_each(note);
        } else if event.mask.contains(EventMask::IGNORED) {
            self.directories.remove(&event.wd).iter().for_each(note);
        } else {
            self.directories.get(&event.wd).into_iter().for_each(note);
        }
    }
}

fn lock(table: &Mutex<WatchTable>) -> MutexGuard<'_, WatchTable> {
    // A panic while the lock is held leaves no half-made change.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn drive_events(mut inotify: Inotify, table: &Mutex<WatchTable>, stop: &OwnedFd) {
    let mut buffer = [0; EVENT_BUFFER_BYTES];
    loop {
        let ready = {
            let mut waiting =
                [PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(inotify.as_fd(), PollFlags::IN)];
            rustix::event::poll(&mut waiting, None).map(|_| !waiting[0].revents().is_empty())
        };
        if ready == Ok(true) {
            return;
        }
        // Errors (nothing to read, or not enough memory) are ignored, because the next read may succeed.
        if let Ok(events) = inotify.read_events(&mut buffer) {
            let mut table = lock(table);
            events.for_each(|event| table.on_event(&event));
        }
        thread::sleep(PAUSE);
    }
}
