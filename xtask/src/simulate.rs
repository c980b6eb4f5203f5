//! `cargo xtask simulate`: instances that share a store, in virtual time, for many seeds. Run it with `--release`.

use std::error::Error;
use std::time::Instant;

use tailcoat_fleet::simulation::{Conditions, run as simulate};

/// Runs the simulation. Prints one line for each seed that fails, and a summary.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let (mut seeds, mut first, mut instances, mut is_calm) = (1_000, 0, 5, false);
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64, Box<dyn Error>> {
            Ok(arguments.next().ok_or_else(|| format!("{argument} needs a number"))?.parse()?)
        };
        match argument.as_str() {
            "--seeds" => seeds = number()?,
            "--first" => first = number()?,
            "--instances" => instances = number()?,
            "--calm" => is_calm = true,
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    let members = usize::try_from(instances)?.max(1);
    let conditions = if is_calm { Conditions::calm(members) } else { Conditions::hostile(members) };
    let begun = Instant::now();
    let (mut failed, mut purges, mut delays_ms, mut requests, mut made) = (0, 0, Vec::new(), 0.0, [0; 4]);
    for seed in first..first + seeds {
        let outcome = simulate(seed, &conditions);
        if let Some(fault) = &outcome.fault {
            failed += 1;
            println!("seed {seed}: {fault}");
        }
        purges += outcome.purges;
        requests += outcome.requests_per_second();
        outcome.faults_made.iter().zip(&mut made).for_each(|(more, sum)| *sum += more);
        delays_ms.extend(outcome.delays_ms);
    }
    delays_ms.sort_unstable();
    let delay =
        |share: f64| delays_ms.get((delays_ms.len().saturating_sub(1) as f64 * share) as usize).copied().unwrap_or(0);
    let [crashes, partitions, stops, wipes] = made;
    println!(
        "{seeds} seeds, {members} instances, {:.1} s: {failed} failed; {purges} events, {crashes} crashes, {partitions} partitions, \
         {stops} stops, {wipes} wipes; delay p50 {} ms, p99 {} ms, longest {} ms; {:.0} requests/s to the store",
        begun.elapsed().as_secs_f64(),
        delay(0.5),
        delay(0.99),
        delay(1.0),
        requests / seeds.max(1) as f64,
    );
    Ok(failed == 0)
}
