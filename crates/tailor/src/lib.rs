//! `tailor`: load generator and benchmark for web servers.
//!
//! - [`engine`]: the load generator: threads, connections, requests, checks, simulated lines.
//! - [`bench`](mod@bench): `tailor bench`: options, a run, its report.
//! - [`diff`]: `tailor diff`: compares records of `tailor bench`, with an exit code.
//! - [`end`]: results of the program, and signals that end it.
//! - [`lab`]: `tailor compare`: starts servers, measures them in alternating rounds, and compares them.
//! - [`site`]: `tailor site`: test sites.
//! - [`web99`]: `tailor web99`: a workload of static and dynamic pages over slow lines.
//! - [`report`]: reports of a run as text, JSON, NDJSON, histogram log and HTML.

pub mod bench;
pub mod cli;
pub mod diff;
pub mod end;
pub mod engine;
pub mod lab;
mod nodes;
pub mod replay;
pub mod report;
mod search;
pub mod site;
mod statistics;
mod units;
pub mod web99;
