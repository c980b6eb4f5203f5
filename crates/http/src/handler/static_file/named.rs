//! Files and listings by name, for protocols other than HTTP. They come from the same cache, by the same rules.

use std::rc::Rc;
use std::sync::{Arc, Weak};

use rustix::fs::{Dir, FileType};
use wire::ftp::{Glob, GlobBudget, is_representable};

use super::load::{FileLoadError, FileRejection, FoundFile, is_for_everyone};
use super::roots::OpenedRoot;
use super::{FileTree, StaticFileInner, hidden_part, is_hidden};
use crate::handler::{Now, Segment};
use crate::object_cache::{
    Blocking, CacheLookup, DiskAccess, FileStatus, Object, ObjectContent, OpenError, WorkerCache,
};

/// Steps of matching a pattern that a listing may take. Matching a thousand names with one `*` takes some ten thousand.
const PATTERN_STEPS_MAX: u64 = 1 << 24;

/// Files of a tree by name, on one worker. Paths begin with a slash, and have no dot segments.
#[derive(Clone, Debug)]
pub struct NamedFiles {
    inner: Rc<StaticFileInner>,
}

/// Content of a file, and the object that holds it in memory.
#[derive(Clone, Debug)]
pub struct NamedContent {
    object: Arc<Object>,
}

/// File or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEntry {
    /// Name in its directory.
    pub name: Vec<u8>,
    /// True for a directory.
    pub is_directory: bool,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification, in seconds since 1970.
    pub modified: u64,
    /// Device and inode.
    pub unique: (u64, u64),
}

/// Entries of a listing, sorted by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedListing {
    /// Entries.
    pub entries: Vec<NamedEntry>,
    /// True if they are the content of the directory that was asked for.
    pub is_content: bool,
}

/// Content of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListingScope {
    /// True if hidden files are asked for. They are listed only if the tree shows them at all.
    pub shows_hidden: bool,
    /// True if a directory itself is asked for, not its content.
    pub is_itself: bool,
    /// True if the last segment may be a pattern.
    pub may_match: bool,
    /// True if only a directory can be listed.
    pub needs_directory: bool,
    /// Maximum number of entries; further ones are left out.
    pub entries_max: usize,
}

/// Reason that a name leads to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedRejection {
    /// Something has this name already.
    Exists,
    /// The directory is not empty.
    NotEmpty,
    /// The disk or a quota is full.
    Full,
    /// The upload is longer than allowed.
    TooLarge,
    /// The file is shorter than the position to continue at.
    PastEnd,
    /// No file or directory has this name, or it is hidden.
    NotFound,
    /// Clients must not have it.
    Forbidden,
    /// The name leads to a directory, and a file is needed.
    IsDirectory,
    /// The name leads to a file, and a directory is needed.
    NotDirectory,
    /// A retry may succeed.
    Unavailable,
    /// The disk failed.
    Failed,
}

impl From<OpenError> for NamedRejection {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NotFound => Self::NotFound,
            OpenError::Forbidden => Self::Forbidden,
            OpenError::Directory => Self::IsDirectory,
            OpenError::WouldBlock | OpenError::Exhausted => Self::Unavailable,
            OpenError::Failed(_) => Self::Failed,
        }
    }
}

impl From<FileRejection> for NamedRejection {
    fn from(rejection: FileRejection) -> Self {
        match rejection {
            FileRejection::NotFound | FileRejection::Hidden => Self::NotFound,
            FileRejection::NoSlash => Self::IsDirectory,
            FileRejection::Forbidden | FileRejection::NoIndex | FileRejection::NotPermitted | FileRejection::NotRun => {
                Self::Forbidden
            }
            FileRejection::Unavailable => Self::Unavailable,
            FileRejection::Failed => Self::Failed,
        }
    }
}

impl NamedContent {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.content().length()
    }

    /// Content from this offset on, which must not be past the end.
    pub fn segment(&self, offset: u64) -> Segment {
        match self.content() {
            ObjectContent::Memory(bytes) => Segment::Bytes(bytes.slice(offset as usize..)),
            ObjectContent::File(file) => {
                Segment::File { file: Arc::clone(file), offset, length: file.identity.size - offset }
            }
        }
    }

    fn content(&self) -> &ObjectContent {
        &self.object.identity().content
    }
}

impl NamedFiles {
    /// Creates the view of this tree that uses the worker's cache.
    pub fn new(tree: Arc<FileTree>, cache: Rc<WorkerCache>) -> Self {
        Self { inner: Rc::new(StaticFileInner::new(tree, cache)) }
    }

    /// The tree, and its root for this host.
    pub(super) async fn tree_and_root(
        &self,
        host: &[u8],
        now: Now,
    ) -> Result<(Arc<FileTree>, Arc<OpenedRoot>), NamedRejection> {
        Ok((Arc::clone(&self.inner.tree), self.inner.open_root(host, now).await?))
    }

    /// Opens a file, waiting for disks if necessary.
    pub async fn open(self, host: Box<[u8]>, path: Vec<u8>, now: Now) -> Result<NamedContent, NamedRejection> {
        let inner = &self.inner;
        if path.ends_with(b"/") {
            return Err(NamedRejection::IsDirectory);
        }
        if hidden_part(&path, inner.tree.files.hidden).is_some() {
            return Err(NamedRejection::NotFound);
        }
        let root = inner.open_root(&host, now).await?;
        if let CacheLookup::Fresh(cached) = inner.cache.get(root.id, &path, now.monotonic_ms) {
            inner.cache.count_lookup(true);
            return content_of(Arc::clone(&cached.object));
        }
        inner.cache.count_lookup(false);
        let found = match inner.tree.load_or_check(&root, &path, now, DiskAccess::Cached, None) {
            Ok(found) => found,
            Err(FileLoadError::Directory) => FoundFile::Directory,
            Err(FileLoadError::Rejected(rejection)) if rejection != FileRejection::Unavailable => {
                return Err(rejection.into());
            }
            Err(_) => inner.tree.obtain(&root, &path, now).await?,
        };
        match found {
            FoundFile::Object(object) => {
                inner.cache.adopt(Arc::clone(&object));
                content_of(object)
            }
            FoundFile::Directory | FoundFile::DirectoryWithoutIndex => Err(NamedRejection::IsDirectory),
        }
    }

    /// Returns the file or directory of a path, waiting for disks if necessary. Its name is the path.
    pub async fn entry(self, host: Box<[u8]>, path: Vec<u8>, now: Now) -> Result<NamedEntry, NamedRejection> {
        let root = self.inner.open_root(&host, now).await?;
        match find(&self.inner.tree, &root, &path, DiskAccess::Cached) {
            Err(NamedRejection::Unavailable) => {}
            result => return result,
        }
        let tree = Arc::clone(&self.inner.tree);
        let looking = Blocking::spawn(move || find(&tree, &root, &path, DiskAccess::Blocking));
        looking.await.unwrap_or(Err(NamedRejection::Failed))
    }

    /// Lists a path: the content of a directory, or a file. Entries are sorted by name.
    pub async fn list(
        self,
        host: Box<[u8]>,
        path: Vec<u8>,
        scope: ListingScope,
        now: Now,
    ) -> Result<NamedListing, NamedRejection> {
        let root = self.inner.open_root(&host, now).await?;
        let tree = Arc::clone(&self.inner.tree);
        // A closed semaphore would mean that the server has ended.
        let turn = Arc::clone(&tree.listings).acquire_owned().await.map_err(|_| NamedRejection::Unavailable)?;
        // Dropped with this future if the client leaves.
        let demand = Arc::new(());
        let wanted = Arc::downgrade(&demand);
        let reading = Blocking::spawn(move || {
            let _turn = turn;
            list(&tree, &root, &path, scope, &wanted)
        });
        let entries = reading.await.unwrap_or(Err(NamedRejection::Failed));
        drop(demand);
        entries
    }
}

/// Content of an object, unless that is a program, whose source HTTP does not send either.
fn content_of(object: Arc<Object>) -> Result<NamedContent, NamedRejection> {
    if object.is_excluded() { Err(NamedRejection::Forbidden) } else { Ok(NamedContent { object }) }
}

fn find(tree: &FileTree, root: &OpenedRoot, path: &[u8], access: DiskAccess) -> Result<NamedEntry, NamedRejection> {
    if hidden_part(path, tree.files.hidden).is_some() {
        return Err(NamedRejection::NotFound);
    }
    let (_, status) = root.root.find(path.strip_prefix(b"/").unwrap_or(path), access)?;
    entry_of(tree, path, path, &status).ok_or(NamedRejection::Forbidden)
}

/// Entry for a file with this status; `None` if clients must not have it.
fn entry_of(tree: &FileTree, path: &[u8], name: &[u8], status: &FileStatus) -> Option<NamedEntry> {
    let is_directory = status.kind == FileType::Directory;
    let is_served = status.kind == FileType::RegularFile
        && (!tree.files.permission_rule || is_for_everyone(status.permissions))
        && !tree.is_program(path.strip_prefix(b"/").unwrap_or(path));
    (is_directory || is_served).then(|| NamedEntry {
        name: name.to_vec(),
        is_directory,
        size: status.identity.size,
        modified: u64::try_from(status.identity.modified_ns / 1_000_000_000).unwrap_or(0),
        unique: (status.identity.device, status.identity.inode),
    })
}

fn list(
    tree: &FileTree,
    root: &OpenedRoot,
    path: &[u8],
    scope: ListingScope,
    wanted: &Weak<()>,
) -> Result<NamedListing, NamedRejection> {
    let some = |entries| NamedListing { entries, is_content: false };
    let (parent, last) = path.split_at(path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1));
    let mut budget = GlobBudget::new(PATTERN_STEPS_MAX);
    match find(tree, root, path, DiskAccess::Blocking) {
        Ok(entry) if entry.is_directory && !scope.is_itself => {
            let directory = if path == b"/" { path.to_vec() } else { [path, b"/"].concat() };
            let entries =
                read(tree, root, &directory, scope, wanted, |name| scope.shows_hidden || !name.starts_with(b"."))?;
            Ok(NamedListing { entries, is_content: true })
        }
        Ok(_) if scope.needs_directory => Err(NamedRejection::NotDirectory),
        Ok(entry) => {
            let name = if last.is_empty() { b"." } else { last };
            Ok(some(vec![NamedEntry { name: name.to_vec(), ..entry }]))
        }
        Err(NamedRejection::NotFound) if scope.may_match => {
            let glob = Glob::parse(last).ok_or(NamedRejection::NotFound)?;
            if hidden_part(parent, tree.files.hidden).is_some() {
                return Err(NamedRejection::NotFound);
            }
            let entries = read(tree, root, parent, scope, wanted, |name| glob.matches(name, &mut budget))?;
            if budget.is_left() { Ok(some(entries)) } else { Err(NamedRejection::Unavailable) }
        }
        Err(error) => Err(error),
    }
}

/// Reads the entries of a directory, whose path ends with a slash.
fn read(
    tree: &FileTree,
    root: &OpenedRoot,
    directory: &[u8],
    scope: ListingScope,
    wanted: &Weak<()>,
    mut fits: impl FnMut(&[u8]) -> bool,
) -> Result<Vec<NamedEntry>, NamedRejection> {
    let relative = directory.strip_prefix(b"/").unwrap_or(directory);
    let mut entries = Vec::new();
    for entry in Dir::new(root.root.open_directory(relative)?).map_err(OpenError::from)? {
        if wanted.strong_count() == 0 || entries.len() == scope.entries_max {
            break;
        }
        let entry = entry.map_err(OpenError::from)?;
        let name = entry.file_name().to_bytes();
        let is_hidden = is_hidden(name, tree.files.hidden);
        if matches!(name, b"." | b"..") || is_hidden || !is_representable(name) || !fits(name) {
            continue;
        }
        // Resolved as RETR would, so that links out of the root are not listed.
        let path = [relative, name].concat();
        let Ok((_, status)) = root.root.find(&path, DiskAccess::Blocking) else { continue };
        entries.extend(entry_of(tree, &path, name, &status));
    }
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::config::{CacheConfig, FilesConfig, Precedence, Runners};
    use crate::object_cache::ObjectStore;

    const ALL: ListingScope =
        ListingScope { shows_hidden: true, is_itself: false, may_match: true, needs_directory: false, entries_max: 10 };

    fn files(directory: &std::path::Path) -> NamedFiles {
        let store = ObjectStore::new(CacheConfig::default()).unwrap();
        let config = FilesConfig { permission_rule: true, ..FilesConfig::below(directory.to_str().unwrap()) };
        let tree = FileTree::new(config, Runners::default(), Precedence::default(), true, 1, Arc::clone(&store));
        NamedFiles::new(tree, Rc::new(WorkerCache::new(store)))
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, mode: u32| {
            let path = directory.path().join(name);
            std::fs::write(&path, name).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        std::fs::create_dir(directory.path().join(".git")).unwrap();
        for (name, mode) in
            [("b.txt", 0o644), ("a.txt", 0o644), ("secret.txt", 0o600), (".env", 0o644), ("sub/c.txt", 0o644)]
        {
            write(name, mode);
        }
        write(".git/config", 0o644);
        write("line\nend.txt", 0o644);
        symlink("/etc/passwd", directory.path().join("outside.txt")).unwrap();
        symlink("a.txt", directory.path().join("link.txt")).unwrap();
        directory
    }

    #[test]
    fn listings() {
        let directory = tree();
        let files = files(directory.path());
        let check = |path: &str, scope: ListingScope, expect: Result<&[&str], NamedRejection>| {
            let listed = run(files.clone().list(Box::default(), path.as_bytes().to_vec(), scope, Now::read()));
            let names = listed.map(|listing| {
                listing.entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect::<Vec<_>>()
            });
            assert_eq!(names, expect.map(|names| names.iter().map(|name| (*name).to_owned()).collect()), "{path}");
        };
        check("/", ALL, Ok(&["a.txt", "b.txt", "link.txt", "sub"]));
        check("/", ListingScope { entries_max: 1, ..ALL }.is_itself(true), Ok(&["."]));
        check("/sub", ALL, Ok(&["c.txt"]));
        check("/sub", ALL.is_itself(true), Ok(&["sub"]));
        check("/a.txt", ALL, Ok(&["a.txt"]));
        check("/a.txt", ListingScope { needs_directory: true, ..ALL }, Err(NamedRejection::NotDirectory));
        check("/[ab].txt", ALL, Ok(&["a.txt", "b.txt"]));
        check("/sub/*", ALL, Ok(&["c.txt"]));
        check("/*.gz", ALL, Ok(&[]));
        check("/*/c.txt", ALL, Err(NamedRejection::NotFound));
        check("/[ab].txt", ListingScope { may_match: false, ..ALL }, Err(NamedRejection::NotFound));
        check("/.git", ALL, Err(NamedRejection::NotFound));
        check("/.git/*", ALL, Err(NamedRejection::NotFound));
        check("/secret.txt", ALL, Err(NamedRejection::Forbidden));
        check("/outside.txt", ALL, Err(NamedRejection::Forbidden));
    }

    #[test]
    fn contents() {
        let directory = tree();
        let files = files(directory.path());
        let check = |path: &str, expect: Result<u64, NamedRejection>| {
            let content = run(files.clone().open(Box::default(), path.as_bytes().to_vec(), Now::read()));
            assert_eq!(content.map(|content| content.length()), expect, "{path}");
            let entry = run(files.clone().entry(Box::default(), path.as_bytes().to_vec(), Now::read()));
            match expect {
                Ok(size) => assert_eq!(entry.map(|entry| entry.size), Ok(size), "{path}"),
                Err(NamedRejection::IsDirectory) => assert!(entry.unwrap().is_directory, "{path}"),
                Err(error) => assert_eq!(entry, Err(error), "{path}"),
            }
        };
        check("/a.txt", Ok(5));
        check("/link.txt", Ok(5));
        check("/", Err(NamedRejection::IsDirectory));
        check("/sub", Err(NamedRejection::IsDirectory));
        check("/missing", Err(NamedRejection::NotFound));
        check("/.env", Err(NamedRejection::NotFound));
        check("/secret.txt", Err(NamedRejection::Forbidden));
        check("/outside.txt", Err(NamedRejection::Forbidden));
        let content = run(files.clone().open(Box::default(), b"/a.txt".to_vec(), Now::read())).unwrap();
        match content.segment(2) {
            Segment::Bytes(bytes) => assert_eq!(bytes, "txt"),
            segment @ Segment::File { .. } => panic!("{segment:?}"),
        }
    }

    impl ListingScope {
        fn is_itself(self, is_itself: bool) -> Self {
            Self { is_itself, ..self }
        }
    }
}
