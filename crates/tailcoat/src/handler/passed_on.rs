use std::future::Future;
use std::pin::Pin;

use super::{OwnedRequest, Response};

/// A request that a handler lets the next one answer, and whose response it has before the client.
pub struct PassedOn {
    /// The request as the next handlers have it, if it was changed.
    pub request: Option<Box<OwnedRequest>>,
    /// Who has the response.
    pub filter: Box<dyn ResponseFilter>,
}

/// Who has the response of the next handler before the client.
pub trait ResponseFilter {
    /// Changes a response.
    fn filter(self: Box<Self>, response: Response) -> Pin<Box<dyn Future<Output = Response>>>;
}
