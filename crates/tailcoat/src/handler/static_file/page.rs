//! Files as the content of other responses: the operator's error pages.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use super::content_type::content_type;
use super::load::Found;
use super::{Inner, StaticFile};
use crate::handler::{Now, Segment};
use crate::object_cache::{Content, Lookup, Object};

/// A file, to be sent with a status of its own.
#[derive(Clone, Debug)]
pub struct FilePage {
    /// Value of Content-Type.
    pub content_type: String,
    /// The content.
    pub body: Segment,
}

/// What [`StaticFile::load_page`] has.
pub enum PageOutcome {
    /// The page, or that there is none.
    Ready(Option<FilePage>),
    /// It has to be waited for.
    Wait(Pin<Box<dyn Future<Output = Option<FilePage>>>>),
}

impl StaticFile {
    /// The file at this path below the root for this host, cached like all others. `path` begins with a slash; it is the
    /// operator's, so that hidden files are not refused.
    pub fn load_page(&self, host: &[u8], path: &str, now: Now) -> PageOutcome {
        match self.inner.page_now(host, path, now) {
            Some(page) => PageOutcome::Ready(page),
            None => PageOutcome::Wait(Box::pin(Rc::clone(&self.inner).page(host.to_vec(), path.to_owned()))),
        }
    }
}

impl Inner {
    /// `None` if it has to be waited for.
    fn page_now(&self, host: &[u8], path: &str, now: Now) -> Option<Option<FilePage>> {
        let root = self.roots.get(host).ok()?;
        let id = root.current(now.monotonic_ms)?.ok()?;
        match self.cache.get(id, path.as_bytes(), now.monotonic_ms) {
            Lookup::Fresh(cached) => Some(Some(self.page_of(&cached.object))),
            Lookup::Due(_) | Lookup::Miss => None,
        }
    }

    async fn page(self: Rc<Self>, host: Vec<u8>, path: String) -> Option<FilePage> {
        let root = self.open_root(&host, Now::read()).await.ok()?;
        match self.tree.obtain(&root, path.as_bytes()).await {
            Ok(Found::Object(object)) => Some(self.page_of(&self.cache.adopt(Arc::clone(&object)).object)),
            Ok(Found::Directory | Found::DirectoryWithoutIndex) | Err(_) => None,
        }
    }

    fn page_of(&self, object: &Object) -> FilePage {
        let body = match &object.identity().content {
            Content::Memory(bytes) => Segment::Bytes(bytes.clone()),
            Content::File(file) => Segment::File { file: Arc::clone(file), offset: 0, length: file.identity.size },
        };
        FilePage { content_type: content_type(&self.tree.files, object.file_name()), body }
    }
}
