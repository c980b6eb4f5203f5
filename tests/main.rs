//! Black-box tests of the built binary: one file a feature.

mod attacks;
mod command_line;
mod conformance;
mod exchange;
mod lifecycle;
mod limits;
mod listing;
mod readme;
mod static_files;
mod support;
