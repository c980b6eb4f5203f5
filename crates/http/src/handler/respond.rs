//! Fixed responses.

use bytes::Bytes;

use super::{Body, BuiltResponse, HandlerOutcome, Response, Routed};
use crate::config;

/// Handler that gives every request the same response.
#[derive(Debug)]
pub struct Respond {
    config: config::RespondConfig,
    body: Bytes,
}

impl Respond {
    /// Creates the handler for this configuration.
    pub fn new(config: &config::RespondConfig) -> Self {
        Self { config: config.clone(), body: Bytes::from(config.body.clone()) }
    }

    /// Handles a request.
    pub fn handle(&self, _: &Routed<'_>) -> HandlerOutcome {
        let mut response = BuiltResponse::new(self.config.status);
        if !self.body.is_empty() {
            response.fields.push("Content-Type", self.config.content_type.as_str());
            response.body = Body::from_bytes(self.body.clone());
        }
        HandlerOutcome::Ready(Response::Built(response))
    }
}
