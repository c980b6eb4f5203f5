//! Attacks on the built server as a black box, by class. `cargo xtask attack` runs them; README.md says what each asserts.

mod caches;
mod containers;
mod descriptors;
mod disks;
mod floods;
mod frames;
mod honest;
mod kills;
mod raw;
mod rules;
mod slow;
mod smuggling;
#[allow(dead_code)]
#[path = "../../tests/support/mod.rs"]
mod support;
mod trial;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::skips::skip_as;
use trial::{Attack, Trial, panic_text};

const HELP: &str = "\
cargo xtask attack [CLASS | CLASS/NAME]... [OPTION]...

  --seconds N   time for the cases of each attack [default: 10]
  --short       1 second for each attack, at most 2 minutes for all
  --seed N      the seed of all random choices [default: from the clock; it is printed]
  --case N      run only this case of each attack
  --list        print the attacks instead of running them";

/// Time for the cases of each attack, unless `--seconds` gives another.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// Time for the cases of each attack with `--short`.
const SHORT_TIME: Duration = Duration::from_secs(1);

/// Time for everything with `--short`. Attacks that would begin later count as skipped.
const SHORT_TIME_MAX: Duration = Duration::from_secs(110);

struct AttackOptions {
    wanted: Vec<String>,
    time: Duration,
    is_short: bool,
    seed: u64,
    case: Option<u64>,
    is_list: bool,
}

fn main() -> ExitCode {
    let options = match read_options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let all = attacks();
    if let Some(unknown) = options.wanted.iter().find(|wanted| !all.iter().any(|attack| fits(attack, wanted))) {
        eprintln!("no attack {unknown:?}; --list prints all");
        return ExitCode::from(2);
    }
    let wanted: Vec<Attack> = all
        .into_iter()
        .filter(|attack| options.wanted.is_empty() || options.wanted.iter().any(|wanted| fits(attack, wanted)))
        .collect();
    if options.is_list {
        wanted.iter().for_each(|attack| println!("{}", attack.name));
        return ExitCode::SUCCESS;
    }
    // A panic is a finding, and printed as one.
    std::panic::set_hook(Box::new(|_| {}));
    support::PRINTS_LOG.store(false, Ordering::Relaxed);
    run(&wanted, &options)
}

/// All attacks, in the order they run in.
fn attacks() -> Vec<Attack> {
    [
        &smuggling::ATTACKS[..],
        &rules::ATTACKS,
        &caches::ATTACKS,
        &floods::ATTACKS,
        &slow::ATTACKS,
        &kills::ATTACKS,
        &disks::ATTACKS,
        &descriptors::ATTACKS,
        &containers::ATTACKS,
    ]
    .concat()
}

fn fits(attack: &Attack, wanted: &str) -> bool {
    attack.name == wanted || attack.class() == wanted
}

fn read_options(mut arguments: impl Iterator<Item = String>) -> Result<Option<AttackOptions>, String> {
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    let mut options = AttackOptions {
        wanted: Vec::new(),
        time: DEFAULT_TIME,
        is_short: false,
        seed: clock,
        case: None,
        is_list: false,
    };
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().unwrap_or_default();
            value.parse::<u64>().map_err(|_| format!("{argument} takes a whole number, not {value:?}"))
        };
        match argument.as_str() {
            "--seconds" => options.time = Duration::from_secs(number()?),
            "--short" => (options.is_short, options.time) = (true, SHORT_TIME),
            "--seed" => options.seed = number()?,
            "--case" => options.case = Some(number()?),
            "--list" => options.is_list = true,
            "--help" | "-h" => return Ok(None),
            _ if argument.starts_with('-') => return Err(format!("unknown option {argument}")),
            _ => options.wanted.push(argument),
        }
    }
    Ok(Some(options))
}

/// Runs attacks one after the other and prints a line for each.
fn run(attacks: &[Attack], options: &AttackOptions) -> ExitCode {
    println!("seed {}", options.seed);
    let began = Instant::now();
    let [mut passed, mut failed, mut skipped] = [0; 3];
    for attack in attacks {
        if options.is_short && began.elapsed() > SHORT_TIME_MAX {
            skipped += 1;
            println!("skip  {:<26} no time left: run it by name", attack.name);
            skip_as(attack.name, "no time left: run it by name");
            continue;
        }
        let (trial, start) = (Trial::new(attack.name, options.seed, options.case, options.time), Instant::now());
        let figure = match catch_unwind(AssertUnwindSafe(|| (attack.run)(&trial))) {
            Ok(Ok(figure)) => figure,
            Ok(Err(reason)) => {
                skipped += 1;
                println!("skip  {:<26} {}", attack.name, reason.0);
                skip_as(attack.name, &reason.0);
                continue;
            }
            Err(panic) => {
                trial.find(None, panic_text(&*panic));
                String::new()
            }
        };
        let findings = trial.findings();
        *(if findings.is_empty() { &mut passed } else { &mut failed }) += 1;
        let (verdict, seconds) = (if findings.is_empty() { "pass" } else { "FAIL" }, start.elapsed().as_secs_f32());
        println!("{verdict}  {:<26} {:>7} tries {seconds:>6.1} s  {figure}", attack.name, trial.tries());
        for finding in findings {
            let case = finding.case.map_or(String::new(), |case| format!(" --case {case}"));
            println!("      {}", finding.text.replace('\n', "\n      "));
            println!("      reproduce: cargo xtask attack {} --seed {}{case}", attack.name, options.seed);
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
