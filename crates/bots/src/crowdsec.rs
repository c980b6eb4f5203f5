//! Decisions of CrowdSec's local API (LAPI), as bouncers get them from `/v1/decisions/stream`.

use std::time::Duration;

use expression::Network;
use serde::Deserialize;

use crate::ranges::network;

/// Path and query of the first request, which gets all decisions in force.
pub const STREAM_START: &str = "/v1/decisions/stream?startup=true&scopes=ip,range";

/// Path and query of further requests, which get changes.
pub const STREAM_NEXT: &str = "/v1/decisions/stream?startup=false&scopes=ip,range";

/// Longest response of the API that is read, in bytes. A decision needs some 200.
pub const STREAM_BYTES_MAX: usize = 64 << 20;

/// Changes of the list of bans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionChanges {
    /// Networks that are banned from now on, for this time.
    pub banned: Vec<(Network, Duration)>,
    /// Networks that are banned no more.
    pub deleted: Vec<Network>,
    /// Decisions that are not bans of addresses.
    pub ignored: usize,
}

#[derive(Deserialize)]
struct Stream {
    new: Option<Vec<Decision>>,
    deleted: Option<Vec<Decision>>,
}

#[derive(Deserialize)]
struct Decision {
    #[serde(default)]
    duration: String,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    value: String,
    #[serde(default, rename = "type")]
    kind: String,
}

impl Decision {
    /// Network of a ban; `None` for a decision of another kind.
    fn network(&self) -> Option<Network> {
        let is_address = self.scope.eq_ignore_ascii_case("ip") || self.scope.eq_ignore_ascii_case("range");
        (is_address && self.kind.eq_ignore_ascii_case("ban")).then(|| network(&self.value).ok())?
    }
}

/// Reads a response of the API.
///
/// # Errors
/// The text is not in the form of the API.
pub fn parse_stream(text: &[u8]) -> Result<DecisionChanges, String> {
    let stream: Stream = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut changes = DecisionChanges::default();
    for decision in stream.new.unwrap_or_default() {
        match decision.network().zip(duration(&decision.duration)) {
            Some(ban) => changes.banned.push(ban),
            None => changes.ignored += 1,
        }
    }
    let deleted = stream.deleted.unwrap_or_default();
    changes.deleted = deleted.iter().filter_map(Decision::network).collect();
    Ok(changes)
}

/// Reads a time as Go writes it, such as `3h59m12.5s`; `None` if it is malformed or past.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut seconds = 0_f64;
    while !rest.is_empty() {
        let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..].find(|character: char| character.is_ascii_digit()).map_or(rest.len(), |at| end + at);
        seconds += number
            * match &rest[end..unit_end] {
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams() {
        let text = r#"{"deleted":[{"duration":"-1h0m2s","id":1,"origin":"cscli","scenario":"manual","scope":"Ip","type":"ban","value":"192.0.2.9"}],
            "new":[{"duration":"3h59m12.5s","id":2,"origin":"CAPI","scenario":"crowdsecurity/http-probing","scope":"Ip","type":"ban","value":"192.0.2.1","uuid":"x"},
                   {"duration":"24h","scope":"range","type":"ban","value":"2001:db8::/48"},
                   {"duration":"4h","scope":"Ip","type":"captcha","value":"192.0.2.2"},
                   {"duration":"4h","scope":"Country","type":"ban","value":"XX"}]}"#;
        let changes = parse_stream(text.as_bytes()).unwrap();
        let banned: Vec<_> =
            changes.banned.iter().map(|(network, time)| format!("{network} {}", time.as_secs())).collect();
        assert_eq!(banned, ["192.0.2.1/32 14352", "2001:db8::/48 86400"]);
        assert_eq!(changes.deleted, [network("192.0.2.9").unwrap()]);
        assert_eq!(changes.ignored, 2);
        assert_eq!(parse_stream(br#"{"deleted":null,"new":null}"#), Ok(DecisionChanges::default()));
        for text in ["", "[]", "{\"new\":1}", "<html>"] {
            assert!(parse_stream(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, expect) in [
            ("1h", Some(3_600_000)),
            ("147h59m30.5s", Some(532_770_500)),
            ("1.5s", Some(1_500)),
            ("20ms", Some(20)),
            ("-1h", None),
            ("", None),
            ("0s", None),
            ("1", None),
            ("1x", None),
            ("1e400h", None),
        ] {
            assert_eq!(duration(text).map(|time| time.as_millis()), expect, "{text}");
        }
    }
}
