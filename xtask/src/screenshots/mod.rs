//! `cargo xtask screenshots`: pictures of pages for the manual, made by a real browser of a running server.
//!
//! It takes the status page, a directory listing and a report of tailor, each light and dark, and checks that none of them is
//! wider than a phone.

mod browser;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::process::{Process, free_port, get};
use browser::{Browser, Scheme, Tab, Viewport};

const USAGE: &str = "usage: cargo xtask screenshots [--program FILE] [--tailor FILE] [--seconds N] [--phone DIRECTORY]";

/// Where the pictures are, from the root.
const DIRECTORY: &str = "docs/images";

/// A picture is palette-quantized, and must not be larger.
const BYTES_MAX: usize = 100_000;

const DESKTOP: Viewport = Viewport { width: 1100, height: 760, scale: 1.0, is_phone: false };
const PHONE: Viewport = Viewport { width: 390, height: 844, scale: 2.0, is_phone: true };
const SCHEMES: [Scheme; 2] = [Scheme::Light, Scheme::Dark];

/// Height of a picture at most, in CSS pixels; a longer page is cut off.
const HEIGHT_MAX: u32 = 1000;

/// Files of the site in the pictures: path and size in bytes.
const FILES: [(&str, usize); 9] = [
    ("downloads/handbook.pdf", 2_431_907),
    ("downloads/release-1.4.2.tar.gz", 8_123_456),
    ("downloads/release-1.4.2.tar.gz.sha256", 97),
    ("downloads/README.txt", 1_204),
    ("downloads/screens/login.png", 48_211),
    ("downloads/talks/2026-fosdem.odp", 3_911_204),
    ("index.html", 6_144),
    ("assets/site.css", 14_022),
    ("assets/logo.svg", 3_310),
];

struct Arguments {
    tailcoat: PathBuf,
    tailor: PathBuf,
    /// How long the server is under load.
    seconds: u64,
    /// Where pictures of a phone's width are kept, to be looked at.
    phone: Option<PathBuf>,
}

pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let arguments = parse(arguments)?;
    let Some(program) = Browser::program() else { return Err("no browser is installed: apt install chromium".into()) };
    if Command::new("pngquant").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Err("pngquant is not installed: apt install pngquant".into());
    }
    let directory = std::env::temp_dir().join(format!("xtask-screenshots-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let result = take(&arguments, program, &directory);
    fs::remove_dir_all(&directory)?;
    result
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, Box<dyn Error>> {
    let target = |name: &str| Path::new("target/debug").join(name);
    let mut parsed = Arguments { tailcoat: target("tailcoat"), tailor: target("tailor"), seconds: 60, phone: None };
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match argument.as_str() {
            "--program" => parsed.tailcoat = value.into(),
            "--tailor" => parsed.tailor = value.into(),
            "--seconds" => parsed.seconds = value.parse().map_err(|_| USAGE)?,
            "--phone" => parsed.phone = Some(value.into()),
            _ => return Err(USAGE.into()),
        }
    }
    for program in [&parsed.tailcoat, &parsed.tailor] {
        if !program.exists() {
            return Err(format!("{} is not there: run `cargo build --workspace`", program.display()).into());
        }
    }
    Ok(parsed)
}

/// Takes all pictures; whether all pages fit on a phone.
fn take(arguments: &Arguments, program: &str, directory: &Path) -> Result<bool, Box<dyn Error>> {
    let site = Site::start(arguments, directory)?;
    let mut browser = Browser::start(program, directory)?;
    // The status page plots what it has seen since it was opened.
    let status = browser.open(&site.status_url(), DESKTOP, Scheme::Light)?;
    let report = site.load(arguments, directory)?;
    let listing = browser.open(&site.listing_url(), DESKTOP, Scheme::Light)?;
    let report = browser.open(&format!("file://{}", report.display()), DESKTOP, Scheme::Light)?;
    fs::create_dir_all(DIRECTORY)?;
    let mut all_fit = true;
    for (name, tab) in [("status", status), ("listing", listing), ("report", report)] {
        for scheme in SCHEMES {
            let path = Path::new(DIRECTORY).join(format!("{name}-{}.png", scheme.name()));
            save(&picture(&mut browser, &tab, DESKTOP, scheme)?, &path)?;
            let small = picture(&mut browser, &tab, PHONE, scheme)?;
            if let Some(directory) = &arguments.phone {
                fs::create_dir_all(directory)?;
                fs::write(directory.join(format!("{name}-{}-phone.png", scheme.name())), small)?;
            }
        }
        let width = browser.evaluate(&tab, "document.documentElement.scrollWidth")?;
        if width.as_u64().is_none_or(|width| width > PHONE.width.into()) {
            println!("{name}: {width} CSS pixels wide on a phone of {}", PHONE.width);
            all_fit = false;
        }
    }
    Ok(all_fit)
}

/// A PNG of the whole page, up to the largest height.
fn picture(browser: &mut Browser, tab: &Tab, viewport: Viewport, scheme: Scheme) -> Result<Vec<u8>, Box<dyn Error>> {
    browser.show(tab, viewport, scheme)?;
    // The page may lay itself out again after it got another size.
    browser.evaluate(tab, "new Promise(done => setTimeout(done, 300)).then(() => 0)")?;
    let height = browser.evaluate(tab, "Math.ceil(document.body.getBoundingClientRect().bottom + 16)")?;
    let height = height.as_u64().and_then(|height| u32::try_from(height).ok()).unwrap_or(viewport.height);
    browser.capture(tab, viewport.width, height.clamp(200, HEIGHT_MAX))
}

/// Writes a picture with a palette of 64 colors.
fn save(png: &[u8], path: &Path) -> Result<(), Box<dyn Error>> {
    let mut quantizer = Command::new("pngquant")
        .args(["--strip", "--speed", "1", "64", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    quantizer.stdin.take().ok_or("pngquant has no standard input")?.write_all(png)?;
    let output = quantizer.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("pngquant failed on {}", path.display()).into());
    }
    if output.stdout.len() > BYTES_MAX {
        return Err(format!("{}: {} bytes, more than {BYTES_MAX}", path.display(), output.stdout.len()).into());
    }
    fs::write(path, &output.stdout)?;
    println!("{}: {} bytes", path.display(), output.stdout.len());
    Ok(())
}

/// A server with a site, a reverse proxy and an upstream.
struct Site {
    _server: Process,
    _upstream: Process,
    port: u16,
    status_port: u16,
}

impl Site {
    fn start(arguments: &Arguments, directory: &Path) -> Result<Self, Box<dyn Error>> {
        let root = directory.join("site");
        for (path, bytes) in FILES {
            let path = root.join(path);
            fs::create_dir_all(path.parent().ok_or("a file without a directory")?)?;
            fs::write(&path, vec![b'x'; bytes])?;
        }
        let (port, status_port, app_port) = (free_port()?, free_port()?, free_port()?);
        let app = format!(
            "site {{\n    listen \"127.0.0.1:{app_port}\"\n    respond \"*\" 200 \"{{}}\" type=\"application/json\"\n    access-log off\n}}\n"
        );
        let upstream = serve(arguments, directory, "app.kdl", &app, app_port)?;
        let configuration = format!(
            "server {{\n    workers 2\n    status-listen \"127.0.0.1:{status_port}\"\n}}\n\
             upstream \"app\" {{\n    server \"http://127.0.0.1:{app_port}\"\n}}\n\
             site \"www.example.com\" {{\n    listen \"127.0.0.1:{port}\"\n    access-log \"{}\"\n    root \"{}\"\n    browse\n    \
             forward \"app\" path=\"/api/*\"\n}}\n",
            directory.join("access.log").display(),
            root.display(),
        );
        let server = serve(arguments, directory, "site.kdl", &configuration, port)?;
        get(port, "/downloads/")?;
        Ok(Self { _server: server, _upstream: upstream, port, status_port })
    }

    fn status_url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.status_port)
    }

    fn listing_url(&self) -> String {
        format!("http://127.0.0.1:{}/downloads/", self.port)
    }

    /// Puts the server under load, so that its pages have something to show; the path of tailor's report.
    fn load(&self, arguments: &Arguments, directory: &Path) -> Result<PathBuf, Box<dyn Error>> {
        let report = directory.join("report.html");
        let url = |path: &str| format!("http://127.0.0.1:{}{path}", self.port);
        let seconds = format!("{}s", arguments.seconds);
        let quiet = ["bench", "--quiet", "--arrivals", "poisson", "--duration", &seconds];
        let tailor = |words: &[&str], urls: &[String]| -> std::io::Result<Child> {
            Command::new(&arguments.tailor).args(quiet).args(words).args(urls).stdout(Stdio::null()).spawn()
        };
        let mut files =
            tailor(&["-c", "32", "-R", "900"], &[url("/"), url("/assets/site.css"), url("/assets/logo.svg")])?;
        let mut missing = tailor(&["-c", "2", "-R", "9"], &[url("/favicon.ico")])?;
        let html = report.to_str().ok_or("the path of the report is not UTF-8")?;
        let mut api = tailor(&["-c", "16", "-R", "300", "--html", html], &[url("/api/items")])?;
        std::thread::sleep(Duration::from_millis(200));
        for load in [&mut files, &mut missing, &mut api] {
            // Its verdict on a page that is missing does not matter here.
            load.wait()?;
        }
        if report.exists() { Ok(report) } else { Err("tailor wrote no report".into()) }
    }
}

/// Starts a server with this configuration.
fn serve(
    arguments: &Arguments,
    directory: &Path,
    name: &str,
    configuration: &str,
    port: u16,
) -> Result<Process, Box<dyn Error>> {
    let path = directory.join(name);
    fs::write(&path, configuration)?;
    let mut command = Command::new(&arguments.tailcoat);
    command.arg("run").arg("-c").arg(path).stdout(Stdio::null());
    Process::start(command, port)
}
