use std::future::Future;
use std::pin::Pin;

use super::{ClientGone, OwnedRequest, Response};

/// A request passed to the next handler, whose response this handler filters.
pub struct PassedOn {
    /// Changed request for the next handlers; `None` if it is unchanged.
    pub request: Option<Box<OwnedRequest>>,
    /// Filter for the response.
    pub filter: Box<dyn ResponseFilter>,
}

/// Filter for the next handler's response.
pub trait ResponseFilter {
    /// Changes a response, unless the client leaves first.
    fn filter(self: Box<Self>, response: Response) -> Pin<Box<dyn Future<Output = Result<Response, ClientGone>>>>;
}
