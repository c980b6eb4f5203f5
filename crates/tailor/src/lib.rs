//! `tailor`: load generator and benchmark for web servers.
//!
//! - `engine`: the load generator: threads, connections, requests, checks, simulated lines.
//! - `agent`: `tailor agent`: load from several machines.
//! - `bench`: `tailor bench`: options, a run, its report.
//! - `diff`: `tailor diff`: compares records of `tailor bench`, with an exit code.
//! - `end`: results of the program, and signals that end it.
//! - `history`: `tailor history`: recorded runs over time.
//! - `import`: `tailor import`: translates recordings and scripts of other tools to scenario files.
//! - `lab`: `tailor compare`: starts servers, measures them in alternating rounds, and compares them.
//! - `site`: `tailor site`: test sites.
//! - `web99`: `tailor web99`: a workload of static and dynamic pages over slow lines.
//! - `programs`: programs of the system, such as `ip`.
//! - `report`: reports of a run as text, JSON, NDJSON, histogram log and HTML.

mod agent;
mod bench;
pub mod cli;
mod diff;
mod end;
mod engine;
mod history;
mod import;
mod input;
mod lab;
mod nodes;
mod output;
mod programs;
mod replay;
mod report;
mod search;
mod site;
mod statistics;
mod units;
mod web99;
