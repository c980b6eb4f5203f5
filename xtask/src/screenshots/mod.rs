//! `cargo xtask screenshots`: pictures of pages for the manual, made by a real browser of a running server.
//!
//! The pictures show the status page, a directory listing and a report of tailor, each light and dark. The command fails if
//! a page is wider than a phone.

mod browser;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::process::{ChildProcess, free_port, get};
use browser::{Browser, ColorScheme, Tab, Viewport};

const USAGE: &str = "usage: cargo xtask screenshots [--program FILE] [--tailor FILE] [--seconds N] [--phone DIRECTORY]";

/// Directory of the pictures, from the root.
const DIRECTORY: &str = "docs/images";

/// A picture is palette-quantized, and must not be larger.
const BYTES_MAX: usize = 100_000;

const DESKTOP: Viewport = Viewport { width: 1100, height: 760, scale: 1.0, is_phone: false };
const PHONE: Viewport = Viewport { width: 390, height: 844, scale: 2.0, is_phone: true };
const SCHEMES: [ColorScheme; 2] = [ColorScheme::Light, ColorScheme::Dark];

/// Height of a picture at most, in CSS pixels; a longer page is cut off.
const HEIGHT_MAX: u32 = 1100;

/// Space below the last block of a picture.
const MARGIN: u32 = 12;

/// Files of the site in the pictures: path, size in bytes, and age in hours.
const FILES: [(&str, usize, u64); 9] = [
    ("downloads/handbook.pdf", 2_431_907, 1_310),
    ("downloads/release-1.4.2.tar.gz", 8_123_456, 54),
    ("downloads/release-1.4.2.tar.gz.sha256", 97, 54),
    ("downloads/README.txt", 1_204, 9_412),
    ("downloads/screens/login.png", 48_211, 4_711),
    ("downloads/talks/2026-fosdem.odp", 3_911_204, 7_003),
    ("index.html", 6_144, 30),
    ("assets/site.css", 14_022, 60),
    ("assets/logo.svg", 3_310, 900),
];

/// Factor by which timers run faster in the status page, so that its plots fill within the time of the load.
const HURRY: u32 = 6;

struct Arguments {
    tailcoat: PathBuf,
    tailor: PathBuf,
    /// Time that the server is under load.
    seconds: u64,
    /// Directory for pictures of a phone's width; none: they are not kept.
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
    let site = ScreenshotSite::start(arguments, directory)?;
    let mut browser = Browser::start(program, directory)?;
    fs::create_dir_all(DIRECTORY)?;
    // The status page plots what it has seen since it was opened.
    let status = browser.open(&site.status_url(), DESKTOP, ColorScheme::Light, HURRY)?;
    let mut load = Load::start(&site, arguments, directory)?;
    std::thread::sleep(Duration::from_secs(arguments.seconds));
    let mut all_fit = pictures(&mut browser, &status, "status", arguments)?;
    let report = load.end()?;
    let listing = browser.open(&site.listing_url(), DESKTOP, ColorScheme::Light, 1)?;
    all_fit &= pictures(&mut browser, &listing, "listing", arguments)?;
    let report = browser.open(&format!("file://{}", report.display()), DESKTOP, ColorScheme::Light, 1)?;
    Ok(all_fit & pictures(&mut browser, &report, "report", arguments)?)
}

/// Takes the pictures of one page; whether it fits on a phone.
fn pictures(browser: &mut Browser, tab: &Tab, name: &str, arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    for scheme in SCHEMES {
        let path = Path::new(DIRECTORY).join(format!("{name}-{}.png", scheme.name()));
        save(&picture(browser, tab, DESKTOP, scheme)?, &path)?;
    }
    for scheme in SCHEMES {
        let picture = picture(browser, tab, PHONE, scheme)?;
        if let Some(directory) = &arguments.phone {
            fs::create_dir_all(directory)?;
            fs::write(directory.join(format!("{name}-{}-phone.png", scheme.name())), picture)?;
        }
    }
    let width = browser.evaluate(tab, "document.documentElement.scrollWidth")?;
    let fits = width.as_u64().is_some_and(|width| width <= PHONE.width.into());
    if !fits {
        println!("{name}: {width} CSS pixels wide on a phone of {}", PHONE.width);
    }
    Ok(fits)
}

/// A PNG of a page, down to its last block that ends above the largest height.
fn picture(
    browser: &mut Browser,
    tab: &Tab,
    viewport: Viewport,
    scheme: ColorScheme,
) -> Result<Vec<u8>, Box<dyn Error>> {
    browser.show(tab, viewport, scheme)?;
    // The page may lay itself out again after it got another size.
    browser.evaluate(tab, "new Promise(done => setTimeout(done, 300)).then(() => 0)")?;
    let blocks = "[...document.querySelectorAll('section, article, figure, table, svg, p')]";
    let bottoms = format!("{blocks}.map(block => block.getBoundingClientRect().bottom).filter(y => y < {HEIGHT_MAX})");
    let height = browser.evaluate(tab, &format!("Math.ceil(Math.max(...{bottoms}))"))?;
    let height = height.as_u64().and_then(|height| u32::try_from(height).ok()).unwrap_or(viewport.height);
    browser.capture(tab, viewport.width, height + MARGIN)
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
struct ScreenshotSite {
    _server: ChildProcess,
    _upstream: ChildProcess,
    port: u16,
    status_port: u16,
}

impl ScreenshotSite {
    fn start(arguments: &Arguments, directory: &Path) -> Result<Self, Box<dyn Error>> {
        let root = directory.join("site");
        for (path, bytes, hours) in FILES {
            let path = root.join(path);
            let parent = path.parent().ok_or("a file without a directory")?;
            fs::create_dir_all(parent)?;
            fs::write(&path, vec![b'x'; bytes])?;
            let modified = SystemTime::now() - Duration::from_secs(hours * 3600);
            fs::File::options().write(true).open(&path)?.set_modified(modified)?;
            fs::File::open(parent)?.set_modified(modified)?;
        }
        let (port, status_port, app_port) = (free_port()?, free_port()?, free_port()?);
        let directory_name = directory.to_str().ok_or("the temporary directory is not UTF-8")?;
        let fill = |text: &str| {
            let ports = [("@PORT@", port), ("@STATUS_PORT@", status_port), ("@APP_PORT@", app_port)];
            ports.iter().fold(text.replace("@DIRECTORY@", directory_name), |text, (mark, port)| {
                text.replace(mark, &port.to_string())
            })
        };
        let upstream = serve(arguments, directory, "app.kdl", &fill(include_str!("app.kdl")), app_port)?;
        let server = serve(arguments, directory, "site.kdl", &fill(include_str!("site.kdl")), port)?;
        get(port, "/downloads/")?;
        Ok(Self { _server: server, _upstream: upstream, port, status_port })
    }

    fn status_url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.status_port)
    }

    fn listing_url(&self) -> String {
        format!("http://127.0.0.1:{}/downloads/", self.port)
    }
}

/// Clients of the site, so that its pages have something to show.
struct Load {
    clients: Vec<Child>,
    report: PathBuf,
}

impl Load {
    fn start(site: &ScreenshotSite, arguments: &Arguments, directory: &Path) -> Result<Self, Box<dyn Error>> {
        let url = |path: &str| format!("http://127.0.0.1:{}{path}", site.port);
        let tailor = fs::canonicalize(&arguments.tailor)?;
        let bench = |seconds: u64, words: &[&str], urls: &[String]| -> std::io::Result<Child> {
            let mut command = Command::new(&tailor);
            command.args(["bench", "--arrivals", "poisson", "--duration", &format!("{seconds}s")]);
            command.args(words).args(urls).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        // The clients go on while pictures are taken.
        let seconds = arguments.seconds + 20;
        let files = [url("/"), url("/assets/site.css"), url("/assets/logo.svg")];
        let clients = vec![
            bench(seconds, &["-c", "32", "-R", "400"], &files)?,
            bench(seconds * 2 / 3, &["-c", "32", "-R", "150"], &files)?,
            bench(seconds / 3, &["-c", "8", "-R", "50"], &files)?,
            bench(seconds, &["-c", "2", "-R", "9"], &[url("/favicon.ico")])?,
            bench(seconds, &["-c", "32", "-R", "120", "--html", "report.html"], &[url("/api/items")])?,
        ];
        Ok(Self { clients, report: directory.join("report.html") })
    }

    /// Waits until they have ended; the path of tailor's report.
    fn end(&mut self) -> Result<PathBuf, Box<dyn Error>> {
        for client in &mut self.clients {
            // tailor's verdict on a file that is missing does not matter here.
            client.wait()?;
        }
        if self.report.exists() { Ok(self.report.clone()) } else { Err("tailor wrote no report".into()) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for client in &mut self.clients {
            // The client may have ended by itself.
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

/// Starts a server with this configuration.
fn serve(
    arguments: &Arguments,
    directory: &Path,
    name: &str,
    configuration: &str,
    port: u16,
) -> Result<ChildProcess, Box<dyn Error>> {
    let path = directory.join(name);
    fs::write(&path, configuration)?;
    let mut command = Command::new(&arguments.tailcoat);
    command.arg("run").arg("-c").arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    ChildProcess::start(command, port)
}
