use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::OnceCell;
pub use wire::http::Coding;
use wire::http::Status;
use wire::http::conditional::Validators;

use super::StoredResponse;

use super::{Access, Content, Directory, EncodedHead, FileIdentity, OpenError, Root, RootId};

/// A file, or an upstream's response, in the form in which it is sent; shared by all workers.
#[derive(Debug)]
pub struct Object {
    pub(super) key: Key,
    pub(super) state: State,
    /// As it is.
    identity: Representation,
    /// The other codings, if its type is worth one.
    codings: Option<Box<Codings>>,
    /// When it was last modified, in seconds since 1970, if that is known.
    pub last_modified_unix_seconds: Option<u64>,
    origin: Origin,
}

/// One coding of an object: heads and content.
#[derive(Debug)]
pub struct Representation {
    /// The status of `head`.
    pub status: Status,
    /// The coding.
    pub coding: Coding,
    /// Entity tag, with quotes and, if it is weak, `W/` (RFC 9110, section 8.8.3); empty for none.
    pub etag: Box<str>,
    /// Head of the whole, encoded.
    pub head: EncodedHead,
    /// Head of a 304, encoded.
    pub not_modified_head: EncodedHead,
    /// Head of a 206 with one range, encoded, but for Content-Range and Content-Length.
    pub partial_head: EncodedHead,
    /// The content.
    pub content: Content,
}

/// The representations with a coding; each is made when it is first asked for. `None` in a cell: there is none that
/// would be worth it.
#[derive(Debug, Default)]
pub struct Codings {
    /// gzip
    pub gzip: OnceCell<Option<Representation>>,
    /// br
    pub brotli: OnceCell<Option<Representation>>,
    /// zstd
    pub zstd: OnceCell<Option<Representation>>,
}

/// What an object was made of.
#[derive(Debug)]
pub enum Origin {
    /// Files.
    Files(FilesOrigin),
    /// What an upstream answered.
    Upstream(Box<StoredResponse>),
}

/// The files that an object was made of: what has to be still so for it to be served.
#[derive(Debug)]
pub struct FilesOrigin {
    /// The files it was made of, the file itself first, and those that would have been used if they had been there.
    pub sources: Vec<Source>,
    /// The directory that all of them are in.
    pub directory: Arc<Directory>,
    /// The number of changes in the directory before the files were read.
    pub changes_seen: u64,
    /// Those of them that names came or went by.
    pub entry_changes_seen: u64,
    /// Whether it is a program, which is not for clients but for who runs it.
    pub is_excluded: bool,
    /// When all of this was known to be so, in milliseconds.
    pub checked_at_ms: u64,
    /// Whether one of the files may have changed without a trace, so that the object is made anew instead of compared.
    pub unsettled: bool,
}

/// A file that an object depends on.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name below the root.
    pub name: Box<[u8]>,
    /// Its version; `None` if there was no such file.
    pub version: Option<FileIdentity>,
}

/// What objects are looked up by.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) root: RootId,
    pub(super) path: Box<[u8]>,
    pub(super) hash: u64,
}

/// What changes about an object while it is cached; read by all workers on each hit, written seldom.
#[derive(Debug)]
pub(super) struct State {
    /// Evicted or replaced.
    pub(super) dead: AtomicBool,
    /// Used since the eviction's hand last passed.
    pub(super) visited: AtomicBool,
    /// When it was last known to be what is in the file system.
    pub(super) checked_at_ms: AtomicU64,
    /// The directory's number of changes then.
    pub(super) changes_seen: AtomicU64,
    /// The directory's number of changes of its entries then.
    pub(super) entry_changes_seen: AtomicU64,
}

/// A worker's own reference to an [`Object`].
#[derive(Debug)]
pub struct CachedObject {
    /// The object.
    pub object: Arc<Object>,
}

impl Key {
    #[inline]
    pub(super) fn is(&self, root: RootId, path: &[u8]) -> bool {
        self.root == root && *self.path == *path
    }
}

impl Object {
    pub(super) fn new(key: Key, parts: ObjectParts) -> Self {
        let (checked_at_ms, changes_seen, entry_changes_seen) = match &parts.origin {
            Origin::Files(files) => (files.checked_at_ms, files.changes_seen, files.entry_changes_seen),
            Origin::Upstream(_) => (0, 0, 0),
        };
        let state = State {
            dead: AtomicBool::new(false),
            visited: AtomicBool::new(false),
            checked_at_ms: AtomicU64::new(checked_at_ms),
            changes_seen: AtomicU64::new(changes_seen),
            entry_changes_seen: AtomicU64::new(entry_changes_seen),
        };
        let ObjectParts { identity, codings, last_modified_unix_seconds, origin } = parts;
        Self { key, state, identity, codings: codings.map(Box::new), last_modified_unix_seconds, origin }
    }

    /// True if it was evicted, replaced or removed, or never stored.
    pub fn is_dead(&self) -> bool {
        self.state.dead.load(Ordering::Relaxed)
    }

    /// The path, or other key, it is cached for.
    pub fn path(&self) -> &[u8] {
        &self.key.path
    }

    /// The name, below the root, of the file it was made of; empty if it was not made of one.
    pub fn file_name(&self) -> &[u8] {
        match &self.origin {
            Origin::Files(files) => files.sources.first().map_or(&[], |source| &source.name),
            Origin::Upstream(_) => &[],
        }
    }

    /// Whether it was made of a program, which is not for clients but for who runs it.
    #[inline]
    pub fn is_excluded(&self) -> bool {
        matches!(&self.origin, Origin::Files(files) if files.is_excluded)
    }

    /// What is known of the response that it was made of, if it was made of one.
    pub fn response(&self) -> Option<&StoredResponse> {
        match &self.origin {
            Origin::Files(_) => None,
            Origin::Upstream(response) => Some(response),
        }
    }

    /// What tells a representation's version from others.
    pub fn validators(&self, coding: Coding) -> Validators<'_> {
        let etag = match &self.origin {
            Origin::Files(_) => self.representation(coding).etag.as_bytes(),
            Origin::Upstream(response) => response.fields.get("ETag").unwrap_or_default(),
        };
        Validators { etag: (!etag.is_empty()).then_some(etag), last_modified: self.last_modified_unix_seconds }
    }

    /// The representation without coding.
    pub fn identity(&self) -> &Representation {
        &self.identity
    }

    /// The other codings; `None` if the type is not worth one, so that it doesn't vary.
    pub fn codings(&self) -> Option<&Codings> {
        self.codings.as_deref()
    }

    /// The representation with this coding, or without if there is none.
    pub fn representation(&self, coding: Coding) -> &Representation {
        let cell = self.codings().and_then(|codings| codings.cell(coding));
        cell.and_then(|cell| cell.get()?.as_ref()).unwrap_or(&self.identity)
    }

    /// Whether it has to be checked before it is used.
    #[inline]
    pub(super) fn is_due(&self, now_ms: u64, revalidate_after_ms: u64) -> bool {
        match &self.origin {
            Origin::Files(files) => {
                now_ms >= self.state.checked_at_ms.load(Ordering::Relaxed).saturating_add(revalidate_after_ms)
                    || files.directory.changes() != self.state.changes_seen.load(Ordering::Relaxed)
            }
            Origin::Upstream(response) => response.is_due(now_ms),
        }
    }

    /// Compares the files with what they were; whether all are the same. If so, the object is good for another while.
    /// Whether a response is still good can only be asked of its upstream. Fails only with [`OpenError::WouldBlock`] or [`OpenError::Exhausted`].
    pub(super) fn check(
        &self,
        root: &Root,
        now_ms: u64,
        revalidate_after_ms: u64,
        access: Access,
    ) -> Result<bool, OpenError> {
        let Origin::Files(files) = &self.origin else { return Ok(false) };
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
            // What wasn't there can't have come without a change of the entries.
            if (source.version.is_some() || entries_changed) && !source.is_same(root, access)? {
                return Ok(false);
            }
        }
        state.changes_seen.store(changes, Ordering::Relaxed);
        state.entry_changes_seen.store(entry_changes, Ordering::Relaxed);
        // What is known of names that weren't there is as old as the look at the directory. Fails if another worker was
        // faster.
        let checked_at_ms = now_ms.min(directory.checked_at_ms());
        let _ = state.checked_at_ms.compare_exchange(earlier_ms, checked_at_ms, Ordering::Relaxed, Ordering::Relaxed);
        Ok(true)
    }

    /// Memory it takes now, and descriptors it holds.
    pub(super) fn measure(&self) -> (u64, usize) {
        let present = self.codings().into_iter().flat_map(Codings::present);
        let representations = || present.clone().chain([&self.identity]);
        let sources = match &self.origin {
            Origin::Files(files) => {
                files.sources.iter().map(|source| source.name.len() + size_of::<Source>()).sum::<usize>()
            }
            Origin::Upstream(response) => response.memory_bytes(),
        };
        let own = size_of::<Self>() + self.codings.as_ref().map_or(0, |_| size_of::<Codings>()) + self.key.path.len();
        let bytes = representations().map(Representation::memory_bytes).sum::<u64>() + (own + sources) as u64;
        let files = representations().filter(|one| matches!(one.content, Content::File(_))).count();
        (bytes, files)
    }
}

/// What an object is made from.
#[derive(Debug)]
pub struct ObjectParts {
    /// The representation without coding.
    pub identity: Representation,
    /// The other codings, if its type is worth one.
    pub codings: Option<Codings>,
    /// When it was last modified, in seconds since 1970, if that is known.
    pub last_modified_unix_seconds: Option<u64>,
    /// What it was made of.
    pub origin: Origin,
}

impl Codings {
    /// Where the representation with this coding is, or will be.
    pub fn cell(&self, coding: Coding) -> Option<&OnceCell<Option<Representation>>> {
        match coding {
            Coding::Identity => None,
            Coding::Gzip => Some(&self.gzip),
            Coding::Brotli => Some(&self.brotli),
            Coding::Zstd => Some(&self.zstd),
        }
    }

    /// Puts a cell in.
    pub fn set(&mut self, coding: Coding, cell: OnceCell<Option<Representation>>) {
        match coding {
            Coding::Identity => {}
            Coding::Gzip => self.gzip = cell,
            Coding::Brotli => self.brotli = cell,
            Coding::Zstd => self.zstd = cell,
        }
    }

    fn present(&self) -> impl Iterator<Item = &Representation> + Clone {
        [&self.gzip, &self.brotli, &self.zstd].into_iter().filter_map(|cell| cell.get()?.as_ref())
    }
}

impl Representation {
    fn memory_bytes(&self) -> u64 {
        let content = match &self.content {
            Content::Memory(bytes) => bytes.len(),
            Content::File(_) => 0,
        };
        let heads = [&self.head, &self.not_modified_head, &self.partial_head];
        (heads.iter().map(|head| head.memory_bytes()).sum::<usize>() + content + self.etag.len()) as u64
    }
}

impl Source {
    fn is_same(&self, root: &Root, access: Access) -> Result<bool, OpenError> {
        match root.status(&self.name, access) {
            Ok(status) => Ok(self.version == Some(status.identity)),
            Err(OpenError::NotFound) => Ok(self.version.is_none()),
            Err(error @ (OpenError::WouldBlock | OpenError::Exhausted)) => Err(error),
            // Making the object anew will tell what is wrong.
            Err(OpenError::Forbidden | OpenError::Directory | OpenError::Failed(_)) => Ok(false),
        }
    }
}
