//! Connections that go on together, in stages.

use std::io;
use std::mem::swap;

use super::connections::{Connection, Place};
use super::output::Output;
use super::{Connections, Context};

/// Connections that go on together at most. What they read and send has to stay in the processor's first cache.
const MEMBERS_MAX: usize = 16;

/// Some connections that have events, or that have been woken.
///
/// First all are read, then all requests answered, as far as their answers are there, then all answers sent. So each stage finds its code and data in the
/// processor's caches; one connection after the other, the kernel's reading and sending and our answering drive out each
/// other's, which takes a twentieth more time for a small response.
#[derive(Default)]
pub(super) struct Group {
    members: [Member; MEMBERS_MAX],
    count: usize,
}

/// What a connection has while it is in the group.
#[derive(Default)]
struct Member {
    /// The number of its place.
    slot: usize,
    /// A buffer to read into, once one was needed.
    input: Vec<u8>,
    /// What reading gave. Nothing: the connection reads for itself, if at all.
    read: Option<io::Result<usize>>,
    /// What is to be sent.
    output: Output,
}

impl Group {
    /// Takes the next connections, by the numbers of their places. Returns whether there are any.
    pub fn gather(&mut self, slots: &mut impl Iterator<Item = usize>) -> bool {
        self.count = 0;
        for (member, slot) in self.members.iter_mut().zip(slots) {
            member.slot = slot;
            self.count += 1;
        }
        self.count > 0
    }

    /// Lets its connections go on as far as they can.
    pub fn go_on(&mut self, places: &mut [Place], connections: &Connections) {
        let members = &mut self.members[..self.count];
        let has_others = members.len() > 1;
        for member in &mut *members {
            if has_others && let Some(place) = places.get_mut(member.slot) {
                member.read(place, connections.context());
            }
        }
        for member in &mut *members {
            if let Some(place) = places.get_mut(member.slot) {
                member.answer(place, connections, has_others);
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
    fn read(&mut self, place: &mut Place, context: &Context) {
        let Some(Connection::Http1(connection)) = &mut place.connection else { return };
        if self.input.len() < context.input_bytes.get() {
            // There was none yet, it was lent to a handler, who keeps it, or more is allowed since.
            self.input = vec![0; context.input_bytes.get()];
        }
        self.read = connection.read_ahead(&mut self.input);
    }

    /// Polls the connection. Small answers, to what was read or those that were waited for, stay here.
    fn answer(&mut self, place: &mut Place, connections: &Connections, has_others: bool) {
        if !has_others {
            return place.poll(connections);
        }
        let has_read = self.read.is_some();
        self.trade(connections.context(), has_read, true);
        place.poll(connections);
        self.trade(connections.context(), has_read, false);
    }

    /// Gives its buffers to the connection that is to be polled, or takes them back with what is in them by then.
    fn trade(&mut self, context: &Context, has_read: bool, gathers: bool) {
        let scratch = &mut *context.scratch.borrow_mut();
        if has_read {
            swap(&mut scratch.input, &mut self.input);
        }
        swap(&mut scratch.output.bytes, &mut self.output.bytes);
        scratch.read = self.read.take();
        scratch.gathers = gathers;
    }

    /// Sends what stayed, and lets the connection wait if its client does not take all.
    fn send(&mut self, place: &mut Place, connections: &Connections) {
        if self.output.is_empty() {
            return;
        }
        if let Some(Connection::Http1(connection)) = &mut place.connection
            && connection.send_gathered(&mut self.output).is_pending()
        {
            place.poll(connections);
        }
        // There may be nobody left to have it.
        self.output.clear();
    }
}
