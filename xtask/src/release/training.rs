//! Requests of which the counts of a profile are made.
//!
//! They have all versions, small and large files, a browser's fields, dynamic compression, rules and redirects. Responses of
//! another server come with and without the cache.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{run_command, tree};
use crate::certificate;
use crate::process::{ChildProcess, free_port};

/// Files of the site: name and size in bytes.
const FILES: [(&str, usize); 4] = [("1k", 1 << 10), ("16k", 16 << 10), ("256k", 256 << 10), ("1m", 1 << 20)];

/// Fields of a browser's request.
const BROWSER: &[&str] = &[
    "sec-ch-ua: \"Chromium\";v=\"148\", \"Not/A)Brand\";v=\"99\"",
    "sec-ch-ua-mobile: ?0",
    "sec-ch-ua-platform: \"Linux\"",
    "user-agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/148.0.0.0 Safari/537.36",
    "accept: text/html,application/xhtml+xml,image/avif,image/webp,*/*;q=0.8",
    "accept-language: en-US,en;q=0.9,de;q=0.8",
    "referer: https://www.example.com/articles/",
    "cookie: session=8f14e45fceea167a5a36dedd4bea2543; theme=dark",
];

/// Connections of HTTP/1.1 instead of one with streams.
const HTTP1_CONNECTIONS_MAX: u32 = 8;

/// Requests of a kind.
struct Load {
    path: &'static str,
    requests: u32,
    connections: u32,
    /// Streams of a connection. HTTP/1.1 has more connections instead.
    streams: u32,
    /// Status of the responses.
    status: u16,
    fields: &'static [&'static str],
    options: &'static [&'static str],
}

impl Load {
    const fn new(path: &'static str, requests: u32, connections: u32, streams: u32) -> Self {
        Self { path, requests, connections, streams, status: 200, fields: &[], options: &[] }
    }

    const fn of_browser(self) -> Self {
        Self { fields: BROWSER, ..self }
    }
}

/// Requests by each version.
const LOADS: [Load; 16] = [
    Load::new("/1k", 60_000, 8, 64),
    Load::new("/1k", 30_000, 64, 1),
    Load::new("/1k", 20_000, 2, 32).of_browser(),
    Load::new("/page.html", 10_000, 2, 32).of_browser(),
    Load::new("/16k", 6_000, 8, 8),
    Load::new("/1m", 300, 8, 8),
    Load { options: &["--requests-per-connection", "2"], ..Load::new("/1k", 800, 4, 1) },
    Load { status: 404, ..Load::new("/none", 5_000, 8, 1) }.of_browser(),
    Load { status: 301, ..Load::new("/moved/", 5_000, 8, 1) }.of_browser(),
    Load {
        status: 304,
        fields: &["if-modified-since: Fri, 01 Jan 2100 00:00:00 GMT"],
        ..Load::new("/1k", 5_000, 8, 1)
    },
    Load { status: 206, fields: &["range: bytes=100-199"], ..Load::new("/16k", 5_000, 8, 1) },
    Load::new("/other/1k", 8_000, 4, 8).of_browser(),
    Load::new("/other/256k", 500, 2, 2),
    Load::new("/cached/16k", 5_000, 2, 8).of_browser(),
    Load { fields: &["accept-encoding: gzip, deflate, br, zstd"], ..Load::new("/other/page.html", 1_500, 2, 4) },
    Load { fields: &["accept-encoding: gzip"], ..Load::new("/other/page.html", 1_000, 2, 4) },
];

/// One of so many requests is sent to try programs.
const TRIAL_SHARE: u32 = 500;

/// Has the programs in a directory serve and send all requests, and write their counts.
pub(super) fn train(programs: &Path, counts: &Path) -> Result<(), Box<dyn Error>> {
    // The server writes its counts where no configuration permits it to write.
    let site = Site::make(&counts.with_file_name("site"), "files off\n    system-calls \"allow\"")?;
    run(programs, &site, Some(counts), 1)
}

/// Tries the programs in a directory: confined as they are for users, they serve and send some of all requests.
pub(crate) fn try_out(programs: &Path) -> Result<(), Box<dyn Error>> {
    run(programs, &Site::make(Path::new("target/trial"), "")?, None, TRIAL_SHARE)
}

/// Serves and sends one of `share` requests. Programs that count write to `counts`.
fn run(programs: &Path, site: &Site, counts: Option<&Path>, share: u32) -> Result<(), Box<dyn Error>> {
    let count_in = |command: &mut Command, name: &str| {
        if let Some(counts) = counts {
            command.env("LLVM_PROFILE_FILE", counts.join(name));
        }
    };
    let mut server = Command::new(programs.join("tailcoat"));
    server.args(["run", "-c"]).arg(&site.config).stderr(Stdio::null());
    count_in(&mut server, "server.profraw");
    let mut server = ChildProcess::start(server, site.plain)?;
    let versions = [("http", ""), ("https", ""), ("https", "--http2"), ("https", "--http3")];
    for (number, (scheme, version)) in versions.into_iter().enumerate() {
        let port = if scheme == "http" { site.plain } else { site.tls };
        for (index, load) in LOADS.iter().enumerate() {
            let mut tailor = tailor(&programs.join("tailor"), load, version, load.requests.div_ceil(share));
            tailor.arg(format!("{scheme}://127.0.0.1:{port}{}", load.path));
            count_in(&mut tailor, &format!("client-{number}-{index}.profraw"));
            run_command(&mut tailor).map_err(|error| format!("{} by {scheme} {version}: {error}", load.path))?;
        }
    }
    server.terminate()?;
    let status = server.end()?;
    if status.success() { Ok(()) } else { Err(format!("tailcoat: {status}").into()) }
}

/// A tailor that sends this.
fn tailor(program: &Path, load: &Load, version: &str, requests: u32) -> Command {
    let mut command = Command::new(program);
    command.args(["bench", "--insecure", "--quiet", "--no-calibration", "--warm-up", "0s", "--require", "failures=0"]);
    command.args(["--requests", &requests.to_string(), "--connections"]);
    if version.is_empty() {
        command.arg((load.connections * load.streams.min(HTTP1_CONNECTIONS_MAX)).to_string());
    } else {
        command.args([&load.connections.to_string(), version, "--streams", &load.streams.to_string()]);
    }
    command.args(["--expect-status", &load.status.to_string()]);
    for field in load.fields {
        command.args(["--header", field]);
    }
    command.args(load.options).stdout(Stdio::null());
    command
}

/// Files and configuration of the server, which is also its own upstream.
struct Site {
    config: PathBuf,
    plain: u16,
    tls: u16,
}

impl Site {
    fn make(directory: &Path, confinement: &str) -> Result<Self, Box<dyn Error>> {
        tree::empty(directory)?;
        let root = directory.join("root");
        for folder in ["", "other", "cached", "moved"] {
            fs::create_dir_all(root.join(folder))?;
        }
        let page: String =
            (0..400).map(|line| format!("<p>Line {line} of a page, with text to compress.</p>\n")).collect();
        let mut random = fastrand::Rng::with_seed(1);
        for (name, bytes) in FILES {
            let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
            for folder in ["", "other", "cached"] {
                fs::write(root.join(folder).join(name), &content)?;
                fs::write(root.join(folder).join("page.html"), &page)?;
            }
        }
        certificate::write(directory, &["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])?;
        let (plain, tls, upstream) = (free_port()?, free_port()?, free_port()?);
        let config = directory.join("tailcoat.kdl");
        fs::write(&config, configuration(plain, tls, upstream, confinement))?;
        Ok(Self { config, plain, tls })
    }
}

/// One worker, so that no count is lost.
fn configuration(plain: u16, tls: u16, upstream: u16, confinement: &str) -> String {
    format!(
        r#"server {{
    workers 1
}}
confinement {{
    {confinement}
}}
access-log "access.log"
site {{
    listen "127.0.0.1:{plain}"
    listen "127.0.0.1:{tls}" tls=on
    certificate "certificate.pem" key="key.pem"
    root "root"
    redirect "/moved/*" "/1k" status=301
    deny "192.0.2.0/24" path="/16k"
    header "/page.html" "x-content-type-options" "nosniff"
    forward "http://127.0.0.1:{upstream}" path="/other/*"
    forward "http://127.0.0.1:{upstream}" path="/cached/*" {{
        cache {{
            default-age "1h"
        }}
    }}
}}
site {{
    listen "127.0.0.1:{upstream}"
    root "root"
    compress off
}}
"#
    )
}
