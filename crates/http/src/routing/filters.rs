//! Handlers that have passed a request on and filter its response.

use crate::handler::{ClientGone, Response, ResponseFilter};

/// Response filters, in the order in which their handlers saw the request.
#[derive(Default)]
pub(super) struct Filters(Vec<Box<dyn ResponseFilter>>);

impl Filters {
    pub(super) fn push(&mut self, filter: Box<dyn ResponseFilter>) {
        self.0.push(filter);
    }

    pub(super) fn extend(&mut self, filter: Option<Box<dyn ResponseFilter>>) {
        self.0.extend(filter);
    }

    /// Applies all filters to a response. The handler that saw the request last filters first.
    pub(super) async fn apply(&mut self, mut response: Response) -> Result<Response, ClientGone> {
        while let Some(filter) = self.0.pop() {
            response = filter.filter(response).await?;
        }
        Ok(response)
    }
}
