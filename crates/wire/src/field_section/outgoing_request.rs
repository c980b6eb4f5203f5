//! Heads of requests to send.

use std::fmt;
use std::marker::PhantomData;

use super::{StaticCoding, sendable};
use crate::http::Fields;

/// Pseudo-fields of a request to send. The caller must ensure that RFC 9113, section 8.3.1, or RFC 9114, section 4.3.1, allows all of
/// them.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    /// Method; `CONNECT` for tunnels.
    pub method: &'a [u8],
    /// `http` or `https`; `None` for CONNECT.
    pub scheme: Option<&'a [u8]>,
    /// Host with its port.
    pub authority: Option<&'a [u8]>,
    /// Path and query; `None` for CONNECT.
    pub path: Option<&'a [u8]>,
    /// Protocol of an extended CONNECT (RFC 8441, RFC 9220). The server must have enabled it with
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL.
    pub protocol: Option<&'a [u8]>,
}

impl<'a> OutgoingRequest<'a> {
    pub(crate) fn pseudo_fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let all: [(&'a [u8], Option<&'a [u8]>); 5] = [
            (b":method", Some(self.method)),
            (b":scheme", self.scheme),
            (b":authority", self.authority),
            (b":path", self.path),
            (b":protocol", self.protocol),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// A request head that is encoded once and sent many times. It uses no dynamic table, so any connection can send it.
pub struct PreparedRequestHead<C> {
    method: Box<[u8]>,
    block: Box<[u8]>,
    coding: PhantomData<C>,
}

impl<C> Clone for PreparedRequestHead<C> {
    fn clone(&self) -> Self {
        Self { method: self.method.clone(), block: self.block.clone(), coding: PhantomData }
    }
}

impl<C> fmt::Debug for PreparedRequestHead<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedRequestHead").field("block", &self.block).finish_non_exhaustive()
    }
}

impl<C: StaticCoding> PreparedRequestHead<C> {
    /// Encodes a head.
    pub fn new(request: &OutgoingRequest<'_>, fields: &Fields) -> Self {
        let mut block = Vec::with_capacity(128);
        C::write_prefix(&mut block);
        request.pseudo_fields().for_each(|(name, value)| C::write_literal(&mut block, name, value));
        sendable(fields).for_each(|(name, value)| C::write_literal(&mut block, &name.to_ascii_lowercase(), value));
        Self { method: request.method.into(), block: block.into(), coding: PhantomData }
    }

    pub(crate) fn method(&self) -> &[u8] {
        &self.method
    }

    pub(crate) fn block(&self) -> &[u8] {
        &self.block
    }
}
