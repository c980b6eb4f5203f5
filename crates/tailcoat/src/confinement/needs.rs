//! Rights that a configuration needs.

use std::collections::HashSet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::boundary::{Grant, Rights};
use crate::config::{
    AccessLogTarget, CertificateFiles, CompiledDirectory, Config, ErrorPageFile, FtpWriters, GatewayConfig,
    GatewayProtocol, HandlerConfig, Listen, RemoteSyslog, RootPattern, RootPiece, RulesConfig, SERVICE_ACCOUNT,
    SharedState, SiteConfig, StoreConfig, StorePlace, SymlinkRule, SyslogTransport, UpstreamConfig,
    UpstreamServerAddress, ValkeyTopology, state_directory,
};

/// Files of the process itself, the limits of its container, /dev/null, and random numbers: a statically linked program may
/// read them from files, because it does not find the function of the C library.
const OF_PROCESS: [(&str, Rights); 5] = [
    ("/proc/self", Rights::Read),
    ("/sys/fs/cgroup", Rights::Read),
    ("/dev/null", Rights::Append),
    ("/dev/random", Rights::Read),
    ("/dev/urandom", Rights::Read),
];

/// Files for lookups of user names in a configuration.
const USERS: [&str; 3] = ["/etc/nsswitch.conf", "/etc/passwd", "/etc/group"];

/// Files for lookups of host names, with the libraries for it, and the system's CA certificates. Files in `/etc` are
/// replaced (DHCP), so the directory is needed.
const NAMES: [&str; 7] = [
    "/etc",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// Addresses of resolvers: often a link to a daemon's file below `/run`.
const RESOLVER: &str = "/etc/resolv.conf";

/// Directories of the system's programs and their files.
const OF_PROGRAMS: [(&str, Rights); 17] = [
    ("/usr", Rights::Execute),
    ("/bin", Rights::Execute),
    ("/sbin", Rights::Execute),
    ("/lib", Rights::Execute),
    ("/lib32", Rights::Execute),
    ("/lib64", Rights::Execute),
    ("/nix/store", Rights::Execute),
    ("/etc", Rights::Read),
    ("/proc", Rights::Read),
    ("/sys/fs/cgroup", Rights::Read),
    ("/tmp", Rights::Change),
    ("/var/tmp", Rights::Change),
    ("/dev/shm", Rights::Change),
    ("/dev/null", Rights::Change),
    ("/dev/zero", Rights::Read),
    ("/dev/random", Rights::Read),
    ("/dev/urandom", Rights::Read),
];

/// Rights that a configuration needs.
#[derive(Debug)]
pub(super) struct Needs {
    pub(super) files: Vec<Grant>,
    /// Rights of programs, if any are started.
    pub(super) programs: Option<Vec<Grant>>,
    /// True if there are TCP connections to other servers.
    pub(super) connects: bool,
    /// True if code is compiled (modules) or loaded (name lookups) at run time.
    pub(super) loads_code: bool,
}

impl Needs {
    /// Rights for this configuration, which was read from these files.
    pub(super) fn of(config: &Config, sources: &[PathBuf]) -> Self {
        let mut files = Collected::default();
        OF_PROCESS.iter().for_each(|(path, rights)| files.add(path, *rights));
        USERS.iter().for_each(|path| files.add(path, Rights::Read));
        sources.iter().for_each(|source| files.add_file(source, Rights::Read));
        add_server(config, &mut files);
        config.sites.iter().for_each(|site| add_site(site, &mut files));
        add_rules(&config.rules, &mut files);
        add_upstreams(config, &mut files);
        add_modules(config, &mut files);
        add_automatic_certificates(config, &mut files);
        add_store(config, &mut files);
        let authorities = config.traces.iter().filter_map(|traces| traces.authorities.as_ref());
        authorities.for_each(|path| files.add_file(path, Rights::Read));
        add_control_plane(config, &mut files);
        let of_logs = remote_logs(config).filter_map(|remote| remote.ca_file.as_ref());
        of_logs.for_each(|path| files.add_file(path, Rights::Read));
        let looks_up = looks_up_names(config) || config.server.control_plane.is_some();
        if looks_up {
            add_lookups(&mut files);
        }
        let confinement = &config.confinement;
        confinement.read.iter().chain(&confinement.execute).for_each(|path| files.add(path, Rights::Read));
        confinement.write.iter().for_each(|path| files.add(path, Rights::Change));
        Self {
            files: files.grants,
            programs: config.starts_programs().then(|| programs(config)),
            connects: looks_up || has_servers(config) || has_active_mode(config),
            loads_code: looks_up || config.module_routes().next().is_some(),
        }
    }
}

/// Adds the files of the control plane. Routes may lead to any address, so lookups and connections are needed, too.
fn add_control_plane(config: &Config, files: &mut Collected) {
    let Some(plane) = &config.server.control_plane else { return };
    if let Some(directory) = plane.state_directory() {
        files.add(existing(&directory), Rights::Change);
    }
    plane.token_file.iter().chain(&plane.authorities).for_each(|path| files.add_file(path, Rights::Read));
    plane.certificate.iter().flat_map(CertificateFiles::paths).for_each(|path| files.add_file(path, Rights::Read));
    // Cookies of session persistence are signed with a key of this machine.
    if let Some(directory) = state_directory() {
        files.add(existing(&directory), Rights::Change);
    }
}

/// Adds what lookups of host names and of the system's CA certificates read.
fn add_lookups(files: &mut Collected) {
    NAMES.iter().for_each(|path| files.add(path, Rights::Read));
    files.add_file(Path::new(RESOLVER), Rights::Read);
    let variables = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(std::env::var_os);
    variables.for_each(|path: OsString| files.add_file(Path::new(&path), Rights::Read));
}

/// True if CGI programs that run as the server's user can read this file.
pub fn is_shown_to_programs(config: &Config, file: &Path) -> bool {
    let is_as_server =
        |gateway: &GatewayConfig| gateway.protocol == GatewayProtocol::Cgi && gateway.programs.user.is_none();
    if !config.gateways().any(is_as_server) {
        return false;
    }
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let is_above = |grant: &Grant| grant.path.canonicalize().is_ok_and(|granted| real.starts_with(granted));
    !config.confinement.files || programs(config).iter().any(is_above)
}

/// Set of rights without duplicates.
#[derive(Default)]
struct Collected {
    grants: Vec<Grant>,
    known: HashSet<(PathBuf, Rights)>,
}

impl Collected {
    /// Adds a file or directory with everything below it.
    fn add(&mut self, path: impl AsRef<Path>, rights: Rights) {
        let path = path.as_ref().to_owned();
        if self.known.insert((path.clone(), rights)) {
            self.grants.push(Grant { path, rights });
        }
    }

    /// Adds a file that may be replaced: grants its directory, and the directory of its link's target. In the root
    /// directory, grants the file alone.
    fn add_file(&mut self, path: &Path, rights: Rights) {
        if path.is_dir() {
            return self.add(path, rights);
        }
        let (full, real) = (std::path::absolute(path).ok(), path.canonicalize().ok());
        for path in [full.as_deref(), real.as_deref()].into_iter().flatten() {
            match path.parent() {
                Some(parent) if parent.parent().is_some() && !parent.starts_with("/dev") => self.add(parent, rights),
                _ => self.add(path, rights),
            }
        }
    }

    /// Adds a root of files. If it is a link, it may lead elsewhere later (to the next release), within the same
    /// directory.
    fn add_root(&mut self, root: &RootPattern, rights: Rights) {
        let mut literal = String::new();
        for piece in &root.pieces {
            match piece {
                RootPiece::Literal(text) => literal.push_str(text),
                RootPiece::Host | RootPiece::HostPrefix(_) => {
                    literal.truncate(literal.rfind('/').map_or(0, |slash| slash + 1));
                    break;
                }
            }
        }
        if let SymlinkRule::Below(directories) = &root.symlinks {
            directories.iter().for_each(|directory| self.add(directory, Rights::Read));
        }
        let path = Path::new(&literal);
        self.add(path, rights);
        if path.is_symlink()
            && let Ok(real) = path.canonicalize()
        {
            self.add_parent(&real, rights);
        }
    }

    fn add_parent(&mut self, path: &Path, rights: Rights) {
        if let Some(parent) = path.parent().filter(|parent| parent.parent().is_some()) {
            self.add(parent, rights);
        }
    }
}

fn add_server(config: &Config, files: &mut Collected) {
    if let Some(directory) = config.used_buffer_directory() {
        files.add(directory, Rights::Buffer);
    }
    if let Some(disk) = &config.cache.disk {
        files.add(existing(&disk.directory), Rights::Change);
    }
    let keeps_sticky_key =
        config.upstreams.iter().filter_map(|upstream| upstream.sticky.as_ref()).any(|sticky| sticky.key_file.is_none());
    if let Some(directory) = state_directory().filter(|_| keeps_sticky_key) {
        files.add(existing(&directory), Rights::Change);
    }
    if let Some(socket) = &config.server.control_socket {
        files.add_file(socket, Rights::Sockets);
    }
    let knowledge = &config.server.client_knowledge;
    let keys = knowledge.crowdsec.as_ref().map(|crowdsec| &crowdsec.key_file);
    let known = knowledge.countries.iter().chain(&knowledge.systems).chain(keys);
    known.for_each(|path| files.add_file(path, Rights::Read));
    config.server.trusted_proxies_files.iter().for_each(|path| files.add_file(path, Rights::Read));
    for log in config.access_logs() {
        if let AccessLogTarget::File(path) = &log.target {
            files.add_file(path, Rights::Append);
            // A pipe is opened for reading and writing. For a missing file, a reload would then need more rights than
            // granted.
            if std::fs::metadata(path).is_ok_and(|status| status.file_type().is_fifo()) {
                files.add(path, Rights::Read);
            }
        }
    }
}

fn add_site(site: &SiteConfig, files: &mut Collected) {
    for listen in &site.listen {
        if let Listen::Unix(path, _) = listen {
            files.add_file(path, Rights::Sockets);
        }
    }
    for route in &site.routes {
        match &route.handler {
            HandlerConfig::Files(of_route) => files.add_root(&of_route.root, Rights::Read),
            HandlerConfig::Gateway(gateway, _) => {
                gateway.root.iter().for_each(|root| files.add_root(root, Rights::Read))
            }
            _ => {}
        }
    }
    if let Some(ftp) = &site.ftp {
        files.add_root(&ftp.files.root, Rights::Read);
        if ftp.writers != FtpWriters::Off {
            files.add_root(&ftp.files.root, Rights::Change);
        }
        ftp.users.iter().for_each(|path| files.add_file(path, Rights::Read));
    }
    for page in &site.error_pages {
        if let ErrorPageFile::File(path) = &page.file {
            files.add_file(path, Rights::Read);
        }
    }
    add_rules(&site.rules, files);
    for certificate in &site.tls.certificates {
        certificate.paths().for_each(|path| files.add_file(path, Rights::Read));
    }
    if let Some(client) = &site.tls.client_certificates {
        files.add_file(&client.authorities, Rights::Read);
    }
}

fn add_rules(rules: &RulesConfig, files: &mut Collected) {
    let bots = rules.bots.iter().flatten();
    bots.flat_map(|bots| bots.files().chain(&bots.key_file)).for_each(|path| files.add_file(path, Rights::Read));
    rules.clients.iter().flat_map(|rule| &rule.files).for_each(|path| files.add_file(path, Rights::Read));
    rules.passwords.iter().filter_map(|rule| rule.file.as_ref()).for_each(|path| files.add_file(path, Rights::Read));
}

fn add_upstreams(config: &Config, files: &mut Collected) {
    let keys = config.upstreams.iter().filter_map(|upstream| upstream.sticky.as_ref()?.key_file.as_ref());
    keys.for_each(|path| files.add_file(path, Rights::Read));
    for discovery in config.upstreams.iter().filter_map(|upstream| upstream.discovery.as_ref()) {
        discovery.files().for_each(|path| files.add_file(path, Rights::Read));
        if discovery.uses_service_account() {
            files.add(SERVICE_ACCOUNT, Rights::Read);
        }
        // The last servers of the source.
        if let Some(directory) = state_directory() {
            files.add(existing(&directory), Rights::Change);
        }
    }
    for tls in config.upstreams.iter().map(|upstream| &upstream.tls) {
        tls.files().for_each(|path| files.add_file(path, Rights::Read));
    }
}

fn add_modules(config: &Config, files: &mut Collected) {
    let mut has_modules = false;
    for module in config.module_routes() {
        has_modules = true;
        files.add_file(&module.file, Rights::Read);
        for granted in &module.grants.directories {
            files.add(&granted.directory, if granted.is_writable { Rights::Change } else { Rights::Read });
        }
    }
    let directory = match &config.modules.compiled_directory {
        CompiledDirectory::State => state_directory(),
        CompiledDirectory::Off => None,
        CompiledDirectory::At(directory) => Some(directory.clone()),
    };
    if let Some(directory) = directory.filter(|_| has_modules) {
        files.add(existing(&directory), Rights::Change);
    }
}

fn add_automatic_certificates(config: &Config, files: &mut Collected) {
    let settings = &config.automatic_certificates;
    if !config.has_automatic_certificates() {
        return;
    }
    if let Some(directory) = state_directory() {
        files.add(existing(&directory), Rights::Change);
    }
    let key = settings.external_account.as_ref().map(|account| &account.key_file);
    settings.authority.iter().chain(key).for_each(|path| files.add_file(path, Rights::Read));
}

fn add_store(config: &Config, files: &mut Collected) {
    let Some(store) = &config.store else { return };
    match &store.place {
        Some(StorePlace::Directory(directory)) => files.add(existing(directory), Rights::Change),
        Some(StorePlace::Kubernetes { .. }) => files.add(SERVICE_ACCOUNT, Rights::Read),
        _ => {}
    }
    let secrets = [&store.password_file, &store.key_file, &store.authorities];
    secrets.into_iter().flatten().for_each(|path| files.add_file(path, Rights::Read));
    // The position in the orders, by which a cache on disk continues, and the configuration of the last rollout.
    let keeps_state = config.cache.disk.is_some() || store.has(SharedState::Rollouts);
    if let Some(directory) = state_directory().filter(|_| keeps_state) {
        files.add(existing(&directory), Rights::Change);
    }
}

fn is_directory(store: &StoreConfig) -> bool {
    matches!(store.place, Some(StorePlace::Directory(_)))
}

/// Hosts of a store; `None` if the engine or the environment names them.
fn store_hosts(store: &StoreConfig) -> Option<Vec<&str>> {
    match (&store.endpoint, &store.place) {
        (Some(endpoint), _) => Some(vec![&endpoint.host]),
        // Sentinels and clusters name further servers.
        (None, Some(StorePlace::Valkey(place))) if place.topology == ValkeyTopology::Standalone => {
            Some(place.nodes.iter().map(|(host, _)| host.as_str()).collect())
        }
        (None, Some(StorePlace::Consul { endpoint, .. })) => Some(vec![&endpoint.host]),
        _ => None,
    }
}

/// Directory that the server creates if it is missing; else its existing parent.
fn existing(directory: &Path) -> PathBuf {
    if !directory.is_dir() {
        // If this fails, the use of the directory reports the error.
        let _ = crate::tls::create_private_directory(directory);
    }
    directory.to_owned()
}

/// Rights that connections to an upstream need, its own files aside.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionNeeds {
    /// True if there are TCP connections.
    pub(super) connects: bool,
    /// True if host names or the system's CA certificates are looked up.
    pub(super) looks_up: bool,
}

impl ConnectionNeeds {
    pub(super) fn of(upstream: &UpstreamConfig) -> Self {
        let hosts = || upstream.servers.iter().filter_map(|server| host_of(&server.address));
        let trusts_the_system = upstream.has_tls() && upstream.tls.authorities.is_none();
        // A source names any host.
        let discovers = upstream.discovery.is_some();
        Self {
            connects: discovers || hosts().next().is_some(),
            looks_up: discovers || trusts_the_system || !hosts().all(is_address),
        }
    }

    /// Files of lookups.
    pub(super) fn files(self) -> Vec<Grant> {
        let mut files = Collected::default();
        if self.looks_up {
            add_lookups(&mut files);
        }
        files.grants
    }
}

fn looks_up_names(config: &Config) -> bool {
    let upstreams = config.upstreams.iter().any(|upstream| ConnectionNeeds::of(upstream).looks_up);
    let sends_requests = config.module_routes().any(|module| !module.grants.hosts.is_empty());
    let collector = config.traces.as_ref().and_then(|traces| Some((traces.endpoint.as_ref()?, traces)));
    let looks_for_syslog = remote_logs(config).any(|remote| {
        !is_address(&remote.host) || remote.transport == SyslogTransport::Tls && remote.ca_file.is_none()
    });
    let looks_for_collector =
        collector.is_some_and(|(url, traces)| !is_address(&url.host) || url.is_tls && traces.authorities.is_none());
    let looks_for_store = config.store.iter().filter(|store| !is_directory(store)).any(|store| {
        store.authorities.is_none() || store_hosts(store).is_none_or(|hosts| !hosts.into_iter().all(is_address))
    });
    let mut rules = config.sites.iter().map(|site| &site.rules).chain([&config.rules]);
    let confirms_crawlers = rules.any(|rules| rules.bots.as_ref().is_some_and(Option::is_some));
    let crowdsec = config.server.client_knowledge.crowdsec.as_ref();
    let looks_for_crowdsec = crowdsec.is_some_and(|crowdsec| crowdsec.authority.parse::<SocketAddr>().is_err());
    let of_clients = confirms_crawlers || looks_for_crowdsec;
    let of_servers = looks_for_collector || looks_for_syslog || looks_for_store;
    upstreams || sends_requests || of_servers || of_clients || config.has_automatic_certificates()
}

/// Syslogs of other machines.
fn remote_logs(config: &Config) -> impl Iterator<Item = &RemoteSyslog> {
    config.access_logs().filter_map(|log| match &log.target {
        AccessLogTarget::Remote(remote) => Some(&**remote),
        _ => None,
    })
}

fn has_servers(config: &Config) -> bool {
    let has_collector = config.traces.as_ref().is_some_and(|traces| traces.endpoint.is_some());
    let has_store = config.store.iter().any(|store| !is_directory(store));
    has_collector
        || has_store
        || remote_logs(config).next().is_some()
        || config.server.client_knowledge.crowdsec.is_some()
        || config.upstreams.iter().any(|upstream| ConnectionNeeds::of(upstream).connects)
}

/// True if FTP connects to clients.
fn has_active_mode(config: &Config) -> bool {
    config.sites.iter().filter_map(|site| site.ftp.as_ref()).any(|ftp| ftp.has_active_mode)
}

fn host_of(address: &UpstreamServerAddress) -> Option<&str> {
    match address {
        UpstreamServerAddress::Tcp(host, _)
        | UpstreamServerAddress::Http2(host, _)
        | UpstreamServerAddress::Tls(host, _)
        | UpstreamServerAddress::OtherTcp(host, _) => Some(host),
        UpstreamServerAddress::Unix(_) => None,
    }
}

fn is_address(host: &str) -> bool {
    host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
}

fn programs(config: &Config) -> Vec<Grant> {
    let mut files = Collected::default();
    OF_PROGRAMS.iter().for_each(|(path, rights)| files.add(path, *rights));
    files.add_file(Path::new(RESOLVER), Rights::Read);
    let is_cgi = |gateway: &&GatewayConfig| gateway.protocol == GatewayProtocol::Cgi;
    for gateway in config.gateways().filter(is_cgi) {
        gateway.root.iter().for_each(|root| files.add_root(root, Rights::Execute));
        gateway.programs.interpreter.iter().for_each(|path| files.add_file(path, Rights::Execute));
    }
    if let Some(hook) = &config.automatic_certificates.dns_hook {
        files.add_file(&hook.program, Rights::Execute);
    }
    let confinement = &config.confinement;
    confinement.read.iter().for_each(|path| files.add(path, Rights::Read));
    confinement.write.iter().for_each(|path| files.add(path, Rights::Change));
    confinement.execute.iter().for_each(|path| files.add(path, Rights::Execute));
    files.grants
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check_bytes;

    #[test]
    fn what_programs_are_shown() {
        let check = |text: &str, file: &str, expect: bool| {
            let checked = check_bytes("test.kdl", text.into(), Path::new("/"));
            let config = checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.to_text(false)));
            assert_eq!(is_shown_to_programs(&config, Path::new(file)), expect, "{text}: {file}");
        };
        let site = |options: &str| {
            format!(
                "site {{ listen \"127.0.0.1:1\"; cgi \"*\" root=\"/usr/share\" {{ {options} }}; respond \"*\" 404 }}\n"
            )
        };
        let plain = site("");
        check(&plain, "/etc/ssl/private/key.pem", true);
        check(&plain, "/usr/share/key.pem", true);
        check(&plain, "/var/lib/tailcoat/key.pem", false);
        check(&site("user \"nobody\""), "/etc/ssl/private/key.pem", false);
        check(&format!("confinement {{ files off }}\n{plain}"), "/var/lib/tailcoat/key.pem", true);
        check("site { listen \"127.0.0.1:1\"; respond \"*\" 404 }\n", "/etc/ssl/private/key.pem", false);
    }
}
