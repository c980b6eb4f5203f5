//! Requests in flight on a connection with concurrent streams (HTTP/2, HTTP/3), and the state of their responses.

use std::collections::VecDeque;

use wire::http::{Fields, Status};

use super::check::BodyJudge;
use super::failure::{FailureClass, FailureReason};
use super::grpc::GrpcResponse;
use super::workload::WorkloadRequest;

/// Maximum number of requests that a server may reject in a row on a connection for a later retry. Further ones fail,
/// because a server that rejects everything would get them forever.
const REFUSED_MAX: u32 = 100;

/// Meaning of a connection's input. A place is the index among the requests in flight; 0 is the oldest.
#[derive(Debug)]
pub(crate) enum ResponseEvent {
    /// The caller must provide more input.
    NeedInput,
    /// An event that concerns no single request.
    Other,
    /// A piece of a response; `received_bytes` counts all of the response so far.
    Piece { place: usize, received_bytes: u64 },
    /// The response is complete, and the request is no longer in flight.
    Complete { place: usize, status: u16, verdict: Option<(FailureClass, FailureReason)>, received_bytes: u64 },
    /// The request has failed and is no longer in flight.
    Failed { place: usize, class: FailureClass, reason: FailureReason },
    /// The server has not handled the request, which is no longer in flight.
    Refused { place: usize },
    /// The server accepts no more requests. It has not handled those from this place on; they are no longer in flight.
    /// `is_orderly`: the server has answered requests before and sent no error.
    GoAway { from_place: usize, is_orderly: bool, reason: FailureReason },
    /// The input violates the protocol, for this reason.
    Malformed(&'static str),
}

/// Open streams of a connection, in the order of their ids.
#[derive(Debug)]
pub(crate) struct LoadStreams<Id> {
    streams: VecDeque<LoadStream<Id>>,
    has_completed: bool,
    /// Rejected requests since the last complete response.
    refused: u32,
}

/// A request in flight and the state of its response.
#[derive(Debug)]
struct LoadStream<Id> {
    id: Id,
    request: u32,
    status: u16,
    verdict: Option<FailureClass>,
    judge: BodyJudge,
    content_bytes: u64,
    /// Received bytes, including heads and frame headers.
    received_bytes: u64,
    /// State of a gRPC call, if the request is one.
    grpc: Option<GrpcResponse>,
}

impl<Id> Default for LoadStreams<Id> {
    fn default() -> Self {
        Self { streams: VecDeque::new(), has_completed: false, refused: 0 }
    }
}

impl<Id: Copy + Ord> LoadStreams<Id> {
    /// Adds a request that is sent on the stream `id`, which is higher than all before.
    pub(crate) fn push(&mut self, id: Id, request: u32, requests: &[WorkloadRequest]) {
        let request_form = &requests[request as usize];
        self.streams.push_back(LoadStream {
            id,
            request,
            status: 0,
            verdict: None,
            judge: BodyJudge::new(request_form.check.body.as_ref()),
            content_bytes: 0,
            received_bytes: 0,
            grpc: request_form.is_grpc.then(GrpcResponse::default),
        });
    }

    /// Number of requests in flight.
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Removes all requests, which the server does not know. Returns their indices in the list of requests, in order.
    pub(crate) fn take_requests(&mut self) -> Vec<u32> {
        self.streams.drain(..).map(|stream| stream.request).collect()
    }

    /// Returns whether a part of any response has arrived.
    pub(crate) fn has_response(&self) -> bool {
        self.streams.iter().any(|stream| stream.received_bytes > 0)
    }

    /// Place of a stream, if its request is in flight.
    pub(crate) fn place(&self, id: Id) -> Option<usize> {
        // Servers usually answer in order.
        match self.streams.front() {
            Some(first) if first.id == id => Some(0),
            _ => self.streams.binary_search_by_key(&id, |stream| stream.id).ok(),
        }
    }

    /// Index of the request of a stream in the list of requests.
    pub(crate) fn request(&self, id: Id) -> Option<u32> {
        self.place(id).map(|place| self.streams[place].request)
    }

    /// Removes a request. Returns the id of its stream.
    pub(crate) fn remove(&mut self, place: usize) -> Option<Id> {
        self.streams.remove(place).map(|stream| stream.id)
    }

    /// Handles the head of a response.
    pub(crate) fn on_head(&mut self, place: usize, status: Status, fields: &Fields, requests: &[WorkloadRequest]) {
        // A final response follows an interim one (RFC 9110, section 15.2).
        if status.code() >= 200 {
            let stream = &mut self.streams[place];
            stream.status = status.code();
            if let Some(grpc) = &mut stream.grpc {
                grpc.on_fields(fields);
            }
            let check = &requests[stream.request as usize].check;
            stream.verdict = check.judge_fields(status.code(), |name, is_right| fields.values(name).any(is_right));
        }
    }

    /// Handles content of a response.
    pub(crate) fn on_content(&mut self, place: usize, content: &[u8], requests: &[WorkloadRequest]) {
        let LoadStream { request, judge, content_bytes, grpc, .. } = &mut self.streams[place];
        let body = requests[*request as usize].check.body.as_ref();
        let mut on_content = |content: &[u8]| {
            *content_bytes += content.len() as u64;
            judge.update(body, content);
        };
        match grpc {
            None => on_content(content),
            Some(grpc) => grpc.on_content(content, on_content),
        }
    }

    /// Handles the trailers of a response.
    pub(crate) fn on_trailers(&mut self, place: usize, fields: &Fields) {
        if let Some(grpc) = &mut self.streams[place].grpc {
            grpc.on_fields(fields);
        }
    }

    /// Handles the end of a piece of a response, which `consumed_bytes` of input contained.
    pub(crate) fn on_piece(
        &mut self,
        place: usize,
        consumed_bytes: u64,
        is_last: bool,
        requests: &[WorkloadRequest],
    ) -> ResponseEvent {
        let stream = &mut self.streams[place];
        stream.received_bytes += consumed_bytes;
        let received_bytes = stream.received_bytes;
        if !is_last {
            return ResponseEvent::Piece { place, received_bytes };
        }
        // The place was just found, so it is valid.
        let Some(mut stream) = self.streams.remove(place) else { return ResponseEvent::Other };
        (self.has_completed, self.refused) = (true, 0);
        let check = &requests[stream.request as usize].check;
        let body = stream.judge.finish(check.body.as_ref());
        let explain = |class| (class, FailureReason::of_verdict(class, stream.status));
        let grpc = || stream.grpc.as_ref().and_then(GrpcResponse::finish);
        let content = || check.judge_length(stream.content_bytes).or(body).map(explain);
        let verdict = stream.verdict.map(explain).or_else(grpc).or_else(content);
        ResponseEvent::Complete { place, status: stream.status, verdict, received_bytes }
    }

    /// Handles the early end of a stream. `is_refusal`: the server says that it has not handled the request.
    pub(crate) fn on_reset(
        &mut self,
        id: Id,
        is_refusal: bool,
        class: FailureClass,
        reason: FailureReason,
    ) -> ResponseEvent {
        let Some(place) = self.place(id) else { return ResponseEvent::Other };
        self.streams.remove(place);
        if is_refusal && self.refused < REFUSED_MAX {
            self.refused += 1;
            return ResponseEvent::Refused { place };
        }
        ResponseEvent::Failed { place, class, reason }
    }

    /// Handles the server's announcement that it does not handle some of the streams.
    pub(crate) fn on_go_away(
        &mut self,
        is_handled: impl Fn(Id) -> bool,
        is_error: bool,
        reason: FailureReason,
    ) -> ResponseEvent {
        let from_place = self.streams.partition_point(|stream| is_handled(stream.id));
        self.streams.truncate(from_place);
        ResponseEvent::GoAway { from_place, is_orderly: self.has_completed && !is_error, reason }
    }
}
