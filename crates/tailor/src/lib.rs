//! `tailor`: measures web servers as their users meet them.
//!
//! - [`engine`]: the load generator itself: threads, connections, requests, checks, lines.
//! - [`bench`](mod@bench): `tailor bench`: options, a run, its report.
//! - [`lab`]: `tailor compare`: servers started, measured in alternating rounds, and compared.
//! - [`site`]: `tailor site`: sites to serve, made up.
//! - [`web99`]: `tailor web99`: a workload of static and dynamic pages over slow lines.
//! - [`report`]: what a run gave, as text, JSON, NDJSON, histogram log and HTML.

pub mod bench;
pub mod cli;
pub mod engine;
pub mod lab;
pub mod report;
mod search;
pub mod site;
mod units;
pub mod web99;
