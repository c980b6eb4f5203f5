//! `cargo xtask simulate`: instances that share a store, in virtual time, for many seeds. Run it with `--release`. With `--sizing`,
//! the tables of the manual's page about sizing.

use std::error::Error;
use std::time::Instant;

use tailcoat_fleet::simulation::sizing::Sizing;
use tailcoat_fleet::simulation::{Conditions, run as simulate};

use crate::charts::results;

/// Numbers of instances on the page about sizing.
const MEMBERS: [usize; 4] = [3, 30, 300, 1_000];

/// Kinds of work on that page: its words, the run that measured it, and the name of Tailcoat there.
const WORK: [(&str, &str, &str); 9] = [
    ("a file of 1 KiB, keep-alive", "keepalive-64", "tailcoat"),
    ("a cached response of 1 KiB, keep-alive", "forwarding-cached", "cached"),
    ("a proxied response of 1 KiB, without its upstream", "forwarding-1KiB", "tailcoat"),
    ("a response by FastCGI, without the application", "fastcgi", "tailcoat"),
    ("a file of 1 KiB through an http-wasm module", "module-http-wasm", "http-wasm-memory"),
    ("a file of 1 KiB over TLS, keep-alive", "tls-keep-alive", "tailcoat"),
    ("a file of 1 KiB over HTTP/2 and TLS, 64 streams a connection", "http2-8x64", "tailcoat"),
    ("a file of 1 KiB, a connection for each request", "close", "tailcoat"),
    ("a file of 1 KiB, a resumed TLS handshake for each request", "tls-resumed", "tailcoat"),
];

/// Share of a machine's CPU time that is planned for, so that a machine may fail.
const PLANNED_SHARE: f64 = 0.6;

/// CPU cores of a machine.
const CORES: f64 = 16.0;

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
            "--sizing" => return print_sizing(),
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    let members = usize::try_from(instances)?.max(1);
    let conditions = if is_calm { Conditions::calm(members) } else { Conditions::hostile(members) };
    let begun = Instant::now();
    let (mut failed, mut purges, mut delays_ms, mut requests, mut made) = (0, 0, Vec::new(), 0.0, [0; 5]);
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
    let [crashes, partitions, stops, wipes, foreign] = made;
    println!(
        "{seeds} seeds, {members} instances, {:.1} s: {failed} failed; {purges} events, {crashes} crashes, {partitions} partitions, \
         {stops} stops, {wipes} wipes, {foreign} foreign values; delay p50 {} ms, p99 {} ms, longest {} ms; {:.0} requests/s to the store",
        begun.elapsed().as_secs_f64(),
        delay(0.5),
        delay(0.99),
        delay(1.0),
        requests / seeds.max(1) as f64,
    );
    Ok(failed == 0)
}

/// Prints the tables of the page about sizing.
fn print_sizing() -> Result<bool, Box<dyn Error>> {
    println!(
        "| instances | purge at all: p50 | p99 | longest | requests/s to the store | orders of a certificate due at all | most requests/s then | error, limit of 100/s | error, limit of 10,000/s | error, 100/s, same moments |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for members in MEMBERS {
        let Sizing {
            purge_ms: [median, most, longest],
            requests_per_second,
            herd,
            limit_error,
            large_limit_error,
            worst_limit_error,
            ..
        } = Sizing::of(members);
        println!(
            "| {members} | {median} ms | {most} ms | {longest} ms | {requests_per_second:.0} | {} | {} | {:+.1} % | {:+.1} % | {:+.1} % |",
            herd.orders,
            herd.requests_per_second_max,
            limit_error * 100.0,
            large_limit_error * 100.0,
            worst_limit_error * 100.0,
        );
    }
    println!(
        "\n| work | CPU time a request | cores at 100 % | machines of {CORES} cores at {} % |",
        PLANNED_SHARE * 100.0
    );
    println!("|---|---|---|---|");
    let runs = results::load(std::path::Path::new("."))?;
    for (words, name, server) in WORK {
        let run = runs.iter().find(|run| run.name == name).ok_or_else(|| format!("there is no run {name}"))?;
        let part = run.parts.first().ok_or_else(|| format!("{name}: no part"))?;
        let ours =
            part.servers.iter().find(|(found, _)| found == server).ok_or_else(|| format!("{name}: no figure"))?;
        // A million requests of a microsecond each take one core for a second.
        let cores = ours.1.absolute.median;
        println!("| {words} | {cores:.1} µs | {cores:.1} | {:.0} |", (cores / PLANNED_SHARE / CORES).ceil());
    }
    Ok(true)
}
