//! Containers of Docker, or of Podman, which has the same API (Docker Engine API 1.41, "Container" and "Monitor").
//!
//! A change is an event of the engine. After it, the source lists the containers again: a list says all, and an event may lie.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tailcoat_config::{DiscoveredPort, DiscoveredProtocol, Discovery, UpstreamServer};
use tailcoat_rest::{RestClient, RestLines, encoded};
use tokio::time::timeout;

use super::host::host_of;
use super::{Answer, PAUSE_MIN, WEIGHT_MAX, drain};

/// Time limit of a question that the engine answers at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest time between two lists, should an event be lost.
const LIST_INTERVAL: Duration = Duration::from_secs(60);

/// Largest list. A container takes some 2 KiB.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Longest event. It holds the labels of a container.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Version of the API that each supported engine has: since Docker 20.10 and Podman 4.
const VERSION: &str = "/v1.41";

/// Labels of containers, for servers of one source that differ.
const PORT_LABEL: &str = "tailcoat.port";
const WEIGHT_LABEL: &str = "tailcoat.weight";

/// Network mode of containers without a network of their own.
const HOST_NETWORK: &str = "host";

/// Containers of an engine.
pub(super) struct DockerSource {
    client: RestClient,
    list: String,
    /// List of containers that do not pass their health check. Podman has no filter for those without one.
    unhealthy: String,
    events: String,
    choice: ContainerChoice,
    /// Events since the latest list.
    stream: Option<RestLines>,
}

/// Servers of containers.
struct ContainerChoice {
    network: Option<String>,
    port: Option<u16>,
    protocol: DiscoveredProtocol,
}

/// Container in a list.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Container {
    #[serde(default)]
    id: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    ports: Option<Vec<ContainerPort>>,
    network_settings: Option<ContainerNetworks>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerPort {
    private_port: u16,
    #[serde(rename = "Type", default)]
    protocol: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerNetworks {
    #[serde(default)]
    networks: Option<BTreeMap<String, ContainerAddress>>,
}

#[derive(Deserialize)]
struct ContainerAddress {
    #[serde(rename = "IPAddress", default)]
    ipv4: String,
    #[serde(rename = "GlobalIPv6Address", default)]
    ipv6: String,
}

impl DockerSource {
    pub(super) fn new(socket: &Path, discovery: &Discovery) -> Self {
        let port = match discovery.port {
            Some(DiscoveredPort::Number(port)) => Some(port),
            Some(DiscoveredPort::Name(_)) | None => None,
        };
        let (network, protocol) = (discovery.network.clone(), discovery.protocol);
        let mut filters = json!({ "status": ["running"] });
        if let Some(label) = &discovery.label {
            filters["label"] = json!([label]);
        }
        // The list names the address of a container in each of its networks.
        if let Some(network) = &discovery.network {
            filters["network"] = json!([network]);
        }
        let mut of_unhealthy = filters.clone();
        of_unhealthy["health"] = json!(["starting", "unhealthy"]);
        // Podman filters by its own name, `died`, for what it then reports as `die`.
        let of_events = json!({
            "type": ["container", "network"],
            "event": [
                "start", "die", "died", "destroy", "pause", "unpause", "restart", "rename", "update", "health_status", "connect",
                "disconnect",
            ],
        });
        Self {
            client: RestClient::of_socket(socket, RESPONSE_BYTES_MAX),
            list: format!("{VERSION}/containers/json?filters={}", encoded(&filters.to_string())),
            unhealthy: format!("{VERSION}/containers/json?filters={}", encoded(&of_unhealthy.to_string())),
            events: format!("{VERSION}/events?filters={}", encoded(&of_events.to_string())),
            choice: ContainerChoice { network, port, protocol },
            stream: None,
        }
    }

    /// Waits for an event, and lists the containers. The first question, and that after a failure, is answered at once.
    pub(super) async fn ask(&mut self) -> Result<Answer, String> {
        let stream = match self.stream.take() {
            Some(mut stream) => {
                match timeout(LIST_INTERVAL, stream.next()).await {
                    Err(_) => {}
                    Ok(Ok(Some(_))) => drain(&mut stream).await.map_err(|error| error.to_string())?,
                    Ok(Ok(None)) => return Err("it has ended the stream of events".to_owned()),
                    Ok(Err(error)) => return Err(error.to_string()),
                }
                stream
            }
            // Opened before the list, so that no change is missed in between.
            None => {
                let opened = self.client.open_lines(&self.events, HeaderMap::new(), EVENT_BYTES_MAX);
                let opened = timeout(PATIENCE, opened).await.map_err(|_| "it does not respond in time".to_owned())?;
                opened.map_err(|error| advised(&error))?
            }
        };
        let all = self.list(&self.list).await?;
        // After the other list, so that a container that fails its check in between is left out.
        let unhealthy = self.list(&self.unhealthy).await?;
        let answer = self.choice.answer(&all, &unhealthy)?;
        self.stream = Some(stream);
        Ok(answer)
    }

    async fn list(&self, target: &str) -> Result<Bytes, String> {
        let asked = self.client.send(Method::GET, target, HeaderMap::new(), Bytes::new());
        let response = timeout(PATIENCE, asked).await.map_err(|_| "it does not respond in time".to_owned())?;
        let response = response.map_err(|error| advised(&error))?;
        if response.status != StatusCode::OK {
            return Err(response.excerpt());
        }
        Ok(response.content)
    }
}

fn containers(content: &[u8]) -> Result<Vec<Container>, String> {
    serde_json::from_slice(content).map_err(|error| format!("the response is not one of Docker: {error}"))
}

/// Error, with advice if the socket belongs to a group that the server is not in.
fn advised(error: &tailcoat_rest::RestError) -> String {
    let text = error.to_string();
    match text.contains("Permission denied") {
        true => format!("{text}; let the server's user use the socket, or a proxy of it that allows reading only"),
        false => text,
    }
}

impl ContainerChoice {
    /// Servers of a list, without those of another list.
    fn answer(&self, all: &[u8], unhealthy: &[u8]) -> Result<Answer, String> {
        let unhealthy: HashSet<String> = containers(unhealthy)?.into_iter().map(|container| container.id).collect();
        let mut containers = containers(all)?;
        containers.retain(|container| !unhealthy.contains(&container.id));
        let servers: Vec<UpstreamServer> = containers.iter().filter_map(|container| self.server(container)).collect();
        Ok(Answer { invalid: containers.len() - servers.len(), servers: Some(servers), pause: PAUSE_MIN })
    }

    /// Server of a container; `None` if its address or port is not clear.
    fn server(&self, container: &Container) -> Option<UpstreamServer> {
        let label = |name| container.labels.as_ref().and_then(|labels| labels.get(name));
        let port = match label(PORT_LABEL) {
            Some(text) => text.parse().ok().filter(|port| *port > 0)?,
            None => self.port.or_else(|| only_port(container.ports.as_deref().unwrap_or_default()))?,
        };
        let weight = match label(WEIGHT_LABEL) {
            Some(text) => text.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight))?,
            None => 1,
        };
        let host = self.host(container.network_settings.as_ref()?.networks.as_ref()?)?;
        Some(UpstreamServer { address: self.protocol.address(host, port), weight, backup: false })
    }

    /// Address in the network; without the name of one, the container must be in only one.
    fn host(&self, networks: &BTreeMap<String, ContainerAddress>) -> Option<String> {
        let (name, address) = match &self.network {
            Some(name) => networks.get_key_value(name)?,
            None if networks.len() == 1 => networks.first_key_value()?,
            None => return None,
        };
        if name == HOST_NETWORK {
            return Some("127.0.0.1".to_owned());
        }
        host_of(&address.ipv4).or_else(|| host_of(&address.ipv6))
    }
}

/// The only port for TCP; a port may be published at several addresses.
fn only_port(ports: &[ContainerPort]) -> Option<u16> {
    let mut of_tcp = ports.iter().filter(|port| port.protocol == "tcp").map(|port| port.private_port);
    let first = of_tcp.next().filter(|port| *port > 0)?;
    of_tcp.all(|port| port == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(networks: &str, ports: &str, labels: &str) -> String {
        format!(
            r#"{{"Id":"a","State":"running","Labels":{{{labels}}},"Ports":[{ports}],"NetworkSettings":{{"Networks":{{{networks}}}}}}}"#
        )
    }

    const APP: &str = r#""app":{"IPAddress":"172.18.0.2","GlobalIPv6Address":""}"#;
    const OTHER: &str = r#""other":{"IPAddress":"172.19.0.2"}"#;
    const TCP: &str = r#"{"PrivatePort":8080,"Type":"tcp"}"#;

    #[test]
    fn servers() {
        let check = |network: Option<&str>, port: Option<u16>, content: &str, expect: Option<(&[&str], usize)>| {
            let choice =
                ContainerChoice { network: network.map(str::to_owned), port, protocol: DiscoveredProtocol::Http };
            let found = choice.answer(content.as_bytes(), b"[]").ok();
            crate::tests::check(found, expect, content);
        };
        let app = Some("app");
        let good = container(APP, TCP, "");
        check(None, None, "[]", Some((&[], 0)));
        check(None, None, &format!("[{good}]"), Some((&["http://172.18.0.2:8080 1"], 0)));
        check(app, Some(81), &format!("[{good}]"), Some((&["http://172.18.0.2:81 1"], 0)));
        let both = container(&format!("{APP},{OTHER}"), TCP, "");
        check(app, None, &format!("[{both}]"), Some((&["http://172.18.0.2:8080 1"], 0)));
        check(None, None, &format!("[{both}]"), Some((&[], 1)));
        check(Some("none"), None, &format!("[{both}]"), Some((&[], 1)));
        let labels = r#""tailcoat.port":"82","tailcoat.weight":"5""#;
        check(app, Some(81), &format!("[{}]", container(APP, "", labels)), Some((&["http://172.18.0.2:82 5"], 0)));
        let published = format!(r#"{TCP},{{"IP":"::","PrivatePort":8080,"PublicPort":80,"Type":"tcp"}}"#);
        check(None, None, &format!("[{}]", container(APP, &published, "")), Some((&["http://172.18.0.2:8080 1"], 0)));
        let two = format!(r#"{TCP},{{"PrivatePort":8443,"Type":"tcp"}},{{"PrivatePort":53,"Type":"udp"}}"#);
        check(None, None, &format!("[{}]", container(APP, &two, "")), Some((&[], 1)));
        let six = r#""app":{"IPAddress":"","GlobalIPv6Address":"2001:db8::2"}"#;
        check(app, None, &format!("[{}]", container(six, TCP, "")), Some((&["http://[2001:db8::2]:8080 1"], 0)));
        let host = r#""host":{"IPAddress":""}"#;
        check(None, Some(90), &format!("[{}]", container(host, "", "")), Some((&["http://127.0.0.1:90 1"], 0)));
        let null = r#"{"Labels":null,"Ports":null,"NetworkSettings":{"Networks":null}}"#;
        check(app, Some(90), &format!("[{null},{good}]"), Some((&["http://172.18.0.2:90 1"], 1)));
        // Hostile ones.
        for (networks, ports, labels) in [
            (r#""app":{"IPAddress":"a/../b"}"#, TCP, ""),
            (r#""app":{"IPAddress":"a\r\nHost: b"}"#, TCP, ""),
            (r#""app":{"IPAddress":"0.0.0.0"}"#, TCP, ""),
            (r#""app":{}"#, TCP, ""),
            (APP, r#"{"PrivatePort":0,"Type":"tcp"}"#, ""),
            (APP, TCP, r#""tailcoat.port":"0""#),
            (APP, TCP, r#""tailcoat.port":"80 weight=9""#),
            (APP, TCP, r#""tailcoat.weight":"0""#),
            (APP, TCP, r#""tailcoat.weight":"1001""#),
        ] {
            let content = format!("[{},{good}]", container(networks, ports, labels));
            check(app, None, &content, Some((&["http://172.18.0.2:8080 1"], 1)));
        }
        // Containers that do not pass their check.
        let choice = ContainerChoice { network: None, port: None, protocol: DiscoveredProtocol::Http };
        let other = good.replace(r#""Id":"a""#, r#""Id":"b""#).replace("172.18.0.2", "172.18.0.3");
        for (unhealthy, expect) in [
            (format!("[{good}]"), Some((&["http://172.18.0.3:8080 1"][..], 0))),
            (format!("[{good},{other}]"), Some((&[][..], 0))),
            (r#"[{"Id":"c"}]"#.to_owned(), Some((&["http://172.18.0.2:8080 1", "http://172.18.0.3:8080 1"][..], 0))),
            ("{}".to_owned(), None),
        ] {
            let found = choice.answer(format!("[{good},{other}]").as_bytes(), unhealthy.as_bytes()).ok();
            crate::tests::check(found, expect, &unhealthy);
        }
        let deep = "[".repeat(1_000_000);
        for content in ["", "{}", "null", "[null]", r#"[{"Ports":[{"PrivatePort":70000}]}]"#, &deep] {
            check(app, None, content, None);
        }
    }
}
