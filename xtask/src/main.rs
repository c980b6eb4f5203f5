//! One command each: ci, conformance, attack, caching, churn, modules, operate, kernel-tls, packaging, release, bench, screenshots,
//! fuzz, gateway-conformance, import-corpus, words.

mod attack;
mod bench;
mod caching;
mod cargo;
mod certificate;
mod charts;
mod churn;
mod ci;
mod conformance;
mod failures;
mod ftp;
mod fuzz;
mod gateway;
mod import_corpus;
mod kernel_tls;
mod licences;
mod links;
mod modules;
mod operate;
mod packaging;
mod process;
mod questions;
mod release;
mod screenshots;
mod simulate;
mod skips;
mod tidy;
mod tls;
mod words;

use std::error::Error;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask ci [CHECK]...
       cargo xtask conformance [tls | ftp] [OPTION]...
       cargo xtask attack [CLASS | CLASS/NAME]... [--seconds N | --short] [--seed N] [--case N]
       cargo xtask caching [OPTION]... [TEST]...
       cargo xtask modules [NAME]...
       cargo xtask operate [--reloads N] [--upgrades N] [--sites N] [--profile PROFILE]
       cargo xtask kernel-tls [--kernel PACKAGE.deb]... [--timeout SECONDS] [TEST]
       cargo xtask packaging [--program FILE] [manual|kubernetes|container|training]...
       cargo xtask release [--target TRIPLE] [--profile FILE] [--programs | --no-build]
       cargo xtask bench SCENARIO|all|--charts [OPTION]...
       cargo xtask screenshots [OPTION]...
       cargo xtask simulate [--seeds N] [--first SEED] [--instances N] [--calm] | --sizing
       cargo xtask churn [--seconds N] [--seed N] [--no-tier] [--program FILE] [--valkey FILE] [--keep] | --draw
       cargo xtask gateway-conformance [--ingress | --scale] [--program FILE] [--binaries DIR] [--test NAME] [--serial] [--hold]
       cargo xtask fuzz [TARGET]... [--seconds N]
       cargo xtask import-corpus [OPTION]... [DIR]
       cargo xtask words [--summary] [--rule RULE]... [--base COMMIT] [PATH]...";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("ci") => ci::run(arguments),
        Some("conformance") => exit_code(conformance::run(arguments)),
        Some("attack") => exit_code(attack::run(arguments)),
        Some("caching") => exit_code(caching::run(arguments)),
        Some("modules") => modules::run(arguments),
        Some("operate") => exit_code(operate::run(arguments)),
        Some("kernel-tls") => exit_code(kernel_tls::run(arguments)),
        Some("packaging") => exit_code(packaging::run(arguments)),
        Some("release") => release::run(arguments),
        Some("bench") => bench::run(arguments),
        Some("churn") => exit_code(churn::run(arguments)),
        Some("simulate") => exit_code(simulate::run(arguments)),
        Some("screenshots") => exit_code(screenshots::run(arguments)),
        Some("gateway-conformance") => exit_code(gateway::run(arguments)),
        Some("fuzz") => exit_code(fuzz::run(arguments)),
        Some("import-corpus") => exit_code(import_corpus::run(arguments)),
        Some("words") => exit_code(words::run(arguments)),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// 0 if all passed, 1 if something failed, 2 if it could not be run.
fn exit_code(result: Result<bool, Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
