//! `tailor`: load generator and benchmark for web servers.
//!
//! - [`engine`]: the load generator: threads, connections, requests, checks, simulated lines.
//! - [`agent`]: `tailor agent`: load from several machines.
//! - [`bench`](mod@bench): `tailor bench`: options, a run, its report.
//! - [`diff`]: `tailor diff`: compares records of `tailor bench`, with an exit code.
//! - [`end`]: results of the program, and signals that end it.
//! - [`history`]: `tailor history`: recorded runs over time.
//! - [`import`]: `tailor import`: translates recordings and scripts of other tools to scenario files.
//! - [`lab`]: `tailor compare`: starts servers, measures them in alternating rounds, and compares them.
//! - [`site`]: `tailor site`: test sites.
//! - [`web99`]: `tailor web99`: a workload of static and dynamic pages over slow lines.
//! - [`report`]: reports of a run as text, JSON, NDJSON, histogram log and HTML.

pub mod agent;
pub mod bench;
pub mod cli;
pub mod diff;
pub mod end;
pub mod engine;
pub mod history;
pub mod import;
pub mod lab;
mod nodes;
pub mod replay;
pub mod report;
mod search;
pub mod site;
mod statistics;
mod units;
pub mod web99;
