//! `cargo xtask conformance tls`: runs tlsfuzzer's scripts against the server, which needs Python's tlslite-ng.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::certificate;
use crate::process::{ChildProcess, free_port};
use crate::skips;

const HELP: &str = "\
cargo xtask conformance tls [OPTION]... [SCRIPT]...

  --suite DIRECTORY  tlsfuzzer [default: target/tlsfuzzer]
  --server ADDRESS   test a server that runs already, with an RSA key, instead of target/debug/tailcoat

SCRIPT are names of tlsfuzzer's scripts; without any, those of conformance/tls/run.py are run.";

const GET_SUITE: &str = "\
git clone https://github.com/tlsfuzzer/tlsfuzzer target/tlsfuzzer
python3 -m pip install --pre tlslite-ng";

struct TlsSuiteOptions {
    suite: PathBuf,
    server: Option<SocketAddr>,
    scripts: Vec<String>,
}

/// Runs the command. Returns whether no conversation failed that `expected.txt` does not name. Without the suite, it prints how
/// to get it.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let Some(options) = read_options(arguments)? else {
        println!("{HELP}");
        return Ok(true);
    };
    if !options.suite.join("scripts").is_dir() || !has_tlslite() {
        skips::skip_as("tls", "tlsfuzzer and tlslite-ng are not installed");
        println!("To get them:\n\n{GET_SUITE}");
        return Ok(true);
    }
    let suite = std::path::absolute(&options.suite)?;
    let mut command = Command::new("python3");
    command.arg("conformance/tls/run.py").arg(suite);
    let _server;
    let address = match options.server {
        Some(address) => address,
        None => {
            let port = free_port()?;
            _server = start_tailcoat(port)?;
            SocketAddr::from(([127, 0, 0, 1], port))
        }
    };
    command.arg(address.ip().to_string()).arg(address.port().to_string()).args(&options.scripts);
    Ok(command.status()?.success())
}

fn read_options(mut arguments: impl Iterator<Item = String>) -> Result<Option<TlsSuiteOptions>, Box<dyn Error>> {
    let mut options = TlsSuiteOptions { suite: "target/tlsfuzzer".into(), server: None, scripts: Vec::new() };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--suite" => options.suite = value()?.into(),
            "--server" => options.server = Some(value()?.parse()?),
            "--help" | "-h" => return Ok(None),
            _ if argument.starts_with('-') => return Err(format!("unknown option {argument}\n\n{HELP}").into()),
            _ => options.scripts.push(argument),
        }
    }
    Ok(Some(options))
}

fn has_tlslite() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import tlslite"]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// The built server with an RSA key, which some scripts need.
fn start_tailcoat(port: u16) -> Result<ChildProcess, Box<dyn Error>> {
    let directory = PathBuf::from("target/tls-conformance");
    std::fs::create_dir_all(&directory)?;
    certificate::write(&directory, &["rsa:2048"])?;
    let config = directory.join("tailcoat.kdl");
    // Relative paths start from the directory of the configuration.
    std::fs::write(
        &config,
        format!(
            "site {{\n listen \"127.0.0.1:{port}\" tls=on\n certificate \"certificate.pem\" key=\"key.pem\"\n respond \"/*\" 200 \"hello\"\n}}\n"
        ),
    )?;
    let mut command = Command::new("target/debug/tailcoat");
    command.arg("run").arg("-c").arg(&config).stderr(Stdio::null());
    ChildProcess::start(command, port)
        .map_err(|error| format!("{error}; it is built by `cargo build -p tailcoat`").into())
}
