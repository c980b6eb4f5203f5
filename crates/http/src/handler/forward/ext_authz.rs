//! Envoy's protocol for external authorization over gRPC (`envoy.service.auth.v3.Authorization/Check`): messages, the
//! question about a request, and the decision in a response. No input and output.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use wire::http::{Fields, Status};

use crate::config::FieldAction;
use crate::handler::FieldChange;

/// Target of the questions.
pub(super) const TARGET: &[u8] = b"/envoy.service.auth.v3.Authorization/Check";

/// Length of what comes before a message of gRPC: a flag for compression, and the length of the message.
const PREFIX_BYTES: usize = 5;

/// `append_action` that leaves a field of the client as it is.
const ADD_IF_ABSENT: i32 = 1;

/// Fields of requests that no authorization server may set or remove: they say where a message ends, or belong to the
/// connection.
const FRAMING: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-connection",
];

/// Facts of a request that the server gets.
#[derive(Debug, Clone, Default)]
pub(super) struct CheckedRequest {
    /// Address of the client.
    pub(super) client: Option<SocketAddr>,
    /// Address that the client connected to.
    pub(super) destination: Option<SocketAddr>,
    /// Subject of the client's certificate.
    pub(super) principal: String,
    /// Method.
    pub(super) method: String,
    /// Path and query.
    pub(super) path: String,
    /// Host and port.
    pub(super) host: String,
    /// `http` or `https`.
    pub(super) scheme: &'static str,
    /// Version, such as `HTTP/1.1`.
    pub(super) protocol: &'static str,
    /// Length of the content; `None` if it is not known.
    pub(super) size: Option<u64>,
    /// Header fields, by name in lower case.
    pub(super) headers: BTreeMap<String, String>,
}

/// Decision of a server.
#[derive(Debug, PartialEq)]
pub(super) enum CheckDecision {
    /// The request may pass.
    Permitted {
        /// Fields for the request.
        fields: Vec<FieldChange>,
        /// Names of fields that the request loses.
        removed: Vec<String>,
        /// Fields for the response.
        of_response: Vec<FieldChange>,
    },
    /// The client gets this response.
    Denied {
        /// Status.
        status: Status,
        /// Fields.
        fields: Vec<(String, String)>,
        /// Content.
        content: String,
    },
}

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    source: Option<Peer>,
    #[prost(message, optional, tag = "2")]
    destination: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    request: Option<RequestAttributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Peer {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
    #[prost(string, tag = "4")]
    principal: String,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct SocketAddress {
    #[prost(string, tag = "2")]
    address: String,
    #[prost(uint32, tag = "3")]
    port_value: u32,
}

#[derive(Clone, PartialEq, Message)]
struct RequestAttributes {
    #[prost(message, optional, tag = "1")]
    time: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct HttpRequest {
    #[prost(string, tag = "2")]
    method: String,
    #[prost(btree_map = "string, string", tag = "3")]
    headers: BTreeMap<String, String>,
    #[prost(string, tag = "4")]
    path: String,
    #[prost(string, tag = "5")]
    host: String,
    #[prost(string, tag = "6")]
    scheme: String,
    #[prost(int64, tag = "9")]
    size: i64,
    #[prost(string, tag = "10")]
    protocol: String,
    #[prost(string, tag = "11")]
    body: String,
    #[prost(bytes = "vec", tag = "12")]
    raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    denied: Option<DeniedResponse>,
    #[prost(message, optional, tag = "3")]
    ok: Option<OkResponse>,
}

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct DeniedResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<RpcStatus>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderOption>,
    #[prost(string, tag = "3")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct OkResponse {
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderOption>,
    #[prost(string, repeated, tag = "5")]
    headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    response_headers_to_add: Vec<HeaderOption>,
}

#[derive(Clone, PartialEq, Message)]
struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    /// Before `append_action`: true adds a line.
    #[prost(message, optional, tag = "2")]
    append: Option<BoolValue>,
    #[prost(int32, tag = "3")]
    append_action: i32,
}

#[derive(Clone, PartialEq, Message)]
struct BoolValue {
    #[prost(bool, tag = "1")]
    value: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(bytes = "vec", tag = "3")]
    raw_value: Vec<u8>,
}

impl CheckedRequest {
    /// The question about the request, with this start of its content, as a message of gRPC.
    pub(super) fn into_message(self, content: &[u8], now: SystemTime) -> Vec<u8> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 };
        let (body, raw_body) = match std::str::from_utf8(content) {
            Ok(text) => (text.to_owned(), Vec::new()),
            Err(_) => (String::new(), content.to_vec()),
        };
        let http = HttpRequest {
            method: self.method,
            headers: self.headers,
            path: self.path,
            host: self.host,
            scheme: self.scheme.to_owned(),
            size: self.size.and_then(|size| i64::try_from(size).ok()).unwrap_or(-1),
            protocol: self.protocol.to_owned(),
            body,
            raw_body,
        };
        let peer = |address: Option<SocketAddr>, principal: &str| Peer {
            address: address.map(|address| Address {
                socket_address: Some(SocketAddress {
                    address: address.ip().to_string(),
                    port_value: address.port().into(),
                }),
            }),
            principal: principal.to_owned(),
        };
        let attributes = AttributeContext {
            source: Some(peer(self.client, &self.principal)),
            destination: self.destination.map(|address| peer(Some(address), "")),
            request: Some(RequestAttributes { time: Some(time), http: Some(http) }),
        };
        framed(&CheckRequest { attributes: Some(attributes) })
    }
}

/// A message with what comes before it in gRPC.
fn framed(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + length);
    bytes.push(0);
    // Local invariant: heads and the kept content are limited to less than 4 GiB.
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    // A vector grows, so that nothing fails.
    let _ = message.encode(&mut bytes);
    bytes
}

/// Decision in a response: its head, content, and trailers if there are any.
///
/// # Errors
/// The reason why it is none.
pub(super) fn decision(
    head: &Fields,
    content: &[u8],
    trailers: Option<&Fields>,
) -> Result<CheckDecision, &'static str> {
    let status = trailers.and_then(|fields| fields.values(b"grpc-status").next());
    let status = status.or_else(|| head.values(b"grpc-status").next());
    if status != Some(b"0") {
        return Err("the call of the authorization server failed");
    }
    let Some((prefix, message)) = content.split_first_chunk::<PREFIX_BYTES>() else {
        return Err("the authorization server sent no message");
    };
    let [flag, length @ ..] = prefix;
    if *flag != 0 || u32::from_be_bytes(*length) as usize != message.len() {
        return Err("the authorization server sent another message than one without compression");
    }
    let response = CheckResponse::decode(message).map_err(|_| "the authorization server sent no CheckResponse")?;
    match response.status.unwrap_or_default().code {
        0 => permitted(response.ok.unwrap_or_default()),
        _ => denied(response.denied.unwrap_or_default()),
    }
}

fn permitted(response: OkResponse) -> Result<CheckDecision, &'static str> {
    let fields = response.headers.into_iter().map(change).collect::<Result<Vec<_>, _>>()?;
    let of_response = response.response_headers_to_add.into_iter().map(change).collect::<Result<_, _>>()?;
    let (emptied, fields): (Vec<_>, Vec<_>) = fields.into_iter().partition(|field| field.value.is_empty());
    let named = response.headers_to_remove.into_iter().map(|name| name.to_ascii_lowercase());
    let named = named.filter(|name| !FRAMING.contains(&name.as_str()) && is_name(name));
    let removed = emptied.into_iter().map(|field| field.name).chain(named).collect();
    Ok(CheckDecision::Permitted { fields, removed, of_response })
}

/// Change of a field. Without `append`, it replaces what the client has sent: `append_action` 0 is also the default of
/// servers that know only the first, so that an added line could be a client's lie.
fn change(option: HeaderOption) -> Result<FieldChange, &'static str> {
    let (is_added, append_action) = (option.append.as_ref().is_some_and(|append| append.value), option.append_action);
    let (name, value) = named(option)?;
    if FRAMING.contains(&name.as_str()) {
        return Err("the authorization server sent a field of the connection");
    }
    let action = match append_action {
        _ if is_added || name == "set-cookie" => FieldAction::Add,
        ADD_IF_ABSENT => FieldAction::Default,
        _ => FieldAction::Set,
    };
    Ok(FieldChange { action, name, value: value.into_bytes() })
}

fn denied(response: DeniedResponse) -> Result<CheckDecision, &'static str> {
    let code = response.status.unwrap_or_default().code;
    let status = match u16::try_from(code).ok().filter(|code| (300..=599).contains(code)) {
        Some(code) => Status::new(code).unwrap_or(Status::FORBIDDEN),
        None => Status::FORBIDDEN,
    };
    let mut fields = response.headers.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
    fields.retain(|(name, _)| !FRAMING.contains(&name.as_str()));
    Ok(CheckDecision::Denied { status, fields, content: response.body })
}

/// Name in lower case, and value.
fn named(option: HeaderOption) -> Result<(String, String), &'static str> {
    let invalid = "the authorization server sent a field that is not valid";
    let Header { key, value, raw_value } = option.header.unwrap_or_default();
    let value = if value.is_empty() { String::from_utf8(raw_value).map_err(|_| invalid)? } else { value };
    let name = key.to_ascii_lowercase();
    let is_valid = is_name(&name) && !value.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    if is_valid { Ok((name, value)) } else { Err(invalid) }
}

fn is_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(all: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in all {
            fields.push(*name, *value);
        }
        fields
    }

    fn header(key: &str, value: &str, append_action: i32) -> HeaderOption {
        let header = Header { key: key.into(), value: value.into(), raw_value: Vec::new() };
        HeaderOption { header: Some(header), append: None, append_action }
    }

    fn change(action: FieldAction, name: &str, value: &str) -> FieldChange {
        FieldChange { action, name: name.into(), value: value.into() }
    }

    #[test]
    fn questions() {
        let request = CheckedRequest {
            client: Some(([192, 0, 2, 1], 4711).into()),
            method: "POST".into(),
            path: "/a?b=c".into(),
            host: "a.example".into(),
            scheme: "https",
            protocol: "HTTP/1.1",
            size: None,
            headers: [("x-a".to_owned(), "1".to_owned())].into(),
            ..CheckedRequest::default()
        };
        for (content, body, raw_body) in
            [(&b"text"[..], "text", &b""[..]), (b"\xff\x00", "", b"\xff\x00"), (b"", "", b"")]
        {
            let bytes = request.clone().into_message(content, UNIX_EPOCH);
            assert_eq!(bytes[..PREFIX_BYTES], [&[0][..], &(bytes.len() as u32 - 5).to_be_bytes()].concat());
            let message = CheckRequest::decode(&bytes[PREFIX_BYTES..]).unwrap().attributes.unwrap();
            let http = message.request.unwrap().http.unwrap();
            assert_eq!((http.body.as_str(), &*http.raw_body, http.size), (body, raw_body, -1));
            assert_eq!(
                (http.method.as_str(), http.path.as_str(), http.headers["x-a"].as_str()),
                ("POST", "/a?b=c", "1")
            );
            let address = message.source.unwrap().address.unwrap().socket_address.unwrap();
            assert_eq!((address.address.as_str(), address.port_value), ("192.0.2.1", 4711));
        }
    }

    #[test]
    fn decisions() {
        let ok = |ok: OkResponse| framed(&CheckResponse { ok: Some(ok), ..CheckResponse::default() });
        let end = fields(&[("grpc-status", "0")]);
        let permitted = |fields: &[FieldChange], removed: &[&str], of_response: &[FieldChange]| {
            let removed = removed.iter().map(|name| (*name).to_owned()).collect();
            Ok(CheckDecision::Permitted { fields: fields.to_vec(), removed, of_response: of_response.to_vec() })
        };
        let some = OkResponse {
            headers: vec![
                header("X-User", "anna", 0),
                HeaderOption { append: Some(BoolValue { value: true }), ..header("x-group", "staff", 0) },
                header("x-lang", "en", 1),
                header("x-gone", "", 2),
            ],
            headers_to_remove: vec!["X-Secret".into(), "host".into(), "a b".into()],
            response_headers_to_add: vec![header("x-seen", "1", 0), header("Set-Cookie", "a=b", 0)],
        };
        let (set, add) = (FieldAction::Set, FieldAction::Add);
        let expect = permitted(
            &[
                change(set, "x-user", "anna"),
                change(add, "x-group", "staff"),
                change(FieldAction::Default, "x-lang", "en"),
            ],
            &["x-gone", "x-secret"],
            &[change(set, "x-seen", "1"), change(add, "set-cookie", "a=b")],
        );
        assert_eq!(decision(&Fields::new(), &ok(some), Some(&end)), expect);
        // An empty message permits.
        assert_eq!(decision(&Fields::new(), &[0; 5], Some(&end)), permitted(&[], &[], &[]));
        let deny = |code, denied: Option<DeniedResponse>| {
            framed(&CheckResponse { status: Some(RpcStatus { code }), denied, ok: None })
        };
        let denied = |code: u16, fields: &[(&str, &str)], content: &str| {
            let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Ok(CheckDecision::Denied { status: Status::new(code).unwrap(), fields, content: content.to_owned() })
        };
        let full = |code| DeniedResponse {
            status: Some(RpcStatus { code }),
            headers: vec![header("Location", "/login", 0), header("Content-Length", "9", 0)],
            body: "no".into(),
        };
        for (message, expect) in [
            (deny(7, None), denied(403, &[], "")),
            (deny(16, Some(full(302))), denied(302, &[("location", "/login")], "no")),
            (deny(7, Some(full(200))), denied(403, &[("location", "/login")], "no")),
            (deny(7, Some(full(70_000))), denied(403, &[("location", "/login")], "no")),
        ] {
            assert_eq!(decision(&Fields::new(), &message, Some(&end)), expect);
        }
    }

    #[test]
    fn responses_without_a_decision() {
        let end = fields(&[("grpc-status", "0")]);
        let ok = |name: &str, value: &str| {
            let ok = OkResponse { headers: vec![header(name, value, 2)], ..OkResponse::default() };
            framed(&CheckResponse { ok: Some(ok), ..CheckResponse::default() })
        };
        for (head, content, trailers) in [
            (fields(&[]), vec![0; 5], None),
            (fields(&[("grpc-status", "14")]), vec![], None),
            (fields(&[]), vec![0; 5], Some(fields(&[("grpc-status", "7")]))),
            (fields(&[]), vec![], Some(end.clone())),
            (fields(&[]), vec![0; 4], Some(end.clone())),
            (fields(&[]), vec![1, 0, 0, 0, 0], Some(end.clone())),
            (fields(&[]), vec![0, 0, 0, 0, 9, 1], Some(end.clone())),
            (fields(&[]), vec![0, 0, 0, 0, 2, 0x0a, 0x7f], Some(end.clone())),
            (fields(&[]), ok("a b", "c"), Some(end.clone())),
            (fields(&[]), ok(":path", "/c"), Some(end.clone())),
            (fields(&[]), ok("x", "a\r\nb: c"), Some(end.clone())),
            (fields(&[]), ok("Transfer-Encoding", "chunked"), Some(end)),
        ] {
            assert!(decision(&head, &content, trailers.as_ref()).is_err(), "{content:?}");
        }
    }
}
