//! One command each: ci, conformance, bench, fuzz.

mod bench;
mod conformance;
mod fuzz;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("bench") => bench::run(arguments),
        Some("conformance") => conformance::run(arguments),
        Some("fuzz") => fuzz::run(arguments),
        _ => {
            eprintln!(
                "usage: cargo xtask bench SCENARIO [OPTION]...\n       cargo xtask conformance [OPTION]...\n       \
                 cargo xtask fuzz [TARGET]... [--seconds N]"
            );
            ExitCode::from(2)
        }
    }
}
