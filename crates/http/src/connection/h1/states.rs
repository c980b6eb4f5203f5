//! States of an HTTP/1 connection, and their changes.

use std::mem::{replace, take};

use super::Answering;
use super::respond::Sending;
use super::tunnel::H1Tunnel;

/// Requests after the one in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum H1Following {
    /// Further requests are read.
    Requests,
    /// No further request is read.
    Nothing,
    /// No further request is read, but the client may still send, so the connection lingers.
    Remains,
    /// The client speaks HTTP/2, so this connection object ends.
    Http2,
    /// The connection is closed without a response.
    Dropped,
    /// The connection is kept without a response.
    Tarpit,
}

impl H1Following {
    /// Stops reading requests.
    pub(super) fn close(&mut self) {
        if *self == Self::Requests {
            *self = Self::Nothing;
        }
    }

    /// Stops reading requests, and lingers after the last response.
    pub(super) fn close_lingering(&mut self) {
        *self = Self::Remains;
    }

    /// True if no further request is read.
    pub(super) fn is_closed(self) -> bool {
        self != Self::Requests
    }
}

/// Output of a connection, by what it waits for.
#[derive(Default)]
pub(super) enum H1Output {
    /// No request is being answered.
    #[default]
    AwaitRequest,
    /// Request whose response is pending.
    AwaitResponse(Box<Answering>),
    /// Output that the socket has not accepted yet.
    Send(Box<Sending>),
    /// Interim output, while the response is pending.
    SendInterim(Box<Sending>, Box<Answering>),
    /// Head of a response that opens a tunnel.
    SendUpgrade(Box<Sending>, Box<H1Tunnel>),
    /// Tunnel that follows HTTP.
    Tunnel(Box<H1Tunnel>),
}

impl H1Output {
    /// True if no request is being answered.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::AwaitRequest)
    }

    /// Begins to wait for a response.
    pub(super) fn await_response(&mut self, answering: Box<Answering>) {
        *self = Self::AwaitResponse(answering);
    }

    /// Begins a tunnel, which follows the output in progress.
    pub(super) fn begin_tunnel(&mut self, tunnel: Box<H1Tunnel>) {
        *self = Self::Tunnel(tunnel);
    }

    /// Begins to send output that the socket has not accepted. The state before follows it.
    pub(super) fn begin_sending(&mut self, sending: Box<Sending>) {
        *self = match take(self) {
            Self::AwaitRequest | Self::Send(_) => Self::Send(sending),
            Self::AwaitResponse(answering) | Self::SendInterim(_, answering) => Self::SendInterim(sending, answering),
            Self::Tunnel(tunnel) | Self::SendUpgrade(_, tunnel) => Self::SendUpgrade(sending, tunnel),
        };
    }

    /// Ends sending; returns the output with what is left of it.
    pub(super) fn end_sending(&mut self) -> Option<Box<Sending>> {
        let (sending, next) = match take(self) {
            Self::Send(sending) => (Some(sending), Self::AwaitRequest),
            Self::SendInterim(sending, answering) => (Some(sending), Self::AwaitResponse(answering)),
            Self::SendUpgrade(sending, tunnel) => (Some(sending), Self::Tunnel(tunnel)),
            other => (None, other),
        };
        *self = next;
        sending
    }

    /// Ends the wait for a response.
    pub(super) fn take_answering(&mut self) -> Option<Box<Answering>> {
        let (answering, next) = match take(self) {
            Self::AwaitResponse(answering) => (Some(answering), Self::AwaitRequest),
            Self::SendInterim(sending, answering) => (Some(answering), Self::Send(sending)),
            other => (None, other),
        };
        *self = next;
        answering
    }

    /// Ends a tunnel in any state.
    pub(super) fn take_tunnel(&mut self) -> Option<Box<H1Tunnel>> {
        match replace(self, Self::AwaitRequest) {
            Self::Tunnel(tunnel) | Self::SendUpgrade(_, tunnel) => Some(tunnel),
            other => {
                *self = other;
                None
            }
        }
    }

    pub(super) fn answering(&self) -> Option<&Answering> {
        match self {
            Self::AwaitResponse(answering) | Self::SendInterim(_, answering) => Some(answering),
            _ => None,
        }
    }

    pub(super) fn answering_mut(&mut self) -> Option<&mut Answering> {
        match self {
            Self::AwaitResponse(answering) | Self::SendInterim(_, answering) => Some(answering),
            _ => None,
        }
    }

    pub(super) fn sending(&self) -> Option<&Sending> {
        match self {
            Self::Send(sending) | Self::SendInterim(sending, _) | Self::SendUpgrade(sending, _) => Some(sending),
            _ => None,
        }
    }

    pub(super) fn sending_mut(&mut self) -> Option<&mut Sending> {
        match self {
            Self::Send(sending) | Self::SendInterim(sending, _) | Self::SendUpgrade(sending, _) => Some(sending),
            _ => None,
        }
    }

    pub(super) fn tunnel(&self) -> Option<&H1Tunnel> {
        match self {
            Self::Tunnel(tunnel) | Self::SendUpgrade(_, tunnel) => Some(tunnel),
            _ => None,
        }
    }
}
