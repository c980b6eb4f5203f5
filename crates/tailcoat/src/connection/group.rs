//! Connections that go on together, in stages.

use std::io;
use std::mem::swap;

use rustix::event::epoll::EventFlags;

use super::Connections;
use super::connections::{ConnectionSlot, WorkerConnection};
use super::output::Output;

/// Connections that go on together at most. What they read and send has to stay in the processor's first cache.
const MEMBERS_MAX: usize = 16;

/// Bytes that each of them reads at first: more than the heads of most requests. Who has sent more is read again, into the buffer
/// of all. Not whole pages, for what is in one and the same place of many pages drives each other out of the first cache.
const READ_BYTES: usize = (4 << 10) + 64;

/// Some connections that have events, or that have been woken.
///
/// First all are read, then all requests answered, as far as their answers are there, then all answers sent. So each stage finds its code and data in the
/// processor's caches; one connection after the other, the kernel's reading and sending and our answering drive out each
/// other's, which takes a twentieth more time for a small response.
pub(super) struct ConnectionGroup {
    members: [Member; MEMBERS_MAX],
    count: usize,
    /// What they read, [`READ_BYTES`] each.
    input: Vec<u8>,
}

/// What a connection has while it is in the group.
#[derive(Default)]
struct Member {
    /// The number of its place.
    slot: usize,
    /// What reading gave. Nothing: the connection reads for itself, if at all.
    read: Option<io::Result<usize>>,
    /// What is to be sent.
    output: Output,
}

impl Default for ConnectionGroup {
    fn default() -> Self {
        Self { members: Default::default(), count: 0, input: vec![0; MEMBERS_MAX * READ_BYTES] }
    }
}

impl ConnectionGroup {
    /// Takes the next connections, by the numbers of their places and what epoll says of them, if it does. Returns whether there
    /// are any.
    pub fn gather(
        &mut self,
        places: &mut [ConnectionSlot],
        waiting: &mut impl Iterator<Item = (usize, Option<EventFlags>)>,
    ) -> bool {
        self.count = 0;
        for (member, (slot, events)) in self.members.iter_mut().zip(waiting) {
            member.slot = slot;
            self.count += 1;
            let connection = places.get_mut(slot).and_then(|place| place.connection.as_mut());
            if let (Some(socket), Some(events)) = (connection.and_then(WorkerConnection::socket), events) {
                socket.on_events(events);
            }
        }
        self.count > 0
    }

    /// Lets its connections go on as far as they can.
    pub fn go_on(&mut self, places: &mut [ConnectionSlot], connections: &Connections) {
        let members = &mut self.members[..self.count];
        let has_others = members.len() > 1;
        for (member, input) in members.iter_mut().zip(self.input.chunks_exact_mut(READ_BYTES)) {
            if has_others && let Some(place) = places.get_mut(member.slot) {
                member.read(place, input);
            }
        }
        for (member, input) in members.iter_mut().zip(self.input.chunks_exact(READ_BYTES)) {
            if let Some(place) = places.get_mut(member.slot) {
                member.answer(place, connections, input, has_others);
            }
        }
        for member in members {
            if let Some(place) = places.get_mut(member.slot) {
                member.send(place, connections);
            }
        }
    }
}

impl Member {
    /// Reads, if the next request is all that is awaited.
    fn read(&mut self, place: &mut ConnectionSlot, input: &mut [u8]) {
        if let Some(WorkerConnection::Http1(connection)) = &mut place.connection {
            self.read = connection.read_ahead(input);
        }
    }

    /// Polls the connection. Small answers, to what was read or those that were waited for, stay here.
    fn answer(&mut self, place: &mut ConnectionSlot, connections: &Connections, input: &[u8], has_others: bool) {
        if !has_others {
            return place.poll(connections);
        }
        let context = connections.context();
        {
            let scratch = &mut *context.scratch.borrow_mut();
            scratch.clear(context.input_bytes.get());
            if let Some(Ok(count)) = self.read {
                scratch.input[..count].copy_from_slice(&input[..count]);
            }
            scratch.read = self.read.take();
            scratch.gathers = true;
            swap(&mut scratch.output.bytes, &mut self.output.bytes);
        }
        place.poll(connections);
        let scratch = &mut *context.scratch.borrow_mut();
        scratch.read = None;
        scratch.gathers = false;
        swap(&mut scratch.output.bytes, &mut self.output.bytes);
    }

    /// Sends what stayed, and lets the connection wait if its client does not take all.
    fn send(&mut self, place: &mut ConnectionSlot, connections: &Connections) {
        if self.output.is_empty() {
            return;
        }
        if let Some(WorkerConnection::Http1(connection)) = &mut place.connection
            && connection.send_gathered(&mut self.output).is_pending()
        {
            place.poll(connections);
        }
        // There may be nobody left to have it.
        self.output.clear();
    }
}
