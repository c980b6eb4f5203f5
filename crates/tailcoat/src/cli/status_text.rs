//! Status of a server as text for a terminal.

use std::fmt;

use super::certificates::distance;
use crate::metrics::StageCounts;
use crate::status::{
    CertificateStatus, DiscoveryStatus, ModuleStatus, StatusReport, StoreStatus, StreamsStatus, TimesStatus,
    UpstreamStatus,
};

/// Overview of the server in lines that fit a terminal of this size. Rates are those since `before`, or since the start.
pub(super) fn overview(
    status: &StatusReport,
    before: Option<&StatusReport>,
    (rows, columns): (usize, usize),
) -> Vec<String> {
    let of_start = StatusReport { unix_ms: status.started_unix_s * 1_000, ..StatusReport::default() };
    let view = StatusText { status, before: before.unwrap_or(&of_start) };
    let mut lines = vec![view.head()];
    if status.has_counters {
        lines.extend([view.requests(), view.latency(), view.traffic()]);
    }
    lines.push(view.connections());
    lines.extend(view.holders());
    lines.push(view.cache());
    lines.push(view.client_memory());
    lines.extend(view.disk_cache());
    lines.extend(view.shared_cache());
    lines.extend(view.buffers());
    if status.has_counters {
        lines.extend(view.tls());
        lines.extend(view.programs());
        lines.extend(view.spans());
        lines.extend(view.troubles());
    } else {
        lines.push("counters    off (`server { counters off }`): no figures of requests".into());
    }
    lines.extend(view.certificates());
    lines.extend(view.overload());
    lines.push(String::new());
    lines.extend(view.workers());
    if !status.upstreams.is_empty() {
        lines.push(String::new());
        lines.extend(view.upstreams());
    }
    if let Some(store) = &status.store {
        lines.push(String::new());
        lines.extend(instances(store));
    }
    if let Some(streams) = &status.streams {
        lines.push(String::new());
        lines.extend(streams_of(streams));
    }
    if !status.modules.is_empty() {
        lines.push(String::new());
        lines.extend(view.modules());
    }
    lines.push(String::new());
    lines.extend(view.open_requests());
    lines.extend(view.ftp_sessions());
    lines.truncate(rows);
    lines.iter().map(|line| line.chars().take(columns).collect::<String>().trim_end().to_owned()).collect()
}

/// Store, and the instances that share it.
fn instances(store: &StoreStatus) -> Vec<String> {
    let state = if store.is_away { "AWAY" } else { "ok" };
    let mut lines = vec![format!(
        "store       {}   {state}   {} operations   {} failed   mean {}   {} orders waiting",
        store.place,
        store.operations,
        store.errors,
        milliseconds(store.mean_us),
        store.waiting_events,
    )];
    lines.extend(store.instances.iter().map(|instance| {
        let this = if instance.is_this { " (this)" } else { "" };
        let lag = instance.lag_events.map_or("unknown".to_owned(), |lag| format!("{lag} orders"));
        let skew = instance.skew_ms.map_or("unknown".to_owned(), |skew| format!("{skew} ms"));
        let seen = milliseconds(instance.age_ms.saturating_mul(1_000));
        format!(
            "instance    {}{this}   {}   lag {lag}   clock skew {skew}   seen {seen} ago",
            instance.name, instance.version
        )
    }));
    lines
}

/// Listeners and backends of other protocols than HTTP.
fn streams_of(streams: &StreamsStatus) -> Vec<String> {
    let rejected: u64 = streams.rejections.iter().map(|rejections| rejections.count).sum();
    let mut lines = vec![format!("streams     {} open   {rejected} rejected", streams.open)];
    for (kind, all) in [("listener", &streams.listeners), ("backend", &streams.backends)] {
        lines.extend(all.iter().map(|stream| {
            format!(
                "  {kind:<8}  {}: {} open, {} connections, {} failed, {} received, {} sent",
                stream.name,
                stream.open,
                stream.connections,
                stream.failures,
                bytes(stream.received_bytes),
                bytes(stream.sent_bytes)
            )
        }));
    }
    lines
}

/// Upstreams and their servers.
pub(super) fn upstreams(status: &StatusReport) -> String {
    if status.upstreams.is_empty() {
        return "no upstreams\n".into();
    }
    let mut text = String::new();
    for upstream in &status.upstreams {
        text += &format!(
            "{}: {} responses, {} without a response, {} retries, {} waiting, {} idle connections; time to first byte {}\n",
            upstream.name,
            upstream.responses.iter().sum::<u64>(),
            upstream.unanswered,
            upstream.retries,
            upstream.queue,
            upstream.idle,
            percentiles(&upstream.first_byte),
        );
        if let Some(discovery) = &upstream.discovery {
            text += &discovery_line(discovery);
        }
        for server in &upstream.servers {
            let backup = if server.is_backup { " (backup)" } else { "" };
            text += &format!(
                "  {:<7} {}{backup}: {} in use, {} requests, {} failures\n",
                server.health, server.name, server.in_use, server.requests, server.failures
            );
        }
    }
    text
}

/// State of a source of servers.
fn discovery_line(discovery: &DiscoveryStatus) -> String {
    let age = match discovery.age_ms {
        Some(age_ms) => format!("last response {} ago", age(age_ms / 1_000)),
        None => "no response yet".to_owned(),
    };
    let ignored = if discovery.ignored > 0 { format!(", {} more ignored", discovery.ignored) } else { String::new() };
    let error = discovery.error.as_ref().map(|error| format!("; FAILED: {error}")).unwrap_or_default();
    format!("  source {}: {} servers{ignored}, {age}{error}\n", discovery.source, discovery.servers)
}

/// Two looks at a server; rates are the difference between them.
struct StatusText<'a> {
    status: &'a StatusReport,
    before: &'a StatusReport,
}

impl StatusText<'_> {
    fn head(&self) -> String {
        let (status, process) = (self.status, &self.status.process);
        let used_us = |status: &StatusReport| status.process.user_us + status.process.system_us;
        format!(
            "tailcoat {}   up {}   CPU {} %   memory in use {}   threads {}   open files {} of {}",
            status.version,
            age((status.unix_ms / 1_000).saturating_sub(status.started_unix_s)),
            self.rate(used_us).whole() / 10_000,
            bytes(process.resident_bytes),
            process.threads,
            process.open_files,
            process.open_files_max,
        )
    }

    fn requests(&self) -> String {
        let class = |class: &'static str| self.rate(|status| status.requests_of_class(class));
        format!(
            "requests    {}/s   2xx {}/s   3xx {}/s   4xx {}/s   5xx {}/s   open {}   since start {}",
            self.rate(StatusReport::requests_answered),
            class("2xx"),
            class("3xx"),
            class("4xx"),
            class("5xx"),
            self.status.requests_open,
            self.status.requests_answered(),
        )
    }

    fn latency(&self) -> String {
        format!("latency     {}", percentiles(&self.status.durations().since(&self.before.durations())))
    }

    fn traffic(&self) -> String {
        let received = |status: &StatusReport| status.workers.iter().map(|worker| worker.received_bytes).sum();
        let sent = |status: &StatusReport| status.workers.iter().map(|worker| worker.sent_bytes).sum();
        format!("traffic     in {}/s   out {}/s", bytes(self.rate(received).whole()), bytes(self.rate(sent).whole()))
    }

    fn connections(&self) -> String {
        let states = self.status.connections().by_name();
        let open: u64 = states.iter().map(|(_, count)| count).sum();
        let opened = |status: &StatusReport| status.workers.iter().map(|worker| worker.connections_opened).sum();
        let states: Vec<_> = states
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{} {count}", StageCounts::label(name)))
            .collect();
        format!("connections {open}   new {}/s   {}", self.rate(opened), states.join(", "))
    }

    /// Clients and networks with a sixteenth of the connections or more; few have a reason to.
    fn holders(&self) -> Option<String> {
        let places = &self.status.places;
        let holders = places.clients.iter().chain(places.networks.iter().filter(|network| {
            // One of which all is a client's has been named.
            !places.clients.iter().any(|client| client.connections == network.connections)
        }));
        let many: Vec<_> = holders
            .filter(|holder| holder.connections.saturating_mul(16) >= places.places)
            .map(|holder| format!("{} {}", holder.holder, holder.connections))
            .collect();
        (!many.is_empty())
            .then(|| format!("limit       {} connections   largest clients {}", places.places, many.join(", ")))
    }

    fn cache(&self) -> String {
        let (cache, before) = (&self.status.object_cache, &self.before.object_cache);
        let share = |hits: u64, all: u64| (hits * 1_000).checked_div(all);
        let percent = |share: Option<u64>| {
            share.map_or("-".to_owned(), |thousandths| format!("{}.{} %", thousandths / 10, thousandths % 10))
        };
        let hits = cache.hits.saturating_sub(before.hits);
        let files = share(hits, hits + cache.misses.saturating_sub(before.misses));
        let of_result = |status: &StatusReport, only: Option<&str>| {
            let results = status.response_cache.iter().filter(|result| only.is_none_or(|only| result.result == only));
            results.map(|result| result.count).sum::<u64>()
        };
        let since = |only| of_result(self.status, only).saturating_sub(of_result(self.before, only));
        format!(
            "cache       {} objects, {} of {}   hit ratio files {}, responses {}   evicted {}/s",
            cache.objects,
            bytes(cache.memory_bytes),
            bytes(cache.memory_bytes_max),
            percent(files),
            percent(share(since(Some("hit")) + since(Some("disk-hit")) + since(Some("shared-hit")), since(None))),
            self.rate(|status| status.object_cache.evictions),
        )
    }

    fn client_memory(&self) -> String {
        let memory = &self.status.client_memory;
        format!("clients     memory in use {} of {}", bytes(memory.held_bytes), bytes(memory.limit_bytes))
    }

    /// If any content is buffered.
    fn disk_cache(&self) -> Option<String> {
        let disk = self.status.disk_cache.as_ref()?;
        Some(format!("disk cache  {} responses, {}   hits {}", disk.entries, bytes(disk.bytes), disk.hits))
    }

    fn shared_cache(&self) -> Option<String> {
        let shared = self.status.shared_cache.as_ref()?;
        let away = if shared.is_used { "" } else { "   NOT USED: the store is away, or was not read yet" };
        Some(format!(
            "shared cache  hits {}, misses {}, purged {}   written {}{away}",
            shared.hits, shared.misses, shared.purged, shared.written
        ))
    }

    fn buffers(&self) -> Option<String> {
        let buffers = &self.status.buffers;
        (buffers.memory_bytes + buffers.file_bytes > 0).then(|| {
            format!(
                "buffers     {} of {} in memory, {} of {} in files",
                bytes(buffers.memory_bytes),
                bytes(buffers.memory_bytes_max),
                bytes(buffers.file_bytes),
                bytes(buffers.file_bytes_max),
            )
        })
    }

    /// If any TLS is spoken.
    fn tls(&self) -> Option<String> {
        let tls = self.status.tls;
        (tls.full + tls.resumed + tls.failed > 0).then(|| {
            format!(
                "TLS         {}/s full, {}/s resumed, {}/s failed",
                self.rate(|status| status.tls.full),
                self.rate(|status| status.tls.resumed),
                self.rate(|status| status.tls.failed),
            )
        })
    }

    /// Certificates, and those that need attention.
    fn certificates(&self) -> Vec<String> {
        let certificates = &self.status.certificates;
        let first =
            certificates.iter().filter_map(|one| Some((one.not_after_unix_s?, one))).min_by_key(|(end, _)| *end);
        let now = (self.status.unix_ms / 1_000) as i64;
        let mut lines = Vec::new();
        if let Some((end, one)) = first {
            let name = one.names.first().unwrap_or(&one.site);
            let when = distance(end - now);
            let what = if end < now { "EXPIRED" } else { "expires" };
            lines.push(format!(
                "certificates {}   the first {what} {when}: {name} of {}",
                certificates.len(),
                one.issuer
            ));
        }
        let failing = certificates.iter().filter(|one| !one.error.is_empty() || one.not_after_unix_s.is_none());
        for CertificateStatus { site, error, next_try_unix_s, .. } in failing.take(3) {
            let error = if error.is_empty() { "not there yet" } else { error };
            let next = next_try_unix_s.map_or_else(String::new, |next| format!("; next try {}", distance(next - now)));
            lines.push(format!("certificate {site}   {error}{next}"));
        }
        lines
    }

    /// If any was started for a request.
    fn programs(&self) -> Option<String> {
        let programs = self.status.programs;
        (programs.started + programs.rejected > 0).then(|| {
            format!(
                "programs    {} running   {}/s started   {} rejected",
                programs.running,
                self.rate(|status| status.programs.started),
                programs.rejected,
            )
        })
    }

    /// If traces are kept.
    fn spans(&self) -> Option<String> {
        self.status.spans.map(|spans| {
            let rate = self.rate(|status| status.spans.unwrap_or_default().exported);
            format!("spans       {rate}/s exported   {} dropped   {} failed", spans.dropped, spans.failed)
        })
    }

    /// Limits that were hit, and what must not happen.
    fn troubles(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let hit = self.status.limits.iter().filter(|limit| limit.count > 0);
        let hit: Vec<_> = hit.map(|limit| format!("{} {}", limit.limit, limit.count)).collect();
        if !hit.is_empty() {
            lines.push(format!("limits hit  {}", hit.join(", ")));
        }
        let classes = self.status.bots.requests.iter().filter(|class| class.count > 0);
        let classes: Vec<_> = classes.map(|class| format!("{} {}", class.kind, class.count)).collect();
        if !classes.is_empty() {
            let tarpitted = self.status.bots.tarpitted;
            lines.push(format!("bots        {}   {tarpitted} in the tarpit", classes.join(", ")));
        }
        let evicted = self.status.evictions.iter().filter(|eviction| eviction.count > 0);
        let evicted: Vec<_> = evicted.map(|eviction| format!("{} {}", eviction.awaited, eviction.count)).collect();
        if !evicted.is_empty() {
            lines.push(format!("evicted     {} (closed to make room for new connections)", evicted.join(", ")));
        }
        if self.status.access_log.dropped > 0 {
            lines.push(format!("access log  {} records dropped", self.status.access_log.dropped));
        }
        if self.status.panics > 0 {
            lines.push(format!(
                "panics      {} (please report them with the lines of the server log)",
                self.status.panics
            ));
        }
        lines
    }

    /// Shedding of requests, with its reasons.
    fn overload(&self) -> Option<String> {
        let overload = &self.status.overload;
        let shed = overload.shed.iter().filter(|shed| shed.count > 0);
        let counts: Vec<_> = shed.map(|shed| format!("{} {}", shed.reason, shed.count)).collect();
        let counts = if counts.is_empty() { "0".to_owned() } else { counts.join(", ") };
        if overload.is_shedding {
            return Some(format!("overload    SHEDDING because of {}; shed {counts}", overload.reasons.join(", ")));
        }
        (counts != "0").then(|| format!("overload    no; shed {counts}"))
    }

    fn workers(&self) -> Vec<String> {
        let workers = self.status.workers.iter().filter(|worker| !worker.has_ended);
        let lines = workers.map(|worker| {
            let before = self.before.workers.get(worker.index).map_or(0, |before| before.busy_us);
            if !worker.has_answered {
                return format!("worker {:<4} does not respond", worker.index);
            }
            let busy = self.per_second(worker.busy_us.saturating_sub(before)).whole() / 10_000;
            let bar = "#".repeat((busy.min(100) / 5) as usize);
            let open: u64 = worker.connections.by_name().iter().map(|(_, count)| count).sum();
            let lag = if worker.lag_ms > 0 { format!("   event-loop lag {} ms", worker.lag_ms) } else { String::new() };
            format!("worker {:<4} [{bar:<20}] {busy:>3} %   {open} connections{lag}", worker.index)
        });
        lines.collect()
    }

    fn upstreams(&self) -> Vec<String> {
        let lines = self.status.upstreams.iter().map(|upstream| {
            let unknown = UpstreamStatus::default();
            let before = self.before.upstreams.iter().find(|before| before.name == upstream.name).unwrap_or(&unknown);
            let answered = |upstream: &UpstreamStatus| upstream.responses.iter().sum::<u64>();
            let of_health = |health| upstream.servers.iter().filter(|server| server.health == health).count();
            let failing = match of_health("failing") {
                0 => String::new(),
                count => format!(", {count} failing"),
            };
            format!(
                "upstream {}   {}/s   {} of {} servers up{failing}   {} waiting   time to first byte {}",
                upstream.name,
                self.per_second(answered(upstream).saturating_sub(answered(before))),
                of_health("up"),
                upstream.servers.len(),
                upstream.queue,
                percentiles(&upstream.first_byte.since(&before.first_byte)),
            )
        });
        lines.collect()
    }

    fn modules(&self) -> Vec<String> {
        let lines = self.status.modules.iter().map(|module| {
            let unknown = ModuleStatus::default();
            let before = self.before.modules.iter().find(|before| before.name == module.name).unwrap_or(&unknown);
            let failed: Vec<_> = module
                .failures
                .iter()
                .filter(|failure| failure.count > 0)
                .map(|failure| format!("{} {}", failure.cause, failure.count))
                .collect();
            format!(
                "module {}   {}/s   {} instances, {}   failures {}{}{}",
                module.name,
                self.per_second(module.requests.saturating_sub(before.requests)),
                module.instances,
                bytes(module.memory_bytes),
                if failed.is_empty() { "0".to_owned() } else { failed.join(", ") },
                if module.compiling > 0 { "   compiling" } else { "" },
                if module.unusable > 0 { "   failed to load (see the server log)" } else { "" },
            )
        });
        lines.collect()
    }

    fn open_requests(&self) -> Vec<String> {
        if self.status.requests.is_empty() {
            return vec!["no open requests".into()];
        }
        let head = format!("{:>9}  {:<12} {:<8} {:>10}  {:<21} REQUEST", "AGE", "STAGE", "HANDLER", "SENT", "CLIENT");
        let lines = self.status.requests.iter().map(|request| {
            let upstream =
                if request.upstream.is_empty() { String::new() } else { format!(" -> {}", request.upstream) };
            format!(
                "{:>9}  {:<12} {:<8} {:>10}  {:<21} {} {}{} HTTP/{}{upstream}",
                milliseconds(request.age_ms * 1_000),
                StageCounts::label(&request.stage),
                request.handler,
                bytes(request.sent_bytes),
                request.client,
                request.method,
                request.host,
                request.target,
                request.version,
            )
        });
        std::iter::once(head).chain(lines).collect()
    }

    /// If any session is open.
    fn ftp_sessions(&self) -> Vec<String> {
        let ftp = &self.status.ftp;
        if ftp.live.is_empty() {
            return Vec::new();
        }
        let head = format!("{:>9}  {:<21} {:<12} {:>22}  FTP SESSION", "AGE", "CLIENT", "USER", "MOVED");
        let lines = ftp.live.iter().map(|session| {
            let moved = match (session.command.as_str(), session.total_bytes) {
                ("", _) => String::new(),
                (_, None) => bytes(session.moved_bytes),
                (_, Some(total)) => format!("{} of {}", bytes(session.moved_bytes), bytes(total)),
            };
            let user = if session.user.is_empty() { "-" } else { &session.user };
            let work = if session.command.is_empty() { "idle" } else { &session.command };
            let tls = if session.is_encrypted { " (TLS)" } else { "" };
            let age = milliseconds(session.age_ms * 1_000);
            format!("{age:>9}  {:<21} {user:<12} {moved:>22}  {work} {}{tls}", session.client, session.path)
        });
        [String::new(), head].into_iter().chain(lines).collect()
    }

    fn rate(&self, count: impl Fn(&StatusReport) -> u64) -> PerSecond {
        self.per_second(count(self.status).saturating_sub(count(self.before)))
    }

    fn per_second(&self, count: u64) -> PerSecond {
        PerSecond { count, passed_ms: self.status.unix_ms.saturating_sub(self.before.unix_ms).max(1) }
    }
}

/// Rate of events. Low rates are shown with decimals, because 0 would mean that nothing happens.
#[derive(Clone, Copy, Debug)]
struct PerSecond {
    count: u64,
    passed_ms: u64,
}

impl PerSecond {
    /// Rate, rounded down.
    fn whole(self) -> u64 {
        (u128::from(self.count) * 1_000 / u128::from(self.passed_ms)) as u64
    }
}

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = u128::from(self.count) * 100_000 / u128::from(self.passed_ms);
        match hundredths {
            0 if self.count > 0 => f.write_str("<0.01"),
            0 => f.write_str("0"),
            1..1_000 if hundredths % 100 == 0 => write!(f, "{}", hundredths / 100),
            1..100 => write!(f, "0.{hundredths:02}"),
            100..1_000 => write!(f, "{}.{}", hundredths / 100, hundredths % 100 / 10),
            _ => write!(f, "{}", hundredths / 100),
        }
    }
}

/// Percentiles of a histogram. A response that leaves in the event-loop turn of its request takes no measurable time, which
/// is no 0 us.
fn percentiles(times: &TimesStatus) -> String {
    let shown = [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)].map(|(name, thousandths)| {
        let time = match times.quantile_us(thousandths) {
            None => "-".to_owned(),
            Some(0) => "at once".to_owned(),
            Some(us) => milliseconds(us),
        };
        format!("{name} {time}")
    });
    shown.join("   ")
}

/// Microseconds as a short time with its unit.
fn milliseconds(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..10_000 => format!("{}.{:02} ms", us / 1_000, us % 1_000 / 10),
        10_000..10_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{} s", us / 1_000_000),
    }
}

fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (count.max(1).ilog2() / 10).min(4) as usize;
    let tenths = (u128::from(count) * 10) >> (10 * unit);
    match unit {
        0 => format!("{count} B"),
        _ => format!("{}.{} {}", tenths / 10, tenths % 10, units[unit]),
    }
}

fn age(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match days {
        0 => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
        _ => format!("{days} d {hours}:{minutes:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{HolderCount, LiveRequest};
    use crate::status::{
        BufferStatus, EvictionCount, LimitCount, ModuleFailureCount, PlaceStatus, ProcessStatus, ProgramStatus,
        RequestCount, ServerStatus, SiteStatus, WorkerStatus,
    };

    fn holder(holder: &str, connections: u64) -> HolderCount {
        HolderCount { holder: holder.into(), connections }
    }

    fn status(count: u64, unix_ms: u64) -> StatusReport {
        let requests = RequestCount { status: "2xx".into(), count, ..RequestCount::default() };
        let durations = TimesStatus { buckets: vec![0, 0, count], sum_us: 2 * count };
        let worker = WorkerStatus {
            has_answered: true,
            busy_us: count * 1_000,
            sent_bytes: count << 20,
            connections: StageCounts { idle: 3, writing: 1, ..StageCounts::default() },
            ..WorkerStatus::default()
        };
        let server =
            ServerStatus { name: "http://a:1".into(), health: "down".into(), failures: 2, ..Default::default() };
        let failure = ModuleFailureCount { cause: "cpu-time-max".into(), count: 1 };
        let module = ModuleStatus {
            name: "shop".into(),
            instances: 3,
            memory_bytes: 2 << 20,
            compiling: 1,
            unusable: 0,
            requests: count / 2,
            failures: vec![ModuleFailureCount::default(), failure],
        };
        let live = LiveRequest { age_ms: 1_500, stage: "writing".into(), target: "/big".into(), ..Default::default() };
        StatusReport {
            version: "1".into(),
            has_counters: true,
            unix_ms,
            process: ProcessStatus { resident_bytes: 5 << 19, user_us: count * 1_000, ..ProcessStatus::default() },
            sites: vec![SiteStatus { requests: vec![requests], durations, ..SiteStatus::default() }],
            workers: vec![worker],
            upstreams: vec![UpstreamStatus { name: "app".into(), servers: vec![server], ..UpstreamStatus::default() }],
            modules: vec![module],
            programs: ProgramStatus { running: 2, started: count / 10, rejected: 0 },
            places: PlaceStatus {
                places: 400,
                clients: vec![holder("192.0.2.1", 350), holder("192.0.2.9", 25), holder("unix", 24)],
                networks: vec![holder("192.0.2.0/24", 375), holder("unix", 24)],
            },
            buffers: BufferStatus {
                memory_bytes: 3 << 19,
                memory_bytes_max: 64 << 20,
                file_bytes: 20 << 20,
                file_bytes_max: 1 << 30,
            },
            limits: vec![LimitCount { limit: "head-timeout".into(), count: 4 }],
            evictions: vec![EvictionCount { awaited: "idle".into(), count: 7 }, EvictionCount::default()],
            requests: vec![live],
            ..StatusReport::default()
        }
    }

    #[test]
    fn rates_are_those_since_the_look_before() {
        let text = overview(&status(600, 12_000), Some(&status(100, 10_000)), (100, 200)).join("\n");
        for part in [
            "CPU 25 %   memory in use 2.5 MiB",
            "requests    250/s   2xx 250/s   3xx 0/s",
            "since start 600",
            "p50 2 us   p90 2 us",
            "out 250.0 MiB/s",
            "connections 4   new 0/s   idle 3, sending 1",
            "limit       400 connections   largest clients 192.0.2.1 350, 192.0.2.9 25, 192.0.2.0/24 375\n",
            "buffers     1.5 MiB of 64.0 MiB in memory, 20.0 MiB of 1.0 GiB in files\n",
            "limits hit  head-timeout 4",
            "evicted     idle 7 (closed",
            "worker 0    [#####               ]  25 %   4 connections",
            "upstream app   0/s   0 of 1 servers up",
            "module shop   125/s   3 instances, 2.0 MiB   failures cpu-time-max 1   compiling",
            "programs    2 running   25/s started   0 rejected",
            "  1500 ms  sending ",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn low_rates_are_not_zero() {
        for (count, passed_ms, expect) in [
            (0, 1_000, "0"),
            (1, 1_000_000, "<0.01"),
            (1, 10_000, "0.10"),
            (1, 3_000, "0.33"),
            (3, 1_000, "3"),
            (7, 2_000, "3.5"),
            (1_001, 100_000, "10"),
            (500, 2_000, "250"),
        ] {
            assert_eq!(PerSecond { count, passed_ms }.to_string(), expect, "{count} in {passed_ms} ms");
        }
    }

    #[test]
    fn no_time_is_shown_where_none_was_measured() {
        let times = |buckets: &[u64]| TimesStatus { buckets: buckets.to_vec(), sum_us: 0 };
        assert_eq!(percentiles(&times(&[])), "p50 -   p90 -   p99 -   p99.9 -");
        assert_eq!(percentiles(&times(&[9])), "p50 at once   p90 at once   p99 at once   p99.9 at once");
        assert_eq!(percentiles(&times(&[70, 0, 30])), "p50 at once   p90 2 us   p99 2 us   p99.9 2 us");
    }

    /// No name of the data is shown as it is.
    #[test]
    fn states_have_words() {
        for (name, _) in StageCounts::default().by_name() {
            let label = StageCounts::label(name);
            assert!(label == "idle" || label != name, "{name}");
            assert!(label.len() <= 12 && !label.contains('_'), "{label}");
        }
    }

    #[test]
    fn a_look_fits_the_terminal() {
        let lines = overview(&status(600, 12_000), None, (5, 40));
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
    }

    #[test]
    fn servers() {
        let text = upstreams(&status(1, 1));
        assert!(text.contains("  down    http://a:1: 0 in use, 0 requests, 2 failures\n"), "{text}");
        assert_eq!(upstreams(&StatusReport::default()), "no upstreams\n");
    }

    #[test]
    fn quantities() {
        for (count, expect) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 31, "2.0 GiB")] {
            assert_eq!(bytes(count), expect);
        }
        for (us, expect) in [(999, "999 us"), (1_239, "1.23 ms"), (12_000_000, "12 s")] {
            assert_eq!(milliseconds(us), expect);
        }
        for (seconds, expect) in [(59, "0:00:59"), (90_061, "1 d 1:01")] {
            assert_eq!(age(seconds), expect);
        }
    }
}
