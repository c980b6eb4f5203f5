//! Request and response as a guest sees and changes them. A forbidden action is an error, which ends the guest.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use wasmtime::{Result, bail};
use wire::http::{Fields, Method, RequestHead, RequestTarget, Status, Version};

use super::content::{RequestBody, ResponseContent};

/// The guest may read the request's content, and the next handler still gets all of it.
pub(super) const BUFFER_REQUEST: u32 = 1;
/// The guest may read and replace the content of the next handler's response.
pub(super) const BUFFER_RESPONSE: u32 = 2;
/// The guest may read and write trailers.
pub(super) const TRAILERS: u32 = 4;

/// Limit of field names and values that a guest may write into a message, in bytes. Above the limits of requests and
/// responses.
const FIELDS_BYTES_MAX: usize = 64 << 10;

/// Request of a guest, and the response to it.
#[derive(Debug, Default)]
pub struct HttpWasmExchange {
    pub(super) stage: HttpWasmStage,
    pub(super) features: u32,
    head: RequestHead,
    bytes: Vec<u8>,
    source: Option<SocketAddr>,
    changed: Option<Box<ChangedRequest>>,
    pub(super) request_body: RequestBody,
    pub(super) response: GuestResponse,
    /// Bytes of fields that may still be written.
    field_bytes_left: usize,
    buffered: BufferedBytes,
}

/// Bytes of content that an exchange buffers. They can be read while the guest runs, on whatever thread.
#[derive(Clone, Debug, Default)]
pub struct BufferedBytes(Arc<AtomicUsize>);

impl BufferedBytes {
    /// Bytes buffered as of the guest's last read or write.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HttpWasmStage {
    /// No request.
    #[default]
    None,
    /// The guest handles the request.
    Request,
    /// The next handler has responded.
    Response,
}

/// Request as the guest has changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedRequest {
    /// Name of the method.
    pub method: Vec<u8>,
    /// Path and query, in origin form (RFC 9112, section 3.2.1).
    pub uri: Vec<u8>,
    /// Header fields.
    pub fields: Fields,
}

/// Response of the guest or of the next handler.
#[derive(Debug)]
pub struct GuestResponse {
    /// Status of the final response.
    pub status: Status,
    /// Header fields.
    pub fields: Fields,
    /// Changes to header fields that were already there.
    pub edits: Vec<ResponseFieldEdit>,
    /// Content, from guest and next handler.
    pub content: ResponseContent,
    /// Trailer fields.
    pub trailers: Fields,
}

/// Change of a response's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseFieldEdit {
    /// True if the line replaces all others of this name. An empty value removes them.
    pub replaces: bool,
    /// Name of the field.
    pub name: String,
    /// Value of the field.
    pub value: Vec<u8>,
}

/// Selects the fields of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldsKind {
    Request,
    Response,
    RequestTrailers,
    ResponseTrailers,
}

impl Default for GuestResponse {
    fn default() -> Self {
        Self {
            status: Status::OK,
            fields: Fields::default(),
            edits: Vec::new(),
            content: ResponseContent::default(),
            trailers: Fields::default(),
        }
    }
}

/// Server's side.
impl HttpWasmExchange {
    /// Starts a request: its head, the bytes that the head points into, and the client's address.
    pub fn begin(&mut self, head: &RequestHead, bytes: &[u8], source: Option<SocketAddr>) {
        self.head.clone_from(head);
        self.bytes.clear();
        self.bytes.extend_from_slice(&bytes[..head.bytes_used()]);
        self.source = source;
        self.changed = None;
        self.request_body = RequestBody::default();
        self.response.status = Status::OK;
        self.response.fields.clear();
        self.response.edits.clear();
        self.response.trailers.clear();
        self.response.content = ResponseContent::default();
        (self.stage, self.field_bytes_left) = (HttpWasmStage::Request, FIELDS_BYTES_MAX);
        self.count_buffered();
    }

    /// Bytes of content that are buffered for this request, now and later.
    pub fn buffered(&self) -> BufferedBytes {
        self.buffered.clone()
    }

    /// Updates [`Self::buffered`] after content was added or taken.
    pub fn count_buffered(&self) {
        let bytes = self.request_body.held_bytes() + self.response.content.held_bytes();
        self.buffered.0.store(bytes, Ordering::Relaxed);
    }

    /// Content of the request, which arrives on demand.
    pub fn request_body(&mut self) -> &mut RequestBody {
        &mut self.request_body
    }

    /// Request for the next handler, if the guest has changed its head.
    pub fn take_changed(&mut self) -> Option<Box<ChangedRequest>> {
        self.changed.take()
    }

    /// Copy of the request as the client sent it.
    pub fn copied_request(&self) -> Box<ChangedRequest> {
        let mut fields = Fields::with_capacity(self.bytes.len(), self.head.fields.len() + 4);
        for field in &self.head.fields {
            fields.push(field.name.of(&self.bytes), field.value.of(&self.bytes));
        }
        let method = self.head.method_name.of(&self.bytes).to_vec();
        Box::new(ChangedRequest { method, uri: self.sent_uri().to_vec(), fields })
    }

    /// True if the next handler's content must be in memory: the guest needs it, or has written content that precedes
    /// it.
    pub fn buffers_response(&self) -> bool {
        self.features & BUFFER_RESPONSE != 0 || self.response.content.written_bytes() > 0
    }

    /// True if the next handler gets the request's content even though the guest has read some of it.
    pub fn buffers_request(&self) -> bool {
        self.features & BUFFER_REQUEST != 0
    }

    /// Continues with the next handler's response. The guest sees its content if it has asked for it. Fields that the
    /// guest has written before are added, unless the response has fields of the same name.
    pub fn on_response(&mut self, status: Status, fields: Fields, content: Option<Bytes>, trailers: Fields) {
        self.stage = HttpWasmStage::Response;
        let earlier = std::mem::replace(&mut self.response.fields, fields);
        let is_added = |(name, _): &(&[u8], &[u8])| !self.response.fields.has(name);
        let edits = earlier.iter().filter(is_added).map(|(name, value)| {
            let name = String::from_utf8_lossy(name).into_owned();
            ResponseFieldEdit { replaces: false, name, value: value.to_vec() }
        });
        self.response.edits = edits.collect();
        for ResponseFieldEdit { name, value, .. } in &self.response.edits {
            self.response.fields.push(name, value);
        }
        self.response.content.continue_with(content);
        (self.response.status, self.response.trailers) = (status, trailers);
        self.field_bytes_left = FIELDS_BYTES_MAX;
        self.count_buffered();
    }

    /// Response so far.
    pub fn response(&mut self) -> &mut GuestResponse {
        &mut self.response
    }

    /// Forgets the request.
    pub(super) fn end(&mut self) {
        self.stage = HttpWasmStage::None;
        self.request_body = RequestBody::default();
        self.response.content = ResponseContent::default();
        self.count_buffered();
    }
}

/// Guest's side.
impl HttpWasmExchange {
    pub(super) fn method(&self) -> Result<&[u8]> {
        self.expect_request()?;
        Ok(match &self.changed {
            Some(changed) => &changed.method,
            None => self.head.method_name.of(&self.bytes),
        })
    }

    pub(super) fn set_method(&mut self, method: &[u8]) -> Result<()> {
        if !is_token(method) || Method::from_name(method) == Method::Connect {
            bail!("invalid method");
        }
        self.change()?.method = method.to_vec();
        Ok(())
    }

    pub(super) fn uri(&self) -> Result<&[u8]> {
        self.expect_request()?;
        Ok(match &self.changed {
            Some(changed) => &changed.uri,
            None => self.sent_uri(),
        })
    }

    pub(super) fn set_uri(&mut self, uri: &[u8]) -> Result<()> {
        let uri = if uri.is_empty() { b"/" } else { uri };
        if uri.len() > FIELDS_BYTES_MAX || !uri.starts_with(b"/") || RequestTarget::parse(uri, Method::Get).is_err() {
            bail!("invalid path and query");
        }
        self.change()?.uri = uri.to_vec();
        Ok(())
    }

    pub(super) fn protocol_version(&self) -> Result<&'static str> {
        self.expect_request()?;
        Ok(match self.head.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        })
    }

    pub(super) fn source(&self) -> Result<String> {
        self.expect_request()?;
        Ok(self.source.map_or_else(|| "unix".to_owned(), |source| source.to_string()))
    }

    pub(super) fn status(&self) -> Result<Status> {
        self.expect_request()?;
        Ok(self.response.status)
    }

    pub(super) fn set_status(&mut self, code: u32) -> Result<()> {
        self.expect_request()?;
        // A guest cannot send interim responses.
        let status = u16::try_from(code).ok().and_then(Status::new).filter(|status| status.code() >= 200);
        let Some(status) = status else { bail!("not a status of a final response: {code}") };
        self.response.status = status;
        Ok(())
    }

    /// Name and value of each line.
    pub(super) fn fields(&self, kind: FieldsKind) -> Box<dyn Iterator<Item = (&[u8], &[u8])> + '_> {
        match (kind, &self.changed) {
            (FieldsKind::Request, None) => {
                let of = |field: &wire::http::FieldSpan| (field.name.of(&self.bytes), field.value.of(&self.bytes));
                Box::new(self.head.fields.iter().map(of))
            }
            (FieldsKind::Request, Some(changed)) => Box::new(changed.fields.iter()),
            (FieldsKind::Response, _) => Box::new(self.response.fields.iter()),
            (FieldsKind::RequestTrailers, _) => Box::new(self.request_body.trailers().iter()),
            (FieldsKind::ResponseTrailers, _) => Box::new(self.response.trailers.iter()),
        }
    }

    /// Sets or adds a line; `None` removes all lines of this name.
    pub(super) fn edit_field(
        &mut self,
        kind: FieldsKind,
        replaces: bool,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        self.expect_request()?;
        if !is_token(name) || value.is_some_and(|value| !is_field_value(value)) {
            bail!("invalid header field");
        }
        let bytes = name.len() + value.map_or(0, <[u8]>::len);
        let Some(left) = self.field_bytes_left.checked_sub(bytes) else {
            bail!("more than {FIELDS_BYTES_MAX} bytes of header fields");
        };
        self.field_bytes_left = left;
        let value = value.unwrap_or_default().trim_ascii();
        let fields = match kind {
            FieldsKind::Request => &mut self.change()?.fields,
            FieldsKind::Response => {
                if self.stage == HttpWasmStage::Response {
                    let name = String::from_utf8_lossy(name).into_owned();
                    self.response.edits.push(ResponseFieldEdit { replaces, name, value: value.to_vec() });
                }
                &mut self.response.fields
            }
            FieldsKind::RequestTrailers => bail!("request trailers cannot be changed"),
            FieldsKind::ResponseTrailers => &mut self.response.trailers,
        };
        if replaces {
            fields.set(name, value);
        } else if !value.is_empty() {
            fields.push(name, value);
        }
        Ok(())
    }

    pub(super) fn expect_request(&self) -> Result<()> {
        if self.stage == HttpWasmStage::None {
            bail!("there is no request yet");
        }
        Ok(())
    }

    /// Path and query as the client sent them.
    fn sent_uri(&self) -> &[u8] {
        let target = self.head.target.of(&self.bytes);
        if target.starts_with(b"/") {
            return target;
        }
        // In absolute form (RFC 9112, section 3.2.2) they follow the host.
        let after_scheme = target.windows(3).position(|three| three == b"://").map_or(target.len(), |at| at + 3);
        let path = target[after_scheme..].iter().position(|byte| matches!(byte, b'/' | b'?'));
        path.map_or(b"/", |at| &target[after_scheme + at..])
    }

    /// Changed copy of the request, created at the first change.
    fn change(&mut self) -> Result<&mut ChangedRequest> {
        if self.stage != HttpWasmStage::Request {
            bail!("the request has gone on to the next handler");
        }
        if self.changed.is_none() {
            self.changed = Some(self.copied_request());
        }
        // Local invariant: created above.
        self.changed.as_deref_mut().ok_or_else(|| wasmtime::format_err!("no request"))
    }
}

/// Checks for a token (RFC 9110, section 5.6.2).
fn is_token(name: &[u8]) -> bool {
    let is_special = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || is_special(byte))
}

/// Checks for a field value (RFC 9110, section 5.5).
fn is_field_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

#[cfg(test)]
mod tests {
    use wire::http::{KnownField, Span};

    use super::*;

    fn exchange(target: &str) -> HttpWasmExchange {
        let mut bytes = Vec::new();
        let mut append = |text: &str| {
            bytes.extend_from_slice(text.as_bytes());
            Span::new(bytes.len() - text.len(), bytes.len())
        };
        let mut head = RequestHead::default();
        head.method = Method::Get;
        (head.method_name, head.target) = (append("GET"), append(target));
        head.push_field(append("Accept"), append("*/*"), KnownField::from_name(b"accept"));
        let mut exchange = HttpWasmExchange::default();
        exchange.begin(&head, &bytes, None);
        exchange
    }

    #[test]
    fn what_was_sent() {
        for (target, expect) in [
            ("/a?b", "/a?b"),
            ("http://h.example/a?b", "/a?b"),
            ("http://h.example", "/"),
            ("http://h.example?b", "?b"),
            ("*", "/"),
        ] {
            assert_eq!(exchange(target).uri().unwrap(), expect.as_bytes(), "{target}");
        }
        assert_eq!(exchange("/").source().unwrap(), "unix");
        assert!(HttpWasmExchange::default().method().is_err(), "there is no request");
    }

    #[test]
    fn what_is_changed() {
        let mut exchange = exchange("/a");
        assert!(exchange.take_changed().is_none());
        exchange.set_uri(b"/b?c").unwrap();
        exchange.set_method(b"POST").unwrap();
        exchange.edit_field(FieldsKind::Request, true, b"accept", Some(b"text/html")).unwrap();
        exchange.edit_field(FieldsKind::Request, false, b"x-a", Some(b"1")).unwrap();
        let changed = exchange.take_changed().unwrap();
        let mut fields = Fields::new();
        fields.push("accept", "text/html").push("x-a", "1");
        let expect = ChangedRequest { method: b"POST".to_vec(), uri: b"/b?c".to_vec(), fields };
        assert_eq!(*changed, expect);
    }

    #[test]
    fn what_no_message_could_have() {
        let check =
            |change: &dyn Fn(&mut HttpWasmExchange) -> Result<()>| assert!(change(&mut exchange("/a")).is_err());
        check(&|exchange| exchange.set_method(b"A B"));
        check(&|exchange| exchange.set_method(b"CONNECT"));
        check(&|exchange| exchange.set_method(b""));
        check(&|exchange| exchange.set_uri(b"a"));
        check(&|exchange| exchange.set_uri(b"/a b\r\nX: y"));
        check(&|exchange| exchange.set_status(103));
        check(&|exchange| exchange.set_status(70_000));
        check(&|exchange| exchange.edit_field(FieldsKind::Response, true, b"a\r\nb", Some(b"c")));
        check(&|exchange| exchange.edit_field(FieldsKind::Response, true, b"a", Some(b"c\r\nd: e")));
        check(&|exchange| exchange.edit_field(FieldsKind::Response, true, b"a", Some(&[b'x'; FIELDS_BYTES_MAX])));
        check(&|exchange| {
            exchange.on_response(Status::OK, Fields::new(), None, Fields::new());
            exchange.set_uri(b"/too-late")
        });
    }

    #[test]
    fn edits_of_the_next_handlers_response() {
        let mut exchange = exchange("/a");
        let mut fields = Fields::new();
        fields.push("ETag", "\"x\"");
        exchange.on_response(Status::NOT_FOUND, fields, None, Fields::new());
        exchange.edit_field(FieldsKind::Response, true, b"etag", None).unwrap();
        exchange.edit_field(FieldsKind::Response, false, b"x-a", Some(b"1")).unwrap();
        assert_eq!(exchange.status().unwrap(), Status::NOT_FOUND);
        assert_eq!(exchange.fields(FieldsKind::Response).count(), 1);
        assert_eq!(exchange.response().edits.len(), 2);
    }

    #[test]
    fn what_is_written_before_the_next_handlers_response() {
        let mut exchange = exchange("/a");
        for (name, value) in [(&b"etag"[..], &b"\"mine\""[..]), (b"x-a", b"1"), (b"x-a", b"2")] {
            exchange.edit_field(FieldsKind::Response, false, name, Some(value)).unwrap();
        }
        exchange.response.content.write(b"before, ", 99).unwrap();
        assert!(exchange.buffers_response());
        let mut fields = Fields::new();
        fields.push("ETag", "\"next\"");
        exchange.on_response(Status::OK, fields, Some(Bytes::from_static(b"after")), Fields::new());
        let lines: Vec<_> = exchange.fields(FieldsKind::Response).map(|(_, value)| value).collect();
        assert_eq!(lines, [&b"\"next\""[..], b"1", b"2"]);
        assert_eq!(exchange.response().edits.len(), 2);
        assert_eq!(exchange.response().content.take_written().as_deref(), Some(&b"before, after"[..]));
    }
}
