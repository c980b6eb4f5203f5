//! Where files are: roots that depend on the host, and roots that are replaced while the server runs.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use crate::config::{Cache, RootPattern, RootPiece};
use crate::object_cache::{Access, Blocking, ObjectStore, OpenError, Root, RootId};

/// A root as it was opened, with the identifier of its objects.
#[derive(Debug)]
pub(in crate::handler) struct OpenedRoot {
    pub(in crate::handler) id: RootId,
    pub(in crate::handler) root: Root,
    /// Where it is.
    pub(in crate::handler) path: PathBuf,
}

/// The roots of all workers, by path. Each is opened once, so that all workers find the same objects below it.
#[derive(Debug, Default)]
pub(in crate::handler) struct SharedRoots {
    opened: Mutex<HashMap<PathBuf, Arc<OpenedRoot>>>,
}

impl SharedRoots {
    /// Opens the root at this path, or finds that it is the one that was there before.
    fn open(&self, path: &Path, store: &ObjectStore, access: Access) -> Result<Arc<OpenedRoot>, OpenError> {
        let result = Root::open(path, access);
        if result.as_ref().is_err_and(|error| matches!(error, OpenError::WouldBlock | OpenError::Exhausted)) {
            return Err(result.err().unwrap_or(OpenError::WouldBlock));
        }
        let mut opened = self.lock();
        let root = match result {
            Ok(root) => root,
            Err(error) => {
                if let Some(old) = opened.remove(path) {
                    store.remove_root(old.id);
                }
                return Err(error);
            }
        };
        if let Some(current) = opened.get(path) {
            if current.root.is_same(&root) {
                return Ok(Arc::clone(current));
            }
            store.remove_root(current.id);
        }
        if opened.len() >= store.limits().roots_max {
            // Those that no worker uses. The objects below them go as well, since nothing would ever check them again.
            opened.retain(|_, root| {
                let used = Arc::strong_count(root) > 1;
                if !used {
                    store.remove_root(root.id);
                }
                used
            });
        }
        let new = Arc::new(OpenedRoot { id: store.new_root_id(), root, path: path.into() });
        opened.insert(path.into(), Arc::clone(&new));
        Ok(new)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<OpenedRoot>>> {
        // Nothing in here is left half done by a panic.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's view of its roots.
#[derive(Debug)]
pub(in crate::handler) struct WorkerRoots {
    kind: Kind,
    /// How long a root is taken for what is at its path: half of what objects are, because an object that was checked
    /// just before that ran out is served for as long again.
    recheck_after_ms: u64,
}

#[derive(Debug)]
enum Kind {
    One(Rc<WorkerRoot>),
    ByHost(ByHost),
}

/// Roots that depend on the host.
#[derive(Debug)]
struct ByHost {
    pattern: RootPattern,
    /// Roots kept at a time; with more hosts, those not asked for lately are opened anew.
    roots_max: usize,
    roots: RefCell<HashMap<Box<[u8]>, Rc<WorkerRoot>>>,
}

/// A root as a worker last saw it.
#[derive(Debug)]
pub(in crate::handler) struct WorkerRoot {
    path: PathBuf,
    opened: RefCell<Result<Arc<OpenedRoot>, OpenError>>,
    check_at_ms: Cell<u64>,
    used: Cell<bool>,
}

impl WorkerRoots {
    pub(in crate::handler) fn new(pattern: &RootPattern, limits: &Cache) -> Self {
        let kind = match literal(pattern) {
            Some(path) => Kind::One(Rc::new(WorkerRoot::new(path.into()))),
            None => {
                let (pattern, roots_max) = (pattern.clone(), limits.roots_max);
                Kind::ByHost(ByHost { pattern, roots_max, roots: RefCell::default() })
            }
        };
        Self { kind, recheck_after_ms: limits.revalidate_after.as_millis() as u64 / 2 }
    }

    /// The root for this host. It may have to be checked: see [`WorkerRoot::check`].
    #[inline]
    pub(in crate::handler) fn get(&self, host: &[u8]) -> Result<Rc<WorkerRoot>, OpenError> {
        match &self.kind {
            Kind::One(root) => Ok(Rc::clone(root)),
            Kind::ByHost(roots) => roots.get(host),
        }
    }

    pub(in crate::handler) fn recheck_after_ms(&self) -> u64 {
        self.recheck_after_ms
    }
}

impl WorkerRoot {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            opened: RefCell::new(Err(OpenError::WouldBlock)),
            check_at_ms: Cell::new(0),
            used: Cell::new(true),
        }
    }

    /// The root as it was last seen, if that is not too long ago.
    #[inline]
    pub(in crate::handler) fn current(&self, now_ms: u64) -> Option<Result<RootId, OpenError>> {
        let opened = || self.opened.borrow().as_ref().map(|root| root.id).map_err(|error| *error);
        (now_ms < self.check_at_ms.get()).then(opened)
    }

    /// The root that [`Self::current`] told of.
    pub(in crate::handler) fn opened(&self) -> Result<Arc<OpenedRoot>, OpenError> {
        self.opened.borrow().clone()
    }

    /// Looks whether the root is still what is at its path, if that only takes what the kernel has in memory.
    pub(in crate::handler) fn check_now(
        &self,
        shared: &SharedRoots,
        store: &ObjectStore,
        now_ms: u64,
        recheck_after_ms: u64,
    ) -> Result<RootId, OpenError> {
        let result = shared.open(&self.path, store, Access::Cached);
        self.note(result, now_ms, recheck_after_ms).map(|root| root.id)
    }

    /// As [`Self::check_now`], but on the blocking pool.
    pub(in crate::handler) async fn check(
        &self,
        shared: &Arc<SharedRoots>,
        store: &Arc<ObjectStore>,
        now_ms: u64,
        recheck_after_ms: u64,
    ) -> Result<Arc<OpenedRoot>, OpenError> {
        let (path, shared, store) = (self.path.clone(), Arc::clone(shared), Arc::clone(store));
        let opening = Blocking::spawn(move || shared.open(&path, &store, Access::Blocking));
        let result = opening.await.unwrap_or(Err(OpenError::Exhausted));
        self.note(result, now_ms, recheck_after_ms)
    }

    fn note(
        &self,
        result: Result<Arc<OpenedRoot>, OpenError>,
        now_ms: u64,
        recheck_after_ms: u64,
    ) -> Result<Arc<OpenedRoot>, OpenError> {
        match result {
            Err(OpenError::WouldBlock) => result,
            // Without a free descriptor nobody can tell; most likely it is what it was.
            Err(OpenError::Exhausted) => self.opened().map_err(|_| OpenError::Exhausted),
            result => {
                *self.opened.borrow_mut() = result.clone();
                self.check_at_ms.set(now_ms + recheck_after_ms);
                result
            }
        }
    }
}

impl ByHost {
    fn get(&self, host: &[u8]) -> Result<Rc<WorkerRoot>, OpenError> {
        if let Some(root) = self.roots.borrow().get(host) {
            root.used.set(true);
            return Ok(Rc::clone(root));
        }
        let path = expand(&self.pattern, host).ok_or(OpenError::NotFound)?;
        let root = Rc::new(WorkerRoot::new(path));
        let mut roots = self.roots.borrow_mut();
        if roots.len() >= self.roots_max {
            // Hosts that nobody has asked for since the last time, and those that have no directory.
            roots.retain(|_, root| root.used.take() && root.opened.borrow().is_ok());
            if roots.len() >= self.roots_max {
                roots.clear();
            }
        }
        roots.insert(host.into(), Rc::clone(&root));
        Ok(root)
    }
}

/// The path of a pattern that does not depend on the host.
fn literal(pattern: &RootPattern) -> Option<String> {
    let pieces = pattern.pieces.iter().map(|piece| match piece {
        RootPiece::Literal(text) => Some(text.as_str()),
        RootPiece::Host | RootPiece::HostPrefix(_) => None,
    });
    pieces.collect()
}

/// The path for a host; `None` if the host can't be the name of a directory. Nothing that could lead elsewhere gets into
/// a path: the kernel doesn't confine what comes before the root.
fn expand(pattern: &RootPattern, host: &[u8]) -> Option<PathBuf> {
    let host = host.strip_suffix(b".").unwrap_or(host);
    let host = if pattern.strip_www { host.strip_prefix(b"www.").unwrap_or(host) } else { host };
    let host = host.strip_suffix(pattern.strip_suffix.as_bytes()).unwrap_or(host);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'[' | b']');
    if host.is_empty() || host.starts_with(b".") || !host.iter().all(is_name) {
        return None;
    }
    let mut path = Vec::new();
    for piece in &pattern.pieces {
        match piece {
            RootPiece::Literal(text) => path.extend_from_slice(text.as_bytes()),
            RootPiece::Host => path.extend_from_slice(host),
            RootPiece::HostPrefix(length) => path.extend_from_slice(&host[..host.len().min(*length)]),
        }
    }
    Some(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::expand;
    use crate::config::{RootPattern, RootPiece};

    #[test]
    fn hosts_become_paths() {
        let pattern = |strip_www, strip_suffix: &str| RootPattern {
            pieces: vec![
                RootPiece::Literal("/srv/".into()),
                RootPiece::HostPrefix(1),
                RootPiece::Literal("/".into()),
                RootPiece::HostPrefix(3),
                RootPiece::Literal("/".into()),
                RootPiece::Host,
            ],
            strip_www,
            strip_suffix: strip_suffix.into(),
        };
        let check = |pattern: &RootPattern, host: &str, expect: Option<&str>| {
            assert_eq!(expand(pattern, host.as_bytes()), expect.map(PathBuf::from), "{host}");
        };
        let plain = pattern(false, "");
        check(&plain, "example.com", Some("/srv/e/exa/example.com"));
        check(&plain, "www.example.com", Some("/srv/w/www/www.example.com"));
        check(&plain, "example.com.", Some("/srv/e/exa/example.com"));
        check(&plain, "ab", Some("/srv/a/ab/ab"));
        check(&plain, "127.0.0.1", Some("/srv/1/127/127.0.0.1"));
        check(&plain, "[::1]", Some("/srv/[/[::/[::1]"));
        for host in ["", ".", "..", "...", ".hidden", "../etc", "a/../b", "a/b", "a\0b", "a b", "b\u{fc}cher", "%2e"] {
            check(&plain, host, None);
        }
        let stripped = pattern(true, ".example.com");
        check(&stripped, "www.shop.example.com", Some("/srv/s/sho/shop"));
        check(&stripped, "shop.example.com", Some("/srv/s/sho/shop"));
        check(&stripped, "www.example.com", Some("/srv/e/exa/example.com"));
        check(&stripped, ".example.com", None);
        check(&stripped, "www..example.com", None);
    }
}
