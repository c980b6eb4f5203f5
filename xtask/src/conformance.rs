//! `cargo xtask conformance`: sends the cases of `conformance/http1` to Tailcoat or a peer.

use std::error::Error;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Case, CaseClient, CaseFailure, ForwardSuite, Lane, OriginServer, PROBE_BODY, PROBE_FILE, Suite};

use crate::{ftp, tls};

const HELP: &str = "\
cargo xtask conformance [OPTION]...
cargo xtask conformance tls [OPTION]...       TLS; tls --help prints its options
cargo xtask conformance ftp [TEST]...         FTP, with the tests of pyftpdlib

  --start NAME         start tailcoat (target/debug; the default), nginx, apache, lighttpd or h2o and test it; repeatable
  --forward            test as proxies, haproxy among them: requests through them to a server, and its responses
  --server NAME=ADDRESS
                       test a server that runs already; its root must have index.html and probe.txt (see README.md);
                       the name tailcoat also tests our own choices
  --filter TEXT        only cases whose name, RFC section or source has this text
  --split              feed each input byte by byte too, which must change nothing
  --list               print the cases instead of running them
  --table              print a table of all servers instead of the failures";

const SERVERS: [&str; 5] = ["tailcoat", "apache", "lighttpd", "nginx", "h2o"];
const PROXIES: [&str; 6] = ["tailcoat", "apache", "haproxy", "lighttpd", "nginx", "h2o"];

/// Instances of a proxy: as many cases are tried at a time.
const LANES: usize = 12;

struct ConformanceOptions {
    start: Vec<String>,
    servers: Vec<(String, SocketAddr)>,
    filter: String,
    split: bool,
    list: bool,
    table: bool,
    forward: bool,
}

/// Runs the command. Says whether all cases passed.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let mut arguments = arguments.peekable();
    if arguments.next_if(|first| first == "tls").is_some() {
        return tls::run(arguments);
    }
    if arguments.next_if(|first| first == "ftp").is_some() {
        return ftp::run(arguments);
    }
    let Some(mut options) = read_options(arguments)? else {
        println!("{HELP}");
        return Ok(true);
    };
    let load = |folder: &str| -> Result<Vec<Case>, Box<dyn Error>> {
        let mut cases = conformance::load(&repository().join(folder))?;
        cases.retain(|case| [&case.name, &case.rfc, &case.source].iter().any(|text| text.contains(&options.filter)));
        Ok(cases)
    };
    let mut cases = load("conformance/http1")?;
    let responses = if options.forward { load("conformance/http1-responses")? } else { Vec::new() };
    if options.list {
        cases.iter().for_each(|case| println!("{}  [RFC {}]  {}", case.name, case.rfc, case.expect));
        return Ok(true);
    }
    if options.table {
        let all = if options.forward { &PROXIES[..] } else { &SERVERS };
        options.start.extend(all.iter().map(|name| (*name).to_owned()));
    } else if options.start.is_empty() && options.servers.is_empty() {
        options.start.push("tailcoat".into());
    }

    let mut results = Vec::new();
    for (name, address) in &options.servers {
        results.push((name.clone(), test(name, *address, &cases, &options)));
    }
    for name in &options.start {
        let failures = if options.forward {
            test_proxy(name, &cases, &responses)?
        } else {
            let server = StartedServer::start(name, None)?;
            test(name, server.address, &cases, &options)
        };
        results.push((name.clone(), failures));
    }
    cases.extend(responses);
    if options.forward && !options.table {
        results.iter().for_each(|(name, failures)| print_failures(name, &cases, failures));
    }
    if options.table {
        print_table(&cases, &results);
    }
    Ok(results.iter().all(|(_, failures)| failures.is_empty()))
}

fn read_options(mut arguments: impl Iterator<Item = String>) -> Result<Option<ConformanceOptions>, Box<dyn Error>> {
    let mut options = ConformanceOptions {
        start: Vec::new(),
        servers: Vec::new(),
        filter: String::new(),
        split: false,
        list: false,
        table: false,
        forward: false,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--start" => options.start.push(value()?),
            "--server" => {
                let value = value()?;
                let (name, address) = value.split_once('=').ok_or("--server needs NAME=ADDRESS")?;
                let address = address.to_socket_addrs()?.next().ok_or("the server's name has no address")?;
                options.servers.push((name.into(), address));
            }
            "--filter" => options.filter = value()?,
            "--split" => options.split = true,
            "--list" => options.list = true,
            "--table" => options.table = true,
            "--forward" => options.forward = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown option {argument}\n\n{HELP}").into()),
        }
    }
    Ok(Some(options))
}

fn test(name: &str, address: SocketAddr, cases: &[Case], options: &ConformanceOptions) -> Vec<CaseFailure> {
    let suite = Suite {
        client: CaseClient { address, patience: Duration::from_secs(5), silence: Duration::from_millis(150) },
        split: options.split,
        tailcoat: name == "tailcoat",
        connections: 128,
    };
    let failures = suite.run(cases);
    if !options.table {
        print_failures(name, cases, &failures);
    }
    failures
}

/// The failures of a proxy: those of requests, then those of responses, as if these were further cases.
fn test_proxy(name: &str, requests: &[Case], responses: &[Case]) -> Result<Vec<CaseFailure>, Box<dyn Error>> {
    let (mut servers, mut lanes) = (Vec::new(), Vec::new());
    for _ in 0..LANES {
        let origin = OriginServer::start()?;
        let server = StartedServer::start(name, Some(origin.address))?;
        let (patience, silence) = (Duration::from_secs(5), Duration::from_millis(150));
        lanes.push(Lane { client: CaseClient { address: server.address, patience, silence }, origin });
        servers.push(server);
    }
    let suite = ForwardSuite { lanes, tailcoat: name == "tailcoat" };
    let mut failures = suite.run_requests(requests);
    let of_responses = suite.run_responses(responses).into_iter();
    failures.extend(of_responses.map(|failure| CaseFailure { case: requests.len() + failure.case, ..failure }));
    Ok(failures)
}

fn print_failures(name: &str, cases: &[Case], failures: &[CaseFailure]) {
    println!("{name}:");
    for failure in failures {
        let case = &cases[failure.case];
        println!("FAIL {}  [RFC {}; {}]\n  {}", case.name, case.rfc, case.source, failure.message);
        println!("  sent {}", shorten(&conformance::escape(&case.input)));
    }
    println!("{} passed, {} failed", cases.len() - failures.len(), failures.len());
}

fn shorten(text: &str) -> String {
    const CHARACTERS: usize = 600;
    if text.chars().count() <= CHARACTERS {
        text.into()
    } else {
        text.chars().take(CHARACTERS).chain("...".chars()).collect()
    }
}

/// Failures by theme (the name of the case file) and server.
fn print_table(cases: &[Case], results: &[(String, Vec<CaseFailure>)]) {
    let theme = |case: &Case| case.name.split('/').next().unwrap_or_default().to_owned();
    let mut themes: Vec<String> = cases.iter().map(theme).collect();
    themes.dedup();
    let row = |first: &str, count: usize, failures: &[usize]| {
        let columns: Vec<String> = failures.iter().map(|failures| format!("{failures} |")).collect();
        println!("| {first} | {count} | {}", columns.join(" "));
    };
    println!("| theme | cases | {} |", results.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" | "));
    println!("|---|---|{}", "---|".repeat(results.len()));
    for wanted in &themes {
        let failed =
            |failures: &[CaseFailure]| failures.iter().filter(|failure| theme(&cases[failure.case]) == *wanted).count();
        let failures: Vec<usize> = results.iter().map(|(_, failures)| failed(failures)).collect();
        row(wanted, cases.iter().filter(|case| theme(case) == *wanted).count(), &failures);
    }
    row("all", cases.len(), &results.iter().map(|(_, failures)| failures.len()).collect::<Vec<_>>());
}

/// A server that was started for the test, on a free port of the loopback, in a folder of its own.
struct StartedServer {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl StartedServer {
    /// As a site with the two files, or as a proxy before `origin`.
    fn start(name: &str, origin: Option<SocketAddr>) -> Result<Self, Box<dyn Error>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("tailcoat-conformance-{}-{port}", std::process::id()));
        let root = folder.join("root");
        std::fs::create_dir_all(&root)?;
        std::fs::write(root.join("index.html"), "<!doctype html>\n<title>Home</title>\n")?;
        std::fs::write(root.join(PROBE_FILE), PROBE_BODY)?;
        let mut command = command(name, &folder, &root, port, origin)?;
        let log = std::fs::File::create(folder.join("output.log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().map_err(|error| format!("{name} does not start: {error}"))?;
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)), folder };
        server.wait_until_ready(name)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, name: &str) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(self.address).is_err() {
            if Instant::now() > deadline || self.child.try_wait()?.is_some() {
                let output = std::fs::read_to_string(self.folder.join("output.log")).unwrap_or_default();
                return Err(format!("{name} does not listen:\n{output}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for StartedServer {
    fn drop(&mut self) {
        // The peers' children end when told by SIGTERM, which `Child::kill` does not send.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(3);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn command(
    name: &str,
    folder: &Path,
    root: &Path,
    port: u16,
    origin: Option<SocketAddr>,
) -> Result<Command, Box<dyn Error>> {
    if name == "tailcoat" {
        let mut command = Command::new(repository().join("target/debug/tailcoat"));
        command.arg("serve").arg("--listen").arg(format!("127.0.0.1:{port}"));
        match origin {
            // Nothing is found in this folder, so that all is forwarded.
            Some(origin) => {
                let nothing = folder.join("nothing");
                std::fs::create_dir_all(&nothing)?;
                command.arg(nothing).arg("--forward").arg(format!("http://{origin}"))
            }
            None => command.arg(root),
        };
        return Ok(command);
    }
    let kind = if origin.is_some() { "peers/forward" } else { "peers" };
    let template = repository().join(format!("conformance/{kind}/{name}.conf"));
    let template =
        std::fs::read_to_string(&template).map_err(|_| format!("no server {name}; there are {SERVERS:?}"))?;
    let mut text = template
        .replace("@PORT@", &port.to_string())
        .replace("@RUN@", &folder.display().to_string())
        .replace("@ROOT@", &root.display().to_string());
    if let Some(origin) = origin {
        text = text.replace("@ORIGIN@", &origin.to_string()).replace("@ORIGIN_PORT@", &origin.port().to_string());
    }
    let config = folder.join("server.conf");
    std::fs::write(&config, text)?;
    let (program, before, after): (_, &[&str], &[&str]) = match name {
        "nginx" => ("nginx", &["-c"], &["-g", "daemon off;"]),
        "apache" => ("apache2", &["-f"], &["-DFOREGROUND"]),
        "haproxy" => ("haproxy", &["-db", "-f"], &[]),
        "lighttpd" => ("lighttpd", &["-D", "-f"], &[]),
        "h2o" => ("h2o", &["-c"], &[]),
        _ => return Err(format!("no server {name}; there are {SERVERS:?}").into()),
    };
    // Debian keeps servers where only root's PATH looks.
    let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(before).arg(config).args(after).env("PATH", path);
    Ok(command)
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a folder of the repository").into()
}
