//! Static files below a root.
//!
//! [`StaticFile::handle`] responds at once if the file is cached or can be read without waiting for a disk. The rest
//! takes the same steps on the blocking pool.

pub mod listing;

mod browse;
mod changes;
mod compress;
mod content_type;
mod heads;
mod in_progress;
mod load;
mod named;
mod respond;
pub(in crate::handler) mod roots;
#[cfg(test)]
mod tests;
mod tree;
mod upload;

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::FileType;
use wire::http::{ContentCoding, Method, Status};

pub use self::changes::NamedChange;
pub use self::load::FileRejection;
use self::load::{FileLoadError, FoundFile};
pub use self::named::{ListingScope, NamedContent, NamedEntry, NamedFiles, NamedListing, NamedRejection};
use self::respond::{choose_coding, is_made};
use self::roots::{OpenedRoot, WorkerRoot, WorkerRoots};
use self::tree::FileLoadResult;
pub use self::tree::FileTree;
pub use self::upload::{NamedUpload, UploadRequest, UploadStart};
use super::{
    BuiltResponse, HandlerOutcome, LateOutcome, Now, OwnedRequest, Response, Routed, redirect_to_directory,
    without_prefix,
};
use crate::object_cache::{CacheLookup, CachedObject, DiskAccess, Object, OpenError, WorkerCache};

/// Methods that files support (RFC 9110, section 10.2.1).
const ALLOW: &str = "GET, HEAD, OPTIONS";

/// Beginning of the names of incomplete uploads, which are always hidden.
const RESERVED: &str = ".tailcoat-";
const RESERVED_IN_PATH: &[u8] = b"/.tailcoat-";

/// Handler of a [`FileTree`] on one worker.
#[derive(Clone, Debug)]
pub struct StaticFile {
    inner: Rc<StaticFileInner>,
}

#[derive(Debug)]
struct StaticFileInner {
    tree: Arc<FileTree>,
    cache: Rc<WorkerCache>,
    roots: WorkerRoots,
    /// Scratch space for paths with extensions.
    extended: RefCell<Vec<u8>>,
}

/// Paths that are looked up for a request, one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileTurn {
    /// Path of the request.
    Own,
    /// Path of the request with the extension of a file, or without any if there is no such file.
    Extended,
    /// Path of the fallback.
    Fallback,
}

/// Next step for a request.
enum FileStep {
    /// Respond with this.
    Done(LateOutcome),
    /// Look up the path with an extension.
    Extend,
    /// Look up the fallback's path.
    Fallback,
    /// List the directory.
    List,
    /// Look up the index: it decides whether this handler has the directory.
    LookInside,
    /// Make the representation with this coding first.
    Make(Rc<CachedObject>, ContentCoding),
}

impl StaticFile {
    /// Creates a handler of this tree that uses the worker's cache.
    pub fn new(tree: Arc<FileTree>, cache: Rc<WorkerCache>) -> Self {
        Self { inner: Rc::new(StaticFileInner::new(tree, cache)) }
    }

    /// Directory of the files for a host; `None` if the host names none.
    pub fn root_of(&self, host: &[u8]) -> Option<PathBuf> {
        self.inner.roots.get(host).ok().map(|root| root.path().to_owned())
    }

    /// Handles a request.
    #[inline]
    pub fn handle(&self, routed: &Routed<'_>) -> HandlerOutcome {
        let inner = &self.inner;
        if inner.tree.files.forbidden {
            return inner.forbid(routed);
        }
        let is_other = !matches!(routed.request.method(), Method::Get | Method::Head)
            || (routed.query.is_some() && routed.has_next && !inner.tree.files.ignore_query);
        if is_other {
            return inner.pass_on(routed);
        }
        if inner.is_of_prefix(routed.path) {
            return HandlerOutcome::Ready(redirect_to_directory(routed));
        }
        match inner.answer_now(routed) {
            Some(outcome) => outcome,
            None => HandlerOutcome::Wait(Box::pin(Rc::clone(inner).answer(OwnedRequest::new(routed), routed.has_next))),
        }
    }
}

impl StaticFileInner {
    fn new(tree: Arc<FileTree>, cache: Rc<WorkerCache>) -> Self {
        let roots = WorkerRoots::new(&tree.files.root, &tree.store.limits());
        Self { tree, cache, roots, extended: RefCell::default() }
    }

    /// Responds if that is possible without waiting.
    #[inline]
    fn answer_now(&self, routed: &Routed<'_>) -> Option<HandlerOutcome> {
        let Some(path) = self.path_in_tree(routed.path) else { return Some(reject(routed, FileRejection::NotFound)) };
        let root = match self.roots.get(routed.host) {
            Ok(root) => root,
            Err(error) => return Some(reject(routed, error.into())),
        };
        let now_ms = routed.now.monotonic_ms;
        let id = match root.current(now_ms) {
            Some(id) => id,
            None => root.check_now(&self.tree.roots, &self.tree.store, now_ms, self.roots.recheck_after_ms()),
        };
        match id {
            Ok(id) => {
                if let CacheLookup::Fresh(cached) = self.cache.get(id, path, now_ms) {
                    self.cache.count_lookup(true);
                    return self.respond_from_cache(routed, cached);
                }
                self.cache.count_lookup(false);
                if self.cache.is_absent(id, path, now_ms) {
                    let step = self.take_step(routed, Err(FileRejection::NotFound), FileTurn::Own);
                    return self.continue_now(routed, &root, path, step);
                }
                self.find_now(routed, &root, path)
            }
            Err(OpenError::WouldBlock) => None,
            Err(error) => Some(reject(routed, error.into())),
        }
    }

    #[cold]
    fn find_now(&self, routed: &Routed<'_>, root: &WorkerRoot, path: &[u8]) -> Option<HandlerOutcome> {
        let opened = root.opened().ok()?;
        let result = self.load_now(&opened, path, routed)?;
        if matches!(result, Err(FileRejection::NotFound)) {
            self.cache.note_absent(opened.id, &opened.root, path, routed.now.monotonic_ms);
        }
        let step = self.take_step(routed, result, FileTurn::Own);
        self.continue_now(routed, root, path, step)
    }

    /// Responds with a cached object, unless a representation of it must be made first.
    #[inline]
    fn respond_from_cache(&self, routed: &Routed<'_>, cached: Rc<CachedObject>) -> Option<HandlerOutcome> {
        if cached.object.is_excluded() {
            return Some(self.on_program(routed, &cached.object));
        }
        let coding = choose_coding(&routed.request, &cached.object);
        is_made(&cached.object, coding).then(|| HandlerOutcome::Ready(self.tree.respond(routed, cached, coding)))
    }

    /// Takes the step that follows the lookup of a path, if that is possible without waiting.
    fn continue_now(
        &self,
        routed: &Routed<'_>,
        root: &WorkerRoot,
        path: &[u8],
        step: FileStep,
    ) -> Option<HandlerOutcome> {
        match step {
            FileStep::Done(outcome) => Some(outcome.at_once()),
            FileStep::Make(..) | FileStep::List => None,
            FileStep::LookInside => {
                let opened = root.opened().ok()?;
                let inside = self.load_now(&opened, &[path, b"/"].concat(), routed)?;
                Some(self.on_directory(routed, inside))
            }
            FileStep::Extend => self.respond_with_extension_now(routed, root, path),
            FileStep::Fallback => self.respond_with_fallback_now(routed, root),
        }
    }

    /// Responds with the first file whose path is this one with an extension, or as without such a file.
    fn respond_with_extension_now(
        &self,
        routed: &Routed<'_>,
        root: &WorkerRoot,
        path: &[u8],
    ) -> Option<HandlerOutcome> {
        let (id, now_ms) = (root.id()?, routed.now.monotonic_ms);
        let mut extended = self.extended.borrow_mut();
        for extension in self.tree.files.extensions.iter() {
            extended.clear();
            extended.extend_from_slice(routed.path);
            extended.push(b'.');
            extended.extend_from_slice(extension.as_bytes());
            // Without the prefix of the tree, which the path of the request has.
            let in_tree = &extended[routed.path.len() - path.len()..];
            let found = match self.cache.get(id, in_tree, now_ms) {
                CacheLookup::Fresh(cached) => Some(cached),
                _ if self.cache.is_absent(id, in_tree, now_ms) => None,
                CacheLookup::Due(_) | CacheLookup::Miss => {
                    let opened = root.opened().ok()?;
                    match self.load_now(&opened, in_tree, routed)? {
                        Ok(FoundFile::Object(object)) => Some(self.cache.adopt(object)),
                        Err(FileRejection::NotFound) => {
                            self.cache.note_absent(id, &opened.root, in_tree, now_ms);
                            None
                        }
                        Ok(_) | Err(_) => None,
                    }
                }
            };
            if let Some(cached) = found {
                return match self.tree.precedence.tells_apart(routed.path, &extended) {
                    true => Some(HandlerOutcome::Elsewhere(extended.clone())),
                    false => self.respond_from_cache(routed, cached),
                };
            }
        }
        drop(extended);
        let step = self.take_step(routed, Err(FileRejection::NotFound), FileTurn::Extended);
        self.continue_now(routed, root, path, step)
    }

    fn respond_with_fallback_now(&self, routed: &Routed<'_>, root: &WorkerRoot) -> Option<HandlerOutcome> {
        let (path, now_ms) = (self.fallback_path(), routed.now.monotonic_ms);
        if let CacheLookup::Fresh(cached) = self.cache.get(root.id()?, path, now_ms) {
            return self.respond_from_cache(routed, cached);
        }
        let opened = root.opened().ok()?;
        let result = self.load_now(&opened, path, routed)?;
        let step = self.take_step(routed, result, FileTurn::Fallback);
        self.continue_now(routed, root, path, step)
    }

    /// Responds, waiting for disks and other work where needed.
    async fn answer(self: Rc<Self>, request: OwnedRequest, has_next: bool) -> LateOutcome {
        let routed = Routed { now: Now::read_after(request.received()), ..request.routed(has_next) };
        let Some(path) = self.path_in_tree(routed.path) else { return reject(&routed, FileRejection::NotFound) };
        let mut path = Cow::Borrowed(path);
        let root = match self.open_root(routed.host, routed.now).await {
            Ok(root) => root,
            Err(error) => return reject(&routed, error.into()),
        };
        let (mut turn, mut may_retry) = (FileTurn::Own, true);
        loop {
            let result = self.look_up(&root, &path, &routed).await;
            if may_retry && matches!(result, Err(FileRejection::Unavailable)) {
                // The store has dropped its open files; this worker does the same, and that may free enough of them.
                self.cache.tick();
                may_retry = false;
                continue;
            }
            match self.take_step(&routed, result, turn) {
                FileStep::Done(outcome) => return outcome,
                FileStep::Extend => {
                    turn = FileTurn::Extended;
                    if let Some(extension) = self.find_extension(&root, &path, &routed).await {
                        let own = [routed.path, &extension].concat();
                        if self.tree.precedence.tells_apart(routed.path, &own) {
                            return HandlerOutcome::Elsewhere(own);
                        }
                        path.to_mut().extend_from_slice(&extension);
                    }
                }
                FileStep::Make(cached, coding) => {
                    self.tree.make_coding(&cached.object, coding).await;
                    return HandlerOutcome::Ready(self.tree.respond(&routed, cached, coding));
                }
                FileStep::LookInside => {
                    let inside = self.tree.obtain(&root, &[&path, &b"/"[..]].concat(), routed.now).await;
                    return self.on_directory(&routed, inside);
                }
                FileStep::List => {
                    return match self.tree.list(&root, &path, &routed).await {
                        Ok(response) => HandlerOutcome::Ready(response),
                        Err(rejection) => reject(&routed, rejection),
                    };
                }
                FileStep::Fallback => {
                    turn = FileTurn::Fallback;
                    path = self.fallback_path().into();
                }
            }
        }
    }

    /// Extension, with its dot, by which a path is that of a file.
    async fn find_extension(&self, root: &Arc<OpenedRoot>, path: &[u8], routed: &Routed<'_>) -> Option<Vec<u8>> {
        for extension in self.tree.files.extensions.iter() {
            let end = [b".", extension.as_bytes()].concat();
            if matches!(self.look_up(root, &[path, &end].concat(), routed).await, Ok(FoundFile::Object(_))) {
                return Some(end);
            }
        }
        None
    }

    /// Looks up a path, waiting for disks.
    async fn look_up(&self, root: &Arc<OpenedRoot>, path: &[u8], routed: &Routed<'_>) -> FileLoadResult {
        if let CacheLookup::Fresh(cached) = self.cache.get(root.id, path, routed.now.monotonic_ms) {
            return Ok(FoundFile::Object(Arc::clone(&cached.object)));
        }
        if self.cache.is_absent(root.id, path, routed.now.monotonic_ms) {
            return Err(FileRejection::NotFound);
        }
        match hidden_part(path, self.tree.files.hidden) {
            Some(part) if routed.has_next => Err(self.tree.reject_hidden(root, part).await),
            Some(_) => Err(FileRejection::NotFound),
            None => {
                let result = self.tree.obtain(root, path, routed.now).await;
                if matches!(result, Err(FileRejection::NotFound)) {
                    self.cache.note_absent(root.id, &root.root, path, routed.now.monotonic_ms);
                }
                result
            }
        }
    }

    /// Declines a request that files can't serve. The next handler gets it, except for hidden files and for paths of
    /// scripts.
    #[cold]
    fn pass_on(self: &Rc<Self>, routed: &Routed<'_>) -> HandlerOutcome {
        let files = &self.tree.files;
        let path = self.path_in_tree(routed.path).unwrap_or_default();
        let is_hidden = routed.has_next && hidden_part(path, files.hidden).is_some();
        let may_be_program = path.ends_with(b"/") && files.may_have_program(&self.tree.runners);
        if is_hidden || may_be_program {
            return HandlerOutcome::Wait(Box::pin(
                Rc::clone(self).look_before_passing_on(OwnedRequest::new(routed), routed.has_next),
            ));
        }
        other_method(routed)
    }

    /// Rejects what exists; the next handler gets the rest.
    #[cold]
    fn forbid(self: &Rc<Self>, routed: &Routed<'_>) -> HandlerOutcome {
        let (inner, request, has_next) = (Rc::clone(self), OwnedRequest::new(routed), routed.has_next);
        HandlerOutcome::Wait(Box::pin(async move {
            let routed = Routed { now: Now::read_after(request.received()), ..request.routed(has_next) };
            let path = inner.path_in_tree(routed.path).unwrap_or_default();
            let root = match inner.open_root(routed.host, routed.now).await {
                Ok(root) => root,
                Err(error) => return reject(&routed, error.into()),
            };
            match inner.tree.reject_existing(&root, path).await {
                FileRejection::NotFound => reject(&routed, FileRejection::NotFound),
                rejection => HandlerOutcome::Ready(rejected(&routed, rejection)),
            }
        }))
    }

    async fn look_before_passing_on(self: Rc<Self>, request: OwnedRequest, has_next: bool) -> LateOutcome {
        let routed = Routed { now: Now::read_after(request.received()), ..request.routed(has_next) };
        let path = self.path_in_tree(routed.path).unwrap_or_default();
        let result = match self.open_root(routed.host, routed.now).await {
            Ok(root) => self.look_up(&root, path, &routed).await,
            Err(error) => Err(error.into()),
        };
        match result {
            Ok(FoundFile::Object(object)) if object.is_excluded() => self.on_program(&routed, &object),
            Err(FileRejection::Hidden) => reject(&routed, FileRejection::Hidden),
            _ => other_method(&routed),
        }
    }

    async fn open_root(&self, host: &[u8], now: Now) -> Result<Arc<OpenedRoot>, OpenError> {
        let root = self.roots.get(host)?;
        let now_ms = now.monotonic_ms;
        match root.current(now_ms) {
            Some(Ok(_)) => root.opened(),
            Some(Err(error)) => Err(error),
            None => root.check(&self.tree.roots, &self.tree.store, now_ms, self.roots.recheck_after_ms()).await,
        }
    }

    fn load_now(&self, root: &OpenedRoot, path: &[u8], routed: &Routed<'_>) -> Option<FileLoadResult> {
        match hidden_part(path, self.tree.files.hidden) {
            Some(part) if routed.has_next => return rejection_of_hidden(root, part, DiskAccess::Cached).map(Err),
            Some(_) => return Some(Err(FileRejection::NotFound)),
            None => {}
        }
        match self.tree.load_or_check(root, path, routed.now, DiskAccess::Cached, None) {
            Ok(found) => Some(Ok(found)),
            Err(
                FileLoadError::WouldBlock
                | FileLoadError::Unsettled(_)
                | FileLoadError::Rejected(FileRejection::Unavailable),
            ) => None,
            Err(FileLoadError::Directory) => Some(Ok(FoundFile::Directory)),
            Err(FileLoadError::Rejected(rejection)) => Some(Err(rejection)),
        }
    }

    /// Decides the next step for the result of a lookup.
    fn take_step(&self, routed: &Routed<'_>, result: FileLoadResult, turn: FileTurn) -> FileStep {
        let result = match result {
            Ok(FoundFile::Directory | FoundFile::DirectoryWithoutIndex) if !self.tree.files.serves_directories() => {
                Err(FileRejection::NotFound)
            }
            result => result,
        };
        match result {
            Ok(FoundFile::Object(object)) if object.is_excluded() => FileStep::Done(self.on_program(routed, &object)),
            Ok(FoundFile::Object(object)) => {
                let cached = self.cache.adopt(object);
                let coding = choose_coding(&routed.request, &cached.object);
                match is_made(&cached.object, coding) {
                    true => FileStep::Done(HandlerOutcome::Ready(self.tree.respond(routed, cached, coding))),
                    false => FileStep::Make(cached, coding),
                }
            }
            Ok(FoundFile::Directory) if routed.has_next => FileStep::LookInside,
            Ok(FoundFile::Directory) => FileStep::Done(HandlerOutcome::Ready(redirect_to_directory(routed))),
            Ok(FoundFile::DirectoryWithoutIndex) if self.tree.files.browse => FileStep::List,
            Ok(FoundFile::DirectoryWithoutIndex) if self.tree.files.require_index => {
                FileStep::Done(HandlerOutcome::Ready(first_rejection(routed, FileRejection::NoIndex)))
            }
            Err(FileRejection::NotFound)
                if turn == FileTurn::Own && !self.tree.files.extensions.is_empty() && !routed.path.ends_with(b"/") =>
            {
                FileStep::Extend
            }
            Ok(FoundFile::DirectoryWithoutIndex) | Err(FileRejection::NotFound)
                if turn != FileTurn::Fallback && self.tree.files.fallback.is_some() =>
            {
                self.guarded_fallback(routed)
                    .map_or(FileStep::Fallback, |path| FileStep::Done(HandlerOutcome::Elsewhere(path)))
            }
            Ok(FoundFile::DirectoryWithoutIndex) => FileStep::Done(reject(routed, FileRejection::NoIndex)),
            Err(rejection) => FileStep::Done(reject(routed, rejection)),
        }
    }

    /// Handles a file that is a script, or an index with access rules of its own. Handlers that follow get the
    /// request if they run it. Otherwise an index or fallback is routed again by its own path. So no client gets a
    /// script's source or bypasses access rules.
    fn on_program<W>(&self, routed: &Routed<'_>, program: &Object) -> HandlerOutcome<W> {
        let path = self.tree.path_of(program.file_name());
        let is_distinguished = self.tree.precedence.tells_apart(routed.path, &path);
        if path == routed.path || (!is_distinguished && self.tree.runners.take_after(routed.path)) {
            return HandlerOutcome::Decline;
        }
        HandlerOutcome::Elsewhere(path)
    }

    /// Path of the fallback, if other access rules or handlers apply to it than to the requested path.
    fn guarded_fallback(&self, routed: &Routed<'_>) -> Option<Vec<u8>> {
        let precedence = &self.tree.precedence;
        if precedence.is_empty() {
            return None;
        }
        let name = self.fallback_path();
        let path = self.tree.path_of(name.strip_prefix(b"/").unwrap_or(name));
        precedence.tells_apart(routed.path, &path).then_some(path)
    }

    /// Redirects to the path with a slash. With a next handler, it does so only if it also has the path with the
    /// slash: otherwise the two handlers might redirect in a loop.
    fn on_directory<W>(&self, routed: &Routed<'_>, inside: FileLoadResult) -> HandlerOutcome<W> {
        let files = &self.tree.files;
        match inside {
            Ok(FoundFile::Object(object))
                if self.tree.is_program(object.file_name()) && self.tree.runners.take_after(routed.path) =>
            {
                HandlerOutcome::Decline
            }
            Ok(FoundFile::DirectoryWithoutIndex)
                if !files.browse && !files.require_index && files.fallback.is_none() =>
            {
                HandlerOutcome::Reject(FileRejection::NoSlash)
            }
            Ok(_) => HandlerOutcome::Ready(redirect_to_directory(routed)),
            Err(rejection) => reject(routed, rejection),
        }
    }

    /// Returns `true` if a path names the root itself, without the slash at its end.
    fn is_of_prefix(&self, path: &[u8]) -> bool {
        let files = &self.tree.files;
        !files.strip_prefix.is_empty()
            && without_prefix(path, &files.strip_prefix).is_some_and(<[u8]>::is_empty)
            && files.serves_directories()
    }

    /// Path below the root, beginning with a slash.
    #[inline]
    fn path_in_tree<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let prefix = self.tree.files.strip_prefix.as_str();
        // Most trees have no prefix. Comparing zero bytes can cost a hundred instructions: glibc's memcmp for AVX-512
        // does a masked load, and an empty string has a dangling address.
        let path = if prefix.is_empty() { path } else { without_prefix(path, prefix)? };
        path.starts_with(b"/").then_some(path)
    }

    fn fallback_path(&self) -> &[u8] {
        self.tree.files.fallback.as_deref().unwrap_or_default().as_bytes()
    }
}

/// Returns the path up to its first name that begins with a dot, unless `hidden` allows those. Well-known locations
/// (RFC 8615) are never hidden, and incomplete uploads always are.
pub(in crate::handler) fn hidden_part(path: &[u8], hidden: bool) -> Option<&[u8]> {
    const WELL_KNOWN: &[u8] = b"/.well-known";
    let is_well_known = path.strip_prefix(WELL_KNOWN).is_some_and(|rest| rest.starts_with(b"/"));
    let from = if is_well_known && !hidden { WELL_KNOWN.len() } else { 0 };
    let beginning: &[u8] = if hidden { RESERVED_IN_PATH } else { b"/." };
    let name = from + memchr::memmem::find(&path[from..], beginning)? + 1;
    let end = memchr::memchr(b'/', &path[name..]).map_or(path.len(), |length| name + length);
    Some(&path[..end])
}

/// True if listings leave out this name.
fn is_hidden(name: &[u8], hidden: bool) -> bool {
    name.starts_with(if hidden { RESERVED.as_bytes() } else { b"." })
}

/// Reason to reject a hidden path. The next handler gets it only if no such file exists here, because it might send
/// that very file (`.env`, `.git`). `None` if the lookup needs [`DiskAccess::Blocking`].
fn rejection_of_hidden(root: &OpenedRoot, part: &[u8], access: DiskAccess) -> Option<FileRejection> {
    match root.root.find(part.strip_prefix(b"/").unwrap_or(part), access) {
        Err(OpenError::WouldBlock) => None,
        Err(OpenError::NotFound) => Some(FileRejection::NotFound),
        Err(OpenError::Exhausted) => Some(FileRejection::Unavailable),
        Ok(_) | Err(_) => Some(FileRejection::Hidden),
    }
}

/// Reason to reject a path if it exists, or if a part of it is a file. [`FileRejection::NotFound`] if neither is true.
/// Looks at the disk as long as that takes.
fn rejection_of_existing(root: &OpenedRoot, path: &[u8]) -> FileRejection {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let path = path.strip_suffix(b"/").unwrap_or(path);
    for end in memchr::memchr_iter(b'/', path).chain([path.len()]) {
        match root.root.find(&path[..end], DiskAccess::Blocking) {
            Ok((_, status)) if end < path.len() && status.kind == FileType::Directory => {}
            Err(OpenError::NotFound) => return FileRejection::NotFound,
            Err(OpenError::Exhausted | OpenError::WouldBlock) => return FileRejection::Unavailable,
            Ok(_) | Err(_) => return FileRejection::Forbidden,
        }
    }
    FileRejection::NotFound
}

/// Handles methods other than GET and HEAD: the next handler gets them, or the client gets an error.
fn other_method<W>(routed: &Routed<'_>) -> HandlerOutcome<W> {
    if routed.has_next {
        return HandlerOutcome::Decline;
    }
    let status = match routed.request.method() {
        Method::Options => Status::NO_CONTENT,
        _ => Status::METHOD_NOT_ALLOWED,
    };
    let mut response = BuiltResponse::new(status);
    response.fields.push("Allow", ALLOW);
    HandlerOutcome::Ready(Response::Built(response))
}

fn reject<W>(routed: &Routed<'_>, rejection: FileRejection) -> HandlerOutcome<W> {
    match rejection {
        // The next handler may have what this one has not, or rejects.
        FileRejection::NotFound if routed.has_next => HandlerOutcome::Decline,
        FileRejection::Forbidden | FileRejection::NoIndex | FileRejection::NotPermitted if routed.has_next => {
            HandlerOutcome::Reject(rejection)
        }
        FileRejection::NotFound | FileRejection::Forbidden | FileRejection::NoIndex | FileRejection::NotPermitted => {
            HandlerOutcome::Ready(first_rejection(routed, rejection))
        }
        _ => HandlerOutcome::Ready(rejected(routed, rejection)),
    }
}

/// Builds the response for a path that no handler has: that of the first handler that rejected it, or else status 404.
pub fn not_found(routed: &Routed<'_>) -> Response {
    first_rejection(routed, FileRejection::NotFound)
}

/// Builds the response for a path that the last handler rejects: the reason of the first handler that did so counts.
pub(in crate::handler) fn first_rejection(routed: &Routed<'_>, last: FileRejection) -> Response {
    rejected(routed, routed.link.rejection().unwrap_or(last))
}

fn rejected(routed: &Routed<'_>, rejection: FileRejection) -> Response {
    let status = match rejection {
        FileRejection::NoSlash => return redirect_to_directory(routed),
        FileRejection::NotFound | FileRejection::Hidden => Status::NOT_FOUND,
        FileRejection::Forbidden | FileRejection::NoIndex | FileRejection::NotPermitted | FileRejection::NotRun => {
            Status::FORBIDDEN
        }
        FileRejection::Unavailable => Status::SERVICE_UNAVAILABLE,
        FileRejection::Failed => Status::INTERNAL_SERVER_ERROR,
    };
    let mut response = BuiltResponse::rejection(status, rejection.reason());
    if rejection == FileRejection::Unavailable {
        response.fields.push("Retry-After", "1");
    }
    Response::Built(response)
}
