//! Values about traces.

use std::path::Path;

use super::parse::{Wrong, wrong_type};
use super::upstream::parse_server_address;
use super::{OptionValue, ValueKind};
use crate::model::traces::CollectorUrl;
use crate::model::upstream::UpstreamServerAddress;
use crate::text::kdl::KdlValue;

/// Path of spans below a collector's URL (OTLP, "OTLP/HTTP Request").
const TRACES_PATH: &str = "/v1/traces";

/// Reads where spans are sent.
pub(super) fn parse_collector_url(text: &str) -> Result<CollectorUrl, Wrong> {
    let help = "write `\"http://HOST:4318\"` or `\"https://HOST/PATH\"`: spans are sent by OTLP over HTTP";
    let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme)) else {
        return Err(Wrong::help(format!("`{text}` is not the URL of a collector"), help));
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let is_visible = |byte: u8| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(&byte);
    if !path.bytes().all(is_visible) {
        return Err(Wrong::help(
            format!("`{path}` is not the path of a URL"),
            "encode what has no place in one by `%`",
        ));
    }
    let (host, port) = match parse_server_address(&format!("{scheme}://{authority}"), Path::new("/"))? {
        UpstreamServerAddress::Tcp(host, port) | UpstreamServerAddress::Tls(host, port) => (host, port),
        _ => return Err(Wrong::help(format!("`{text}` is not the URL of a collector"), help)),
    };
    let path = if path.len() > 1 { path } else { TRACES_PATH };
    Ok(CollectorUrl { is_tls: scheme == "https", host, port, path: path.to_owned() })
}

/// Reads a part of something.
pub(super) fn parse_ratio(value: &KdlValue) -> Result<OptionValue, Wrong> {
    let ratio = match value {
        KdlValue::Integer(number) => *number as f64,
        KdlValue::Float(number) => *number,
        _ => return Err(wrong_type(ValueKind::Ratio, value)),
    };
    match (0.0..=1.0).contains(&ratio) {
        true => Ok(OptionValue::Ratio(ratio)),
        false => {
            Err(Wrong::help(format!("{ratio} is out of range"), format!("expected {}", ValueKind::Ratio.describe())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors() {
        let check = |text: &str, expect: Option<&str>| {
            assert_eq!(parse_collector_url(text).ok().map(|url| url.to_string()).as_deref(), expect, "{text}");
        };
        check("http://localhost:4318", Some("http://localhost:4318/v1/traces"));
        check("http://localhost:4318/", Some("http://localhost:4318/v1/traces"));
        check("https://otel.example", Some("https://otel.example:443/v1/traces"));
        check("https://otel.example/api/otel?a=b", Some("https://otel.example:443/api/otel?a=b"));
        check("http://[::1]:4318", Some("http://[::1]:4318/v1/traces"));
        check("http://::1:4318", None);
        check("localhost:4318", None);
        check("grpc://localhost:4317", None);
        check("h2c://localhost:4317", None);
        check("unix:/run/otel", None);
        check("http://localhost:4318/a b", None);
        check("http://user@localhost:4318/", None);
    }
}
