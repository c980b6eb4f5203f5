//! One command each: ci, conformance, bench.

fn main() {}
