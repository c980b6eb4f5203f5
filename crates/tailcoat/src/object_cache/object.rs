use std::sync::Arc;

use bytes::Bytes;
use wire::h1::PreparedHead;
pub use wire::http::Coding;

use super::OpenFile;

/// A file in the form in which it is sent; shared by all workers.
#[derive(Debug)]
pub struct Object {
    /// Its representations, the one without coding first.
    pub representations: Vec<Representation>,
}

/// One coding of an object: heads and content.
#[derive(Debug)]
pub struct Representation {
    /// The coding.
    pub coding: Coding,
    /// Head of a 200, encoded.
    pub head: PreparedHead,
    /// Head of a 304, encoded.
    pub not_modified_head: PreparedHead,
    /// The content.
    pub content: Content,
}

/// Where content is.
#[derive(Clone, Debug)]
pub enum Content {
    /// In memory: small files.
    Memory(Bytes),
    /// In a file: large ones.
    File(Arc<OpenFile>),
}

/// A worker's own reference to an [`Object`].
#[derive(Debug)]
pub struct CachedObject {
    /// The object.
    pub object: Arc<Object>,
}
