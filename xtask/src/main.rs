//! One command each: ci, conformance, caching, modules, bench, fuzz.

mod bench;
mod caching;
mod ci;
mod conformance;
mod fuzz;
mod licences;
mod modules;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask ci
       cargo xtask conformance [OPTION]...
       cargo xtask caching [OPTION]... [TEST]...
       cargo xtask modules [NAME]...
       cargo xtask bench SCENARIO [OPTION]...
       cargo xtask fuzz [TARGET]... [--seconds N]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("ci") => ci::run(arguments),
        Some("conformance") => conformance::run(arguments),
        Some("caching") => caching::run(arguments),
        Some("modules") => modules::run(arguments),
        Some("bench") => bench::run(arguments),
        Some("fuzz") => fuzz::run(arguments),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
