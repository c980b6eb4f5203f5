//! Request buffering: receives a slow client's content before the upstream gets the request. Meanwhile the client
//! holds no upstream connection, no place in a queue and no process.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context as Task, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use wire::h1::BodyFraming;
use wire::http::Status;

use super::{ForwardPlan, number_of};
use crate::handler::{BuiltResponse, ClientLink};
use crate::log::LogClient;
use crate::spool::{Full, Spool};

/// Time a request waits in all for buffer space before its client gets 503.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a waiting client checks for space.
const ROOM_INTERVAL: Duration = Duration::from_millis(100);

/// Value of Retry-After for a client that got no space, in seconds.
const RETRY_AFTER_SECONDS: &str = "10";

/// Waits of one request for buffer space.
#[derive(Default)]
pub(super) struct RoomWait {
    /// End of all waits, from the first one.
    deadline: Option<Instant>,
}

impl RoomWait {
    /// Waits until it is time to check for space again.
    ///
    /// # Errors
    /// The response, if there was no space in time.
    async fn wait(&mut self, has_client_ended: bool) -> Result<(), Box<BuiltResponse>> {
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + ROOM_TIMEOUT);
        if has_client_ended || Instant::now() >= deadline {
            return Err(unavailable());
        }
        sleep(ROOM_INTERVAL).await;
        Ok(())
    }
}

/// Receives the content of a request, as far as it may be buffered, and leaves it with the link. `needs_length`: the
/// upstream cannot take content of unknown length.
///
/// # Errors
/// The response, if the content cannot be buffered and must not be streamed.
pub(super) async fn receive_content(
    plan: &ForwardPlan,
    client: LogClient,
    link: &Rc<ClientLink>,
    needs_length: bool,
    room: &mut RoomWait,
) -> Result<(), Box<BuiltResponse>> {
    let (number, limits) = (number_of(client), plan.buffer_limits);
    if matches!(link.framing(), BodyFraming::Length(length) if length > limits.total_bytes_max()) {
        return Err(BuiltResponse::new(Status::CONTENT_TOO_LARGE));
    }
    link.set_deadline(None);
    let mut spool = Spool::new(&plan.spools, number, link.holder(), limits, true);
    loop {
        let Err(full) = poll_fn(|task| poll_receive(&mut spool, link, task)).await else {
            if needs_length {
                // Protocols that need the length have no trailers.
                drop(link.take_trailers());
            }
            link.put_buffered(spool);
            return Ok(());
        };
        match full {
            Full::Message => return Err(BuiltResponse::new(Status::CONTENT_TOO_LARGE)),
            // A failed disk is no fault of the client: received content is sent, and the rest as it arrives.
            Full::Failed if !needs_length || link.framing() != BodyFraming::Chunked => {
                link.put_buffered(spool);
                return Ok(());
            }
            Full::Failed | Full::Stalled => return Err(unavailable()),
            Full::Client | Full::Process => room.wait(link.has_client_ended()).await?,
        }
    }
}

/// Waits while the client's files are at their limit: a response that it reads slowly would block the upstream.
///
/// # Errors
/// The response, if there is no space in time.
pub(super) async fn wait_for_room(
    plan: &ForwardPlan,
    client: LogClient,
    link: &ClientLink,
    room: &mut RoomWait,
) -> Result<(), Box<BuiltResponse>> {
    link.set_deadline(None);
    while awaits_room(plan, client) {
        room.wait(link.has_client_ended()).await?;
    }
    Ok(())
}

/// True if a request of this client must wait for space before it is forwarded.
pub(super) fn awaits_room(plan: &ForwardPlan, client: LogClient) -> bool {
    plan.buffers_responses && number_of(client).is_some_and(|number| plan.spools.is_client_full(number))
}

/// Receives content from the client until its end.
fn poll_receive(spool: &mut Spool, link: &ClientLink, task: &mut Task<'_>) -> Poll<Result<(), Full>> {
    loop {
        let (room, full) = match ready!(spool.poll_room(task)) {
            Ok(room) => (room, None),
            Err(Full::Stalled) => return Poll::Ready(Err(Full::Stalled)),
            // More is sure to follow. While there is no space, no time limit runs for a client that waits.
            Err(full) if matches!(link.framing(), BodyFraming::Length(length) if spool.held_bytes() < length) => {
                return Poll::Ready(Err(full));
            }
            // A full buffer accepts no more content; the end may still follow.
            Err(full) => (0, Some(full)),
        };
        let mut has_more = false;
        let taken = ready!(link.poll_take(task, |_, content| {
            has_more = true;
            let length = content.len().min(room);
            if length > 0 {
                spool.append(&content[..length]);
            }
            Poll::Ready(Ok(length))
        }));
        match full {
            _ if !has_more => return Poll::Ready(Ok(())),
            Some(full) => return Poll::Ready(Err(full)),
            // The closure always succeeds.
            None => debug_assert!(taken.is_ok()),
        }
    }
}

fn unavailable() -> Box<BuiltResponse> {
    let mut response = BuiltResponse::new(Status::SERVICE_UNAVAILABLE);
    response.fields.push("Retry-After", RETRY_AFTER_SECONDS);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that waited for its client's share first, and then for space in files, once waited for twice the time.
    #[tokio::test(start_paused = true)]
    async fn all_waits_of_a_request_end_together() {
        let mut room = RoomWait::default();
        let start = Instant::now();
        while start.elapsed() < ROOM_TIMEOUT / 2 {
            room.wait(false).await.unwrap();
        }
        // Space was found, and later missed again.
        let response = loop {
            if let Err(response) = room.wait(false).await {
                break response;
            }
        };
        assert_eq!(response.status, Status::SERVICE_UNAVAILABLE);
        assert_eq!(start.elapsed(), ROOM_TIMEOUT);
        assert!(RoomWait::default().wait(true).await.is_err(), "a client that has left waits for nothing");
    }
}
