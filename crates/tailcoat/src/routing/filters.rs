//! Handlers that have passed a request on, and have its response before the client.

use crate::handler::{Response, ResponseFilter};

/// Such handlers, in the order in which they had the request.
#[derive(Default)]
pub(super) struct Filters(Vec<Box<dyn ResponseFilter>>);

impl Filters {
    pub(super) fn push(&mut self, filter: Box<dyn ResponseFilter>) {
        self.0.push(filter);
    }

    /// Has all of them change a response: the last that had the request is the first.
    pub(super) async fn apply(&mut self, mut response: Response) -> Response {
        while let Some(filter) = self.0.pop() {
            response = filter.filter(response).await;
        }
        response
    }
}
