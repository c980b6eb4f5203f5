//! A fixed answer.

use bytes::Bytes;

use super::{Body, BuiltResponse, Outcome, Response, Routed};
use crate::config;

/// Answers every request in the same way.
#[derive(Debug)]
pub struct Respond {
    config: config::Respond,
    body: Bytes,
}

impl Respond {
    /// The handler for this configuration.
    pub fn new(config: &config::Respond) -> Self {
        Self { config: config.clone(), body: Bytes::from(config.body.clone()) }
    }

    /// Answers a request.
    pub fn handle(&self, _: &Routed<'_>) -> Outcome {
        let mut response = BuiltResponse::new(self.config.status);
        if !self.body.is_empty() {
            response.fields.push("Content-Type", self.config.content_type.as_str());
            response.body = Body::from_bytes(self.body.clone());
        }
        Outcome::Ready(Response::Built(response))
    }
}
