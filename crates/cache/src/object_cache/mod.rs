//! Cache of encoded responses, and access to files below a root.
//!
//! A worker first looks in its own [`WorkerCache`], then in the [`ObjectStore`] that all workers share. If both miss, a
//! handler makes the object from files below a [`Root`] and inserts it. A worker also remembers which paths have no file.

mod absent;
mod blocking;
mod content_memory;
mod directory;
mod encoded_head;
mod links;
mod object;
mod open_file;
mod read;
mod root;
mod sieve;
mod store;
mod stored_response;
mod watcher;
mod worker_cache;

pub use blocking::Blocking;
pub use content_memory::{ContentMemory, FileMemory, ReservedMemory};
pub use directory::{PRECOMPRESSED_EXTENSIONS, WatchedDirectory};
pub use encoded_head::EncodedHead;
pub use object::{
    CachedObject, CodingCell, Codings, ContentCoding, FilesOrigin, Object, ObjectOrigin, ObjectParts, ObjectSource,
    Representation,
};
pub use open_file::{FileIdentity, FileStatus, OpenFile, file_time_now_ns};
pub use read::{ObjectContent, RETRY_AFTER_MS, ReadError, ReadFile, Snapshot, read_file};
pub use root::{DiskAccess, OpenError, Root, check_kernel};
pub use store::{ObjectStore, RootId, StoreUsage};
pub use stored_response::{LateHeads, StoredResponse, Variant};
pub use worker_cache::{CacheLookup, WorkerCache};
