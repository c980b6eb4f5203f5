//! Files with the address ranges of crawlers.

use std::net::IpAddr;

use expression::Network;
use serde::Deserialize;

/// Maximum size of a file of ranges, in bytes.
pub const RANGES_BYTES_MAX: usize = 4 << 20;

/// Reason for which a file of ranges cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangesError(pub String);

/// File in the form that Google, Bing, Apple, OpenAI and others publish.
#[derive(Deserialize)]
struct Published {
    prefixes: Vec<Prefix>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prefix {
    ipv4_prefix: Option<String>,
    ipv6_prefix: Option<String>,
}

/// Reads ranges: JSON with `prefixes`, or a network or address on each line, with comments after `#`.
///
/// # Errors
/// The file is too long, or a line is no network. A range that is misread would let strangers in or keep the crawler
/// out, so no part of such a file is used.
pub fn parse_ranges(bytes: &[u8]) -> Result<Vec<Network>, RangesError> {
    if bytes.len() > RANGES_BYTES_MAX {
        return Err(RangesError(format!("the file is longer than {} MiB", RANGES_BYTES_MAX >> 20)));
    }
    if bytes.trim_ascii_start().first() == Some(&b'{') {
        let published: Published = serde_json::from_slice(bytes).map_err(|error| RangesError(error.to_string()))?;
        let texts = published.prefixes.iter().flat_map(|prefix| [&prefix.ipv4_prefix, &prefix.ipv6_prefix]);
        return texts.flatten().map(|text| network(text)).collect();
    }
    let text = std::str::from_utf8(bytes).map_err(|_| RangesError("the file is not UTF-8".into()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(network).collect()
}

/// Reads a network or an address.
///
/// # Errors
/// The text is neither.
pub fn network(text: &str) -> Result<Network, RangesError> {
    let wrong = || RangesError(format!("`{}` is no network", text.chars().take(64).collect::<String>()));
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| wrong()))?;
    Network::new(address, bits).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files() {
        let check = |text: &str, expect: Option<&[&str]>| {
            let found = parse_ranges(text.as_bytes()).ok();
            let found = found.map(|networks| networks.iter().map(Network::to_string).collect::<Vec<_>>());
            assert_eq!(
                found.as_deref(),
                expect.map(|expect| expect.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).as_deref(),
                "{text}"
            );
        };
        check(
            r#"{"creationTime":"2025-01-01","prefixes":[{"ipv6Prefix":"2001:4860:4801:10::/64"},{"ipv4Prefix":"66.249.64.0/27"}]}"#,
            Some(&["2001:4860:4801:10::/64", "66.249.64.0/27"]),
        );
        check("# DuckDuckBot\n20.191.45.212\n 40.88.21.0/24 # here\n\n", Some(&["20.191.45.212/32", "40.88.21.0/24"]));
        check("", Some(&[]));
        check(r#"{"prefixes":[{"ipv4Prefix":"66.249.64.0/270"}]}"#, None);
        check(r#"{"prefix":[]}"#, None);
        check("example.com", None);
        check("<html>", None);
    }
}
