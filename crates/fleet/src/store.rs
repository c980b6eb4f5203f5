//! Requests to a store and its replies, as values.

/// Request to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// Read a key.
    Get(String),
    /// Set a key if it is as expected.
    Put {
        /// Key.
        key: String,
        /// New value.
        value: Vec<u8>,
        /// State that the change needs.
        expect: Expected,
    },
    /// Remove a key.
    Delete(String),
    /// Read all keys of a folder.
    List(String),
    /// Read the engine's clock.
    Time,
}

/// State of a key that a change needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any state.
    Any,
    /// No value.
    Absent,
    /// Value of this version.
    Version(String),
}

/// Reply of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreReply {
    /// Value and version, if there is one.
    Entry(Option<(Vec<u8>, String)>),
    /// The key is set, and has this version.
    Done(String),
    /// The key was not as expected.
    Conflict,
    /// The key is removed.
    Deleted,
    /// Keys with their values.
    Entries(Vec<(String, Vec<u8>)>),
    /// Milliseconds since 1970, if the engine tells them.
    Time(Option<u64>),
}

/// The request failed; the store may have carried it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOutcome;

/// Reply, unless the request failed.
pub type StoreResult = Result<StoreReply, UnknownOutcome>;
