//! EndpointSlices of a service in Kubernetes (API group `discovery.k8s.io/v1`): a list, then a watch from its version on.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tailcoat_config::{
    DiscoveredPort, DiscoveredProtocol, Discovery, KubernetesAccess, UpstreamServer, tls_client_settings,
};
use tailcoat_rest::{KubernetesClient, RestError, RestLines, encoded};
use tokio::time::timeout;

use super::host::host_of;
use super::{Answer, DRAIN_MAX, PAUSE_MIN};

/// Time limit of a question that the API server answers at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time after which the API server ends a watch.
const WATCH_SECONDS: u64 = 300;

/// Longest silence of a watch. A server that has gone without a word is missed after it.
const SILENCE_MAX: Duration = Duration::from_secs(WATCH_SECONDS + 20);

/// Largest page of a list.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Largest event. etcd stores objects of at most 1.5 MiB.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Slices of a page.
const PAGE: usize = 200;

/// Most pages of a list.
const PAGES_MAX: usize = 50;

/// Most slices and endpoints of a service. A slice has at most 1,000 endpoints, most have 100.
const SLICES_MAX: usize = 1_000;
const ENDPOINTS_MAX: usize = 20_000;

/// Status of a version that the API server no longer knows.
const GONE: u16 = StatusCode::GONE.as_u16();

/// EndpointSlices of a service.
pub(super) struct KubernetesSource {
    client: KubernetesClient,
    /// Path and query of the slices.
    target: String,
    slices: Slices,
    /// Events since the latest answer.
    watch: Option<RestLines>,
    /// Version of the slices, in words of the API server; empty if they must be listed.
    version: String,
}

/// Slices of a service, by name.
struct Slices {
    by_name: HashMap<String, SliceServers>,
    port: Option<DiscoveredPort>,
    protocol: DiscoveredProtocol,
}

/// Endpoints of a slice.
#[derive(Default)]
struct SliceServers {
    is_ipv6: bool,
    ready: Vec<UpstreamServer>,
    /// Endpoints that end, but still serve.
    ending: Vec<UpstreamServer>,
    /// Endpoints without a valid address, and all if the port is not clear.
    invalid: usize,
}

#[derive(Deserialize)]
struct SliceList {
    metadata: ListMetadata,
    #[serde(default)]
    items: Option<Vec<EndpointSlice>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointSlice {
    metadata: SliceMetadata,
    address_type: String,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
    #[serde(default)]
    ports: Option<Vec<EndpointPort>>,
}

#[derive(Deserialize)]
struct SliceMetadata {
    name: String,
}

#[derive(Deserialize)]
struct Endpoint {
    addresses: Vec<String>,
    #[serde(default)]
    conditions: EndpointConditions,
}

/// Conditions. Those that are missing count as usual: ready, serving, not terminating.
#[derive(Default, Deserialize)]
#[serde(default)]
struct EndpointConditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct EndpointPort {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    protocol: Option<String>,
}

/// Event of a watch. The object is read by its type.
#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type")]
    kind: String,
    object: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versioned {
    metadata: ListMetadata,
}

/// Status object of an error.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorStatus {
    code: u16,
    message: String,
}

/// Reason why a watch ends.
#[derive(Debug, PartialEq, Eq)]
enum WatchEnd {
    /// The slices must be listed again.
    Expired,
    Failed(String),
}

impl KubernetesSource {
    pub(super) fn new(namespace: &str, service: &str, discovery: &Discovery) -> Result<Self, String> {
        let (authorities, token_file) = (discovery.authorities.as_deref(), discovery.token_file.as_deref());
        let access = KubernetesAccess::new(discovery.endpoint.as_ref(), authorities, token_file)?;
        let KubernetesAccess { endpoint, authorities, token_file } = access;
        let tls = endpoint.is_tls.then(|| tls_client_settings(authorities.as_deref())).transpose()?;
        let place = (endpoint.host.as_str(), endpoint.port);
        let client = KubernetesClient::new(place, tls, token_file.as_deref(), RESPONSE_BYTES_MAX);
        let client = client.map_err(|error| error.to_string())?;
        let selector = encoded(&format!("kubernetes.io/service-name={service}"));
        let target =
            format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}");
        let slices = Slices { by_name: HashMap::new(), port: discovery.port.clone(), protocol: discovery.protocol };
        Ok(Self { client, target, slices, watch: None, version: String::new() })
    }

    /// Waits for a change of the slices. The first question, and that after a failure, is answered at once.
    pub(super) async fn ask(&mut self) -> Result<Answer, String> {
        if self.version.is_empty() {
            self.list().await?;
            return Ok(self.slices.answer());
        }
        match self.follow().await {
            Ok(()) => Ok(self.slices.answer()),
            Err(end) => {
                self.watch = None;
                self.version.clear();
                match end {
                    WatchEnd::Failed(reason) => Err(reason),
                    WatchEnd::Expired => {
                        self.list().await?;
                        Ok(self.slices.answer())
                    }
                }
            }
        }
    }

    async fn list(&mut self) -> Result<(), String> {
        self.slices.by_name.clear();
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let mut target = format!("{}&limit={PAGE}", self.target);
            if !next.is_empty() {
                target += &format!("&continue={}", encoded(&next));
            }
            let asked = self.client.send(Method::GET, &target, Bytes::new());
            let response = timeout(PATIENCE, asked).await.map_err(|_| "it does not respond in time".to_owned())?;
            let response = response.map_err(|error| error.to_string())?;
            if response.status != StatusCode::OK {
                return Err(response.excerpt());
            }
            let list: SliceList = parse(&response.content)?;
            for slice in list.items.into_iter().flatten() {
                self.slices.apply(slice)?;
            }
            if list.metadata.next.is_empty() {
                self.version = list.metadata.resource_version;
                return Ok(());
            }
            next = list.metadata.next;
        }
        Err("a list of the API server has no end".to_owned())
    }

    /// Waits for events. A watch that has ended in order is opened again by the next call, and continues at the version.
    async fn follow(&mut self) -> Result<(), WatchEnd> {
        let mut watch = match self.watch.take() {
            Some(watch) => watch,
            None => self.open_watch().await?,
        };
        let silence = |_| WatchEnd::Failed("its watch is silent".to_owned());
        let mut line = timeout(SILENCE_MAX, watch.next()).await.map_err(silence)?;
        // Events that have arrived at once are one change.
        let mut count = 0;
        while let Some(event) = line.map_err(|error| WatchEnd::Failed(error.to_string()))? {
            self.slices.handle_event(&event, &mut self.version)?;
            count += 1;
            line = if count < DRAIN_MAX { watch.next_arrived().await } else { Ok(None) };
        }
        self.watch = Some(watch).filter(|_| count > 0);
        Ok(())
    }

    async fn open_watch(&self) -> Result<RestLines, WatchEnd> {
        let failed = |reason: &dyn ToString| WatchEnd::Failed(reason.to_string());
        let target = format!(
            "{}&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            self.target,
            encoded(&self.version)
        );
        let opened = timeout(PATIENCE, self.client.open_lines(&target, EVENT_BYTES_MAX)).await;
        match opened.map_err(|_| failed(&"it does not respond in time"))? {
            Ok(watch) => Ok(watch),
            Err(RestError::Status(StatusCode::GONE, _)) => Err(WatchEnd::Expired),
            Err(error) => Err(failed(&error)),
        }
    }
}

fn parse<T: DeserializeOwned>(content: &[u8]) -> Result<T, String> {
    serde_json::from_slice(content).map_err(|error| format!("the response is not one of Kubernetes: {error}"))
}

impl Slices {
    /// Applies an event, and notes its version.
    fn handle_event(&mut self, line: &[u8], version: &mut String) -> Result<(), WatchEnd> {
        let read = |error: serde_json::Error| WatchEnd::Failed(format!("an event is not one of Kubernetes: {error}"));
        let WatchEvent { kind, object } = parse(line).map_err(WatchEnd::Failed)?;
        if kind == "ERROR" {
            let ErrorStatus { code, message } = serde_json::from_value(object).unwrap_or_default();
            let message: String = message.chars().filter(|letter| !letter.is_control()).take(200).collect();
            return Err(if code == GONE { WatchEnd::Expired } else { WatchEnd::Failed(format!("{code}: {message}")) });
        }
        let Versioned { metadata } = Versioned::deserialize(&object).map_err(read)?;
        if metadata.resource_version.is_empty() {
            return Err(WatchEnd::Failed("an event has no version".to_owned()));
        }
        match kind.as_str() {
            "ADDED" | "MODIFIED" => {
                self.apply(serde_json::from_value(object).map_err(read)?).map_err(WatchEnd::Failed)?
            }
            "DELETED" => {
                let slice: EndpointSlice = serde_json::from_value(object).map_err(read)?;
                self.by_name.remove(&slice.metadata.name);
            }
            // BOOKMARK: tells the version.
            _ => {}
        }
        *version = metadata.resource_version;
        Ok(())
    }

    fn apply(&mut self, slice: EndpointSlice) -> Result<(), String> {
        let mut servers = SliceServers { is_ipv6: slice.address_type == "IPv6", ..SliceServers::default() };
        let endpoints = slice.endpoints.unwrap_or_default();
        let port = self.port_of(slice.ports.as_deref().unwrap_or_default());
        for endpoint in endpoints {
            let EndpointConditions { ready, serving, terminating } = endpoint.conditions;
            let is_ready = ready.unwrap_or(true);
            let is_ending = terminating == Some(true) && serving.unwrap_or(is_ready);
            if !is_ready && !is_ending {
                continue;
            }
            // All addresses of an endpoint are alike; clients use the first.
            let host = endpoint.addresses.first().and_then(|address| host_of(address));
            let (Some(host), Some(port)) = (host, port) else {
                servers.invalid += 1;
                continue;
            };
            let server = UpstreamServer { address: self.protocol.address(host, port), weight: 1, backup: false };
            if is_ready { servers.ready.push(server) } else { servers.ending.push(server) }
        }
        self.by_name.insert(slice.metadata.name, servers);
        let count: usize = self.by_name.values().map(|slice| slice.ready.len() + slice.ending.len()).sum();
        match self.by_name.len() > SLICES_MAX || count > ENDPOINTS_MAX {
            true => Err(format!("the service has more than {SLICES_MAX} slices or {ENDPOINTS_MAX} endpoints")),
            false => Ok(()),
        }
    }

    /// Port of this name or number; without one, the only port for TCP.
    fn port_of(&self, ports: &[EndpointPort]) -> Option<u16> {
        let is_tcp = |port: &&EndpointPort| port.protocol.as_deref().unwrap_or("TCP") == "TCP";
        let mut of_tcp = ports.iter().filter(is_tcp).filter(|port| match &self.port {
            None => true,
            Some(DiscoveredPort::Number(number)) => port.port == Some(*number),
            Some(DiscoveredPort::Name(name)) => port.name.as_ref() == Some(name),
        });
        let found = of_tcp.next()?.port.filter(|port| *port > 0);
        if of_tcp.next().is_none() { found } else { None }
    }

    /// Servers of all slices. Endpoints that end serve while no other is ready. A service with two families has each endpoint
    /// twice: those of IPv4 are used.
    fn answer(&self) -> Answer {
        let slices = || self.by_name.values();
        let of = |pick: fn(&SliceServers) -> &Vec<UpstreamServer>| {
            let is_used = |slice: &&SliceServers| !slice.is_ipv6 && !pick(slice).is_empty();
            let has_ipv4 = slices().any(|slice| is_used(&slice));
            let used = slices().filter(|slice| !has_ipv4 || !slice.is_ipv6);
            used.flat_map(pick).cloned().collect::<Vec<_>>()
        };
        let mut servers = of(|slice| &slice.ready);
        if servers.is_empty() {
            servers = of(|slice| &slice.ending);
        }
        Answer { servers: Some(servers), invalid: slices().map(|slice| slice.invalid).sum(), pause: PAUSE_MIN }
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn slices(port: Option<&str>) -> Slices {
        let port = port.map(|text| match text.parse() {
            Ok(number) => DiscoveredPort::Number(number),
            Err(_) => DiscoveredPort::Name(text.to_owned()),
        });
        Slices { by_name: HashMap::new(), port, protocol: DiscoveredProtocol::Http }
    }

    fn event(kind: &str, name: &str, family: &str, endpoints: &str, ports: &str) -> String {
        format!(
            r#"{{"type":"{kind}","object":{{"kind":"EndpointSlice","metadata":{{"name":"{name}","resourceVersion":"7"}},"addressType":"{family}","endpoints":[{endpoints}],"ports":[{ports}]}}}}"#
        )
    }

    const HTTP: &str = r#"{"name":"http","port":80,"protocol":"TCP"}"#;
    const TWO: &str = r#"{"name":"http","port":80},{"name":"admin","port":81,"protocol":"TCP"},{"name":"dns","port":53,"protocol":"UDP"}"#;

    fn endpoint(address: &str, conditions: &str) -> String {
        format!(r#"{{"addresses":["{address}"],"conditions":{{{conditions}}}}}"#)
    }

    fn texts(slices: &Slices) -> (Vec<String>, usize) {
        let answer = slices.answer();
        let mut texts: Vec<String> = answer.servers.unwrap().iter().map(|server| server.address.to_string()).collect();
        texts.sort();
        (texts, answer.invalid)
    }

    #[test]
    fn servers() {
        let check = |port: Option<&str>, events: &[String], expect: &[&str], invalid: usize| {
            let (mut slices, mut version) = (slices(port), String::new());
            for event in events {
                assert_eq!(slices.handle_event(event.as_bytes(), &mut version), Ok(()), "{event}");
            }
            let expect: Vec<String> = expect.iter().map(ToString::to_string).collect();
            assert_eq!(texts(&slices), (expect, invalid), "{events:?}");
            assert_eq!(version, "7");
        };
        let one = endpoint("10.0.0.1", r#""ready":true"#);
        let two = endpoint("10.0.0.2", "");
        let unready = endpoint("10.0.0.3", r#""ready":false"#);
        let ending = endpoint("10.0.0.4", r#""ready":false,"serving":true,"terminating":true"#);
        let ended = endpoint("10.0.0.5", r#""ready":false,"serving":false,"terminating":true"#);
        let all = [one.clone(), two.clone(), unready.clone(), ending.clone(), ended.clone()].join(",");
        let added = event("ADDED", "a", "IPv4", &all, HTTP);
        check(None, from_ref(&added), &["http://10.0.0.1:80", "http://10.0.0.2:80"], 0);
        let rest = [unready, ending, ended].join(",");
        let modified = event("MODIFIED", "a", "IPv4", &rest, HTTP);
        check(None, &[added.clone(), modified], &["http://10.0.0.4:80"], 0);
        let other = event("ADDED", "b", "IPv4", &endpoint("10.0.1.1", ""), HTTP);
        let deleted = event("DELETED", "a", "IPv4", "", "");
        check(None, &[added, other, deleted], &["http://10.0.1.1:80"], 0);
        // Ports.
        let many = event("ADDED", "a", "IPv4", &one, TWO);
        check(Some("admin"), from_ref(&many), &["http://10.0.0.1:81"], 0);
        check(Some("80"), from_ref(&many), &["http://10.0.0.1:80"], 0);
        check(Some("dns"), from_ref(&many), &[], 1);
        check(None, &[many], &[], 1);
        // Families.
        let six = event("ADDED", "b", "IPv6", &endpoint("2001:db8::1", ""), HTTP);
        check(None, from_ref(&six), &["http://[2001:db8::1]:80"], 0);
        check(None, &[event("ADDED", "a", "IPv4", &one, HTTP), six.clone()], &["http://10.0.0.1:80"], 0);
        check(None, &[event("ADDED", "a", "IPv4", "", HTTP), six], &["http://[2001:db8::1]:80"], 0);
        let named = event("ADDED", "a", "FQDN", &endpoint("app.example", ""), HTTP);
        check(None, &[named], &["http://app.example:80"], 0);
        // Hostile ones.
        for address in ["a/../b", "0.0.0.0", "", "a b", "::"] {
            let events = [event("ADDED", "a", "IPv4", &[endpoint(address, ""), one.clone()].join(","), HTTP)];
            check(None, &events, &["http://10.0.0.1:80"], 1);
        }
        let null = r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"},"addressType":"IPv4","endpoints":null,"ports":null}}"#;
        check(None, &[null.to_owned()], &[], 0);
    }

    #[test]
    fn other_events() {
        let check = |line: &str, expect: Result<(), WatchEnd>| {
            assert_eq!(slices(None).handle_event(line.as_bytes(), &mut String::new()), expect, "{line}");
        };
        check(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#, Ok(()));
        check(r#"{"type":"ERROR","object":{"code":410,"message":"too old"}}"#, Err(WatchEnd::Expired));
        let broken = WatchEnd::Failed("500: broken".to_owned());
        check(r#"{"type":"ERROR","object":{"code":500,"message":"bro\nken"}}"#, Err(broken));
        for line in [
            "",
            "{}",
            "null",
            r#"{"type":"ADDED","object":null}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"addressType":"IPv4"}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"},"addressType":"IPv4"}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"},"addressType":"IPv4","ports":[{"port":70000}]}}"#,
        ] {
            let result = slices(None).handle_event(line.as_bytes(), &mut String::new());
            assert!(matches!(result, Err(WatchEnd::Failed(_))), "{line}");
        }
    }

    #[test]
    fn slices_have_a_limit() {
        let mut slices = slices(None);
        let mut send = |number: usize, endpoints: &str| {
            let event = event("ADDED", &format!("s{number}"), "IPv4", endpoints, HTTP);
            slices.handle_event(event.as_bytes(), &mut String::new())
        };
        assert!((0..SLICES_MAX).all(|number| send(number, "").is_ok()));
        assert!(send(SLICES_MAX, "").is_err());
        let large = vec![endpoint("10.0.0.1", ""); ENDPOINTS_MAX + 1].join(",");
        assert!(send(0, &large).is_err());
    }
}
