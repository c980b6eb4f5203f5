//! Frames of the peer.

use std::time::Instant;

use bytes::Bytes;

use super::receive::PacketArrival;
use super::{Connection, LostReason, QuicEvent};
use crate::error::TransportError;
use crate::frame::QuicFrame;
use crate::types::EndpointEvent;

impl Connection {
    /// Handles a frame. `payload` is what its data refers to.
    #[inline]
    pub(super) fn on_frame(
        &mut self,
        arrival: &PacketArrival,
        payload: &Bytes,
        frame: QuicFrame<'_>,
    ) -> Result<(), TransportError> {
        let now = arrival.now;
        match frame {
            QuicFrame::Stream { id, offset, data, is_fin } => {
                self.streams.on_stream(id, offset, payload.slice_ref(data), is_fin)
            }
            QuicFrame::Ack(ack) => self.on_ack(now, arrival.space, &ack),
            QuicFrame::Padding | QuicFrame::Ping => Ok(()),
            QuicFrame::Crypto { offset, data } => self.on_crypto(now, arrival.space, offset, data),
            QuicFrame::ResetStream { id, code, final_bytes } => self.streams.on_reset_stream(id, code, final_bytes),
            QuicFrame::StopSending { id, code } => self.streams.on_stop_sending(id, code),
            QuicFrame::MaxData(bytes) => {
                self.streams.on_max_data(bytes);
                Ok(())
            }
            QuicFrame::MaxStreamData { id, bytes } => self.streams.on_max_stream_data(id, bytes),
            QuicFrame::MaxStreams { dir, count } => {
                self.streams.on_max_streams(dir, count);
                Ok(())
            }
            QuicFrame::StreamDataBlocked { id } => self.streams.on_stream_data_blocked(id),
            QuicFrame::DataBlocked | QuicFrame::StreamsBlocked { .. } => Ok(()),
            QuicFrame::NewConnectionId { sequence, retire_prior_to, id, token } => {
                if self.remote_ids.on_new(sequence, retire_prior_to, id, token)? {
                    self.announce_token();
                }
                Ok(())
            }
            QuicFrame::RetireConnectionId { sequence } => {
                if self.local_ids.on_retired(sequence)? {
                    self.endpoint_events.push_back(EndpointEvent::RetiredId { sequence });
                    self.request_ids();
                }
                Ok(())
            }
            QuicFrame::PathChallenge(data) => {
                self.on_path_challenge(arrival, data);
                Ok(())
            }
            QuicFrame::PathResponse(data) => {
                self.on_path_response(arrival, data);
                Ok(())
            }
            QuicFrame::Close { is_application, code, reason } => {
                self.on_close(now, is_application, code, reason);
                Ok(())
            }
            QuicFrame::NewToken | QuicFrame::HandshakeDone => {
                Err(TransportError::protocol_violation("only servers send this frame"))
            }
        }
    }

    fn on_close(&mut self, now: Instant, is_application: bool, code: u64, reason: &[u8]) {
        let reason = Bytes::copy_from_slice(reason);
        self.events.push_back(QuicEvent::Lost(match is_application {
            true => LostReason::PeerApplication { code, reason },
            false => LostReason::PeerTransport { code, reason },
        }));
        self.enter_draining(now);
    }

    /// Tells the endpoint the token by which the peer resets the connection.
    pub(super) fn announce_token(&mut self) {
        if let Some(token) = self.remote_ids.token() {
            let remote = self.path.remote;
            self.endpoint_events.push_back(EndpointEvent::ResetToken { remote, token });
        }
    }
}
