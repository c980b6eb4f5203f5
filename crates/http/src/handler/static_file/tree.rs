use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::browse::ListingsInProgress;
use super::content_type::content_type;
use super::in_progress::{Demand, InProgress};
use super::load::{FileLoadError, FileRejection, FoundFile};
use super::roots::{OpenedRoot, SharedRoots};
use super::{rejection_of_existing, rejection_of_hidden};
use crate::config::{FilesConfig, Precedence, Runners};
use crate::handler::Now;
use crate::object_cache::{Blocking, DiskAccess, ObjectStore, RETRY_AFTER_MS, RootId};

/// Longest wait for a file that keeps changing, before the client gets 503. Not an option: it bounds the delay until
/// clients see a change.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Result of looking up a path.
pub(super) type FileLoadResult = Result<FoundFile, FileRejection>;

/// A configured tree of files, shared by all workers.
#[derive(Debug)]
pub struct FileTree {
    pub(super) files: FilesConfig,
    /// Handlers that run the scripts in this tree.
    pub(super) runners: Runners,
    /// Handlers and access rules that come before this tree.
    pub(super) precedence: Precedence,
    /// True if heads say `Server: tailcoat`.
    pub(super) server_field: bool,
    /// Most ranges in one request; a request with more gets the whole file.
    pub(super) ranges_max: usize,
    pub(super) store: Arc<ObjectStore>,
    pub(super) roots: Arc<SharedRoots>,
    /// Limit of listings read at a time. It is below the number of blocking threads, so that requests for a large
    /// directory leave threads to requests for files.
    pub(super) listings: Arc<Semaphore>,
    pub(super) listings_in_progress: Arc<ListingsInProgress>,
    loads: Arc<LoadsInProgress>,
}

/// Loads in progress, by root and path: many requests for one path share one load.
type LoadsInProgress = InProgress<(RootId, Box<[u8]>), FileLoadResult>;

impl FileTree {
    /// Creates a tree with this configuration. `server_field` and `ranges_max` are those of the whole server.
    pub fn new(
        files: FilesConfig,
        runners: Runners,
        precedence: Precedence,
        server_field: bool,
        ranges_max: usize,
        store: Arc<ObjectStore>,
    ) -> Arc<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Arc::new(Self {
            files,
            runners,
            precedence,
            server_field,
            ranges_max,
            store,
            roots: Arc::default(),
            listings: Arc::new(Semaphore::new(cores)),
            listings_in_progress: Arc::default(),
            loads: Arc::default(),
        })
    }

    /// True if this configuration would create the same tree; see [`Self::new`].
    pub fn is_of(
        &self,
        files: &FilesConfig,
        (runners, precedence): (&Runners, &Precedence),
        server_field: bool,
        ranges_max: usize,
    ) -> bool {
        self.server_field == server_field
            && self.ranges_max == ranges_max
            && self.files == *files
            && self.runners == *runners
            && self.precedence == *precedence
    }

    /// True if the tree serves these files.
    pub fn has_files(&self, files: &FilesConfig) -> bool {
        self.files == *files
    }

    /// Content type of a file of this name.
    pub fn content_type(&self, name: &[u8]) -> String {
        content_type(&self.files, name)
    }

    /// Looks up a path, waiting for disks and for loads of the same path in progress.
    pub(super) async fn obtain(self: &Arc<Self>, root: &Arc<OpenedRoot>, path: &[u8], now: Now) -> FileLoadResult {
        let (tree, work_root, work_path) = (Arc::clone(self), Arc::clone(root), Box::<[u8]>::from(path));
        let work = move |demand| {
            let (tree, root, path) = (Arc::clone(&tree), Arc::clone(&work_root), work_path.clone());
            async move { tree.load_settled(&root, &path, now, Arc::new(demand)).await }
        };
        self.loads.join((root.id, Box::from(path)), work).await.unwrap_or(Err(FileRejection::Unavailable))
    }

    /// Reason to reject a hidden path, waiting for disks.
    pub(super) async fn reject_hidden(&self, root: &Arc<OpenedRoot>, part: &[u8]) -> FileRejection {
        let (root, part) = (Arc::clone(root), Box::<[u8]>::from(part));
        let rejection = Blocking::spawn(move || rejection_of_hidden(&root, &part, DiskAccess::Blocking)).await;
        rejection.ok().flatten().unwrap_or(FileRejection::Unavailable)
    }

    /// Reason to reject a path if it exists, also with an extension, by which a later handler would find it. Waits for disks.
    pub(super) async fn reject_existing(self: &Arc<Self>, root: &Arc<OpenedRoot>, path: &[u8]) -> FileRejection {
        let (tree, root, path) = (Arc::clone(self), Arc::clone(root), Box::<[u8]>::from(path));
        let rejection = Blocking::spawn(move || {
            let extended = tree.files.extensions.iter().map(|extension| [&*path, b".", extension.as_bytes()].concat());
            let paths = std::iter::once(path.to_vec()).chain(extended);
            let mut rejections = paths.map(|path| rejection_of_existing(&root, &path));
            rejections.find(|rejection| !matches!(rejection, FileRejection::NotFound))
        });
        rejection.await.map_or(FileRejection::Unavailable, |found| found.unwrap_or(FileRejection::NotFound))
    }

    /// Loads a path on the blocking pool, again and again while its file is being written. `None` if no request wants
    /// it any more.
    async fn load_settled(
        self: &Arc<Self>,
        root: &Arc<OpenedRoot>,
        path: &[u8],
        now: Now,
        demand: Arc<Demand<FileLoadResult>>,
    ) -> Option<FileLoadResult> {
        let wait_until = Instant::now() + SETTLE_WAIT_MAX;
        let mut earlier = None;
        loop {
            let (tree, root, path) = (Arc::clone(self), Arc::clone(root), Box::<[u8]>::from(path));
            let demand = Arc::clone(&demand);
            let load = move || {
                let load =
                    || tree.load_or_check(&root, &path, Now::read_after(now), DiskAccess::Blocking, earlier.as_ref());
                demand.exists().then(load)
            };
            match Blocking::spawn(load).await {
                Ok(None) => return None,
                Ok(Some(Ok(found))) => return Some(Ok(found)),
                Ok(Some(Err(FileLoadError::Rejected(rejection)))) => return Some(Err(rejection)),
                Ok(Some(Err(FileLoadError::Directory))) => return Some(Ok(FoundFile::Directory)),
                Ok(Some(Err(FileLoadError::Unsettled(snapshot)))) if Instant::now() < wait_until => {
                    earlier = Some(snapshot);
                    tokio::time::sleep(Duration::from_millis(RETRY_AFTER_MS)).await;
                }
                Ok(Some(Err(FileLoadError::WouldBlock | FileLoadError::Unsettled(_)))) => {
                    return Some(Err(FileRejection::Unavailable));
                }
                Err(_) => return Some(Err(FileRejection::Failed)),
            }
        }
    }
}
