//! `cargo xtask caching`: has the cache before other servers judged by http-tests/cache-tests, which needs Node.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{ChildProcess, free_port};
use crate::skips;

const HELP: &str = "\
cargo xtask caching [OPTION]... [TEST]...

  --defaults           test with nothing but a `cache`, as conformance/caching/defaults.kdl has it
  --suite DIRECTORY    the suite, with its dependencies [default: target/cache-tests]
  --server URL         test a cache that runs already instead of Tailcoat; it stands before --origin-port
  --origin-port PORT   where the suite's own origin listens [default: a free port]

TEST are names of tests; without any, all are run. It fails if a required one does.";

/// Command that fetches the suite in the edition of README.md's results. The npm registry only has one that follows the
/// older RFC.
const GET_SUITE: &str = "\
git clone https://github.com/http-tests/cache-tests target/cache-tests
git -C target/cache-tests checkout b55b8bd
(cd target/cache-tests && npm install --omit=dev undici)";

const DEFAULT_SUITE: &str = "target/cache-tests";

struct CachingOptions {
    /// The configuration that is tested.
    template: &'static str,
    suite: PathBuf,
    server: Option<String>,
    origin_port: Option<u16>,
    tests: Vec<String>,
}

/// Runs the command. Says whether no required test failed; also if there is nothing to run them with, which is printed.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let Some(options) = read_options(arguments)? else {
        println!("{HELP}");
        return Ok(true);
    };
    if Command::new("node").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Ok(skips::passes_without("caching", "node"));
    }
    if !options.suite.join("node_modules").is_dir() {
        skips::skip_as("caching", &format!("{} does not have the suite", options.suite.display()));
        println!("To get it:\n\n{GET_SUITE}");
        return Ok(true);
    }
    let origin_port = options.origin_port.map_or_else(free_port, Ok)?;
    let mut origin = node(&options.suite);
    origin.arg("origin").arg(origin_port.to_string()).stdout(Stdio::null());
    let _origin = ChildProcess::start(origin, origin_port)?;
    let mut client = node(&options.suite);
    let _server;
    match &options.server {
        Some(url) => client.arg(url),
        None => {
            let port = free_port()?;
            _server = start_tailcoat(options.template, port, origin_port)?;
            client.arg(format!("http://127.0.0.1:{port}"))
        }
    };
    Ok(client.args(&options.tests).status()?.success())
}

fn read_options(mut arguments: impl Iterator<Item = String>) -> Result<Option<CachingOptions>, Box<dyn Error>> {
    let template = "conformance/caching/tailcoat.kdl";
    let mut options =
        CachingOptions { template, suite: DEFAULT_SUITE.into(), server: None, origin_port: None, tests: Vec::new() };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--defaults" => options.template = "conformance/caching/defaults.kdl",
            "--suite" => options.suite = value()?.into(),
            "--server" => options.server = Some(value()?),
            "--origin-port" => options.origin_port = Some(value()?.parse()?),
            "--help" | "-h" => return Ok(None),
            _ if argument.starts_with('-') => return Err(format!("unknown option {argument}\n\n{HELP}").into()),
            _ => options.tests.push(argument),
        }
    }
    Ok(Some(options))
}

/// The runner, with the suite as its first argument.
fn node(suite: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg("--no-warnings").arg("conformance/caching/run.mjs").arg(suite);
    command
}

fn start_tailcoat(template: &str, port: u16, origin_port: u16) -> Result<ChildProcess, Box<dyn Error>> {
    let template = std::fs::read_to_string(template)?;
    let config = template.replace("@PORT@", &port.to_string()).replace("@ORIGIN@", &origin_port.to_string());
    let file = std::env::temp_dir().join(format!("tailcoat-caching-{}-{port}.kdl", std::process::id()));
    std::fs::write(&file, config)?;
    let mut command = Command::new("target/debug/tailcoat");
    command.arg("run").arg("-c").arg(&file).stderr(Stdio::null());
    let started = ChildProcess::start(command, port);
    std::fs::remove_file(file)?;
    started.map_err(|error| format!("{error}; it is built by `cargo build -p tailcoat`").into())
}
