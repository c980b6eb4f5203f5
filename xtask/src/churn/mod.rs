//! `cargo xtask churn`: three instances that share a store, under load, while faults happen at random (`conformance/churn/lab.py`).
//! They share cached responses as well. It fails if a handshake or a request fails, or a purge is lost. The plot shows an hour.

mod plot;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::skips;

const USAGE: &str =
    "usage: cargo xtask churn [--seconds N] [--seed N] [--no-tier] [--program FILE] [--valkey FILE] [--keep]
       cargo xtask churn --draw";

/// Folder of the lab: its state, its logs and the result.
const DIRECTORY: &str = "target/churn";

/// Result of the run whose plot is in the manual.
const KEPT: &str = "conformance/churn/hour.json";

/// Plots of the manual, by theme.
const IMAGES: &str = "docs/images/churn";

/// Program that makes clocks wrong, where Debian's package has it.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// Duration of the usual run and of the one in CI.
const HOUR_SECONDS: u64 = 3_600;
pub(crate) const SHORT: [&str; 2] = ["--seconds", "30"];

/// Runs it. Says whether nothing failed.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let (mut seconds, mut seed, mut has_tier, mut is_kept) = (HOUR_SECONDS, 1_u64, true, false);
    let mut program = PathBuf::from("target/debug/tailcoat");
    let mut options = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "--seconds" => seconds = value()?.parse()?,
            "--seed" => seed = value()?.parse()?,
            "--program" => program = value()?.into(),
            "--valkey" => options.extend([argument, value()?]),
            "--no-tier" => has_tier = false,
            "--keep" => is_kept = true,
            "--draw" => return draw(),
            _ => return Err(USAGE.into()),
        }
    }
    for tool in ["pebble", "pebble-challtestsrv", "openssl", "ip"] {
        if !is_installed(tool) {
            return Ok(skips::passes_without("churn", tool));
        }
    }
    if !Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success()) {
        skips::skip_as("churn", "namespaces are not permitted");
        return Ok(true);
    }
    if !program.exists() {
        return Err(format!("there is no {}: `cargo build -p tailcoat` makes it", program.display()).into());
    }
    let directory = Path::new(DIRECTORY);
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory)?;
    // New namespaces: no address leaves the machine, and no process outlives the lab.
    let mut lab = Command::new("unshare");
    lab.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    lab.args(["python3", "conformance/churn/lab.py", "--directory", DIRECTORY]);
    lab.arg("--program").arg(std::path::absolute(&program)?);
    lab.args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()]);
    if has_tier {
        lab.arg("--tier");
    }
    if seconds < 600 {
        lab.args(["--pause", "2", "--calm", "2", "--certificate-seconds", "60"]);
    }
    if Path::new(FAKETIME).exists() {
        lab.args(["--faketime", FAKETIME]);
    } else {
        skips::skip_as("churn: wrong clocks", "libfaketime is not installed");
    }
    if !lab.args(&options).status().map_err(|error| format!("unshare: {error}"))?.success() {
        return Ok(false);
    }
    let text = fs::read_to_string(directory.join("results.json"))?;
    let result: Value = serde_json::from_str(&text)?;
    print!("{}", table(&result));
    if is_kept {
        fs::write(KEPT, serde_json::to_string(&result)? + "\n")?;
        draw()?;
    }
    Ok(is_clean(&result))
}

/// Draws the plot of the kept run, and prints its table.
fn draw() -> Result<bool, Box<dyn Error>> {
    let result: Value = serde_json::from_str(&fs::read_to_string(KEPT)?)?;
    for (theme, text) in plot::draw(&result) {
        fs::write(format!("{IMAGES}-{theme}.svg"), text)?;
    }
    print!("{}", table(&result));
    Ok(true)
}

/// True if nothing failed except what a killed process takes along.
fn is_clean(result: &Value) -> bool {
    let failed = |name: &str| rows(result).iter().map(|row| count(row, name)).sum::<u64>();
    failed("failed") + failed("handshakes_failed") + count(&result["purges"], "lost") == 0
}

fn rows(result: &Value) -> &[Value] {
    result["by_fault"].as_array().map_or(&[], Vec::as_slice)
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

/// Result as a table of Markdown, with a line of totals.
fn table(result: &Value) -> String {
    let mut text = String::from(
        "| while | times | requests | failed | cut by a kill | handshakes | failed | p50 | p99 | purge p50 | purge p99 |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let milliseconds = |value: &Value| match value.as_f64() {
        None => String::new(),
        Some(time) if time < 10.0 => format!("{time:.1} ms"),
        Some(time) => format!("{time:.0} ms"),
    };
    for row in rows(result) {
        let name = match row["fault"].as_str().unwrap_or_default() {
            "none" => "no fault",
            "kill" => "an instance is killed and starts again",
            "store stopped" => "the store is stopped",
            "store wiped" => "the store is wiped",
            "cut off" => "an instance is cut off the store",
            "aftermath" => "two seconds after a fault",
            other => other,
        };
        let times = if count(row, "count") == 0 { String::new() } else { count(row, "count").to_string() };
        text.push_str(&format!(
            "| {name} | {times} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            count(row, "requests"),
            count(row, "failed"),
            count(row, "cut") + count(row, "handshakes_cut"),
            count(row, "handshakes"),
            count(row, "handshakes_failed"),
            milliseconds(&row["p50_ms"]),
            milliseconds(&row["p99_ms"]),
            milliseconds(&row["purge_p50_ms"]),
            milliseconds(&row["purge_p99_ms"]),
        ));
    }
    let purges = &result["purges"];
    text.push_str(&format!(
        "\n{} purges: {} lost, {} lost with an instance that was killed before the store had them. {} certificates ordered.\n",
        count(purges, "ordered"),
        count(purges, "lost"),
        count(purges, "lost_with_killed_instance"),
        count(result, "certificates_issued"),
    ));
    text
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).any(|directory| directory.join(tool).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_found() {
        let result = |failed: u64, handshakes: u64, lost: u64| {
            serde_json::json!({
                "by_fault": [{ "fault": "kill", "count": 2, "requests": 9, "failed": failed, "cut": 3, "handshakes": 4,
                    "handshakes_failed": handshakes, "p50_ms": 1.25, "p99_ms": 12.5 }],
                "purges": { "ordered": 5, "lost": lost, "lost_with_killed_instance": 1 },
            })
        };
        assert!(is_clean(&result(0, 0, 0)));
        for (failed, handshakes, lost) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            assert!(!is_clean(&result(failed, handshakes, lost)));
        }
        let text = table(&result(0, 0, 0));
        assert!(
            text.contains("| an instance is killed and starts again | 2 | 9 | 0 | 3 | 4 | 0 | 1.2 ms | 12 ms |  |  |"),
            "{text}"
        );
    }
}
