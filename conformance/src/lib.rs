//! Raw HTTP/1 requests, what servers must make of them, and a client that finds out.
//!
//! The cases are text files in `http1/`; `README.md` says how they are written. This crate reads them ([`load`]), sends
//! one to a server ([`CaseClient`]) and judges what came back ([`Expect::check`]). It needs nothing but the standard library, so
//! that tests of any crate can use it.

mod case;
mod client;
mod expect;
mod forwarding;
mod origin;
mod response;
mod strict_request;
mod suite;
mod text;

pub use case::{Case, ParseError, load, parse};
pub use client::{CaseClient, Feed, PROBE_BODY, PROBE_FILE};
pub use expect::{CaseOutcome, ConnectionEnd, Expect};
pub use forwarding::{ForwardSuite, Lane};
pub use origin::OriginServer;
pub use response::ParsedResponse;
pub use strict_request::{StrictRequest, meant, sent_by_proxy};
pub use suite::{CaseFailure, Suite};
pub use text::escape;
