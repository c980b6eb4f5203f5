//! Values that a scenario takes from responses.

use regex::bytes::Regex;

use crate::engine::response::KeptResponse;

/// Value to take from a response.
#[derive(Clone, Debug)]
pub(crate) struct ResponseCapture {
    /// Name of the variable.
    pub name: String,
    /// Variable that gets the value.
    pub variable: usize,
    /// Place of the value.
    pub source: CaptureSource,
}

/// Place of a value in a response.
#[derive(Clone, Debug)]
pub(crate) enum CaptureSource {
    /// JSON pointer (RFC 6901) into the content.
    Json(String),
    /// Regular expression over the content; the value is its first group, or the whole match.
    Regex(Box<Regex>),
    /// Header field; the value is that of the first one.
    Field(String),
}

impl CaptureSource {
    /// Finds the value.
    pub(super) fn find(&self, response: &KeptResponse) -> Option<Vec<u8>> {
        match self {
            Self::Field(name) => response.fields(name).next().map(<[u8]>::to_vec),
            Self::Regex(regex) => {
                let found = regex.captures(&response.content)?;
                found.get(1).or_else(|| found.get(0)).map(|value| value.as_bytes().to_vec())
            }
            Self::Json(pointer) => {
                let json: serde_json::Value = serde_json::from_slice(&response.content).ok()?;
                match json.pointer(pointer)? {
                    serde_json::Value::String(text) => Some(text.clone().into_bytes()),
                    value => Some(value.to_string().into_bytes()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let head = b"HTTP/1.1 200 OK\r\nETag:  \"a\"\r\nX: 1\r\nx: 2\r\n\r\n".to_vec();
        let content = br#"{"user": {"id": 7, "tags": ["a", "b"]}, "t": "x\ty"}"#.to_vec();
        let response = KeptResponse { head, content };
        let regex = |text: &str| CaptureSource::Regex(Box::new(Regex::new(text).unwrap()));
        let json = |text: &str| CaptureSource::Json(text.to_owned());
        let field = |text: &str| CaptureSource::Field(text.to_owned());
        for (source, expect) in [
            (json("/user/id"), Some("7")),
            (json("/user/tags/1"), Some("b")),
            (json("/t"), Some("x\ty")),
            (json("/none"), None),
            (regex("\"id\": ([0-9]+)"), Some("7")),
            (regex("tag."), Some("tags")),
            (regex("zzz"), None),
            (field("etag"), Some("\"a\"")),
            (field("X"), Some("1")),
            (field("y"), None),
        ] {
            let value = source.find(&response).map(|value| String::from_utf8(value).unwrap());
            assert_eq!(value.as_deref(), expect, "{source:?}");
        }
    }
}
