//! Loading: from a path to an object, with its file and its representations.

use std::sync::Arc;

use tokio::sync::OnceCell;
use wire::http::ContentCoding;

use super::FileTree;
use super::content_type::{content_type, is_compressible};
use super::heads::{Description, etag};
use super::roots::OpenedRoot;
use crate::handler::Now;
use crate::object_cache::{
    Codings, DiskAccess, FilesOrigin, Object, ObjectOrigin, ObjectParts, ObjectSource, OpenError,
    PRECOMPRESSED_EXTENSIONS, ReadError, ReadFile, Representation, Snapshot, read_file,
};

/// Result of looking up a path.
#[derive(Clone, Debug)]
pub(super) enum FoundFile {
    /// A file.
    Object(Arc<Object>),
    /// A directory, but the path does not end with a slash.
    Directory,
    /// A directory without an index file.
    DirectoryWithoutIndex,
}

/// Reason that no file is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRejection {
    /// There is no such file.
    NotFound,
    /// The file is not readable, or a link leads out of the root.
    Forbidden,
    /// The directory has no index, and `browse` is off.
    NoIndex,
    /// TUX's rule: the file is not readable for all users, or is executable.
    NotPermitted,
    /// The path names a directory, but lacks the slash. The response is a redirect to it.
    NoSlash,
    /// The file is a script that must not be run. The log has the reason.
    NotRun,
    /// The file exists, but a name in its path begins with a dot.
    Hidden,
    /// No file descriptor is free, or the file keeps changing. A retry may succeed.
    Unavailable,
    /// A failure of the disk or of Tailcoat itself.
    Failed,
}

impl FileRejection {
    /// Explanation for an operator; empty if the status explains itself.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound | Self::NoSlash | Self::NotRun => "",
            Self::Forbidden => {
                "the server is not allowed to read the file, a link leads out of the root, or it is not a regular file"
            }
            Self::NoIndex => "the directory has none of the files in `index`, and `browse` is off",
            Self::NotPermitted => "`permission-rule`: the file is not world-readable, or it is executable",
            Self::Hidden => "a name in the path begins with a dot, and `hidden` is off",
            Self::Unavailable => "no free file descriptor or memory, or the file keeps changing",
            Self::Failed => "the file could not be read",
        }
    }
}

impl From<OpenError> for FileRejection {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NotFound => Self::NotFound,
            OpenError::Forbidden | OpenError::Directory => Self::Forbidden,
            OpenError::WouldBlock | OpenError::Exhausted => Self::Unavailable,
            OpenError::Failed(_) => Self::Failed,
        }
    }
}

/// Reason that a load did not complete.
#[derive(Debug)]
pub(super) enum FileLoadError {
    /// The load needs [`DiskAccess::Blocking`].
    WouldBlock,
    /// The file is being written: retry later with this snapshot.
    Unsettled(Snapshot),
    /// The path is a directory.
    Directory,
    /// The request is rejected.
    Rejected(FileRejection),
}

impl From<OpenError> for FileLoadError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::WouldBlock => Self::WouldBlock,
            OpenError::Directory => Self::Directory,
            error => Self::Rejected(error.into()),
        }
    }
}

impl From<ReadError> for FileLoadError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Open(error) => error.into(),
            ReadError::Unsettled(snapshot) => Self::Unsettled(snapshot),
        }
    }
}

/// Codings in order of preference, with the extensions of precompressed siblings. Brotli makes texts smallest; zstd
/// comes next, and decompresses fastest.
pub(super) const CODINGS: [(ContentCoding, &str); 3] = [
    (ContentCoding::Brotli, PRECOMPRESSED_EXTENSIONS[0]),
    (ContentCoding::Zstd, PRECOMPRESSED_EXTENSIONS[1]),
    (ContentCoding::Gzip, PRECOMPRESSED_EXTENSIONS[2]),
];

impl FileTree {
    /// Request path of the file of this name.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [self.files.strip_prefix.as_bytes(), b"/", name].concat()
    }

    /// True if a file belongs to a script handler: by its name, or because requests for its path go to such a
    /// handler.
    pub(super) fn is_program(&self, name: &[u8]) -> bool {
        !self.runners.is_empty() && (self.files.is_program(name) || self.runners.take_before(&self.path_of(name)))
    }

    /// Looks up a path: returns the cached object if it is still valid, or loads a new one.
    pub(super) fn load_or_check(
        &self,
        root: &OpenedRoot,
        path: &[u8],
        now: Now,
        access: DiskAccess,
        earlier: Option<&Snapshot>,
    ) -> Result<FoundFile, FileLoadError> {
        if let Some(object) = self.store.peek(root.id, path) {
            if self.store.check(&object, &root.root, now.monotonic_ms, access)? {
                return Ok(FoundFile::Object(object));
            }
            self.store.remove(&object);
        }
        let result = self.load(root, path, now, access, earlier);
        if let Err(FileLoadError::Rejected(FileRejection::Unavailable)) = result {
            // Our own open files are expendable: the workers close them at their next tick.
            self.store.release_files();
        }
        result
    }

    fn load(
        &self,
        root: &OpenedRoot,
        path: &[u8],
        now: Now,
        access: DiskAccess,
        earlier: Option<&Snapshot>,
    ) -> Result<FoundFile, FileLoadError> {
        let name = path.strip_prefix(b"/").unwrap_or(path);
        let parent_end = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (parent, file_name) = name.split_at(parent_end);
        let directory = self.store.directory(root.id, &root.root, parent, now.monotonic_ms, access)?;
        // Taken before any file is read, so that a change in between is noticed at the next request.
        let origin = FilesOrigin {
            sources: Vec::new(),
            is_excluded: false,
            changes_seen: directory.changes(),
            entry_changes_seen: directory.entry_changes(),
            checked_at_ms: directory.checked_at_ms().min(now.monotonic_ms),
            directory,
            unsettled: false,
        };
        let mut loading = Loading { tree: self, root, path, now, access, origin };
        if !file_name.is_empty() {
            return match loading.read(name, earlier) {
                Err(FileLoadError::Directory) => Ok(FoundFile::Directory),
                result => loading.finish(name, result?),
            };
        }
        for index in &self.files.index {
            let index = [name, index.as_bytes()].concat();
            match loading.read(&index, earlier) {
                Err(FileLoadError::Rejected(FileRejection::NotFound) | FileLoadError::Directory) => {
                    loading.origin.sources.push(ObjectSource { name: index.into(), version: None });
                }
                result => return loading.finish(&index, result?),
            }
        }
        Ok(FoundFile::DirectoryWithoutIndex)
    }
}

/// State of one load.
struct Loading<'a> {
    tree: &'a FileTree,
    root: &'a OpenedRoot,
    path: &'a [u8],
    now: Now,
    access: DiskAccess,
    /// Files and directories that the object depends on, as far as they are known.
    origin: FilesOrigin,
}

impl Loading<'_> {
    fn read(&self, name: &[u8], earlier: Option<&Snapshot>) -> Result<ReadFile, FileLoadError> {
        let bytes_max = self.tree.store.limits().object_bytes_max;
        let memory = self.tree.store.file_memory();
        let file = read_file(&self.root.root, name, bytes_max, memory, self.access, earlier)?;
        if self.tree.files.permission_rule && !is_for_everyone(file.status.permissions) {
            return Err(FileLoadError::Rejected(FileRejection::NotPermitted));
        }
        Ok(file)
    }

    /// Builds the object of a file that was found.
    fn finish(mut self, name: &[u8], file: ReadFile) -> Result<FoundFile, FileLoadError> {
        let files = &self.tree.files;
        let content_type = content_type(files, name);
        let url_path = [files.strip_prefix.as_bytes(), self.path].concat();
        let varies = is_compressible(&content_type) && (files.precompressed || files.compress);
        let description = Description {
            tree: self.tree,
            path: &url_path,
            content_type: &content_type,
            varies,
            last_modified_unix_seconds: Some(last_modified_unix_seconds(&file, self.now)),
        };
        self.origin.sources.insert(0, ObjectSource { name: name.into(), version: Some(file.status.identity) });
        self.origin.unsettled = file.unsettled;
        // An index may have its own path's access rules or handler.
        let tells_apart = || self.tree.precedence.tells_apart(&url_path, &self.tree.path_of(name));
        self.origin.is_excluded = self.tree.is_program(name) || (self.path.ends_with(b"/") && tells_apart());
        let codings = if varies { Some(self.codings(&description, name, &file)?) } else { None };
        let unsettled_content = file.unsettled.then_some(&file.content);
        let etag = etag(&file.status.identity, unsettled_content, ContentCoding::Identity);
        let parts = ObjectParts {
            identity: description.represent(ContentCoding::Identity, &etag, file.content.clone()),
            codings,
            last_modified_unix_seconds: description.last_modified_unix_seconds,
            origin: ObjectOrigin::Files(self.origin),
        };
        Ok(FoundFile::Object(self.tree.store.insert(self.root.id, self.path, parts)))
    }

    /// Codings of a file: precompressed siblings, and empty cells for those that can be made.
    fn codings(
        &mut self,
        description: &Description<'_>,
        name: &[u8],
        file: &ReadFile,
    ) -> Result<Codings, FileLoadError> {
        let mut codings = Codings::default();
        let files = &self.tree.files;
        let size = file.status.identity.size;
        let can_compress = files.compress
            && (files.compress_bytes_min..=files.compress_bytes_max).contains(&size)
            // An unsettled file is only compressed if its content is in memory: on disk it may change first.
            && (!file.unsettled || size <= self.tree.store.limits().object_bytes_max);
        for (coding, extension) in CODINGS {
            let sibling = match files.precompressed {
                true => self.sibling(description, coding, [name, extension.as_bytes()].concat(), file)?,
                false => None,
            };
            let cell = match sibling {
                Some(sibling) => OnceCell::new_with(Some(Some(sibling))),
                None if can_compress => OnceCell::new(),
                None => OnceCell::new_with(Some(None)),
            };
            codings.set(coding, cell);
        }
        Ok(codings)
    }

    /// Loads the precompressed sibling of this name, unless it is older than its original.
    fn sibling(
        &mut self,
        description: &Description<'_>,
        coding: ContentCoding,
        name: Vec<u8>,
        file: &ReadFile,
    ) -> Result<Option<Box<Representation>>, FileLoadError> {
        let file_name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if !self.origin.directory.may_have_precompressed(&self.root.root, file_name, self.access)? {
            self.origin.sources.push(ObjectSource { name: name.into(), version: None });
            return Ok(None);
        }
        let sibling = match self.read(&name, None) {
            Ok(sibling) => Some(sibling),
            Err(FileLoadError::WouldBlock) => return Err(FileLoadError::WouldBlock),
            // The sibling is being written: it is left out now, and the object is checked again soon.
            Err(FileLoadError::Unsettled(_)) => {
                self.origin.unsettled = true;
                None
            }
            // The file itself can be sent whatever is wrong with the sibling.
            Err(FileLoadError::Rejected(_) | FileLoadError::Directory) => None,
        };
        let version = sibling.as_ref().map(|sibling| sibling.status.identity);
        self.origin.sources.push(ObjectSource { name: name.into(), version });
        Ok(sibling.filter(|sibling| sibling.status.identity.modified_ns >= file.status.identity.modified_ns).map(
            |sibling| {
                self.origin.unsettled |= sibling.unsettled;
                let unsettled_content = sibling.unsettled.then_some(&sibling.content);
                let etag = etag(&sibling.status.identity, unsettled_content, coding);
                Box::new(description.represent(coding, &etag, sibling.content.clone()))
            },
        ))
    }
}

/// TUX's rule: readable by all, and neither executable nor sticky.
pub(super) fn is_for_everyone(permissions: u32) -> bool {
    permissions & 0o004 != 0 && permissions & 0o1111 == 0
}

/// Modification time for Last-Modified; never in the future (RFC 9110, section 8.8.2.1) and never before 1970.
fn last_modified_unix_seconds(file: &ReadFile, now: Now) -> u64 {
    let seconds = file.status.identity.modified_ns.div_euclid(1_000_000_000);
    u64::try_from(seconds).unwrap_or(0).min(now.unix_seconds)
}
