use std::rc::Rc;

use wire::http::{Request, RequestHead, Target};

use super::{ClientLink, ClientLinkCell, Now, Proxied, Routed};
use crate::log::Client;
use crate::metrics::HandlerKind;
use crate::tls::TlsInfo;

/// A request that outlives the buffer it came in: for whatever has to be waited for.
#[derive(Debug)]
pub struct OwnedRequest {
    head: RequestHead,
    bytes: Vec<u8>,
    path: Vec<u8>,
    host: Vec<u8>,
    client: Client,
    tls: Option<Rc<TlsInfo>>,
    proxied: Option<Proxied>,
    link: ClientLinkCell,
    now: Now,
}

impl OwnedRequest {
    /// Copies a request.
    pub fn new(routed: &Routed<'_>) -> Self {
        let head = routed.request.head.clone();
        Self {
            // They may go on behind the head, up to the end of what was read.
            bytes: routed.request.bytes[..head.bytes_used()].to_vec(),
            head,
            path: routed.path.to_vec(),
            host: routed.host.to_vec(),
            client: routed.client,
            tls: routed.tls.map(Rc::clone),
            proxied: routed.proxied,
            link: routed.link.clone(),
            now: routed.now,
        }
    }

    /// The request, as a handler sees it.
    pub fn routed(&self, has_next: bool) -> Routed<'_> {
        Routed {
            request: self.request(),
            path: &self.path,
            // It was parsed before, and without error.
            query: Target::parse(self.head.target.of(&self.bytes), self.head.method)
                .ok()
                .and_then(|target| target.query),
            host: &self.host,
            client: self.client,
            tls: self.tls.as_ref(),
            proxied: self.proxied,
            link: &self.link,
            has_next,
            now: self.now,
        }
    }

    /// Head and bytes.
    pub fn request(&self) -> Request<'_> {
        Request { head: &self.head, bytes: &self.bytes }
    }

    /// The host, lower case, without port.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// The link to the client, if a handler wanted one.
    pub fn link(&self) -> Option<&Rc<ClientLink>> {
        self.link.get()
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
