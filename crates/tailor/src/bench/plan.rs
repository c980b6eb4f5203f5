//! Conversion of options to a plan.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use wire::http::Fields;

use super::target::{Url, address};
use super::{LoadOptions, access_log, message, options, scenario, tls, vegeta};
use crate::engine::{
    Abort, ArrivalPace, BodyCheck, ConnectionPersistence, Http2Request, Http3Request, LoadPlan, LoadProfile,
    LoadVersion, RequestOrder, ResponseCheck, WebSocketHandshake, Workload, WorkloadRequest, grpc_framed,
    message_frame, parse_sha256,
};
use crate::units::parse_count;

/// Duration of a measurement without `-d` and `-n`.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);
/// Maximum duration of a run with `--until-precise`, without `-d`.
const PRECISE_DURATION_DEFAULT: Duration = Duration::from_secs(300);

/// Converts the options to a plan, and reads the files that they name.
pub(crate) fn make(options: &LoadOptions) -> Result<LoadPlan, String> {
    let entries = entries(options)?;
    let Some(first) = entries.requests.first().map(|entry| entry.url.clone()) else {
        return Err("no URL to request".into());
    };
    if let Some(RequestEntry { url: other, .. }) = entries.requests.iter().find(|it| !it.url.is_same_server(&first)) {
        return Err(format!(
            "{} and {}: all URLs of a run must have the same server",
            first.authority(),
            other.authority()
        ));
    }
    let (requests, scenarios) = match &options.scenario {
        Some(path) => {
            let file = scenario::read(path, &scenario_fields(&first, options)?)?;
            (file.requests, Some(Arc::new(file.set)))
        }
        None if first.is_web_socket => (web_socket_messages(options)?, None),
        None if options.grpc => (grpc_calls(&first, options)?, None),
        None => {
            let requests = entries.requests.iter().map(|entry| request(entry, options));
            (requests.collect::<Result<Vec<_>, _>>()?, None)
        }
    };
    let requests: Arc<[WorkloadRequest]> = requests.into();
    let version = version(options);
    let web_socket = first.is_web_socket.then(|| web_socket(&first, options)).transpose()?;
    if version == LoadVersion::Http3 && !first.is_tls {
        return Err("HTTP/3 has no form without TLS; use an https:// URL".into());
    }
    if options.early_data && requests.iter().any(|request| !request.method.is_safe()) {
        return Err(
            "--early-data needs requests with the method GET, HEAD or OPTIONS: an attacker may repeat others".into()
        );
    }
    let tls = if first.is_tls {
        let name =
            ServerName::try_from(first.host_name().to_owned()).map_err(|error| format!("{}: {error}", first.host))?;
        let choices = tls::TlsChoices {
            insecure: options.insecure,
            roots: options.cacert.as_deref(),
            resumes: options.resume,
            has_early_data: options.early_data,
            groups: &options.tls_groups,
            ciphers: &options.tls_ciphers,
        };
        Some((tls::config(&choices, version)?, name))
    } else {
        None
    };
    check_processors(options)?;
    if options.deadline.is_none() && options.require.iter().chain(&options.find).any(super::Requirement::needs_deadline)
    {
        return Err("a condition on goodput needs --deadline TIME".into());
    }
    if !options.message.is_empty() && !first.is_web_socket && !options.grpc {
        return Err("--message needs a ws:// or wss:// URL, or --grpc; --body is the content of a request".into());
    }
    let default_duration = match options.until_precise {
        Some(_) => PRECISE_DURATION_DEFAULT,
        None => DURATION_DEFAULT,
    };
    let has_end = options.requests.is_some() || entries.pace.is_some();
    let profile = options.profile.as_ref().map(|profile| profile.profile(options.warm_up));
    let profile_length = profile.as_ref().map(|profile| Duration::from_nanos(profile.length()));
    Ok(LoadPlan {
        address: address(&first, options)?,
        tls,
        workload: Workload::new(requests, entries.order),
        scenarios,
        pace: entries.pace.unwrap_or_else(|| pace(options, profile)),
        connections: options.connections as usize,
        // Each thread needs at least one connection.
        threads: options.threads.min(options.connections) as usize,
        processors: options.cpus.clone(),
        deadline: options.deadline,
        duration: options.duration.or(profile_length).or((!has_end).then_some(default_duration)),
        requests_max: options.requests,
        warm_up: options.warm_up,
        ramp_up: options.ramp_up,
        interval: options.interval,
        spin: options.spin,
        time_out: options.timeout,
        persistence: persistence(options),
        pipeline: streams(options)?.unwrap_or(options.pipeline) as usize,
        version,
        web_socket,
        line: options.line,
        abort: (options.abort > 0.0).then_some(Abort { share: options.abort, after_bytes: options.abort_after }),
        sources: options.source.clone(),
        has_fast_open: options.fast_open,
        moves_after: options.move_after,
        seed: options.seed.unwrap_or_else(|| fastrand::u32(..)),
        is_tallied: false,
    })
}

/// Pace of the options without a replay.
fn pace(options: &LoadOptions, profile: Option<LoadProfile>) -> ArrivalPace {
    let is_random = options.arrivals == options::ArrivalSpacing::Poisson;
    match (profile, options.rate) {
        (Some(profile), _) => ArrivalPace::Profile { profile, is_random },
        (None, None) => ArrivalPace::Closed,
        (None, Some(rate)) if is_random => ArrivalPace::Poisson(rate),
        (None, Some(rate)) => ArrivalPace::Constant(rate),
    }
}

/// Requests with their order and, from a replayed log, their times.
struct RequestEntries {
    requests: Vec<RequestEntry>,
    order: RequestOrder,
    pace: Option<ArrivalPace>,
}

/// Request. What it does not have comes from the options.
struct RequestEntry {
    url: Url,
    method: Option<String>,
    fields: Vec<(String, String)>,
    content: Option<Vec<u8>>,
}

impl RequestEntry {
    fn new(url: Url) -> Self {
        Self { url, method: None, fields: Vec::new(), content: None }
    }
}

fn entries(options: &LoadOptions) -> Result<RequestEntries, String> {
    if let Some(path) = &options.replay {
        return replay(path, options);
    }
    if let Some(path) = &options.targets {
        return targets(path, options);
    }
    let mut requests = Vec::new();
    let mut weights = Vec::new();
    for text in &options.url {
        requests.push(RequestEntry::new(Url::parse(text)?));
        weights.push(1.0);
    }
    if let Some(path) = &options.urls {
        let base = requests.first().map(|entry| entry.url.clone());
        if base.is_some() {
            // With `--urls`, the URL names only the server of the paths and is not requested.
            (requests, weights) = (Vec::new(), Vec::new());
        }
        for line in read(path)?.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (weight, text) = split_weight(line);
            requests.push(RequestEntry::new(resolve_url(text, base.as_ref())?));
            weights.push(weight);
        }
    }
    let order = match options.zipf {
        Some(alpha) => RequestOrder::zipf(requests.len(), alpha),
        None if weights.iter().all(|&weight| weight == 1.0) => RequestOrder::InTurn,
        None if weights.iter().sum::<f64>() > 0.0 => RequestOrder::weighted(weights),
        None => return Err("the weights add up to 0".into()),
    };
    Ok(RequestEntries { requests, order, pace: None })
}

/// Requests of vegeta's targets.
fn targets(path: &Path, options: &LoadOptions) -> Result<RequestEntries, String> {
    let base = options.url.first().map(|url| Url::parse(url)).transpose()?;
    let entry = |target: vegeta::VegetaTarget| {
        let url = resolve_url(&target.url, base.as_ref())?;
        let content = (!target.content.is_empty()).then_some(target.content);
        Ok(RequestEntry { url, method: Some(target.method), fields: target.fields, content })
    };
    let requests = vegeta::read(path)?.into_iter().map(entry).collect::<Result<Vec<_>, String>>()?;
    let order = match options.zipf {
        Some(alpha) => RequestOrder::zipf(requests.len(), alpha),
        None => RequestOrder::InTurn,
    };
    Ok(RequestEntries { requests, order, pace: None })
}

/// Splits a line of a URL list: `WEIGHT URL`, or `URL` alone, whose weight is 1.
fn split_weight(line: &str) -> (f64, &str) {
    match line.split_once(char::is_whitespace) {
        Some((weight, url)) => match weight.parse::<f64>() {
            Ok(weight) if weight >= 0.0 && weight.is_finite() => (weight, url.trim()),
            _ => (1.0, line),
        },
        None => (1.0, line),
    }
}

fn resolve_url(text: &str, base: Option<&Url>) -> Result<Url, String> {
    match base {
        Some(base) if text.starts_with('/') => {
            Url::parse(&format!("http://x{text}")).map(|url| Url { target: url.target, ..base.clone() })
        }
        _ => Url::parse(text),
    }
}

fn replay(path: &Path, options: &LoadOptions) -> Result<RequestEntries, String> {
    if options.replay_speed.is_nan() || options.replay_speed <= 0.0 {
        return Err("--replay-speed must be more than 0".into());
    }
    let base = Url::parse(options.url.first().map_or("", String::as_str))?;
    let (log, skipped) = access_log::parse(&read(path)?);
    if skipped > 0 {
        eprintln!(
            "tailor: {}: skipped {skipped} lines that are not requests in the common or combined format",
            path.display()
        );
    }
    let times = access_log::due_times(&log, options.replay_speed);
    let mut requests = Vec::new();
    let mut known = std::collections::HashMap::new();
    let mut sequence = Vec::with_capacity(log.len());
    for entry in log {
        let url = Url { target: entry.target, ..base.clone() };
        let key = (entry.method.clone(), url.target.clone());
        let index = *known.entry(key).or_insert_with(|| {
            requests.push(RequestEntry { method: Some(entry.method), ..RequestEntry::new(url) });
            requests.len() as u32 - 1
        });
        sequence.push(index);
    }
    Ok(RequestEntries {
        requests,
        order: RequestOrder::Sequence(sequence.into()),
        pace: Some(ArrivalPace::Recorded(times.into())),
    })
}

fn request(entry: &RequestEntry, options: &LoadOptions) -> Result<WorkloadRequest, String> {
    let RequestEntry { url, method, .. } = entry;
    let content = match (&entry.content, options.body.as_deref()) {
        (Some(content), _) => content.clone(),
        (None, Some(text)) => match text.strip_prefix('@') {
            Some(path) => std::fs::read(path).map_err(|error| format!("{path}: {error}"))?,
            None => text.as_bytes().to_vec(),
        },
        (None, None) => Vec::new(),
    };
    let default_method = if options.body.is_some() { "POST" } else { "GET" };
    let method =
        method.as_deref().or(options.method.as_deref().filter(|name| !is_number(name))).unwrap_or(default_method);
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(format!("`{method}` is not a method"));
    }
    let fields = fields(url, &entry.fields, options)?;
    let request = WorkloadRequest::new(method, &url.target, &fields, &content, check(options)?);
    Ok(match version(options) {
        LoadVersion::Http1 => request,
        LoadVersion::Http2 => request.with_http2(Http2Request::new(method, url.is_tls, &url.target, &fields, &content)),
        LoadVersion::Http3 => request.with_http3(Http3Request::new(method, &url.target, &fields, &content)),
    })
}

/// Fields of a request: our own, those of a list of requests, and those of `-H`.
fn fields(url: &Url, more: &[(String, String)], options: &LoadOptions) -> Result<Fields, String> {
    let mut fields = own_fields(url);
    // Two fields of a list may have the same name.
    for (name, _) in more {
        fields.remove(name);
    }
    for (name, value) in more.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-length")) {
        fields.push(name, value);
    }
    if !options.cookie.is_empty() {
        fields.push("Cookie", options.cookie.join("; "));
    }
    for line in &options.headers {
        let (name, value) = parse_field(line).ok_or_else(|| format!("`{line}` is not a field like `Name: value`"))?;
        // Like curl: a value replaces our own field, and an empty value removes a field.
        let is_ours = ["host", "user-agent", "accept"].contains(&name.to_ascii_lowercase().as_str());
        if is_ours || value.is_empty() {
            fields.set(name, value);
        } else {
            fields.push(name, value);
        }
    }
    Ok(fields)
}

/// Messages of WebSocket.
fn web_socket_messages(options: &LoadOptions) -> Result<Vec<WorkloadRequest>, String> {
    let messages = match options.message.as_slice() {
        [] => return Err("a ws:// URL needs messages: --message TEXT".into()),
        messages => messages,
    };
    if options.http3 || options.grpc || options.abort > 0.0 || options.body.is_some() {
        return Err("ws:// and wss:// URLs exclude --http3, --grpc, --abort and --body".into());
    }
    if !options.expect_status.is_empty() || !options.expect_header.is_empty() {
        return Err("messages of WebSocket have no status and no fields to expect".into());
    }
    let message = |text: &String| {
        let message = message::parse(text)?;
        // The mask protects intermediaries from pages that choose bytes (RFC 6455, section 10.3). A load generator can
        // use one mask for a whole run.
        let frame = message_frame(&message.content, message.is_text, fastrand::u32(..).to_be_bytes());
        Ok(WorkloadRequest::web_socket(&frame, check(options)?))
    };
    messages.iter().map(message).collect()
}

/// Handshake of WebSocket.
fn web_socket(url: &Url, options: &LoadOptions) -> Result<Arc<WebSocketHandshake>, String> {
    let fields = fields(url, &[], options)?;
    let mut head = Vec::new();
    wire::h1::write_request_head(&mut head, b"GET", url.target.as_bytes(), wire::http::Version::Http11, &fields);
    // The handshake's own fields precede the empty line.
    head.truncate(head.len() - 2);
    let handshake = WebSocketHandshake::new(&head, fastrand::u128(..).to_be_bytes());
    Ok(Arc::new(match version(options) {
        LoadVersion::Http2 => handshake.with_http2(Http2Request::web_socket(url.is_tls, &url.target, &fields)),
        LoadVersion::Http1 | LoadVersion::Http3 => handshake,
    }))
}

/// Unary calls of gRPC.
fn grpc_calls(url: &Url, options: &LoadOptions) -> Result<Vec<WorkloadRequest>, String> {
    if url.target.matches('/').count() != 2 {
        return Err(format!("the path `{}` is not a gRPC method, such as /helloworld.Greeter/SayHello", url.target));
    }
    let mut fields = fields(url, &[], options)?;
    fields.set("content-type", "application/grpc");
    fields.set("te", "trailers");
    let empty = [String::new()];
    let messages = if options.message.is_empty() { &empty[..] } else { &options.message };
    let call = |text: &String| {
        let content = grpc_framed(&message::parse_protobuf(text)?);
        let request = WorkloadRequest::new("POST", &url.target, &fields, &content, check(options)?);
        let http2 = Http2Request::new("POST", url.is_tls, &url.target, &fields, &content);
        Ok(request.with_http2(http2).with_grpc())
    };
    messages.iter().map(call).collect()
}

/// Fields of our own requests.
fn own_fields(url: &Url) -> Fields {
    let mut fields = Fields::new();
    fields.push("Host", url.authority());
    fields.push("User-Agent", concat!("tailor/", env!("CARGO_PKG_VERSION")));
    fields.push("Accept", "*/*");
    fields
}

/// Fields of all requests of scenarios: our own, and those of `-H`.
fn scenario_fields(url: &Url, options: &LoadOptions) -> Result<scenario::CommonFields, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut fields: scenario::CommonFields =
        own_fields(url).iter().map(|(name, value)| (text(name), text(value))).collect();
    for line in &options.headers {
        let (name, value) = parse_field(line).ok_or_else(|| format!("`{line}` is not a field like `Name: value`"))?;
        fields.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        if !value.is_empty() {
            fields.push((name, value));
        }
    }
    if url.target != "/" {
        return Err(format!("with --scenario the URL names the server only, without the path `{}`", url.target));
    }
    Ok(fields)
}

/// Version of HTTP.
fn version(options: &LoadOptions) -> LoadVersion {
    match (options.http2 || options.grpc, options.http3) {
        (_, true) => LoadVersion::Http3,
        (true, false) => LoadVersion::Http2,
        (false, false) => LoadVersion::Http1,
    }
}

/// Maximum number of concurrent requests on an HTTP/2 or HTTP/3 connection; `None` for HTTP/1.
fn streams(options: &LoadOptions) -> Result<Option<u64>, String> {
    let has_streams = version(options).has_streams();
    match options.method.as_deref().filter(|name| is_number(name)) {
        Some(number) if has_streams && options.streams.is_none() => parse_count(number).map(Some),
        Some(number) => Err(format!(
            "-m {number} sets the number of streams, which needs --http2 or --http3 and excludes --streams"
        )),
        None => Ok(has_streams.then_some(options.streams.unwrap_or(1))),
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty()
}

pub(super) fn parse_field(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    let is_token =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    let is_clean = !value.bytes().any(|byte| byte < b' ' && byte != b'\t');
    (is_token && is_clean).then(|| (name.to_owned(), value.trim().to_owned()))
}

fn check(options: &LoadOptions) -> Result<ResponseCheck, String> {
    let body = if let Some(path) = &options.expect_body {
        Some(BodyCheck::file(path).map_err(|error| format!("{}: {error}", path.display()))?)
    } else if let Some(text) = &options.expect_sha256 {
        Some(BodyCheck::hash(parse_sha256(text).ok_or_else(|| format!("`{text}` is not a SHA-256 in hexadecimal"))?))
    } else {
        options.expect_same.then(BodyCheck::same)
    };
    let fields = options.expect_header.iter().map(|line| match line.split_once(':') {
        Some((name, value)) => (name.as_bytes().to_vec(), Some(value.trim().as_bytes().to_vec())),
        None => (line.as_bytes().to_vec(), None),
    });
    Ok(ResponseCheck {
        statuses: options.expect_status.clone(),
        length_bytes: options.expect_length,
        fields: fields.collect(),
        body,
    })
}

fn persistence(options: &LoadOptions) -> ConnectionPersistence {
    let (low, high) = options.requests_per_connection.unwrap_or((u32::MAX, u32::MAX));
    ConnectionPersistence {
        keep_alive_share: options.keep_alive,
        http10_share: options.http10,
        http10_single_share: options.http10,
        requests: low..=high,
    }
}

fn check_processors(options: &LoadOptions) -> Result<(), String> {
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|error| format!("processors: {error}"))?;
    match options.cpus.iter().find(|&&cpu| cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(cpu)) {
        Some(cpu) => Err(format!("CPU {cpu} is not available to this process")),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
