//! `cargo xtask optimise`: builds the server for release after the profile of a run. The compiler then knows which branches
//! are taken, and lays out together what runs together: a small response takes a tenth less time.
//!
//! Only our own crates are profiled, and what of others is compiled with them. What the run does not show of these counts as
//! rare. So it shows each kind of work that a server has much of.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The profile, what is served for it, and the program that comes of it.
const DIRECTORY: &str = "target/optimised";

/// How long each work lasts.
const WORK_DURATION: &str = "2s";

/// How long a server may take to start.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// Works by their server (`plain` or `tls`), their path, and further options of `tailor bench`.
const WORKS: [(&str, &str, &[&str]); 15] = [
    ("plain", "1k.html", &["-c", "64"]),
    ("plain", "1k.html", &["-c", "64", "--pipeline", "16"]),
    ("plain", "1k.html", &["-c", "16", "--keep-alive", "0"]),
    ("plain", "1k.html", &["-c", "16", "-H", "If-None-Match: *"]),
    ("plain", "1k.html", &["-c", "16", "-H", "Range: bytes=100-199"]),
    ("plain", "16k.css", &["-c", "16", "-H", "Accept-Encoding: gzip, br"]),
    ("plain", "16k.css", &["-c", "16"]),
    ("plain", "1m.bin", &["-c", "16"]),
    ("plain", "behind.html", &["-c", "64"]),
    ("plain", "behind-1m.bin", &["-c", "8"]),
    ("plain", "behind.html", &["-c", "8", "--body", "name=value"]),
    ("tls", "1k.html", &["-c", "64"]),
    ("tls", "1m.bin", &["-c", "8"]),
    ("tls", "1k.html", &["-c", "16", "--keep-alive", "0"]),
    ("tls", "1k.html", &["-c", "8", "--http2", "--streams", "32"]),
];

/// Makes `target/optimised/tailcoat`.
pub(crate) fn run(_: impl Iterator<Item = String>) -> ExitCode {
    match optimise() {
        Ok(program) => {
            println!("{}", program.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn optimise() -> io::Result<PathBuf> {
    let merger = merger()?;
    fs::create_dir_all(DIRECTORY)?;
    let directory = fs::canonicalize(DIRECTORY)?;
    let (raw, profile) = (directory.join("profile"), directory.join("profile.profdata"));
    let _ = fs::remove_dir_all(&raw);
    let noting = build(&directory, "noting", &format!("-Cprofile-generate={}", raw.display()))?;
    check(cargo().args(["build", "--package", "tailor"]))?;
    train(&noting, &directory)?;
    check(Command::new(merger).arg("merge").arg("-o").arg(&profile).arg(&raw))?;
    build(&directory, "tailcoat", &format!("-Cprofile-use={}", profile.display()))
}

/// Builds a program of this name, with a flag for our own crates.
fn build(directory: &Path, name: &str, flag: &str) -> io::Result<PathBuf> {
    // Cargo tells builds apart by the path of the wrapper.
    let (wrapper, program) = (directory.join(format!("{name}-compiler")), directory.join(name));
    fs::write(&wrapper, format!("#!/bin/sh\nexec \"$@\" '{flag}'\n"))?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let arguments = ["build", "--release", "--package", "tailcoat", "--bin", "tailcoat"];
    check(cargo().args(arguments).env("RUSTC_WORKSPACE_WRAPPER", wrapper))?;
    fs::copy("target/release/tailcoat", &program)?;
    Ok(program)
}

/// Runs the works against servers that note what they do, until these have ended.
fn train(program: &Path, directory: &Path) -> io::Result<()> {
    let (site, behind) = (directory.join("site"), directory.join("behind"));
    make_site(&site, &[("1k.html", 1 << 10), ("16k.css", 16 << 10), ("1m.bin", 1 << 20)])?;
    make_site(&behind, &[("behind.html", 1 << 10), ("behind-1m.bin", 1 << 20)])?;
    let log = directory.join("access.log");
    let behind = Server::start(program, &behind, directory, &[])?;
    let forward = format!("http://{}", behind.address);
    let log = log.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"))?;
    let plain = Server::start(program, &site, directory, &["--access-log", log, "--forward", &forward])?;
    let tls = Server::start(program, &site, directory, &["--access-log", log, "--tls"])?;
    for (server, path, options) in WORKS {
        let url = match server {
            "tls" => format!("https://{}/{path}", tls.address),
            _ => format!("http://{}/{path}", plain.address),
        };
        println!("{url} {}", options.join(" "));
        let work = Command::new("target/debug/tailor")
            .args(["bench", "--quiet", "--insecure", "--duration", WORK_DURATION])
            .args(options)
            .arg(url)
            .stdout(Stdio::null())
            .status()?;
        if !work.success() {
            eprintln!("tailor: {work}; the server will be no faster at this");
        }
    }
    [plain, tls, behind].into_iter().try_for_each(Server::end)
}

fn make_site(directory: &Path, files: &[(&str, usize)]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    files.iter().try_for_each(|(name, bytes)| {
        fs::write(directory.join(name), &b"a { color: #123456; }\n".repeat(1 << 16)[..*bytes])
    })
}

struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(program: &Path, site: &Path, state: &Path, options: &[&str]) -> io::Result<Self> {
        // Free a moment ago; if it no longer is, the server says so.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let process = Command::new(program)
            .arg("serve")
            .arg(site)
            .args(["--workers", "1", "--listen", &address.to_string()])
            .args(options)
            .env("STATE_DIRECTORY", state)
            .stdout(Stdio::null())
            .spawn()?;
        let until = Instant::now() + START_TIME_MAX;
        while TcpStream::connect(address).is_err() {
            if Instant::now() > until {
                return Err(io::Error::other(format!("no server at {address}")));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(Self { process, address })
    }

    /// Ends it as an operator would, so that it writes its profile.
    fn end(mut self) -> io::Result<()> {
        check(Command::new("kill").arg(self.process.id().to_string()))?;
        match self.process.wait()? {
            status if status.success() => Ok(()),
            status => Err(io::Error::other(format!("the server: {status}"))),
        }
    }
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn check(command: &mut Command) -> io::Result<()> {
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}

/// The program that merges profiles: it has to be of the compiler's own version of LLVM.
fn merger() -> io::Result<PathBuf> {
    if let Some(path) = std::env::var_os("LLVM_PROFDATA") {
        return Ok(path.into());
    }
    // Where the components of the compiler's own platform are.
    let libraries = output(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let path = Path::new(libraries.trim()).with_file_name("bin").join("llvm-profdata");
    match path.exists() {
        true => Ok(path),
        false => Err(io::Error::other(
            "llvm-profdata is not there: `rustup component add llvm-tools`, or LLVM_PROFDATA=PATH",
        )),
    }
}

fn output(command: &mut Command) -> io::Result<String> {
    let output = command.stderr(Stdio::inherit()).output()?;
    String::from_utf8(output.stdout).map_err(io::Error::other)
}
