//! `serve`: a directory, without a configuration file.

use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::local_certificate::LocalCertificate;
use super::{fail, start, urls};
use crate::config::*;
use crate::server::{Handover, ListenAddress};

const ROOT: ProgramUser = ProgramUser { user_id: 0, group_id: 0 };

/// The port that is tried first if none is given.
const FIRST_PORT: u16 = 8080;

/// Number of ports that are tried.
const PORTS_TRIED: u16 = 100;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat serve
  tailcoat serve -p 8000 /srv/www
  tailcoat serve --listen 8000 /srv/www
  tailcoat serve --tls --forward http://127.0.0.1:3000 public")]
pub(super) struct Serve {
    /// Directory to serve
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,

    /// Address to listen on: `PORT` (all addresses), `ADDRESS:PORT` or `unix:PATH`; may be repeated
    /// [default: 127.0.0.1:8080, or the next free port]
    #[arg(short, long, value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    listen: Vec<ListenAddresses>,

    /// Port on this machine alone; others cannot reach it. `--listen PORT` serves others, too
    #[arg(short, long, value_name = "PORT", conflicts_with = "listen")]
    port: Option<u16>,

    /// Number of workers [default: one for each CPU core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,

    /// Access log file; `-` is standard output [default: requests are shown on a terminal]
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Forward requests without a file to `http://HOST:PORT` or `unix:PATH`
    #[arg(short, long, value_name = "URL", value_parser = parse_forward)]
    forward: Option<UpstreamServerAddress>,

    /// User to switch to when started by root [default: stay root, without its privileges]
    #[arg(long, value_name = "USER", value_parser = user_from_text)]
    user: Option<ProgramUser>,

    /// Serve HTTPS with a local certificate, which is created if needed
    #[arg(long)]
    tls: bool,

    /// Serve HTTPS with this certificate chain (PEM)
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Private key of the certificate (PEM) [default: in the same file]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// List directories that have no index file; the default without `--forward`
    #[arg(short, long, conflicts_with = "no_browse")]
    browse: bool,

    /// Do not list directories that have no index file
    #[arg(long)]
    no_browse: bool,

    /// Serve the directory over FTP, too: anonymous and read-only, on `PORT` (all addresses) or `ADDRESS:PORT`; may be
    /// repeated
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_ftp_listen)]
    ftp: Vec<ListenAddresses>,
}

/// Addresses of one `--listen`: a port alone is an IPv4 and an IPv6 address.
#[derive(Clone, Debug)]
struct ListenAddresses(Vec<Listen>);

fn parse_listen(text: &str) -> Result<ListenAddresses, String> {
    let directory = std::env::current_dir().map_err(|error| error.to_string())?;
    listen_from_text(text, &directory).map(ListenAddresses)
}

fn parse_ftp_listen(text: &str) -> Result<ListenAddresses, String> {
    let addresses = parse_listen(text)?;
    match addresses.0.iter().any(|listen| matches!(listen, Listen::Unix(..))) {
        true => Err("FTP needs a TCP address".to_owned()),
        false => Ok(addresses),
    }
}

fn parse_forward(text: &str) -> Result<UpstreamServerAddress, String> {
    let directory = std::env::current_dir().map_err(|error| error.to_string())?;
    server_address_from_text(text, &directory)
}

impl Serve {
    pub(super) fn run(self) -> ExitCode {
        let handover = match Handover::from_environment() {
            Ok(handover) => handover,
            Err(error) => return fail(format_args!("cannot take over: {error}")),
        };
        let config = self.listeners(handover.as_ref()).and_then(|listen| {
            let local = self.local_certificate(&listen)?;
            let config = self.config(listen, self.certificate(local.as_ref()))?;
            Ok((config, local))
        });
        match config {
            Ok((config, local)) => start(config, ConfigOrigin::CommandLine, handover, |addresses| {
                self.announce(addresses, local.as_ref());
            }),
            Err(message) => {
                handover.iter().for_each(|handover| handover.fail(&message));
                fail(message)
            }
        }
    }

    /// Tells what is served where, the URLs first.
    fn announce(&self, addresses: &[ListenAddress], local: Option<&LocalCertificate>) {
        let mut lines: Vec<String> = urls(addresses).iter().map(|url| format!("Serving at {url}")).collect();
        let directory = std::path::absolute(&self.directory).unwrap_or_else(|_| self.directory.clone());
        lines.push(format!("  files: {}", directory.display()));
        if let Some(forward) = &self.forward {
            lines.push(format!("  other requests: forwarded to {forward}"));
        }
        let http = || addresses.iter().filter(|address| !address.is_ftp);
        let scheme = |address: &ListenAddress| if address.has_tls { "https" } else { "http" };
        match http().find(|address| address.socket.ip().is_unspecified()) {
            Some(address) => {
                if let Some(ip) = network_address() {
                    let port = address.socket.port();
                    lines.push(format!("  for others in your network: {}://{ip}:{port}/", scheme(address)));
                }
            }
            None if http().all(|address| address.socket.ip().is_loopback()) => {
                if let Some(address) = http().next() {
                    let port = address.socket.port();
                    lines.push(format!("  only this machine can reach it; `--listen {port}` lets others in"));
                }
            }
            None => {}
        }
        lines.extend(local.map(LocalCertificate::advice));
        // A reader that has left after the URL must not end the server.
        let _ = io::stderr().write_all((lines.join("\n") + "\n").as_bytes());
    }

    /// Local certificate for TLS, if one was asked for.
    fn local_certificate(&self, listen: &[Listen]) -> Result<Option<LocalCertificate>, String> {
        if !self.tls || self.tls_cert.is_some() {
            return Ok(None);
        }
        let all: Vec<Listen> = listen.iter().cloned().chain(self.ftp_listeners()).collect();
        LocalCertificate::make(&all).map(Some)
    }

    /// Certificate for TLS, if requested.
    fn certificate(&self, local: Option<&LocalCertificate>) -> Option<CertificateFiles> {
        let given = self.tls_cert.as_ref().map(|certificate| {
            let key = self.tls_key.as_ref().unwrap_or(certificate).clone();
            CertificateFiles { certificate: certificate.clone(), key, ocsp: None }
        });
        given.or_else(|| local.map(|local| local.files.clone()))
    }

    fn config(&self, listen: Vec<Listen>, certificate: Option<CertificateFiles>) -> Result<Config, String> {
        // The server of `--forward` responds for directories without an index.
        let browse = self.browse || !self.no_browse && self.forward.is_none();
        let files = FilesConfig { browse, ..FilesConfig::below(root(&self.directory)?) };
        let mut routes = vec![RouteConfig::new(PathPattern::Any, HandlerConfig::Files(files.clone()))];
        let upstreams: Vec<_> = self.forward.iter().cloned().map(UpstreamConfig::of_server).collect();
        routes.extend(upstreams.iter().map(|upstream| {
            let mut forward = Box::new(ForwardConfig::to(upstream.name.as_str()));
            forward.compression.inherit(&files);
            RouteConfig::new(PathPattern::Any, HandlerConfig::Forward(forward))
        }));
        let mut site = SiteConfig { listen, default: true, routes, ..SiteConfig::default() };
        if let Some(certificate) = certificate {
            site.tls_listen.clone_from(&site.listen);
            site.tls.certificates.push(certificate);
        }
        let access_log = self.access_log.as_deref().map(|file| AccessLog {
            target: if file == Path::new("-") { AccessLogTarget::Stdout } else { AccessLogTarget::File(file.into()) },
            format: AccessLogFormat::Combined,
        });
        let access_log = access_log.or_else(|| io::stdout().is_terminal().then(terminal_log));
        // A user who serves their own directory can read it.
        let user = self.user.or_else(|| rustix::process::geteuid().is_root().then_some(ROOT));
        let server = ServerSettings { workers: self.workers.map(usize::from), user, ..ServerSettings::default() };
        let ftp_listen = self.ftp_listeners();
        let mut sites = vec![site];
        if !ftp_listen.is_empty() {
            let ftp = Some(Arc::new(FtpConfig::new(ftp_listen.clone(), files)));
            let tls = sites[0].tls.clone();
            let tls_listen = if tls.certificates.is_empty() { Vec::new() } else { ftp_listen.clone() };
            sites.push(SiteConfig { listen: ftp_listen, tls_listen, tls, default: true, ftp, ..SiteConfig::default() });
        }
        let upstreams = upstreams.into_iter().map(Arc::new).collect();
        let sites = sites.into_iter().map(Arc::new).collect();
        let config = Config { server, upstreams, sites, access_log, ..Config::default() };
        config.validate()?;
        Ok(config)
    }

    /// The addresses that were given, or the first port that is free, unless another process hands one over.
    fn listeners(&self, handover: Option<&Handover>) -> Result<Vec<Listen>, String> {
        if let Some(port) = self.port {
            return Ok(vec![Listen::Tcp((Ipv4Addr::LOCALHOST, port).into())]);
        }
        if self.listen.is_empty() {
            if let Some(handover) = handover {
                let ftp = self.ftp_listeners();
                return Ok(handover.addresses().filter(|listen| !ftp.contains(listen)).cloned().collect());
            }
            return free_port().map(|address| vec![Listen::Tcp(address)]);
        }
        let given = distinct(&self.listen);
        let is_any_port = |listen: &Listen| matches!(listen, Listen::Tcp(address) if address.port() == 0);
        match self.ftp_listeners().iter().find(|listen| given.contains(listen)) {
            Some(listen) if is_any_port(listen) => {
                Err("port 0 cannot be given for FTP and for HTTP; give one of them a port".to_owned())
            }
            Some(listen) => Err(format!("{listen} is given for FTP and for HTTP; give each its own port")),
            None => Ok(given),
        }
    }

    /// Addresses for FTP.
    fn ftp_listeners(&self) -> Vec<Listen> {
        distinct(&self.ftp)
    }
}

/// Log of requests for a terminal.
fn terminal_log() -> AccessLog {
    let format = "{time}  {client}  {method} {target}  {status}  {bytes} B  {duration_ms} ms";
    AccessLog { target: AccessLogTarget::Stdout, format: AccessLogFormat::Template(format.to_owned()) }
}

/// Address of this machine in its network; `None` without a network. Sends nothing: the kernel only chooses the address
/// from which it would.
fn network_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address for documentation (RFC 5737).
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// The addresses, each once.
fn distinct(addresses: &[ListenAddresses]) -> Vec<Listen> {
    let mut given: Vec<Listen> = Vec::new();
    for listen in addresses.iter().flat_map(|addresses| &addresses.0) {
        if !given.contains(listen) {
            given.push(listen.clone());
        }
    }
    given
}

/// The directory as an absolute path, so that it stays the same wherever the process goes. Links in it are kept: a link
/// to the current release may be made to point to the next while the server runs.
fn root(directory: &Path) -> Result<String, String> {
    let shown = directory.display();
    let full = std::path::absolute(directory).map_err(|error| format!("{shown}: {error}"))?;
    if !full.metadata().map_err(|error| format!("{shown}: {error}"))?.is_dir() {
        return Err(format!("{shown} is not a directory"));
    }
    // Files in it may still be readable when their names can't be listed, but not if they can't be reached.
    rustix::fs::access(&full, rustix::fs::Access::EXEC_OK).map_err(|error| format!("{shown}: {error}"))?;
    full.into_os_string().into_string().map_err(|_| format!("{shown}: the name of this directory is not UTF-8"))
}

/// First free port. The server itself finds out if another program takes it in the meantime.
fn free_port() -> Result<SocketAddr, String> {
    for port in FIRST_PORT..FIRST_PORT + PORTS_TRIED {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(format!("{address}: {error}")),
            Ok(_) if port == FIRST_PORT => return Ok(address),
            Ok(_) => {
                eprintln!("Port {FIRST_PORT} is taken; the next free one is {port} (--listen chooses another).");
                return Ok(address);
            }
        }
    }
    let last = FIRST_PORT + PORTS_TRIED - 1;
    Err(format!("the ports {FIRST_PORT} to {last} are all taken; give one with --listen 127.0.0.1:PORT"))
}
