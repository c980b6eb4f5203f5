//! Shares of requests for other upstreams, and changes of responses: the model.

use std::time::Duration;

use wire::http::Status;

use super::config::ForwardConfig;
use super::rules::{FieldTest, RuleTest};
use super::upstream::HashKey;

/// A share of requests that another upstream gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Name of the upstream, or the address of a single server.
    pub upstream: String,
    /// Part of the requests, from 0 to 1.
    pub share: f64,
    /// Key that keeps a client in a share.
    pub by: HashKey,
    /// Requests that always belong to it, by a field.
    pub field: Option<RuleTest<FieldTest>>,
    /// Requests that always belong to it, by a cookie: its name, and its value unless any fits.
    pub cookie: Option<(String, Option<String>)>,
}

/// Retries of requests after some responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Statuses of these responses.
    pub statuses: Vec<Status>,
    /// Retries after the first try.
    pub attempts_max: u32,
    /// Time before each retry.
    pub backoff: Duration,
}

/// A share of requests whose copies another upstream gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// Name of the upstream, or the address of a single server.
    pub upstream: String,
    /// Part of the requests, from 0 to 1.
    pub share: f64,
    /// Content of a request that is copied, in bytes.
    pub body_bytes_max: usize,
    /// Copies in progress at once, by all workers together.
    pub requests_max: usize,
}

/// Changes of an upstream's responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseRewrites {
    /// Beginnings of URLs in Location and Refresh.
    pub locations: Vec<TextRewrite>,
    /// Adds `strip-prefix` to URLs in Location and Refresh, and removes the upstream's address from them.
    pub is_location_automatic: bool,
    /// Values of Domain in Set-Cookie.
    pub cookie_domains: Vec<TextRewrite>,
    /// Beginnings of Path in Set-Cookie.
    pub cookie_paths: Vec<TextRewrite>,
    /// Texts in the content.
    pub substitutions: Vec<Substitution>,
    /// Media types of content that substitutions change, in lower case, in addition to `text/html`.
    pub substitute_types: Vec<String>,
}

/// A text and its replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRewrite {
    /// Text to replace.
    pub from: String,
    /// Replacement.
    pub to: String,
}

/// A replacement in content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Substitution {
    /// Text and its replacement. Letter case does not matter.
    pub text: TextRewrite,
    /// Replaces only the first occurrence.
    pub is_once: bool,
}

impl ResponseRewrites {
    /// Returns `true` if heads of responses change.
    pub fn changes_heads(&self) -> bool {
        let lists = [&self.locations, &self.cookie_domains, &self.cookie_paths];
        self.is_location_automatic || lists.iter().any(|list| !list.is_empty())
    }
}

impl ForwardConfig {
    /// Names of all upstreams that requests may go to.
    pub fn targets(&self) -> impl Iterator<Item = &String> {
        let splits = self.splits.iter().map(|split| &split.upstream);
        [&self.upstream].into_iter().chain(splits).chain(self.mirrors.iter().map(|mirror| &mirror.upstream))
    }

    /// Returns `true` if content of responses is searched, so that upstreams must not compress it.
    pub fn searches_content(&self) -> bool {
        self.rewrites.as_ref().is_some_and(|rewrites| !rewrites.substitutions.is_empty())
    }

    /// Same forwarding to another upstream.
    pub fn to_other(&self, upstream: &str) -> Self {
        Self { upstream: upstream.to_owned(), splits: Vec::new(), mirrors: Vec::new(), ..self.clone() }
    }
}
