use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tokio::sync::{Semaphore, watch};

use super::content_type::content_type;
use super::load::{Found, LoadError, Refusal};
use super::roots::{OpenedRoot, SharedRoots};
use crate::config::Files;
use crate::handler::Now;
use crate::object_cache::{Access, ObjectStore, RETRY_AFTER_MS, RootId};

/// How long a file that is being written all the time is waited for before the client is told to come back later.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(1);

/// What has been found for a path.
pub(super) type LoadResult = Result<Found, Refusal>;

/// A configured tree of files, as all workers share it.
#[derive(Debug)]
pub struct FileTree {
    pub(super) files: Files,
    /// Whether heads say `Server: tailcoat`.
    pub(super) server_field: bool,
    /// Ranges in one request; more are answered with the whole.
    pub(super) ranges_max: usize,
    pub(super) store: Arc<ObjectStore>,
    pub(super) roots: Arc<SharedRoots>,
    /// Compressions that may run at a time. While all do, clients get what is there.
    pub(super) compressions: Semaphore,
    /// Listings that may be read at a time: fewer than there are threads for blocking work, so that many requests for a
    /// large directory leave some to those who wait for a file.
    pub(super) listings: Semaphore,
    /// Loads under way, so that many requests for one path at the same time cause one.
    loads: Mutex<Loads>,
}

/// By root and path.
type Loads = HashMap<(RootId, Box<[u8]>), LoadReceiver>;

/// Gets the result of a load when there is one.
type LoadReceiver = watch::Receiver<Option<LoadResult>>;

impl FileTree {
    /// A tree with this configuration. `server_field` and `ranges_max` are those of the whole server.
    pub fn new(files: Files, server_field: bool, ranges_max: usize, store: Arc<ObjectStore>) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            files,
            server_field,
            ranges_max,
            store,
            roots: Arc::default(),
            compressions: Semaphore::new(cores),
            listings: Semaphore::new(cores),
            loads: Mutex::default(),
        })
    }

    /// The content type of a file of this name.
    pub fn content_type(&self, name: &[u8]) -> String {
        content_type(&self.files, name)
    }

    /// Finds what there is for a path, waiting for disks and for others that are on the way to find the same.
    pub(super) async fn obtain(self: &Arc<Self>, root: &Arc<OpenedRoot>, path: &[u8]) -> LoadResult {
        let mut result = self.join_load(root, path);
        match result.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Err(Refusal::Failed)),
            // The worker that did it is gone.
            Err(_) => Err(Refusal::Unavailable),
        }
    }

    /// The result of the load of this path, which is begun if it isn't under way.
    fn join_load(self: &Arc<Self>, root: &Arc<OpenedRoot>, path: &[u8]) -> LoadReceiver {
        let key = (root.id, Box::from(path));
        let mut loads = self.loads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(receiver) = loads.get(&key) {
            return receiver.clone();
        }
        let (sender, receiver) = watch::channel(None);
        loads.insert(key, receiver.clone());
        let (tree, root, path) = (Arc::clone(self), Arc::clone(root), Box::from(path));
        // A task of its own: it goes on when the client that caused it goes away, for others wait for it as well.
        tokio::spawn(async move {
            let under_way = UnderWay { tree, id: root.id, path };
            let result = under_way.tree.load_settled(&root, &under_way.path).await;
            drop(under_way);
            sender.send_replace(Some(result));
        });
        receiver
    }

    /// Loads a path on the blocking pool, again and again while its file is being written.
    async fn load_settled(self: &Arc<Self>, root: &Arc<OpenedRoot>, path: &[u8]) -> LoadResult {
        let give_up_at = Instant::now() + SETTLE_WAIT_MAX;
        let mut earlier = None;
        loop {
            let (tree, root, path) = (Arc::clone(self), Arc::clone(root), Box::<[u8]>::from(path));
            let load = move || tree.load_or_check(&root, &path, Now::read(), Access::Blocking, earlier.as_ref());
            match tokio::task::spawn_blocking(load).await {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(LoadError::Refused(refusal))) => return Err(refusal),
                Ok(Err(LoadError::Directory)) => return Ok(Found::Directory),
                Ok(Err(LoadError::Unsettled(snapshot))) if Instant::now() < give_up_at => {
                    earlier = Some(snapshot);
                    tokio::time::sleep(Duration::from_millis(RETRY_AFTER_MS)).await;
                }
                Ok(Err(LoadError::WouldBlock | LoadError::Unsettled(_))) => return Err(Refusal::Unavailable),
                Err(_) => return Err(Refusal::Failed),
            }
        }
    }
}

/// Takes a load off the list when it ends, however it ends.
struct UnderWay {
    tree: Arc<FileTree>,
    id: RootId,
    path: Box<[u8]>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut loads = self.tree.loads.lock().unwrap_or_else(PoisonError::into_inner);
        loads.remove(&(self.id, std::mem::take(&mut self.path)));
    }
}
