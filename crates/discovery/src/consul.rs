//! Services in Consul (HTTP API, "Health"), by blocking queries.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use tailcoat_config::{DiscoveredProtocol, Discovery, StoreConfig, StoreEndpoint, UpstreamServer, tls_client_settings};
use tailcoat_rest::{RestClient, RestResponse, encoded};
use tokio::time::timeout;

use super::host::host_of;
use super::{Answer, PAUSE_MIN, WEIGHT_MAX};

/// Time for which Consul waits for a change.
const WAIT_SECONDS: u64 = 60;

/// Time limit of a question. Consul adds up to a sixteenth to its wait.
const PATIENCE: Duration = Duration::from_secs(WAIT_SECONDS + WAIT_SECONDS / 16 + 10);

/// Time limit of a question that Consul answers at once.
const PATIENCE_AT_ONCE: Duration = Duration::from_secs(10);

/// Largest response. An instance takes some 2 KiB.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Header field of the index that the next question names.
const INDEX: &str = "X-Consul-Index";

/// Service of Consul.
pub(super) struct ConsulSource {
    client: RestClient,
    headers: HeaderMap,
    /// Path and query, without an index.
    target: String,
    protocol: DiscoveredProtocol,
    /// Index of the latest answer; 0 asks for one at once.
    index: u64,
}

/// Instance of a service, as Consul reports it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HealthEntry {
    node: HealthNode,
    service: HealthService,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HealthNode {
    #[serde(default)]
    address: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HealthService {
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: i64,
    #[serde(default)]
    weights: HealthWeights,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HealthWeights {
    #[serde(default)]
    passing: i64,
}

impl ConsulSource {
    pub(super) fn new(endpoint: &StoreEndpoint, service: &str, discovery: &Discovery) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        if let Some(path) = &discovery.token_file {
            let token = StoreConfig::read_secret(path).map_err(|error| error.to_string())?;
            let mut token = HeaderValue::from_bytes(&token).map_err(|error| error.to_string())?;
            token.set_sensitive(true);
            headers.insert("X-Consul-Token", token);
        }
        let tls = endpoint.is_tls.then(|| tls_client_settings(discovery.authorities.as_deref())).transpose()?;
        let client = RestClient::new(&endpoint.host, endpoint.port, tls, RESPONSE_BYTES_MAX);
        let client = client.map_err(|error| error.to_string())?;
        let tag = discovery.tag.as_ref().map(|tag| format!("&tag={}", encoded(tag))).unwrap_or_default();
        let target = format!("/v1/health/service/{service}?passing=1{tag}");
        Ok(Self { client, headers, target, protocol: discovery.protocol, index: 0 })
    }

    pub(super) async fn ask(&mut self) -> Result<Answer, String> {
        let (wait, patience) = match self.index {
            0 => (String::new(), PATIENCE_AT_ONCE),
            index => (format!("&index={index}&wait={WAIT_SECONDS}s"), PATIENCE),
        };
        let target = format!("{}{wait}", self.target);
        let asked = self.client.send(Method::GET, &target, self.headers.clone(), Bytes::new());
        // After a failure, the next question is answered at once.
        let before = std::mem::take(&mut self.index);
        let response = timeout(patience, asked).await.map_err(|_| "it does not respond in time".to_owned())?;
        let response = response.map_err(|error| error.to_string())?;
        if response.status != StatusCode::OK {
            return Err(response.excerpt());
        }
        let answer = answer(&response.content, self.protocol)?;
        self.index = next_index(before, index_of(&response));
        Ok(answer)
    }
}

/// Index of a response; 0 if it has none.
fn index_of(response: &RestResponse) -> u64 {
    let text = response.headers.get(INDEX).and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Index for the next question. One that goes backwards is that of a Consul which was restored: begin again.
fn next_index(before: u64, index: u64) -> u64 {
    if index < before { 0 } else { index }
}

/// Servers of a response.
fn answer(content: &[u8], protocol: DiscoveredProtocol) -> Result<Answer, String> {
    let entries: Vec<HealthEntry> =
        serde_json::from_slice(content).map_err(|error| format!("the response is not one of Consul: {error}"))?;
    let mut servers = Vec::new();
    let count = entries.len();
    for HealthEntry { node, service } in entries {
        let host = if service.address.is_empty() { &node.address } else { &service.address };
        let port = u16::try_from(service.port).ok().filter(|port| *port > 0);
        if let (Some(host), Some(port)) = (host_of(host), port) {
            let weight = service.weights.passing.clamp(1, i64::from(WEIGHT_MAX)) as u32;
            servers.push(UpstreamServer { address: protocol.address(host, port), weight, backup: false });
        }
    }
    Ok(Answer { invalid: count - servers.len(), servers: Some(servers), pause: PAUSE_MIN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers() {
        let check = |content: &str, expect: Option<(&[&str], usize)>| {
            let found = answer(content.as_bytes(), DiscoveredProtocol::Http2).ok();
            crate::tests::check(found, expect, content);
        };
        let node =
            |address: &str, service: &str| format!(r#"{{"Node":{{"Address":"{address}"}},"Service":{{{service}}}}}"#);
        check("[]", Some((&[], 0)));
        let one = node("10.0.0.1", r#""Address":"","Port":80,"Weights":{"Passing":3,"Warning":1},"Tags":["a"]"#);
        let two = node("10.0.0.1", r#""Address":"2001:db8::1","Port":81"#);
        check(&format!("[{one},{two}]"), Some((&["h2c://10.0.0.1:80 3", "h2c://[2001:db8::1]:81 1"], 0)));
        // Hostile ones.
        for service in [
            r#""Port":0"#,
            r#""Port":-1"#,
            r#""Port":65536"#,
            r#""Address":"a/../b","Port":80"#,
            r#""Address":"a\r\nHost: b","Port":80"#,
            r#""Address":"0.0.0.0","Port":80"#,
        ] {
            check(&format!("[{},{one}]", node("10.0.0.9", service)), Some((&["h2c://10.0.0.1:80 3"], 1)));
        }
        let heavy = node("10.0.0.1", r#""Port":80,"Weights":{"Passing":9223372036854775807}"#);
        check(&format!("[{heavy}]"), Some((&["h2c://10.0.0.1:80 1000"], 0)));
        let light = node("10.0.0.1", r#""Port":80,"Weights":{"Passing":-5}"#);
        check(&format!("[{light}]"), Some((&["h2c://10.0.0.1:80 1"], 0)));
        let deep = "[".repeat(1_000_000);
        for content in ["", "{}", "null", "[null]", r#"[{"Node":{}}]"#, r#"[{"Service":{"Port":"80"}}]"#, &deep] {
            check(content, None);
        }
    }

    #[test]
    fn indexes() {
        for (before, index, expect) in [(0, 5, 5), (5, 5, 5), (5, 9, 9), (9, 5, 0), (9, 0, 0)] {
            assert_eq!(next_index(before, index), expect, "{before} {index}");
        }
    }
}
