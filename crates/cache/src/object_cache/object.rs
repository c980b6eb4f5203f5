use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::OnceCell;
pub use wire::http::ContentCoding;
use wire::http::Status;
use wire::http::conditional::Validators;

use super::StoredResponse;

use super::{DiskAccess, EncodedHead, FileIdentity, ObjectContent, OpenError, Root, RootId, WatchedDirectory};

/// File, upstream response or page of the server itself in the form in which it is sent; shared by all workers.
#[derive(Debug)]
pub struct Object {
    pub(super) key: ObjectKey,
    pub(super) state: ObjectState,
    /// Representation without content coding.
    identity: Representation,
    /// Compressed representations; `None` if the media type is not worth compressing.
    codings: Option<Box<Codings>>,
    /// Time of the last modification, in seconds since 1970, if known.
    pub last_modified_unix_seconds: Option<u64>,
    origin: ObjectOrigin,
}

/// One coding of an object: heads and content.
#[derive(Debug)]
pub struct Representation {
    /// Status of `head`.
    pub status: Status,
    /// Content coding of `content`.
    pub coding: ContentCoding,
    /// Entity tag with quotes, and with `W/` if it is weak (RFC 9110, section 8.8.3); empty if there is none.
    pub etag: Box<str>,
    /// Encoded head of a response with the whole content.
    pub head: EncodedHead,
    /// Encoded head of a 304 response.
    pub not_modified_head: EncodedHead,
    /// Encoded head of a 206 response with one range, without Content-Range and Content-Length.
    pub partial_head: EncodedHead,
    /// Content in this coding.
    pub content: ObjectContent,
}

/// Cell of a compressed representation; it holds `None` if that coding saves too little. Most are never filled.
pub type CodingCell = OnceCell<Option<Box<Representation>>>;

/// Compressed representations; each is made at its first use.
#[derive(Debug, Default)]
pub struct Codings {
    /// Representation in gzip.
    pub gzip: CodingCell,
    /// Representation in Brotli (`br`).
    pub brotli: CodingCell,
    /// Representation in Zstandard (`zstd`).
    pub zstd: CodingCell,
}

/// Source of an object.
#[derive(Debug)]
pub enum ObjectOrigin {
    /// Files below a root.
    Files(FilesOrigin),
    /// Response of an upstream.
    Upstream(Box<StoredResponse>),
    /// Page of the server itself, which never changes.
    Server,
}

/// Files that an object was made of. The object may be served as long as this record matches the file system.
#[derive(Debug)]
pub struct FilesOrigin {
    /// Files of the object, the served file first. Files that would have been used but did not exist are listed without
    /// a version.
    pub sources: Vec<ObjectSource>,
    /// Directory that contains all of them.
    pub directory: Arc<WatchedDirectory>,
    /// The directory's number of changes before the files were read.
    pub changes_seen: u64,
    /// The directory's number of entry changes before the files were read.
    pub entry_changes_seen: u64,
    /// True for a program (such as a script), whose source must not be sent to clients.
    pub is_excluded: bool,
    /// Time at which all of this was known to be true, in milliseconds.
    pub checked_at_ms: u64,
    /// True if a file may change without a new time stamp. Such an object is made again; comparing versions is not
    /// enough.
    pub unsettled: bool,
}

/// File that an object depends on.
#[derive(Debug, PartialEq, Eq)]
pub struct ObjectSource {
    /// Name below the root.
    pub name: Box<[u8]>,
    /// Version of the file; `None` if it did not exist.
    pub version: Option<FileIdentity>,
}

/// Key of an object in the tables.
#[derive(Debug)]
pub(super) struct ObjectKey {
    pub(super) root: RootId,
    pub(super) path: Box<[u8]>,
    pub(super) hash: u64,
}

/// State that changes while an object is cached. All workers read it on each hit; writes are rare.
#[derive(Debug)]
pub(super) struct ObjectState {
    /// True if the object was evicted or replaced.
    pub(super) dead: AtomicBool,
    /// True if the object was used since the hand of the eviction queue last passed.
    pub(super) visited: AtomicBool,
    /// Time at which the object last matched the file system, in milliseconds.
    pub(super) checked_at_ms: AtomicU64,
    /// The directory's number of changes at that time.
    pub(super) changes_seen: AtomicU64,
    /// The directory's number of entry changes at that time.
    pub(super) entry_changes_seen: AtomicU64,
}

/// Reference to an [`Object`] owned by one worker.
#[derive(Debug)]
pub struct CachedObject {
    /// Object shared with the other workers.
    pub object: Arc<Object>,
}

impl ObjectKey {
    #[inline]
    pub(super) fn is(&self, root: RootId, path: &[u8]) -> bool {
        self.root == root && *self.path == *path
    }
}

impl Object {
    pub(super) fn new(key: ObjectKey, parts: ObjectParts) -> Self {
        let (checked_at_ms, changes_seen, entry_changes_seen) = match &parts.origin {
            ObjectOrigin::Files(files) => (files.checked_at_ms, files.changes_seen, files.entry_changes_seen),
            ObjectOrigin::Upstream(_) | ObjectOrigin::Server => (0, 0, 0),
        };
        let state = ObjectState {
            dead: AtomicBool::new(false),
            visited: AtomicBool::new(false),
            checked_at_ms: AtomicU64::new(checked_at_ms),
            changes_seen: AtomicU64::new(changes_seen),
            entry_changes_seen: AtomicU64::new(entry_changes_seen),
        };
        let ObjectParts { identity, codings, last_modified_unix_seconds, origin } = parts;
        Self { key, state, identity, codings: codings.map(Box::new), last_modified_unix_seconds, origin }
    }

    /// Makes an object of a page of the server itself. It is in no store.
    pub fn of_server(identity: Representation) -> Self {
        let key = ObjectKey { root: RootId::NONE, path: Box::default(), hash: 0 };
        let parts =
            ObjectParts { identity, codings: None, last_modified_unix_seconds: None, origin: ObjectOrigin::Server };
        Self::new(key, parts)
    }

    /// True if the object was evicted, replaced or removed, or never stored.
    pub fn is_dead(&self) -> bool {
        self.state.dead.load(Ordering::Relaxed)
    }

    /// Path, or other key, that the object is cached under.
    pub fn path(&self) -> &[u8] {
        &self.key.path
    }

    /// Name below the root of the file that the object was made of; empty if it was not made of a file.
    pub fn file_name(&self) -> &[u8] {
        match &self.origin {
            ObjectOrigin::Files(files) => files.sources.first().map_or(&[], |source| &source.name),
            ObjectOrigin::Upstream(_) | ObjectOrigin::Server => &[],
        }
    }

    /// True if the object was made of a program (such as a script), whose source must not be sent to clients.
    #[inline]
    pub fn is_excluded(&self) -> bool {
        matches!(&self.origin, ObjectOrigin::Files(files) if files.is_excluded)
    }

    /// True for a page of the server itself.
    #[inline]
    pub fn is_of_server(&self) -> bool {
        matches!(self.origin, ObjectOrigin::Server)
    }

    /// True if the object was used since the last call, or since the hand of the eviction queue last passed.
    pub fn take_visited(&self) -> bool {
        self.state.visited.swap(false, Ordering::Relaxed)
    }

    /// Stored response; `None` if the object is not one of an upstream.
    pub fn response(&self) -> Option<&StoredResponse> {
        match &self.origin {
            ObjectOrigin::Files(_) | ObjectOrigin::Server => None,
            ObjectOrigin::Upstream(response) => Some(response),
        }
    }

    /// Validators that identify a version of a representation (RFC 9110, section 8.8).
    pub fn validators(&self, coding: ContentCoding) -> Validators<'_> {
        let etag = match &self.origin {
            ObjectOrigin::Files(_) | ObjectOrigin::Server => self.representation(coding).etag.as_bytes(),
            ObjectOrigin::Upstream(response) => response.fields.get("ETag").unwrap_or_default(),
        };
        Validators { etag: (!etag.is_empty()).then_some(etag), last_modified: self.last_modified_unix_seconds }
    }

    /// Representation without content coding.
    pub fn identity(&self) -> &Representation {
        &self.identity
    }

    /// Compressed representations; `None` if the media type is not worth compressing. In that case the response does
    /// not vary by coding.
    pub fn codings(&self) -> Option<&Codings> {
        self.codings.as_deref()
    }

    /// Returns the representation with this coding, or the one without coding if it does not exist.
    pub fn representation(&self, coding: ContentCoding) -> &Representation {
        let cell = self.codings().and_then(|codings| codings.cell(coding));
        cell.and_then(|cell| cell.get()?.as_deref()).unwrap_or(&self.identity)
    }

    /// Representation as that of [`Self::representation`], with all of its heads. That one may lack all but the head of a whole
    /// response of HTTP/1.
    pub fn complete_representation(&self, coding: ContentCoding) -> &Representation {
        let representation = self.representation(coding);
        match self.response().and_then(|response| response.late_heads.as_ref()) {
            Some(heads) if std::ptr::eq(representation, &self.identity) => heads.of(self),
            _ => representation,
        }
    }

    /// True if the object must be checked before it is served.
    #[inline]
    pub(super) fn is_due(&self, now_ms: u64, revalidate_after_ms: u64) -> bool {
        match &self.origin {
            ObjectOrigin::Files(files) => {
                now_ms >= self.state.checked_at_ms.load(Ordering::Relaxed).saturating_add(revalidate_after_ms)
                    || files.directory.changes() != self.state.changes_seen.load(Ordering::Relaxed)
            }
            ObjectOrigin::Upstream(response) => response.is_due(now_ms),
            ObjectOrigin::Server => false,
        }
    }

    /// Returns true if all files still have their recorded versions; the object then stays fresh for another period.
    /// Returns false for an upstream response, because only its upstream can validate it. Fails only with
    /// [`OpenError::WouldBlock`] or [`OpenError::Exhausted`].
    pub(super) fn check(
        &self,
        root: &Root,
        now_ms: u64,
        revalidate_after_ms: u64,
        access: DiskAccess,
    ) -> Result<bool, OpenError> {
        let ObjectOrigin::Files(files) = &self.origin else { return Ok(false) };
        if files.unsettled {
            return Ok(false);
        }
        let (state, directory) = (&self.state, &files.directory);
        let earlier_ms = state.checked_at_ms.load(Ordering::Relaxed);
        match directory.refresh(root, now_ms, revalidate_after_ms, access) {
            Ok(()) => {}
            Err(error @ (OpenError::WouldBlock | OpenError::Exhausted)) => return Err(error),
            Err(_) => return Ok(false),
        }
        let (changes, entry_changes) = (directory.changes(), directory.entry_changes());
        let entries_changed = entry_changes != state.entry_changes_seen.load(Ordering::Relaxed);
        for source in &files.sources {
            // A file that did not exist can only appear by a change of the directory's entries.
            if (source.version.is_some() || entries_changed) && !source.is_same(root, access)? {
                return Ok(false);
            }
        }
        state.changes_seen.store(changes, Ordering::Relaxed);
        state.entry_changes_seen.store(entry_changes, Ordering::Relaxed);
        // The state of missing names is only as recent as the check of the directory. The exchange fails if another
        // worker was faster.
        let checked_at_ms = now_ms.min(directory.checked_at_ms());
        let _ = state.checked_at_ms.compare_exchange(earlier_ms, checked_at_ms, Ordering::Relaxed, Ordering::Relaxed);
        Ok(true)
    }

    /// Memory in use, in bytes, and the number of open file descriptors.
    pub(super) fn measure(&self) -> (u64, usize) {
        let present = self.codings().into_iter().flat_map(Codings::present);
        let representations = || present.clone().chain([&self.identity]);
        let sources = match &self.origin {
            ObjectOrigin::Files(files) => {
                files.sources.iter().map(|source| source.name.len() + size_of::<ObjectSource>()).sum::<usize>()
            }
            ObjectOrigin::Upstream(response) => response.memory_bytes(),
            ObjectOrigin::Server => 0,
        };
        let own = size_of::<Self>() + self.codings.as_ref().map_or(0, |_| size_of::<Codings>()) + self.key.path.len();
        let encoded = present.clone().count() * size_of::<Representation>();
        let bytes = representations().map(Representation::memory_bytes).sum::<u64>() + (own + encoded + sources) as u64;
        let files = representations().filter(|one| matches!(one.content, ObjectContent::File(_))).count();
        (bytes, files)
    }
}

/// Parts that an object is made from.
#[derive(Debug)]
pub struct ObjectParts {
    /// Representation without content coding.
    pub identity: Representation,
    /// Compressed representations; `None` if the media type is not worth compressing.
    pub codings: Option<Codings>,
    /// Time of the last modification, in seconds since 1970, if known.
    pub last_modified_unix_seconds: Option<u64>,
    /// Source of the object.
    pub origin: ObjectOrigin,
}

impl Codings {
    /// Cell of the representation with this coding; `None` for [`ContentCoding::Identity`].
    pub fn cell(&self, coding: ContentCoding) -> Option<&CodingCell> {
        match coding {
            ContentCoding::Identity => None,
            ContentCoding::Gzip => Some(&self.gzip),
            ContentCoding::Brotli => Some(&self.brotli),
            ContentCoding::Zstd => Some(&self.zstd),
        }
    }

    /// Sets the cell of a coding; has no effect for [`ContentCoding::Identity`].
    pub fn set(&mut self, coding: ContentCoding, cell: CodingCell) {
        match coding {
            ContentCoding::Identity => {}
            ContentCoding::Gzip => self.gzip = cell,
            ContentCoding::Brotli => self.brotli = cell,
            ContentCoding::Zstd => self.zstd = cell,
        }
    }

    fn present(&self) -> impl Iterator<Item = &Representation> + Clone {
        [&self.gzip, &self.brotli, &self.zstd].into_iter().filter_map(|cell| cell.get()?.as_deref())
    }
}

impl Representation {
    fn memory_bytes(&self) -> u64 {
        let content = match &self.content {
            ObjectContent::Memory(bytes) => bytes.len(),
            ObjectContent::File(_) => 0,
        };
        let heads = [&self.head, &self.not_modified_head, &self.partial_head];
        (heads.iter().map(|head| head.memory_bytes()).sum::<usize>() + content + self.etag.len()) as u64
    }
}

impl ObjectSource {
    fn is_same(&self, root: &Root, access: DiskAccess) -> Result<bool, OpenError> {
        match root.status(&self.name, access) {
            Ok(status) => Ok(self.version == Some(status.identity)),
            Err(OpenError::NotFound) => Ok(self.version.is_none()),
            Err(error @ (OpenError::WouldBlock | OpenError::Exhausted)) => Err(error),
            // The handler finds the cause when it makes the object again.
            Err(OpenError::Forbidden | OpenError::Directory | OpenError::Failed(_)) => Ok(false),
        }
    }
}
