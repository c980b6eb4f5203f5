use std::rc::Rc;

use wire::http::{FieldSpan, Fields, KnownField, Method, Request, RequestHead, Span, Target, path};

use super::{ClientLink, ClientLinkCell, Now, Proxied, Routed};
use crate::log::Client;
use crate::metrics::HandlerKind;
use crate::tls::TlsInfo;
use crate::traces::Trace;

/// A request that outlives the buffer it came in: for whatever has to be waited for.
#[derive(Debug)]
pub struct OwnedRequest {
    head: RequestHead,
    /// The head's bytes, and behind them path and host: one piece of memory for all.
    bytes: Vec<u8>,
    path: Span,
    /// Of the target.
    query: Option<Span>,
    host: Span,
    client: Client,
    tls: Option<Rc<TlsInfo>>,
    proxied: Option<Proxied>,
    trace: Option<Rc<Trace>>,
    link: ClientLinkCell,
    now: Now,
}

impl OwnedRequest {
    /// Copies a request.
    pub fn new(routed: &Routed<'_>) -> Self {
        let head = routed.request.head.clone();
        // They may go on behind the head, up to the end of what was read.
        let head_bytes = &routed.request.bytes[..head.bytes_used()];
        let bytes = [head_bytes, routed.path, routed.host].concat();
        let path = Span::new(head_bytes.len(), head_bytes.len() + routed.path.len());
        // It was parsed before, and without error. What it ends with is the query.
        let target = Target::parse(head.target.of(&bytes), head.method).ok();
        let query = target.and_then(|target| target.query);
        let query = query.map(|query| Span::new(head.target.end() - query.len(), head.target.end()));
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
            link: routed.link.clone(),
            now: routed.now,
        }
    }

    /// A request with another method, target (in origin form) and other fields: those that it did not have before count as
    /// set here. `None` if the target's path leads above the root, or has percent signs that mean nothing.
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
        // Made now, if there is none, for both to have the same: what becomes of the client is told to the first alone.
        routed.link.link();
        Some(Self::new(&Routed { request, path: &path, query: None, ..*routed }))
    }

    /// The request, as a handler sees it.
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
            link: &self.link,
            has_next,
            now: self.now,
        }
    }

    /// Head and bytes.
    pub fn request(&self) -> Request<'_> {
        Request { head: &self.head, bytes: &self.bytes[..self.path.start()] }
    }

    /// The host, lower case, without port.
    pub fn host(&self) -> &[u8] {
        self.host.of(&self.bytes)
    }

    /// The link to the client, if a handler wanted one.
    pub fn link(&self) -> Option<&Rc<ClientLink>> {
        self.link.get()
    }

    /// The same link, made now if there is none: the handler that comes to want one may not be asked yet.
    pub fn link_made(&self) -> &Rc<ClientLink> {
        self.link.link()
    }

    /// Who answers it, as far as is known.
    pub fn handler(&self) -> HandlerKind {
        self.link.handler()
    }

    /// When it was received.
    pub fn received(&self) -> Now {
        self.now
    }
}
