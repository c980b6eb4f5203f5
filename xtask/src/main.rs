//! One command each: ci, conformance, bench.

mod bench;
mod conformance;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("bench") => bench::run(arguments),
        Some("conformance") => conformance::run(arguments),
        _ => {
            eprintln!("usage: cargo xtask bench SCENARIO [OPTION]...\n       cargo xtask conformance [OPTION]...");
            ExitCode::from(2)
        }
    }
}
