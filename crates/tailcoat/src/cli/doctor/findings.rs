//! From what there is to know to what should be changed.

use super::facts::{FileRole, MachineFacts};
use crate::config::Config;
use crate::connection::Unavailable;
use crate::worker;

/// Something that should be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DoctorFinding {
    pub(super) cost: FindingCost,
    /// Fact.
    pub(super) what: String,
    /// Effect of the fact.
    pub(super) why: String,
    /// A command, or a line of the configuration.
    pub(super) mend: String,
}

/// Kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FindingCost {
    /// The server does not start, or not do all it is to.
    Function,
    Safety,
    Speed,
}

impl FindingCost {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Safety => "safety",
            Self::Speed => "speed",
        }
    }
}

/// Descriptors that a server in front of many clients wants.
const OPEN_FILES_WANTED: u64 = 65_536;

/// Bytes that a connection's send buffer should be able to grow to: those under way on a line of 300 Mbit/s and 100 ms.
const SEND_BUFFER_BYTES_WANTED: u64 = 4 << 20;

/// Of the memory, what the cache may have without leaving too little for the rest, in percent.
const CACHE_PERCENT_MAX: u64 = 75;

/// Findings, the most important first.
pub(super) fn examine(facts: &MachineFacts, config: Option<&Config>) -> Vec<DoctorFinding> {
    let mut findings = DoctorFindings(Vec::new());
    findings.kernel(facts);
    findings.network(facts, config);
    findings.files(facts);
    if let Some(config) = config {
        findings.config(facts, config);
    }
    findings.0.sort_by_key(|finding| finding.cost as u8);
    findings.0
}

struct DoctorFindings(Vec<DoctorFinding>);

impl DoctorFindings {
    fn add(&mut self, cost: FindingCost, what: impl Into<String>, why: impl Into<String>, mend: impl Into<String>) {
        self.0.push(DoctorFinding { cost, what: what.into(), why: why.into(), mend: mend.into() });
    }

    /// Something that a setting of the kernel mends.
    fn setting(&mut self, cost: FindingCost, facts: &MachineFacts, name: &str, wanted: &str, why: &str) {
        let is = facts.settings.get(name).map_or("", String::as_str);
        let set = format!(
            "echo '{name} = {wanted}' | sudo tee -a /etc/sysctl.d/60-tailcoat.conf && sudo sysctl -w {name}='{wanted}'"
        );
        let mend = match (facts.is_container, name.starts_with("net.")) {
            (false, _) => set,
            // Networks have settings of their own.
            (true, true) => format!(
                "start the container with `--sysctl {name}='{wanted}'` (Kubernetes: `securityContext.sysctls`); with \
                 the host's network, run on the host: {set}"
            ),
            (true, false) => format!("run on the host: {set}"),
        };
        self.add(cost, format!("{name} is {is}"), why, mend);
    }

    fn kernel(&mut self, facts: &MachineFacts) {
        if !facts.confines_names {
            self.add(
                FindingCost::Function,
                "the kernel cannot confine paths to a directory (openat2)",
                "no file can be served: the kernel is older than Linux 5.12, or a container's seccomp profile forbids openat2",
                "use a newer kernel, or allow openat2 in the container's seccomp profile",
            );
        }
        if let Some(missing) = &facts.kernel_tls_missing {
            self.add(FindingCost::Function, missing, "`kernel-tls` has no effect", Unavailable::HELP);
        }
        if facts.stays_root {
            self.add(
                FindingCost::Safety,
                "the server keeps running as root: no other user is configured or found",
                "an attacker who exploits a bug in the server owns all of root's files, its keys first",
                match facts.is_container {
                    true => "start the container with `--user 65532` (Kubernetes: `runAsUser`), or set a user by number: `server { user \"65532\" }`",
                    false => "sudo adduser --system --group --no-create-home tailcoat, or set another user: `server { user \"NAME\" }`",
                },
            );
        }
        if facts.settings.get("fs.protected_symlinks").is_some_and(|value| value == "0") {
            let why = "any local user can trick programs into following links in /tmp to other users' files";
            self.setting(FindingCost::Safety, facts, "fs.protected_symlinks", "1", why);
        }
        if facts.open_files_max < OPEN_FILES_WANTED {
            self.add(
                FindingCost::Speed,
                format!("a process may open {} files", facts.open_files_max),
                "each connection needs a file descriptor; at the limit the server closes idle connections",
                match facts.is_container {
                    true => "start the container with `--ulimit nofile=1048576`",
                    false => {
                        "set `LimitNOFILE=1048576` in the systemd unit, or run `ulimit -n 1048576` before the start"
                    }
                },
            );
        }
        if facts.frequency_governor.as_deref() == Some("powersave") {
            self.add(
                FindingCost::Speed,
                "the CPU frequency governor is powersave",
                "every request takes longer",
                match facts.is_container {
                    true => {
                        "run on the host: echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
                    }
                    false => "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
                },
            );
        }
    }

    fn network(&mut self, facts: &MachineFacts, config: Option<&Config>) {
        let backlog = config.map_or(4_096, |config| u64::from(config.server.listen_backlog));
        for (name, why) in [
            ("net.core.somaxconn", "the kernel limits `listen-backlog` to this; in a burst it drops new connections"),
            ("net.ipv4.tcp_max_syn_backlog", "in a burst the kernel drops half-open connections"),
        ] {
            if facts.number(name).is_some_and(|length| length < backlog) {
                self.setting(FindingCost::Speed, facts, name, &backlog.to_string(), why);
            }
        }
        if facts.number("net.ipv4.tcp_syncookies") == Some(0) {
            let why = "a SYN flood blocks all new connections";
            self.setting(FindingCost::Safety, facts, "net.ipv4.tcp_syncookies", "1", why);
        }
        if facts.number("net.ipv4.tcp_slow_start_after_idle") == Some(1) {
            let why = "a keep-alive connection returns to slow start after each pause";
            self.setting(FindingCost::Speed, facts, "net.ipv4.tcp_slow_start_after_idle", "0", why);
        }
        if facts.number("net.ipv4.tcp_wmem").is_some_and(|bytes| bytes < SEND_BUFFER_BYTES_WANTED) {
            let why = "distant clients download large files more slowly than their bandwidth allows";
            let wanted = format!("4096 16384 {SEND_BUFFER_BYTES_WANTED}");
            self.setting(FindingCost::Speed, facts, "net.ipv4.tcp_wmem", &wanted, why);
        }
        let Some(config) = config else { return };
        if worker::plan(config).iter().any(|listener| listener.has_http3) {
            for (name, why) in [
                (
                    "net.core.rmem_max",
                    "in a burst the kernel drops packets of HTTP/3, and their clients send them again",
                ),
                ("net.core.wmem_max", "large responses over HTTP/3 wait for the socket more often"),
            ] {
                if facts.number(name).is_some_and(|bytes| bytes < worker::UDP_BUFFER_BYTES as u64) {
                    self.setting(FindingCost::Speed, facts, name, &worker::UDP_BUFFER_BYTES.to_string(), why);
                }
            }
        }
        let fast_open = facts.number("net.ipv4.tcp_fastopen");
        if config.server.fast_open_queue > 0 && fast_open.is_some_and(|bits| bits & 2 == 0) {
            let why = "`fast-open-queue` has no effect";
            self.setting(FindingCost::Function, facts, "net.ipv4.tcp_fastopen", "3", why);
        }
        if !config.upstreams.is_empty() && ports(facts).is_some_and(|count| count < 28_000) {
            let why = "each upstream connection uses one of these ports, and keeps it for a minute after it closes";
            self.setting(FindingCost::Speed, facts, "net.ipv4.ip_local_port_range", "1024 65535", why);
        }
        let watches = config.cache.watches_max as u64;
        if config.cache.watch && facts.number("fs.inotify.max_user_watches").is_some_and(|count| count < watches) {
            let why =
                "fewer directories can be watched than `watches-max` allows; changes in the others are seen later";
            self.setting(FindingCost::Speed, facts, "fs.inotify.max_user_watches", &watches.to_string(), why);
        }
        if config.cache.watch && facts.number("fs.inotify.max_user_instances").is_some_and(|count| count < 16) {
            let why = "without an inotify instance no directory is watched, and changes of files are seen later";
            self.setting(FindingCost::Speed, facts, "fs.inotify.max_user_instances", "128", why);
        }
    }

    fn files(&mut self, facts: &MachineFacts) {
        for (role, path, mode) in &facts.files {
            let path = path.display();
            let (what, why, mend) = match role {
                // Its group may be that of the server's user, who has to read it.
                FileRole::Key if mode & 0o027 != 0 => (
                    "is readable for other users",
                    "a user with the private key can impersonate this server",
                    "g-w,o-rwx",
                ),
                FileRole::Passwords if mode & 0o007 != 0 => {
                    ("is world-readable", "a user with the hashes can guess passwords offline", "o-rwx")
                }
                FileRole::Config if mode & 0o002 != 0 => {
                    ("is world-writable", "a user who changes it decides what is served and which programs run", "o-w")
                }
                FileRole::Root if mode & 0o002 != 0 => {
                    ("is world-writable", "any local user can change what visitors get", "o-w")
                }
                _ => continue,
            };
            self.add(
                FindingCost::Safety,
                format!("{path} {what} (mode {mode:o})"),
                why,
                format!("chmod {mend} '{path}'"),
            );
        }
        if !facts.shown_to_programs.is_empty() {
            let shown: Vec<_> = facts.shown_to_programs.iter().map(|path| path.display().to_string()).collect();
            self.add(
                FindingCost::Safety,
                format!("programs of `cgi` can read {}", shown.join(", ")),
                "they run as the server's user: an attacker who exploits a bug in one of them can read these files, too",
                "set `user` in `cgi` to a user who cannot read them, or move them out of /etc and /tmp",
            );
        }
    }

    fn config(&mut self, facts: &MachineFacts, config: &Config) {
        let workers = config.server.workers.unwrap_or(facts.cores);
        let allowed = facts.cpu_quota_thousandths.map(|quota| (quota.div_ceil(1_000) as usize).max(1));
        if let Some(allowed) = allowed.filter(|allowed| *allowed < workers) {
            self.add(
                FindingCost::Speed,
                format!("{workers} workers share the CPU time of {allowed} cores (the container's limit)"),
                "when the time is used up, all workers stop until the next period",
                format!("set `server {{ workers {allowed}; pin-workers off }}`"),
            );
        } else if workers > facts.cores {
            self.add(
                FindingCost::Speed,
                format!("{workers} workers share {} cores", facts.cores),
                "workers compete for cores and lose their CPU caches",
                "set `server { workers auto }`",
            );
        }
        let cache_bytes = config.cache.memory_bytes_max;
        if let Some(memory_bytes) = facts.memory_bytes
            && !config.cache.memory_bytes_auto
            && cache_bytes > memory_bytes / 100 * CACHE_PERCENT_MAX
        {
            self.add(
                FindingCost::Safety,
                format!("the cache may use {} MiB of {} MiB of memory", cache_bytes >> 20, memory_bytes >> 20),
                "when memory runs out, the kernel may kill the server",
                format!("set `cache {{ memory-bytes-max \"{}MiB\" }}`", (memory_bytes / 2) >> 20),
            );
        }
        if config.limits.rate_bytes_per_second_min == 0 {
            self.add(
                FindingCost::Safety,
                "`rate-bytes-per-second-min` is 0",
                "slow clients can occupy all connections",
                "remove the option: the default is safe",
            );
        }
        if config.limits.connections_per_client_max == Some(0) || config.limits.connections_per_network_max == Some(0) {
            self.add(
                FindingCost::Safety,
                "one client or network may use all connections (`connections-per-client-max 0`, `connections-per-network-max 0`)",
                "a client that opens enough connections blocks the others",
                "remove the options: by default each client has a share when connections run out; `tailcoat status` \
                 lists the largest clients",
            );
        }
        if config.server.control_socket.is_none() {
            self.add(
                FindingCost::Function,
                "there is no `control-socket`",
                "`tailcoat status`, `log tail`, `upstreams` and `cache purge` cannot reach the server",
                "set `server { control-socket \"/run/tailcoat/control.sock\" }`",
            );
        }
    }
}

/// Number of ports for outgoing connections.
fn ports(facts: &MachineFacts) -> Option<u64> {
    let mut bounds = facts.settings.get("net.ipv4.ip_local_port_range")?.split_whitespace().map(str::parse::<u64>);
    let (first, last) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
    Some((last + 1).saturating_sub(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Listen, ServerSettings, SiteConfig, UpstreamConfig};

    /// A machine on which all is well.
    fn healthy() -> MachineFacts {
        let settings = [
            ("net.core.somaxconn", "4096"),
            ("net.core.rmem_max", "4194304"),
            ("net.core.wmem_max", "4194304"),
            ("net.ipv4.tcp_max_syn_backlog", "4096"),
            ("net.ipv4.tcp_syncookies", "1"),
            ("net.ipv4.tcp_slow_start_after_idle", "0"),
            ("net.ipv4.tcp_fastopen", "3"),
            ("net.ipv4.tcp_wmem", "4096\t16384\t4194304"),
            ("net.ipv4.ip_local_port_range", "32768\t60999"),
            ("fs.inotify.max_user_watches", "1048576"),
            ("fs.inotify.max_user_instances", "128"),
            ("fs.protected_symlinks", "1"),
        ];
        MachineFacts {
            settings: settings.map(|(name, value)| (name, value.to_owned())).into(),
            open_files_max: 1 << 20,
            confines_names: true,
            cores: 4,
            memory_bytes: Some(64 << 30),
            ..MachineFacts::default()
        }
    }

    fn config() -> Config {
        let server = ServerSettings { control_socket: Some("/run/c.sock".into()), ..ServerSettings::default() };
        Config { server, upstreams: vec![UpstreamConfig::named("app").into()], ..Config::default() }
    }

    #[test]
    fn nothing_is_found_where_all_is_well() {
        assert_eq!(examine(&healthy(), Some(&config())), []);
        assert_eq!(examine(&healthy(), None), []);
    }

    #[test]
    fn each_fault_of_the_machine_is_found_alone() {
        type Change = fn(&mut MachineFacts);
        let cases: [(&str, FindingCost, Change); 14] = [
            ("net.core.somaxconn is 128", FindingCost::Speed, |facts| put(facts, "net.core.somaxconn", "128")),
            ("net.ipv4.tcp_max_syn_backlog is 128", FindingCost::Speed, |facts| {
                put(facts, "net.ipv4.tcp_max_syn_backlog", "128")
            }),
            ("net.ipv4.tcp_syncookies is 0", FindingCost::Safety, |facts| put(facts, "net.ipv4.tcp_syncookies", "0")),
            ("net.ipv4.tcp_slow_start_after_idle is 1", FindingCost::Speed, |facts| {
                put(facts, "net.ipv4.tcp_slow_start_after_idle", "1");
            }),
            ("net.ipv4.tcp_wmem is 4096 16384 65536", FindingCost::Speed, |facts| {
                put(facts, "net.ipv4.tcp_wmem", "4096 16384 65536");
            }),
            ("net.ipv4.ip_local_port_range is 50000 51000", FindingCost::Speed, |facts| {
                put(facts, "net.ipv4.ip_local_port_range", "50000 51000");
            }),
            ("fs.protected_symlinks is 0", FindingCost::Safety, |facts| put(facts, "fs.protected_symlinks", "0")),
            ("a process may open 1024 files", FindingCost::Speed, |facts| facts.open_files_max = 1_024),
            ("the kernel cannot confine paths", FindingCost::Function, |facts| facts.confines_names = false),
            ("the server keeps running as root: no other user is configured or found", FindingCost::Safety, |facts| {
                facts.stays_root = true
            }),
            ("no TLS there", FindingCost::Function, |facts| facts.kernel_tls_missing = Some("no TLS there".to_owned())),
            ("4 workers share the CPU time of 2 cores", FindingCost::Speed, |facts| {
                facts.cpu_quota_thousandths = Some(1_500)
            }),
            ("programs of `cgi` can read /etc/k.pem, /etc/p", FindingCost::Safety, |facts| {
                facts.shown_to_programs = vec!["/etc/k.pem".into(), "/etc/p".into()];
            }),
            ("/k.pem is readable for other users (mode 644)", FindingCost::Safety, |facts| {
                facts.files = vec![
                    (FileRole::Key, "/k.pem".into(), 0o644),
                    (FileRole::Key, "/l.pem".into(), 0o640),
                    (FileRole::Passwords, "/p".into(), 0o640),
                    (FileRole::Root, "/srv".into(), 0o755),
                ];
            }),
        ];
        for (what, cost, change) in cases {
            let mut facts = healthy();
            change(&mut facts);
            let findings = examine(&facts, Some(&config()));
            assert!(findings.len() == 1 && findings[0].what.starts_with(what), "{what}: {findings:?}");
            assert_eq!(findings[0].cost, cost, "{what}");
        }
    }

    #[test]
    fn buffers_of_udp_matter_for_http3() {
        for name in ["net.core.rmem_max", "net.core.wmem_max"] {
            let mut facts = healthy();
            put(&mut facts, name, "212992");
            let mut config = config();
            assert_eq!(examine(&facts, Some(&config)), [], "no site has TLS");
            let listen = vec![Listen::Tcp("[::]:443".parse().unwrap())];
            let site = SiteConfig { tls_listen: listen.clone(), listen, ..SiteConfig::default() };
            config.sites = vec![site.into()];
            let findings = examine(&facts, Some(&config));
            assert!(findings.len() == 1 && findings[0].what == format!("{name} is 212992"), "{findings:?}");
            config.server.http_versions.http3 = false;
            assert_eq!(examine(&facts, Some(&config)), []);
        }
    }

    #[test]
    fn what_is_the_hosts_is_not_mended_in_a_container() {
        let mut facts = MachineFacts { is_container: true, stays_root: true, open_files_max: 1_024, ..healthy() };
        facts.frequency_governor = Some("powersave".to_owned());
        put(&mut facts, "net.core.somaxconn", "128");
        put(&mut facts, "fs.protected_symlinks", "0");
        let findings = examine(&facts, Some(&config()));
        assert_eq!(findings.len(), 5, "{findings:?}");
        for DoctorFinding { mend, .. } in findings {
            assert!(mend.starts_with("run on the host: ") || mend.starts_with("start the container with "), "{mend}");
        }
    }

    fn put(facts: &mut MachineFacts, name: &'static str, value: &str) {
        facts.settings.insert(name, value.to_owned());
    }

    #[test]
    fn faults_of_the_configuration() {
        type Change = fn(&mut Config);
        let cases: [(&str, Change); 5] = [
            ("8 workers share 4 cores", |config| config.server.workers = Some(8)),
            ("the cache may use 51200 MiB of 65536 MiB of memory", |config| {
                (config.cache.memory_bytes_max, config.cache.memory_bytes_auto) = (50 << 30, false);
            }),
            ("`rate-bytes-per-second-min` is 0", |config| config.limits.rate_bytes_per_second_min = 0),
            (
                "one client or network may use all connections (`connections-per-client-max 0`, `connections-per-network-max 0`)",
                |config| config.limits.connections_per_client_max = Some(0),
            ),
            ("there is no `control-socket`", |config| config.server.control_socket = None),
        ];
        for (what, change) in cases {
            let mut config = config();
            change(&mut config);
            let findings = examine(&healthy(), Some(&config));
            assert!(findings.len() == 1 && findings[0].what == what, "{what}: {findings:?}");
        }
    }

    #[test]
    fn what_costs_most_comes_first() {
        let facts = MachineFacts { open_files_max: 1, confines_names: false, stays_root: true, ..healthy() };
        let costs: Vec<_> = examine(&facts, None).iter().map(|finding| finding.cost).collect();
        assert_eq!(costs, [FindingCost::Function, FindingCost::Safety, FindingCost::Speed]);
    }
}
