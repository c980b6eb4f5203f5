//! Metrics as text, for Prometheus and other readers of its formats.
//!
//! Names follow its conventions: base units, `_total` for counters, one unit per family.

use std::fmt::{Display, Write};

use super::model::{
    CertificateStatus, DiscoveryStatus, FtpStatus, SharedCacheStatus, StatusReport, StoreStatus, StreamsStatus,
    TimesStatus, UpstreamStatus,
};

/// Format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Text format before OpenMetrics, version 0.0.4.
    Text,
}

/// Upstream servers with series of their own; a bound on the number of series.
const SERVERS_MAX: usize = 1_000;

/// Bounds of histograms, as powers of two of a microsecond: from 64 us to 34 s.
const BOUND_EXPONENTS: std::ops::RangeInclusive<u32> = 6..=25;

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

impl MetricsFormat {
    /// Format for a request with this `Accept`. OpenMetrics only if the field names it, as all its readers do.
    pub fn wanted_by(accept: &[u8]) -> Self {
        let names_it = memchr::memmem::find(accept, b"application/openmetrics-text").is_some();
        if names_it { Self::OpenMetrics } else { Self::Text }
    }

    /// Media type of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Renders the metrics of this status.
pub fn render(status: &StatusReport, format: MetricsFormat) -> String {
    let mut text = Text { format, out: String::with_capacity(16 << 10), family: "" };
    write_process(status, &mut text);
    write_workers(status, &mut text);
    if status.has_counters {
        write_requests(status, &mut text);
        write_counts(status, &mut text);
        write_modules(status, &mut text);
        write_programs(status, &mut text);
        write_ftp(&status.ftp, &mut text);
    }
    write_caches(status, &mut text);
    write_certificates(&status.certificates, &mut text);
    write_upstreams(status, &mut text);
    write_discovery(&status.upstreams, &mut text);
    status.store.iter().for_each(|store| write_store(store, &mut text));
    status.streams.iter().for_each(|streams| write_streams(streams, &mut text));
    if format == MetricsFormat::OpenMetrics {
        text.out.push_str("# EOF\n");
    }
    text.out
}

fn write_process(status: &StatusReport, text: &mut Text) {
    let process = &status.process;
    text.gauge("tailcoat_build_info", "Version of Tailcoat; always 1.");
    text.sample("", &[("version", &status.version)], 1);
    text.counter("process_cpu_seconds", "CPU time of the process, user and system.");
    text.sample("_total", &[], Seconds(process.user_us + process.system_us));
    text.gauge("process_start_time_seconds", "Start time of the process, in seconds since 1970.");
    text.sample("", &[], status.started_unix_s);
    text.gauge("process_resident_memory_bytes", "Resident memory of the process.");
    text.sample("", &[], process.resident_bytes);
    text.gauge("process_virtual_memory_bytes", "Virtual memory of the process.");
    text.sample("", &[], process.virtual_bytes);
    text.gauge("process_open_fds", "Open file descriptors.");
    text.sample("", &[], process.open_files);
    text.gauge("process_max_fds", "Limit of open file descriptors.");
    text.sample("", &[], process.open_files_max);
    text.gauge("process_threads", "Threads of the process.");
    text.sample("", &[], process.threads);
}

fn write_certificates(certificates: &[CertificateStatus], text: &mut Text) {
    if certificates.is_empty() {
        return;
    }
    let name = |certificate: &CertificateStatus| certificate.names.first().cloned().unwrap_or_default();
    // A site may have two certificates of the same names, such as one of RSA; series must be unique.
    let mut seen: Vec<(&str, String)> = Vec::new();
    let mut distinct = Vec::new();
    for certificate in certificates {
        let key = (certificate.site.as_str(), name(certificate));
        if !seen.contains(&key) {
            seen.push(key);
            distinct.push(certificate);
        }
    }
    type Second = fn(&CertificateStatus) -> Option<i64>;
    let seconds: [(&str, &str, Second); 2] = [
        (
            "tailcoat_certificate_expiry_seconds",
            "Last second of a certificate, since 1970; of two, the first to expire.",
            |certificate| certificate.not_after_unix_s,
        ),
        ("tailcoat_certificate_start_seconds", "First second of the same certificate, since 1970.", |certificate| {
            certificate.not_before_unix_s
        }),
    ];
    for (metric, help, second) in seconds {
        text.gauge(metric, help);
        for certificate in &distinct {
            if let Some(second) = second(certificate) {
                let name = name(certificate);
                text.sample(
                    "",
                    &[("site", &certificate.site), ("name", &name), ("issuer", &certificate.issuer)],
                    second,
                );
            }
        }
    }
    text.gauge("tailcoat_certificate_failing", "1 if the last try to obtain or read a certificate failed.");
    for certificate in &distinct {
        let name = name(certificate);
        let is_failing = u8::from(!certificate.error.is_empty());
        text.sample("", &[("site", &certificate.site), ("name", &name)], is_failing);
    }
}

fn write_workers(status: &StatusReport, text: &mut Text) {
    text.gauge("tailcoat_worker_up", "1 if a worker responds, 0 if it does not.");
    for worker in status.workers.iter().filter(|worker| !worker.has_ended) {
        text.sample("", &[("worker", &worker.index)], u8::from(worker.has_answered));
    }
    let answering = || status.workers.iter().filter(|worker| worker.has_answered);
    text.counter("tailcoat_worker_busy_seconds", "CPU time of a worker's thread.");
    for worker in answering() {
        text.sample("_total", &[("worker", &worker.index)], Seconds(worker.busy_us));
    }
    text.gauge("tailcoat_worker_connections", "Open connections of a worker.");
    for worker in answering() {
        let open: u64 = worker.connections.by_name().iter().map(|(_, count)| count).sum();
        text.sample("", &[("worker", &worker.index)], open);
    }
    text.gauge("tailcoat_worker_lag_seconds", "Event-loop lag: time that ready connections wait for a worker.");
    for worker in answering() {
        text.sample("", &[("worker", &worker.index)], Seconds(worker.lag_ms * 1_000));
    }
    text.gauge("tailcoat_shed_level", "Load that a worker sheds, from 0 (none) to 3 (most).");
    for worker in answering() {
        text.sample("", &[("worker", &worker.index)], Thousandths(worker.shed_level_permille));
    }
    text.gauge("tailcoat_connections", "Open connections by state.");
    for (state, count) in status.connections().by_name() {
        text.sample("", &[("state", &state)], count);
    }
    text.gauge("tailcoat_http_requests_open", "Requests in progress.");
    text.sample("", &[], status.requests_open);
}

fn write_requests(status: &StatusReport, text: &mut Text) {
    text.counter("tailcoat_http_requests", "Requests with a response.");
    for site in &status.sites {
        for requests in &site.requests {
            let (handler, status, version) = (&requests.handler, &requests.status, &requests.version);
            let labels: [Label<'_>; 4] =
                [("site", &site.name), ("handler", handler), ("status", status), ("version", version)];
            text.sample("_total", &labels, requests.count);
        }
    }
    text.counter(
        "tailcoat_http_requests_aborted",
        "Requests whose client disconnected before the response was complete.",
    );
    for site in &status.sites {
        text.sample("_total", &[("site", &site.name)], site.aborted);
    }
    text.counter("tailcoat_http_response_content_bytes", "Bytes of response content sent.");
    for site in &status.sites {
        text.sample("_total", &[("site", &site.name)], site.content_bytes);
    }
    text.histogram(
        "tailcoat_http_request_duration_seconds",
        "Time from the arrival of a request to the end of its response, without requests for status and metrics.",
    );
    for site in &status.sites {
        text.times(&[("site", &site.name)], &site.durations);
    }
}

fn write_counts(status: &StatusReport, text: &mut Text) {
    let sum = |count: fn(&super::WorkerStatus) -> u64| status.workers.iter().map(count).sum::<u64>();
    text.counter("tailcoat_connections_opened", "Accepted client connections.");
    text.sample("_total", &[], sum(|worker| worker.connections_opened));
    text.counter("tailcoat_connections_closed", "Closed client connections.");
    text.sample("_total", &[], sum(|worker| worker.connections_closed));
    text.counter("tailcoat_received_bytes", "Bytes received from clients, without TLS overhead.");
    text.sample("_total", &[], sum(|worker| worker.received_bytes));
    text.counter("tailcoat_sent_bytes", "Bytes sent to clients, without TLS overhead.");
    text.sample("_total", &[], sum(|worker| worker.sent_bytes));
    text.counter("tailcoat_tls_handshakes", "TLS handshakes by result.");
    let tls = &status.tls;
    for (result, count) in [("full", tls.full), ("resumed", tls.resumed), ("failed", tls.failed)] {
        text.sample("_total", &[("result", &result)], count);
    }
    text.counter("tailcoat_limit_hits", "Times that clients reached a limit, by the option that sets it.");
    for limit in &status.limits {
        text.sample("_total", &[("limit", &limit.limit)], limit.count);
    }
    text.counter("tailcoat_bot_requests", "Requests by class, of sites with `bots`.");
    for class in &status.bots.requests {
        text.sample("_total", &[("class", &class.kind)], class.count);
    }
    text.counter("tailcoat_bot_challenges", "Challenges that clients have returned, by result.");
    for result in &status.bots.challenges {
        text.sample("_total", &[("result", &result.kind)], result.count);
    }
    text.gauge("tailcoat_tarpit_connections", "Connections in the tarpit.");
    text.sample("", &[], status.bots.tarpitted);
    text.gauge("tailcoat_connection_places", "Limit of client connections, without those reserved for monitoring.");
    text.sample("", &[], status.places.places);
    text.counter("tailcoat_connections_evicted", "Connections closed to make room for others, by their state.");
    for eviction in &status.evictions {
        text.sample("_total", &[("awaited", &eviction.awaited)], eviction.count);
    }
    text.counter("tailcoat_shed", "Requests and TLS handshakes shed because of overload, by reason.");
    for shed in &status.overload.shed {
        text.sample("_total", &[("reason", &shed.reason)], shed.count);
    }
    text.counter("tailcoat_connection_panics", "Connections closed by a bug in the server (panic).");
    text.sample("_total", &[], status.panics);
    text.counter("tailcoat_quic_sends", "Calls that have sent datagrams of HTTP/3, by result.");
    let quic = &status.quic;
    for (result, count) in [("sent", quic.sends - quic.sends_failed.min(quic.sends)), ("failed", quic.sends_failed)] {
        text.sample("_total", &[("result", &result)], count);
    }
    text.counter("tailcoat_quic_datagrams", "Datagrams of HTTP/3 sent; many share a call.");
    text.sample("_total", &[], quic.datagrams);
    text.counter("tailcoat_response_cache_requests", "Requests by the result of the response cache.");
    for result in &status.response_cache {
        text.sample("_total", &[("result", &result.result)], result.count);
    }
    text.counter("tailcoat_object_cache_lookups", "File lookups in the object cache, by result.");
    for (result, count) in [("hit", status.object_cache.hits), ("miss", status.object_cache.misses)] {
        text.sample("_total", &[("result", &result)], count);
    }
}

fn write_modules(status: &StatusReport, text: &mut Text) {
    let modules = &status.modules;
    if modules.is_empty() {
        return;
    }
    text.gauge("tailcoat_module_instances", "Instances of a module, busy or idle.");
    for module in modules {
        text.sample("", &[("module", &module.name)], module.instances);
    }
    text.gauge("tailcoat_module_memory_bytes", "Memory of a module's instances.");
    for module in modules {
        text.sample("", &[("module", &module.name)], module.memory_bytes);
    }
    text.gauge("tailcoat_module_compiling", "Modules that are still compiling; their paths get 503.");
    for module in modules {
        text.sample("", &[("module", &module.name)], module.compiling);
    }
    text.gauge("tailcoat_module_unusable", "Modules that failed to load; their paths get 503.");
    for module in modules {
        text.sample("", &[("module", &module.name)], module.unusable);
    }
    text.counter("tailcoat_module_requests", "Requests that a module handled.");
    for module in modules {
        text.sample("_total", &[("module", &module.name)], module.requests);
    }
    text.counter("tailcoat_module_failures", "Requests that failed in a module, by cause.");
    for module in modules {
        for failure in &module.failures {
            text.sample("_total", &[("module", &module.name), ("cause", &failure.cause)], failure.count);
        }
    }
}

fn write_programs(status: &StatusReport, text: &mut Text) {
    let programs = &status.programs;
    text.gauge("tailcoat_cgi_programs", "Running CGI programs.");
    text.sample("", &[], programs.running);
    text.counter("tailcoat_cgi_programs_started", "CGI programs started.");
    text.sample("_total", &[], programs.started);
    text.counter("tailcoat_cgi_programs_refused", "Requests rejected because all CGI programs were busy.");
    text.sample("_total", &[], programs.rejected);
}

/// Only if the server has FTP sessions, or had any.
fn write_ftp(ftp: &FtpStatus, text: &mut Text) {
    if ftp.sessions == 0 {
        return;
    }
    text.gauge("tailcoat_ftp_sessions_open", "Open FTP sessions.");
    text.sample("", &[], ftp.sessions_open);
    text.counter("tailcoat_ftp_sessions", "FTP sessions.");
    text.sample("_total", &[], ftp.sessions);
    text.counter("tailcoat_ftp_logins", "Logins over FTP, by result.");
    for (result, count) in [("accepted", ftp.logins), ("rejected", ftp.logins_rejected)] {
        text.sample("_total", &[("result", &result)], count);
    }
    text.counter("tailcoat_ftp_transfers", "Transfers over FTP that have ended, by direction and result.");
    for transfers in &ftp.transfers {
        let result = if transfers.is_complete { "complete" } else { "incomplete" };
        text.sample("_total", &[("direction", &transfers.direction), ("result", &result)], transfers.count);
    }
    text.counter("tailcoat_ftp_transferred_bytes", "Bytes of files and listings over FTP.");
    for (direction, count) in [("sent", ftp.sent_bytes), ("received", ftp.received_bytes)] {
        text.sample("_total", &[("direction", &direction)], count);
    }
}

fn write_streams(streams: &StreamsStatus, text: &mut Text) {
    text.counter("tailcoat_stream_rejections", "Connections closed before they had a listener, by reason.");
    for rejections in &streams.rejections {
        text.sample("_total", &[("reason", &rejections.reason)], rejections.count);
    }
    let families = [
        (
            "listener",
            &streams.listeners,
            [
                "tailcoat_stream_open",
                "tailcoat_stream_connections",
                "tailcoat_stream_failures",
                "tailcoat_stream_transferred_bytes",
            ],
        ),
        (
            "backend",
            &streams.backends,
            [
                "tailcoat_stream_backend_open",
                "tailcoat_stream_backend_connections",
                "tailcoat_stream_backend_failures",
                "tailcoat_stream_backend_transferred_bytes",
            ],
        ),
    ];
    for (label, all, [open, connections, failures, transferred]) in families {
        text.gauge(open, "Open connections of TLS and TCP, and clients of UDP.");
        for stream in all.iter().take(SERVERS_MAX) {
            text.sample("", &[(label, &stream.name)], stream.open);
        }
        text.counter(connections, "Connections of TLS and TCP, and clients of UDP.");
        for stream in all.iter().take(SERVERS_MAX) {
            text.sample("_total", &[(label, &stream.name)], stream.connections);
        }
        text.counter(failures, "Connections that reached no server.");
        for stream in all.iter().take(SERVERS_MAX) {
            text.sample("_total", &[(label, &stream.name)], stream.failures);
        }
        text.counter(transferred, "Bytes received from clients of forwarded connections, and sent to them.");
        for stream in all.iter().take(SERVERS_MAX) {
            for (direction, bytes) in [("received", stream.received_bytes), ("sent", stream.sent_bytes)] {
                text.sample("_total", &[(label, &stream.name), ("direction", &direction)], bytes);
            }
        }
    }
}

fn write_caches(status: &StatusReport, text: &mut Text) {
    let cache = &status.object_cache;
    text.gauge("tailcoat_object_cache_objects", "Files and responses in the object cache.");
    text.sample("", &[], cache.objects);
    text.gauge("tailcoat_object_cache_memory_bytes", "Memory of the object cache.");
    text.sample("", &[], cache.memory_bytes);
    text.gauge("tailcoat_object_cache_memory_limit_bytes", "Memory limit of the object cache.");
    text.sample("", &[], cache.memory_bytes_max);
    text.gauge("tailcoat_object_cache_open_files", "Large files that the object cache keeps open.");
    text.sample("", &[], cache.files);
    text.counter("tailcoat_object_cache_evictions", "Objects evicted from the object cache.");
    text.sample("_total", &[], cache.evictions);
    text.gauge("tailcoat_object_cache_file_content_bytes", "Bytes of large files in memory, kept or being sent.");
    text.sample("", &[], cache.file_content_bytes);
    text.gauge(
        "tailcoat_response_cache_content_bytes",
        "Bytes of cached upstream responses, in the cache or being sent.",
    );
    text.sample("", &[], cache.response_bytes);
    if let Some(disk) = &status.disk_cache {
        text.gauge("tailcoat_disk_cache_responses", "Responses in the cache on disk.");
        text.sample("", &[], disk.entries);
        text.gauge("tailcoat_disk_cache_bytes", "Size of the cache on disk.");
        text.sample("", &[], disk.bytes);
        text.counter("tailcoat_disk_cache_hits", "Responses read from the cache on disk.");
        text.sample("_total", &[], disk.hits);
        text.counter("tailcoat_disk_cache_drops", "Responses that the cache on disk has dropped or not written.");
        for (reason, count) in [("evicted", disk.evictions), ("damaged", disk.damaged), ("unwritten", disk.unwritten)] {
            text.sample("_total", &[("reason", &reason)], count);
        }
    }
    if let Some(shared) = &status.shared_cache {
        write_shared_cache(shared, text);
    }
    let memory = &status.client_memory;
    text.gauge("tailcoat_client_memory_bytes", "Memory held for clients.");
    text.sample("", &[], memory.held_bytes);
    text.gauge("tailcoat_client_memory_limit_bytes", "Limit of memory held for clients.");
    text.sample("", &[], memory.limit_bytes);
    let buffers = &status.buffers;
    text.gauge("tailcoat_buffered_memory_bytes", "Buffered content of requests and responses in memory.");
    text.sample("", &[], buffers.memory_bytes);
    text.gauge("tailcoat_buffered_memory_limit_bytes", "Buffered content that may be in memory.");
    text.sample("", &[], buffers.memory_bytes_max);
    text.gauge("tailcoat_buffered_file_bytes", "Buffered content of requests and responses in files.");
    text.sample("", &[], buffers.file_bytes);
    text.gauge("tailcoat_buffered_file_limit_bytes", "Buffered content that may be in files.");
    text.sample("", &[], buffers.file_bytes_max);
    let log = &status.access_log;
    if let Some(spans) = &status.spans {
        text.counter("tailcoat_trace_spans", "Trace spans by result.");
        for (result, count) in [("exported", spans.exported), ("dropped", spans.dropped), ("failed", spans.failed)] {
            text.sample("_total", &[("result", &result)], count);
        }
    }
    text.counter("tailcoat_log_lines_suppressed", "Lines of the server log suppressed because many were similar.");
    text.sample("_total", &[], status.log_lines_suppressed);
    text.counter("tailcoat_access_log_records", "Access log records by result.");
    for (result, count) in [("written", log.written), ("dropped", log.dropped)] {
        text.sample("_total", &[("result", &result)], count);
    }
}

fn write_upstreams(status: &StatusReport, text: &mut Text) {
    let upstreams = &status.upstreams;
    if upstreams.is_empty() {
        return;
    }
    if status.has_counters {
        text.counter("tailcoat_upstream_responses", "Responses of an upstream, by class of status.");
        for upstream in upstreams {
            for (class, count) in CLASSES.iter().zip(&upstream.responses).filter(|(_, count)| **count > 0) {
                text.sample("_total", &[("upstream", &upstream.name), ("status", class)], count);
            }
        }
        text.counter("tailcoat_upstream_unanswered", "Requests that no server of an upstream responded to.");
        text.by_upstream("_total", upstreams, |upstream| upstream.unanswered);
        text.counter("tailcoat_upstream_retries", "Requests sent to another server after the first one failed.");
        text.by_upstream("_total", upstreams, |upstream| upstream.retries);
        text.histogram(
            "tailcoat_upstream_first_byte_seconds",
            "Time from the request for a connection to the head of the upstream response.",
        );
        for upstream in upstreams {
            text.times(&[("upstream", &upstream.name)], &upstream.first_byte);
        }
    }
    text.gauge("tailcoat_upstream_queue_requests", "Requests that wait for a connection to an upstream.");
    text.by_upstream("", upstreams, |upstream| upstream.queue);
    text.gauge("tailcoat_upstream_overloaded", "1 if an upstream is overloaded, so that requests are shed; else 0.");
    text.by_upstream("", upstreams, |upstream| upstream.is_overloaded.into());
    text.gauge("tailcoat_upstream_idle_connections", "Idle keep-alive connections to an upstream.");
    text.by_upstream("", upstreams, |upstream| upstream.idle);
    let servers = || {
        let all = upstreams.iter().flat_map(|upstream| upstream.servers.iter().map(move |server| (upstream, server)));
        all.take(SERVERS_MAX)
    };
    text.gauge("tailcoat_upstream_server_up", "1 if an upstream server is up, else 0.");
    for (upstream, server) in servers() {
        text.sample(
            "",
            &[("upstream", &upstream.name), ("server", &server.name)],
            u8::from(matches!(server.health.as_str(), "up" | "failing")),
        );
    }
    text.gauge("tailcoat_upstream_server_connections", "Connections to an upstream server in use.");
    for (upstream, server) in servers() {
        text.sample("", &[("upstream", &upstream.name), ("server", &server.name)], server.in_use);
    }
    text.counter("tailcoat_upstream_server_requests", "Requests sent to an upstream server.");
    for (upstream, server) in servers() {
        text.sample("_total", &[("upstream", &upstream.name), ("server", &server.name)], server.requests);
    }
    text.counter("tailcoat_upstream_server_failures", "Requests that failed because of an upstream server.");
    for (upstream, server) in servers() {
        text.sample("_total", &[("upstream", &upstream.name), ("server", &server.name)], server.failures);
    }
}

fn write_shared_cache(shared: &SharedCacheStatus, text: &mut Text) {
    text.gauge("tailcoat_shared_cache_up", "1 if responses are read from the cache that instances share, else 0.");
    text.sample("", &[], u8::from(shared.is_used));
    text.counter("tailcoat_shared_cache_reads", "Responses asked for in the cache that instances share.");
    for (result, count) in [
        ("hit", shared.hits),
        ("miss", shared.misses),
        ("purged", shared.purged),
        ("damaged", shared.damaged),
        ("timeout", shared.timeouts),
    ] {
        text.sample("_total", &[("result", &result)], count);
    }
    text.counter("tailcoat_shared_cache_writes", "Responses for the cache that instances share.");
    for (result, count) in [("written", shared.written), ("unwritten", shared.unwritten)] {
        text.sample("_total", &[("result", &result)], count);
    }
    text.counter("tailcoat_shared_cache_errors", "Operations of the cache that instances share that failed.");
    text.sample("_total", &[], shared.errors);
}

fn write_store(store: &StoreStatus, text: &mut Text) {
    text.gauge("tailcoat_store_up", "1 if the latest operation of the store that instances share succeeded, else 0.");
    text.sample("", &[], u8::from(!store.is_away && store.age_ms.is_some()));
    text.gauge("tailcoat_store_instance_info", "Always 1; the label has the name of this instance.");
    text.sample("", &[("name", &store.instance)], 1);
    text.counter("tailcoat_store_operations", "Operations of the store.");
    text.sample("_total", &[], store.operations);
    text.counter("tailcoat_store_errors", "Operations of the store that failed.");
    text.sample("_total", &[], store.errors);
    text.counter("tailcoat_store_timeouts", "Operations of the store that took too long.");
    text.sample("_total", &[], store.timeouts);
    text.counter(
        "tailcoat_store_unusable_values",
        "Reads of values of the store that are too large, or that no instance with this key-file has written.",
    );
    text.sample("_total", &[], store.unusable_values);
    text.counter("tailcoat_store_operation_seconds", "Time of all operations of the store.");
    text.sample("_total", &[], Seconds(store.sum_us));
    text.gauge("tailcoat_store_waiting_orders", "Orders of this instance that wait for the store.");
    text.sample("", &[], store.waiting_events);
    text.counter(
        "tailcoat_store_resyncs",
        "Times that this instance may have missed orders, and has emptied its cache.",
    );
    text.sample("_total", &[], store.resyncs);
    if let Some(age_ms) = store.age_ms {
        text.gauge("tailcoat_store_lag_seconds", "Time since the latest operation of the store that succeeded.");
        text.sample("", &[], Seconds(age_ms.saturating_mul(1_000)));
    }
    if let Some(skew_ms) = store.skew_ms {
        text.gauge("tailcoat_store_clock_skew_seconds", "Clock of this instance less that of the store.");
        text.sample("", &[], skew_ms as f64 / 1_000.0);
    }
}

fn write_discovery(upstreams: &[UpstreamStatus], text: &mut Text) {
    let with_source: Vec<(&String, &DiscoveryStatus)> = upstreams
        .iter()
        .filter_map(|upstream| upstream.discovery.as_ref().map(|discovery| (&upstream.name, discovery)))
        .collect();
    if with_source.is_empty() {
        return;
    }
    text.gauge(
        "tailcoat_upstream_discovery_up",
        "1 if the source of an upstream's servers has responded last, else 0.",
    );
    for (upstream, discovery) in &with_source {
        let is_up = discovery.error.is_none() && discovery.age_ms.is_some();
        text.sample("", &[("upstream", upstream)], u8::from(is_up));
    }
    text.gauge("tailcoat_upstream_discovery_servers", "Servers that the source of an upstream named last.");
    for (upstream, discovery) in &with_source {
        text.sample("", &[("upstream", upstream)], discovery.servers);
    }
    text.counter(
        "tailcoat_upstream_discovery_failures",
        "Questions to the source of an upstream's servers that failed.",
    );
    for (upstream, discovery) in &with_source {
        text.sample("_total", &[("upstream", upstream)], discovery.failures);
    }
    text.counter("tailcoat_upstream_discovery_changes", "Changes of an upstream's servers by its source.");
    for (upstream, discovery) in &with_source {
        text.sample("_total", &[("upstream", upstream)], discovery.changes);
    }
}

type Label<'a> = (&'static str, &'a dyn Display);

/// Microseconds, shown in seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// Thousandths, shown as a decimal number.
struct Thousandths(u64);

impl Display for Thousandths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// Writer of families, each with its samples.
struct Text {
    format: MetricsFormat,
    out: String,
    /// Family of the samples that follow.
    family: &'static str,
}

impl Text {
    fn counter(&mut self, name: &'static str, help: &str) {
        // The text format has the suffix in the name of the family, OpenMetrics only in its samples.
        let suffix = if self.format == MetricsFormat::Text { "_total" } else { "" };
        self.begin(name, suffix, "counter", help);
    }

    fn gauge(&mut self, name: &'static str, help: &str) {
        self.begin(name, "", "gauge", help);
    }

    fn histogram(&mut self, name: &'static str, help: &str) {
        self.begin(name, "", "histogram", help);
    }

    fn begin(&mut self, name: &'static str, suffix: &str, kind: &str, help: &str) {
        self.family = name;
        let unit = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}");
        if let Some(unit) = unit.filter(|_| self.format == MetricsFormat::OpenMetrics) {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    fn sample(&mut self, suffix: &str, labels: &[Label<'_>], value: impl Display) {
        self.out.push_str(self.family);
        self.out.push_str(suffix);
        for (index, (name, label)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.out, "{before}{name}=\"{}\"", escaped(&label.to_string()));
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    fn by_upstream(&mut self, suffix: &str, upstreams: &[UpstreamStatus], value: fn(&UpstreamStatus) -> u64) {
        for upstream in upstreams {
            self.sample(suffix, &[("upstream", &upstream.name)], value(upstream));
        }
    }

    fn times(&mut self, labels: &[Label<'_>], times: &TimesStatus) {
        for bound_us in BOUND_EXPONENTS.map(|exponent| 1_u64 << exponent) {
            let bound = Seconds(bound_us);
            let all: Vec<Label<'_>> = labels.iter().copied().chain([("le", &bound as &dyn Display)]).collect();
            // Durations are whole microseconds, rounded down.
            self.sample("_bucket", &all, times.count_up_to(bound_us - 1));
        }
        let all: Vec<Label<'_>> = labels.iter().copied().chain([("le", &"+Inf" as &dyn Display)]).collect();
        self.sample("_bucket", &all, times.count());
        self.sample("_sum", labels, Seconds(times.sum_us));
        self.sample("_count", labels, times.count());
    }
}

/// Label value, escaped for both formats.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{ModuleFailureCount, ModuleStatus, RequestCount, ServerStatus, SiteStatus, WorkerStatus};

    fn status() -> StatusReport {
        let requests = RequestCount { handler: "files".into(), status: "2xx".into(), version: "1.1".into(), count: 7 };
        let durations = TimesStatus { buckets: vec![1, 0, 2], sum_us: 4 };
        let site = SiteStatus { name: "a\"b\\c".into(), requests: vec![requests], durations, ..SiteStatus::default() };
        let server = ServerStatus { name: "http://a:1".into(), health: "up".into(), failures: 3, ..Default::default() };
        let upstream = UpstreamStatus {
            name: "app".into(),
            responses: vec![0, 5],
            servers: vec![server],
            discovery: Some(DiscoveryStatus { servers: 1, age_ms: Some(5), failures: 2, ..Default::default() }),
            ..UpstreamStatus::default()
        };
        let failures = vec![ModuleFailureCount { cause: "cpu-time-max".into(), count: 4 }];
        let module = ModuleStatus { name: "shop".into(), instances: 2, failures, ..ModuleStatus::default() };
        let worker = WorkerStatus { has_answered: true, busy_us: 1_500_000, ..WorkerStatus::default() };
        StatusReport {
            has_counters: true,
            workers: vec![worker],
            sites: vec![site],
            shared_cache: Some(SharedCacheStatus { is_used: true, purged: 4, written: 5, ..Default::default() }),
            store: Some(StoreStatus {
                instance: "edge-1".into(),
                errors: 3,
                unusable_values: 4,
                resyncs: 2,
                age_ms: Some(1_500),
                skew_ms: Some(-2_000),
                ..Default::default()
            }),
            upstreams: vec![upstream],
            modules: vec![module],
            ..StatusReport::default()
        }
    }

    #[test]
    fn samples() {
        let text = render(&status(), MetricsFormat::OpenMetrics);
        for line in [
            "# TYPE tailcoat_http_requests counter",
            r#"tailcoat_http_requests_total{site="a\"b\\c",handler="files",status="2xx",version="1.1"} 7"#,
            "# TYPE tailcoat_http_request_duration_seconds histogram",
            "# UNIT tailcoat_http_request_duration_seconds seconds",
            r#"tailcoat_http_request_duration_seconds_bucket{site="a\"b\\c",le="0.000064"} 3"#,
            r#"tailcoat_http_request_duration_seconds_bucket{site="a\"b\\c",le="+Inf"} 3"#,
            r#"tailcoat_http_request_duration_seconds_sum{site="a\"b\\c"} 0.000004"#,
            r#"tailcoat_worker_busy_seconds_total{worker="0"} 1.500000"#,
            r#"tailcoat_upstream_responses_total{upstream="app",status="2xx"} 5"#,
            r#"tailcoat_upstream_server_failures_total{upstream="app",server="http://a:1"} 3"#,
            "tailcoat_store_up 1",
            "tailcoat_shared_cache_up 1",
            r#"tailcoat_shared_cache_reads_total{result="purged"} 4"#,
            r#"tailcoat_shared_cache_writes_total{result="written"} 5"#,
            r#"tailcoat_store_instance_info{name="edge-1"} 1"#,
            "tailcoat_store_errors_total 3",
            "tailcoat_store_unusable_values_total 4",
            "tailcoat_store_resyncs_total 2",
            "tailcoat_store_lag_seconds 1.500000",
            "tailcoat_store_clock_skew_seconds -2",
            r#"tailcoat_upstream_discovery_up{upstream="app"} 1"#,
            r#"tailcoat_upstream_discovery_failures_total{upstream="app"} 2"#,
            r#"tailcoat_module_instances{module="shop"} 2"#,
            r#"tailcoat_module_failures_total{module="shop",cause="cpu-time-max"} 4"#,
            "tailcoat_cgi_programs 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn what_was_before_names_counters_with_their_suffix() {
        let text = render(&status(), MetricsFormat::Text);
        assert!(text.contains("# TYPE tailcoat_http_requests_total counter\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn without_counters_there_is_nothing_that_looks_like_one() {
        let text = render(&StatusReport { has_counters: false, ..status() }, MetricsFormat::Text);
        assert!(!text.contains("tailcoat_http_requests_total"), "{text}");
        assert!(text.contains("tailcoat_upstream_server_up"), "{text}");
    }

    #[test]
    fn formats() {
        for (accept, expect) in [
            ("", MetricsFormat::Text),
            ("*/*", MetricsFormat::Text),
            ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3", MetricsFormat::OpenMetrics),
        ] {
            assert_eq!(MetricsFormat::wanted_by(accept.as_bytes()), expect, "{accept}");
        }
    }
}
