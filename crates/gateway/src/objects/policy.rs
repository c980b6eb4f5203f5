//! TrafficPolicy: what Tailcoat has beyond Gateway API.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Meta, TargetRef};

/// Policy that attaches to Gateways, routes and services.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TrafficPolicy {
    pub(crate) metadata: Meta,
    pub(crate) spec: TrafficPolicySpec,
    pub(crate) status: Value,
}

/// Settings of a policy. Annotations of Ingresses become the same.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct TrafficPolicySpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) target_refs: Vec<TargetRef>,
    /// Rates of requests of each client address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rate_limits: Vec<RateLimitSpec>,
    /// Concurrent requests of each client address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_max: Option<u32>,
    /// Networks that may send requests; none is all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow: Vec<String>,
    /// Networks that may not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) deny: Vec<String>,
    /// Bytes of a request's content, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_bytes_max: Option<u64>,
    /// Compression of responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compress: Option<bool>,
    /// Options of a site or a `handle`, as KDL text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) options: String,
    /// Options of `forward`, as KDL text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) forward_options: String,
    /// Options of the upstream, as KDL text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) upstream_options: String,
}

/// Requests a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RateLimitSpec {
    pub(crate) requests: u32,
    /// `second` or `minute`.
    pub(crate) per: String,
    /// Requests beyond the rate that may come at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) burst: Option<u32>,
}

/// Options as KDL text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyOptions {
    pub(crate) site: String,
    pub(crate) forward: String,
    pub(crate) upstream: String,
}

impl TrafficPolicySpec {
    /// Options of a policy as KDL text.
    ///
    /// # Errors
    /// A value cannot be an option's.
    pub(crate) fn kdl(&self) -> Result<PolicyOptions, String> {
        let mut site = String::new();
        for limit in &self.rate_limits {
            let unit = match limit.per.as_str() {
                "second" => 's',
                "minute" => 'm',
                "hour" => 'h',
                other => return Err(format!("rateLimits: per must be second, minute or hour, not {other:?}")),
            };
            if limit.requests == 0 {
                return Err("rateLimits: requests must be at least 1".to_owned());
            }
            let burst = limit.burst.map(|burst| format!(" burst={}", burst.max(1))).unwrap_or_default();
            let _ = writeln!(site, "rate-limit \"{}/{unit}\"{burst}", limit.requests);
        }
        if let Some(count) = self.requests_max {
            let _ = writeln!(site, "request-limit {}", count.max(1));
        }
        for (option, networks) in [("deny", &self.deny), ("allow", &self.allow)] {
            for network in networks {
                let is_network = network.parse::<ipnet::IpNet>().is_ok() || network.parse::<std::net::IpAddr>().is_ok();
                if !is_network {
                    return Err(format!("{option}: {network:?} is not an address or a network"));
                }
                let _ = writeln!(site, "{option} \"{network}\"");
            }
        }
        if !self.allow.is_empty() {
            site.push_str("deny all\n");
        }
        if let Some(bytes) = self.body_bytes_max {
            let _ = writeln!(site, "body-bytes-max \"{bytes}B\"");
        }
        if let Some(is_on) = self.compress {
            let _ = writeln!(site, "compress {}", if is_on { "on" } else { "off" });
        }
        site.push_str(&self.options);
        Ok(PolicyOptions { site, forward: self.forward_options.clone(), upstream: self.upstream_options.clone() })
    }
}
