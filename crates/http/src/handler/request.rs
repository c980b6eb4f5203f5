use std::rc::Rc;
use std::sync::Arc;

use wire::http::{FieldSpan, Fields, KnownField, Method, Request, RequestHead, RequestTarget, Span, path};

use super::{ClientLink, ClientLinkCell, Now, Proxied, Routed};
use crate::known_clients::Locations;
use crate::log::{LogClient, LogNeeds};
use crate::memory_budget::{Charge, HolderClient};
use crate::metrics::HandlerKind;
use crate::tls::TlsInfo;
use crate::traces::Trace;

/// Most bytes of a target that are kept without an access log: operators see them among open requests.
const REPORTED_BYTES_MAX: usize = 200;

/// A request that outlives the buffer it was read into, for handlers that respond later.
#[derive(Debug)]
pub struct OwnedRequest {
    head: RequestHead,
    /// Bytes of the head, then path and host: one allocation for all.
    bytes: Vec<u8>,
    path: Span,
    /// Range of the target's query.
    query: Option<Span>,
    host: Span,
    client: LogClient,
    tls: Option<Rc<TlsInfo>>,
    proxied: Option<Proxied>,
    trace: Option<Rc<Trace>>,
    locations: Option<Arc<Locations>>,
    link: ClientLinkCell,
    now: Now,
    /// Charge for its memory, while it is kept for a client.
    charge: Option<Charge>,
}

impl OwnedRequest {
    /// Copies a request.
    pub fn new(routed: &Routed<'_>) -> Self {
        let head = routed.request.head.clone();
        // The bytes may extend beyond the head, up to the end of the read.
        let head_bytes = &routed.request.bytes[..head.bytes_used()];
        let bytes = [head_bytes, routed.path, routed.host].concat();
        let path = Span::new(head_bytes.len(), head_bytes.len() + routed.path.len());
        // The target was parsed before without error. It ends with the query.
        let target = RequestTarget::parse(head.target.of(&bytes), head.method).ok();
        let query = target.and_then(|target| target.query);
        let query = query.map(|query| Span::new(head.target.end() - query.len(), head.target.end()));
        let charge = charge(&head, &bytes, routed);
        Self {
            head,
            path,
            query,
            host: Span::new(path.end(), bytes.len()),
            bytes,
            client: routed.client,
            tls: routed.tls.map(Rc::clone),
            proxied: routed.proxied,
            trace: routed.trace.map(Rc::clone),
            locations: routed.locations.map(Arc::clone),
            link: routed.link.clone(),
            now: routed.now,
            charge,
        }
    }

    /// Copies the parts of a request that logs, metrics and traces need, for one whose response a slow client still
    /// reads. Values longer than `value_bytes_max` or the log's limit are cut, but keep one byte more, so that the
    /// log marks them. `keeps_fields` keeps all fields, for a condition that may test them.
    pub fn for_log(
        routed: &Routed<'_>,
        needs: Option<LogNeeds<'_>>,
        keeps_fields: bool,
        value_bytes_max: usize,
    ) -> Self {
        let request = routed.request;
        let logged_bytes_max = needs.map_or(REPORTED_BYTES_MAX, |needs| needs.value_bytes_max());
        let cut = |value: &[u8]| value.len().min(value_bytes_max.min(logged_bytes_max) + 1);
        let mut bytes = Vec::new();
        let mut append = |value: &[u8]| {
            bytes.extend_from_slice(&value[..cut(value)]);
            bytes.len() - cut(value)..bytes.len()
        };
        let mut head = RequestHead::default();
        (head.method, head.version) = (request.method(), request.head.version);
        let mut span = |value: &[u8]| {
            let range = append(value);
            Span::new(range.start, range.end)
        };
        head.method_name = span(request.method_name());
        head.target = span(request.target());
        let mut lines: Vec<usize> = needs.iter().flat_map(|needs| needs.field_lines(&request)).collect();
        if routed.trace.is_some() {
            let fields = &request.head.fields;
            let traced = [KnownField::Host, KnownField::UserAgent];
            lines.extend(traced.iter().filter_map(|known| fields.iter().position(|field| field.known == *known)));
        }
        if keeps_fields {
            lines.extend(0..request.head.fields.len());
        }
        lines.sort_unstable();
        lines.dedup();
        for index in lines {
            let FieldSpan { name, value, known, is_set_here } = request.head.fields[index];
            let (name, value) = (span(name.of(request.bytes)), span(value.of(request.bytes)));
            head.push(FieldSpan { name, value, known, is_set_here });
        }
        let path = bytes.len();
        bytes.extend_from_slice(&routed.host[..cut(routed.host)]);
        bytes.shrink_to_fit();
        head.fields.shrink_to_fit();
        Self {
            path: Span::new(path, path),
            query: None,
            host: Span::new(path, bytes.len()),
            charge: charge(&head, &bytes, routed),
            head,
            bytes,
            client: routed.client,
            tls: routed.tls.map(Rc::clone),
            proxied: None,
            trace: routed.trace.map(Rc::clone),
            locations: routed.locations.map(Arc::clone),
            link: routed.link.clone(),
            now: routed.now,
        }
    }

    /// Bytes of memory that are charged for it.
    pub fn held_bytes(&self) -> usize {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Builds a request with another method, target (in origin form) and other fields. New fields count as set by the
    /// configuration. `None` if the target's path leads above the root, or has an invalid percent-encoding.
    pub fn changed(routed: &Routed<'_>, method: &[u8], target: &[u8], fields: &Fields) -> Option<Self> {
        let mut bytes = Vec::with_capacity(512);
        let mut append = |text: &[u8]| {
            bytes.extend_from_slice(text);
            Span::new(bytes.len() - text.len(), bytes.len())
        };
        let mut head = RequestHead::default();
        head.method = Method::from_name(method);
        (head.method_name, head.target) = (append(method), append(target));
        head.version = routed.request.head.version;
        head.had_credentials = routed.request.head.has_credentials();
        head.identity = append(routed.request.head.identity.of(routed.request.bytes));
        head.target_asked = Some(append(routed.request.target_asked()));
        let before = routed.request;
        for (name, value) in fields.iter() {
            let known = KnownField::from_name(name);
            let is_same = |field: &&FieldSpan| {
                field.value.of(before.bytes) == value && field.name.of(before.bytes).eq_ignore_ascii_case(name)
            };
            let is_set_here = before.head.fields.iter().find(is_same).is_none_or(|field| field.is_set_here);
            head.push(FieldSpan { name: append(name), value: append(value), known, is_set_here });
        }
        head.withheld = before.head.withheld.iter().map(|name| append(name.of(before.bytes))).collect();
        let raw_path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
        let path = path::normalise(raw_path, &mut Vec::new()).ok()?.to_vec();
        let request = Request { head: &head, bytes: &bytes };
        // Created now, so that both share it: the connection reports the client's end only to the first.
        routed.link.link();
        Some(Self::new(&Routed { request, path: &path, query: None, ..*routed }))
    }

    /// Request in the form that a handler gets.
    pub fn routed(&self, has_next: bool) -> Routed<'_> {
        Routed {
            request: self.request(),
            path: self.path.of(&self.bytes),
            query: self.query.map(|query| query.of(&self.bytes)),
            host: self.host(),
            client: self.client,
            tls: self.tls.as_ref(),
            proxied: self.proxied,
            trace: self.trace.as_ref(),
            locations: self.locations.as_ref(),
            link: &self.link,
            has_next,
            now: self.now,
        }
    }

    /// Head and bytes.
    pub fn request(&self) -> Request<'_> {
        Request { head: &self.head, bytes: &self.bytes[..self.path.start()] }
    }

    /// Host, lower case, without port.
    pub fn host(&self) -> &[u8] {
        self.host.of(&self.bytes)
    }

    /// Link to the client, if it was created.
    pub fn link(&self) -> Option<&Rc<ClientLink>> {
        self.link.get()
    }

    /// Returns the link and creates it if there is none, because a later handler may need it.
    pub fn link_made(&self) -> &Rc<ClientLink> {
        self.link.link()
    }

    /// Kind of the handler, as far as it is known.
    pub fn handler(&self) -> HandlerKind {
        self.link.handler()
    }

    /// Time at which it was received.
    pub fn received(&self) -> Now {
        self.now
    }
}

fn held_bytes(head: &RequestHead, bytes: &Vec<u8>) -> usize {
    size_of::<OwnedRequest>() + bytes.capacity() + head.fields.capacity() * size_of::<FieldSpan>()
}

/// Charges the memory of a request to its connection. On one of a trusted proxy, it counts for the client.
fn charge(head: &RequestHead, bytes: &Vec<u8>, routed: &Routed<'_>) -> Option<Charge> {
    let holder = routed.link.counted_holder()?;
    if routed.proxied.is_some_and(|proxied| proxied.entries > 0)
        && let LogClient::Ip(address) = routed.client
    {
        holder.note_proxied_client(HolderClient::of(address.ip()));
    }
    Some(holder.charge_head(held_bytes(head, bytes)))
}
