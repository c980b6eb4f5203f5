//! Options of `tailor web99`.

use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use super::client::Web99Client;
use super::commands::Commands;
use super::file_set;
use super::mix::Mix;
use super::tables::USERS_MAX;
use crate::bench;
use crate::bench::target::Url;
use crate::units::{parse_count, parse_duration, parse_range, parse_share};

/// Options of the workload, which the check, a run and the search share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Web99Workload {
    /// URL of the server, such as http://127.0.0.1:8080
    pub url: String,
    /// Shares of static GET, dynamic GET, ad rotation GET, POST and CGI GET, in percent
    #[arg(long, value_name = "PERCENTS", default_value = "70,12.45,12.6,4.8,0.15", value_parser = Mix::parse, help_heading = "Workload")]
    pub mix: Mix,
    /// Path of the script for dynamic operations
    #[arg(long, value_name = "PATH", default_value = "/web99.php", help_heading = "Workload")]
    pub script: String,
    /// Path of the CGI program
    #[arg(long, value_name = "PATH", default_value = "/cgi-bin/web99.pl", help_heading = "Workload")]
    pub cgi_script: String,
    /// Number of directories of the file set [default: as many as the connections need]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Workload")]
    pub directories: Option<u32>,
    /// Number of users with a personality
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..=i64::from(USERS_MAX)), help_heading = "Workload")]
    pub users: u32,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value = "1999", value_parser = clap::value_parser!(u32).range(..1_000_000_000), help_heading = "Workload")]
    pub seed: u32,
}

/// Conditions of a run, and of its verdict.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunConditions {
    /// Rate of each connection's line, in bits per second
    #[arg(long, value_name = "RATE", default_value = "400k", help_heading = "Conditions")]
    pub line: String,
    /// Minimum average rate of a conforming line, in bits per second
    #[arg(long, value_name = "RATE", default_value = "320k", value_parser = parse_count, help_heading = "Conditions")]
    pub conforming_rate: u64,
    /// Minimum share of conforming connections of a sustained run
    #[arg(long, value_name = "SHARE", default_value = "95%", value_parser = parse_share, help_heading = "Conditions")]
    pub conforming_share: f64,
    /// Share of failed operations at which a run is not sustained
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_share, help_heading = "Conditions")]
    pub failed_share: f64,
    /// Share of requests on keep-alive connections
    #[arg(long, value_name = "SHARE", default_value = "70%", value_parser = parse_share, help_heading = "Conditions")]
    pub keep_alive: f64,
    /// Number of requests on a keep-alive connection
    #[arg(long, value_name = "RANGE", default_value = "5-15", value_parser = parse_range, help_heading = "Conditions")]
    pub requests_per_connection: (u32, u32),
    /// Share of HTTP/1.0 among keep-alive connections; all others use HTTP/1.0
    #[arg(long, value_name = "SHARE", default_value = "50%", value_parser = parse_share, help_heading = "Conditions")]
    pub http10: f64,
    /// Time over which connections are started
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = parse_duration, help_heading = "Conditions")]
    pub ramp_up: Duration,
    /// Duration of load after the ramp-up, not counted
    #[arg(long, value_name = "TIME", default_value = "1200s", value_parser = parse_duration, help_heading = "Conditions")]
    pub warm_up: Duration,
    /// Duration of the measurement [default: 1200s]; there is no ramp-down
    #[arg(short = 'd', long, value_name = "TIME", value_parser = parse_duration, help_heading = "Conditions")]
    pub duration: Option<Duration>,
    /// Use short times for daily work: ramp-up 3 s, warm-up 3 s, duration 20 s
    #[arg(long, conflicts_with_all = ["ramp_up", "warm_up"], help_heading = "Conditions")]
    pub short: bool,
    /// Number of runs; all of them must be sustained
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Conditions")]
    pub iterations: u32,
    /// Maximum time to connect, and for each response
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration, help_heading = "Conditions")]
    pub timeout: Duration,
    /// Number of client threads
    #[arg(short = 't', long, value_name = "N", default_value = "1", help_heading = "Conditions")]
    pub threads: u64,
    /// CPUs to bind the threads to: `1` or `1,3`
    #[arg(long, value_name = "LIST", default_value = "", help_heading = "Conditions")]
    pub cpus: String,
    /// Skip the check of each operation before the run
    #[arg(long, help_heading = "Conditions")]
    pub no_check: bool,
}

/// Outputs of a run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Web99Output {
    /// Write the report as JSON; `-` or no value means standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = crate::bench::parse_json_file, help_heading = "Output")]
    pub json: Option<PathBuf>,
    /// Write the report as an HTML page with charts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Do not show progress
    #[arg(short = 'q', long, help_heading = "Output")]
    pub quiet: bool,
    /// Record CPU time and memory of this process and its children, such as a local server
    #[arg(long, value_name = "PID", help_heading = "Output")]
    pub watch: Option<u32>,
    /// Record CPU time and memory of this control group: its directory, or for cgroup v1 those of cpuacct and memory
    #[arg(
        long,
        value_name = "DIRECTORY",
        value_delimiter = ',',
        num_args = 1,
        conflicts_with = "watch",
        help_heading = "Output"
    )]
    pub watch_group: Vec<PathBuf>,
}

impl Web99Workload {
    /// Creates the sender of commands to the server.
    ///
    /// # Errors
    /// The URL does not name a server, or its host has no address.
    pub(super) fn commands(&self) -> Result<Commands, String> {
        let url = Url::parse(&self.url)?;
        if url.is_tls || url.target != "/" {
            return Err(format!("{}: web99 needs the URL of a server, such as http://127.0.0.1:8080", self.url));
        }
        let name = (url.host_name(), url.port);
        let mut addresses = name.to_socket_addrs().map_err(|error| format!("{}: {error}", self.url))?;
        let address = addresses.next().ok_or_else(|| format!("{}: the name has no address", self.url))?;
        let client = Web99Client { address, authority: url.authority() };
        Ok(Commands::new(client, &self.script, &self.cgi_script, self.users, self.seed))
    }

    pub(super) fn directories(&self, connections: u64) -> u32 {
        self.directories.unwrap_or_else(|| file_set::directory_count(connections))
    }
}

impl RunConditions {
    /// Times of ramp-up, warm-up and measurement.
    fn times(&self) -> [Duration; 3] {
        let duration = |default_seconds| self.duration.unwrap_or(Duration::from_secs(default_seconds));
        match self.short {
            true => [Duration::from_secs(3), Duration::from_secs(3), duration(20)],
            false => [self.ramp_up, self.warm_up, duration(1200)],
        }
    }

    /// True if the run is shorter than SPECweb99's: fewer than three iterations, or shorter times.
    pub(super) fn is_short(&self) -> bool {
        let original = [300, 1200, 1200].map(Duration::from_secs);
        self.iterations < 3 || self.times().iter().zip(original).any(|(time, original)| *time < original)
    }

    /// Share of connections to keep alive, so that they carry the configured share of the requests.
    pub(super) fn keep_alive_connection_share(&self) -> f64 {
        let (low, high) = self.requests_per_connection;
        let mean = f64::from(low + high) / 2.0;
        // If a share k of the connections has m requests each and the rest one, their share of requests is k m / (k m +
        // 1 - k).
        self.keep_alive / (self.keep_alive + mean * (1.0 - self.keep_alive))
    }

    /// Options of `tailor bench` for this run.
    pub(super) fn bench_options(
        &self,
        url: &str,
        connections: u64,
        output: &Web99Output,
    ) -> Result<bench::LoadOptions, String> {
        let seconds = |time: Duration| format!("{}s", time.as_secs_f64());
        let [ramp_up, warm_up, duration] = self.times();
        let (low, high) = self.requests_per_connection;
        let mut words = vec!["bench".to_owned(), url.to_owned(), "--no-calibration".to_owned()];
        let mut add = |name: &str, value: String| words.extend([name.to_owned(), value]);
        add("--connections", connections.to_string());
        add("--threads", self.threads.to_string());
        add("--ramp-up", seconds(ramp_up));
        add("--warm-up", seconds(ramp_up + warm_up));
        add("--duration", seconds(duration));
        add("--timeout", seconds(self.timeout));
        add("--line", self.line.clone());
        add("--requests-per-connection", format!("{low}-{high}"));
        if !self.cpus.is_empty() {
            add("--cpus", self.cpus.clone());
        }
        if let Some(id) = output.watch {
            add("--watch", id.to_string());
        }
        for directory in &output.watch_group {
            add("--watch-group", directory.display().to_string());
        }
        if output.quiet {
            words.push("--quiet".to_owned());
        }
        BenchOptions::try_parse_from(words).map(|parsed| parsed.options).map_err(|error| error.to_string())
    }
}

#[derive(Debug, Parser)]
struct BenchOptions {
    #[command(flatten)]
    options: bench::LoadOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Both {
        #[command(flatten)]
        conditions: RunConditions,
        #[command(flatten)]
        output: Web99Output,
    }

    fn parse(words: &[&str]) -> Both {
        Both::parse_from([&["x"], words].concat())
    }

    #[test]
    fn times() {
        for (words, expect, is_short) in [
            (&[][..], [300, 1200, 1200], true),
            (&["--iterations", "3"], [300, 1200, 1200], false),
            (&["--short", "--iterations", "3"], [3, 3, 20], true),
            (&["--short", "-d", "7"], [3, 3, 7], true),
            (&["-d", "60", "--iterations", "3"], [300, 1200, 60], true),
        ] {
            let conditions = parse(words).conditions;
            assert_eq!(conditions.times(), expect.map(Duration::from_secs), "{words:?}");
            assert_eq!(conditions.is_short(), is_short, "{words:?}");
        }
    }

    #[test]
    fn kept_alive() {
        // For 70 % of the requests on connections of ten requests, 7 of 37 connections are kept alive.
        assert!((parse(&[]).conditions.keep_alive_connection_share() - 7.0 / 37.0).abs() < 1e-9);
        assert_eq!(parse(&["--keep-alive", "1"]).conditions.keep_alive_connection_share(), 1.0);
        assert_eq!(parse(&["--keep-alive", "0"]).conditions.keep_alive_connection_share(), 0.0);
    }

    #[test]
    fn options_of_bench() {
        let both = parse(&["--short", "--cpus", "0", "--watch", "1", "-q"]);
        let options = both.conditions.bench_options("http://h", 500, &both.output).unwrap();
        assert_eq!((options.connections, options.warm_up.as_secs(), options.ramp_up.as_secs()), (500, 6, 3));
        assert_eq!((options.duration.map(|it| it.as_secs()), options.timeout.as_secs()), (Some(20), 60));
        assert_eq!(options.line.and_then(|line| line.receive_bits_per_second), Some(400_000));
        assert_eq!((options.cpus, options.watch, options.quiet), (vec![0], Some(1), true));
        let bad = parse(&["--line", "x"]);
        assert!(bad.conditions.bench_options("http://h", 1, &bad.output).is_err());
    }
}
