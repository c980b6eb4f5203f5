//! Black-box tests of the built binary: one file a feature.

mod conformance;
mod static_files;
mod support;
