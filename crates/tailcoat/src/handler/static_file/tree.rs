use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::browse::ListingsInProgress;
use super::content_type::content_type;
use super::in_progress::{Demand, InProgress};
use super::load::{Found, LoadError, Refusal};
use super::refusal_of_hidden;
use super::roots::{OpenedRoot, SharedRoots};
use crate::config::{Files, Precedence, Runners};
use crate::handler::Now;
use crate::object_cache::{Access, Blocking, ObjectStore, RETRY_AFTER_MS, RootId};

/// How long a file that is being written all the time is waited for before the client is told to come back later.
/// Not an option: it is what clients are promised to wait at most for a change to be seen.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(1);

/// What has been found for a path.
pub(super) type LoadResult = Result<Found, Refusal>;

/// A configured tree of files, as all workers share it.
#[derive(Debug)]
pub struct FileTree {
    pub(super) files: Files,
    /// Who runs the programs among them.
    pub(super) runners: Runners,
    /// What has a say in requests before.
    pub(super) precedence: Precedence,
    /// Whether heads say `Server: tailcoat`.
    pub(super) server_field: bool,
    /// Ranges in one request; more are answered with the whole.
    pub(super) ranges_max: usize,
    pub(super) store: Arc<ObjectStore>,
    pub(super) roots: Arc<SharedRoots>,
    /// Listings that may be read at a time: fewer than there are threads for blocking work, so that many requests for a
    /// large directory leave some to those who wait for a file.
    pub(super) listings: Arc<Semaphore>,
    pub(super) listings_in_progress: Arc<ListingsInProgress>,
    loads: Arc<LoadsInProgress>,
}

/// Loads in progress, by root and path: many requests for one path at the same time cause one.
type LoadsInProgress = InProgress<(RootId, Box<[u8]>), LoadResult>;

impl FileTree {
    /// A tree with this configuration. `server_field` and `ranges_max` are those of the whole server.
    pub fn new(
        files: Files,
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

    /// Whether it is what this configuration makes; see [`Self::new`].
    pub fn is_of(
        &self,
        files: &Files,
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

    /// The content type of a file of this name.
    pub fn content_type(&self, name: &[u8]) -> String {
        content_type(&self.files, name)
    }

    /// Finds what there is for a path, waiting for disks and for others that are on the way to find the same.
    pub(super) async fn obtain(self: &Arc<Self>, root: &Arc<OpenedRoot>, path: &[u8], now: Now) -> LoadResult {
        let (tree, work_root, work_path) = (Arc::clone(self), Arc::clone(root), Box::<[u8]>::from(path));
        let work = move |demand| {
            let (tree, root, path) = (Arc::clone(&tree), Arc::clone(&work_root), work_path.clone());
            async move { tree.load_settled(&root, &path, now, Arc::new(demand)).await }
        };
        self.loads.join((root.id, Box::from(path)), work).await.unwrap_or(Err(Refusal::Unavailable))
    }

    /// Why something hidden is not served, waiting for disks.
    pub(super) async fn refuse_hidden(&self, root: &Arc<OpenedRoot>, part: &[u8]) -> Refusal {
        let (root, part) = (Arc::clone(root), Box::<[u8]>::from(part));
        let refusal = Blocking::spawn(move || refusal_of_hidden(&root, &part, Access::Blocking)).await;
        refusal.ok().flatten().unwrap_or(Refusal::Unavailable)
    }

    /// Loads a path on the blocking pool, again and again while its file is being written; `None` if nobody wants it any
    /// more.
    async fn load_settled(
        self: &Arc<Self>,
        root: &Arc<OpenedRoot>,
        path: &[u8],
        now: Now,
        demand: Arc<Demand<LoadResult>>,
    ) -> Option<LoadResult> {
        let give_up_at = Instant::now() + SETTLE_WAIT_MAX;
        let mut earlier = None;
        loop {
            let (tree, root, path) = (Arc::clone(self), Arc::clone(root), Box::<[u8]>::from(path));
            let demand = Arc::clone(&demand);
            let load = move || {
                let load =
                    || tree.load_or_check(&root, &path, Now::read_after(now), Access::Blocking, earlier.as_ref());
                demand.exists().then(load)
            };
            match Blocking::spawn(load).await {
                Ok(None) => return None,
                Ok(Some(Ok(found))) => return Some(Ok(found)),
                Ok(Some(Err(LoadError::Refused(refusal)))) => return Some(Err(refusal)),
                Ok(Some(Err(LoadError::Directory))) => return Some(Ok(Found::Directory)),
                Ok(Some(Err(LoadError::Unsettled(snapshot)))) if Instant::now() < give_up_at => {
                    earlier = Some(snapshot);
                    tokio::time::sleep(Duration::from_millis(RETRY_AFTER_MS)).await;
                }
                Ok(Some(Err(LoadError::WouldBlock | LoadError::Unsettled(_)))) => {
                    return Some(Err(Refusal::Unavailable));
                }
                Err(_) => return Some(Err(Refusal::Failed)),
            }
        }
    }
}
