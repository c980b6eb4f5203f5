//! Groups of connections that are polled together, in stages.

use std::io;

use super::Connections;
use super::connections::{ConnectionSlot, SocketEvents, WorkerConnection};
use super::output::Output;

/// Resources that a connection gets for a poll.
pub(super) struct Turn<'a> {
    /// Input that was read before the poll, or the error; `None` if the connection reads for itself.
    pub(super) input: Option<io::Result<&'a [u8]>>,
    /// Buffer for output.
    pub(super) output: &'a mut Output,
    /// True if responses that can be sent at once stay in `output` after the poll.
    pub(super) gathers: bool,
}

/// Maximum number of connections in a group. Their input and output must fit in the CPU's first-level cache.
const MEMBERS_MAX: usize = 16;

/// Bytes that each connection reads at first; more than the heads of most requests. For a client that sent more, the
/// shared buffer reads the rest. Not a multiple of the page size, because equal offsets in many pages evict each other
/// from the first-level cache.
const READ_BYTES: usize = (4 << 10) + 64;

/// Connections that have events or were woken.
///
/// The group first reads from all connections, then answers all requests whose responses are ready, then sends all
/// responses. Each stage thus finds its code and data in the CPU caches. One connection after the other, the kernel's
/// code and the server's evict each other. A small response then takes 8 to 10 % more time.
pub(super) struct ConnectionGroup {
    members: [Member; MEMBERS_MAX],
    count: usize,
    /// Input buffers of the members, [`READ_BYTES`] each.
    input: Vec<u8>,
}

/// State of a connection while it is in the group.
#[derive(Default)]
struct Member {
    /// Slot in the table of connections.
    slot: usize,
    /// Result of the read in the first stage; `None` if the connection reads for itself.
    read: Option<io::Result<usize>>,
    /// Output to send in the last stage.
    output: Output,
}

impl Default for ConnectionGroup {
    fn default() -> Self {
        Self { members: Default::default(), count: 0, input: vec![0; MEMBERS_MAX * READ_BYTES] }
    }
}

impl ConnectionGroup {
    /// Collects the next connections, given by slot and epoll events (if any). Returns false if there are none.
    pub(crate) fn gather(
        &mut self,
        places: &mut [ConnectionSlot],
        waiting: &mut impl Iterator<Item = (usize, Option<SocketEvents>)>,
    ) -> bool {
        self.count = 0;
        for (member, (slot, events)) in self.members.iter_mut().zip(waiting) {
            member.slot = slot;
            self.count += 1;
            let connection = places.get_mut(slot).and_then(|place| place.connection.as_mut());
            let Some((connection, (events, is_data))) = connection.zip(events) else { continue };
            let socket = if is_data { connection.data_socket() } else { connection.socket() };
            if let Some(socket) = socket {
                socket.on_events(events);
            }
        }
        self.count > 0
    }

    /// Polls a connection that is not in the group.
    pub(crate) fn poll_alone(&mut self, place: &mut ConnectionSlot, connections: &Connections) {
        let output = &mut self.members[0].output;
        place.poll(connections, &mut Turn { input: None, output: &mut *output, gathers: false });
        // A connection that has failed may have left output.
        output.clear();
    }

    /// Polls its connections through all stages.
    pub(crate) fn go_on(&mut self, places: &mut [ConnectionSlot], connections: &Connections) {
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
    /// Reads, if the connection awaits nothing but the next request.
    fn read(&mut self, place: &mut ConnectionSlot, input: &mut [u8]) {
        if let Some(WorkerConnection::Http1(connection)) = &mut place.connection {
            self.read = connection.read_ahead(input);
        }
    }

    /// Polls the connection. If it has others beside it, small responses that are ready stay in `output`.
    fn answer(&mut self, place: &mut ConnectionSlot, connections: &Connections, input: &[u8], has_others: bool) {
        let input = self.read.take().map(|read| read.map(|count| &input[..count]));
        place.poll(connections, &mut Turn { input, output: &mut self.output, gathers: has_others });
        if !has_others {
            // A connection that has failed may have left output.
            self.output.clear();
        }
    }

    /// Sends the gathered output, and lets the connection wait if its client does not take all of it.
    fn send(&mut self, place: &mut ConnectionSlot, connections: &Connections) {
        if self.output.is_empty() {
            return;
        }
        if let Some(WorkerConnection::Http1(connection)) = &mut place.connection
            && connection.send_gathered(&mut self.output).is_pending()
        {
            place.poll(connections, &mut Turn { input: None, output: &mut self.output, gathers: false });
        }
        // The connection may have ended, so that the output was not sent.
        self.output.clear();
    }
}
