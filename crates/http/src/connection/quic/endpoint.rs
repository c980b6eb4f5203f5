//! Endpoint of UDP sockets: passes datagrams to connections, and accepts new ones.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as Task, Poll, Waker};
use std::time::{Duration, Instant};

use tailcoat_quic::{
    Connection, ConnectionKey, Datagram, EndpointEvent, Handled, IssuedId, NewClient, ServerEndpoint, Transmit,
};
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::budget::{InitialBudget, is_initial};
use super::config::{QuicKeys, QuicSettings, endpoint_config};
use super::slots::SlotIds;
use super::socket::{DatagramBuffers, QuicSocket, Sent};
use super::timers::{TimerEntry, Timers};
use super::transport::QuicTransport;
use crate::connection::{Admission, Claimant, Connections, Context, H3WorkerConnection, Room};
use crate::log::LogClient;
use crate::metrics::Limit;

/// Calls that receive datagrams, before other connections of the worker get their turn.
const RECEIVES_A_TURN_MAX: usize = 4;

/// New connections that wait for their turn. More are dropped; their clients try again.
const WAITING_MAX: usize = 256;

/// Handshakes in progress with clients whose addresses are not validated. Beyond it, each client must prove its address
/// with a token (Retry, RFC 9000, section 8.1.2), for which the server keeps no state.
const UNVALIDATED_MAX: usize = 64;

/// Calls by which a connection sends, before others get their turn.
const SENDS_A_TURN_MAX: usize = 16;

/// Times that the packet which closes a connection is repeated to other addresses.
const FAREWELLS_MAX: u32 = 16;

/// Timer while no connection has one.
const FOREVER: Duration = Duration::from_secs(86_400);

/// Use of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointRole {
    /// Clients may connect.
    Accepts,
    /// The process whose connections used the socket has ended. Their clients get stateless resets (RFC 9000, section
    /// 10.3).
    Resets,
    /// No client may connect. The endpoint ends after its last connection.
    Ends,
}

/// Buffers that the endpoints of a worker share.
#[derive(Default)]
pub struct QuicBuffers {
    receive: RefCell<DatagramBuffers>,
    send: RefCell<Vec<u8>>,
    /// Slots of connections to poll, in the table of connections.
    news: RefCell<Vec<u32>>,
    /// Buffers for the output of streams.
    pub(super) spare: RefCell<Vec<Vec<u8>>>,
}

/// Sockets of an endpoint.
pub struct EndpointSockets {
    /// Receives packets with connection IDs of the endpoint, and sends all.
    pub own: QuicSocket,
    /// Receives packets with connection IDs that clients have chosen. An endpoint that only ends has none.
    pub accepting: Option<QuicSocket>,
}

/// Endpoint of a worker at an address.
pub struct QuicEndpoint {
    pub(super) context: Rc<Context>,
    connections: Rc<Connections>,
    /// Notified when a connection arrives, because the worker may sleep without any.
    busy: Rc<Notify>,
    listener: u16,
    sockets: EndpointSockets,
    pub(super) buffers: Rc<QuicBuffers>,
    /// Handshakes in progress with clients whose addresses are not validated.
    pub(super) unvalidated: Cell<usize>,
    role: Cell<EndpointRole>,
    /// True while a Retry packet is made.
    retries: Arc<AtomicBool>,
    state: RefCell<EndpointState>,
}

struct EndpointState {
    proto: ServerEndpoint,
    /// Initial packets with an ID of the endpoint.
    initials: InitialBudget,
    /// Packets of the accepting socket.
    first_packets: InitialBudget,
    /// Time until which the accepting socket is not read. Its buffer fills, and the kernel drops further packets.
    pauses_until: Option<Instant>,
    /// Settings that `proto` uses for the first packets of clients.
    settings: Option<Arc<QuicSettings>>,
    /// Connections, by their key.
    members: Vec<Option<Member>>,
    waiting: VecDeque<NewClient>,
    timers: Timers,
    /// Output that the socket has not accepted.
    unsent: Option<(Transmit, Vec<u8>)>,
    /// Connections that wait for the socket, by their slot in the table of connections.
    blocked: Vec<u32>,
    /// Waker of the endpoint's task.
    waker: Option<Waker>,
}

/// Connection of an endpoint.
struct Member {
    /// Slot in the table of connections.
    slot: u32,
    /// Datagrams that have arrived and are not handled.
    datagrams: Vec<Datagram>,
    /// Size of the largest datagram that has arrived, in bytes.
    datagram_bytes_max: usize,
    /// Packet that closes the connection.
    farewell: Option<Box<Farewell>>,
}

/// Packet that closes a connection. QUIC repeats it to the address that it was sent to. A client that moves meanwhile would
/// not get it, and would wait for its idle timeout. So this side repeats it to other addresses.
struct Farewell {
    remote: SocketAddr,
    datagram: Vec<u8>,
    /// Times that it may still be repeated.
    repeats_left: u32,
}

impl QuicEndpoint {
    /// Makes an endpoint. `slot` is the place of its own socket in the group.
    #[expect(clippy::too_many_arguments, reason = "the state of the worker that the endpoint joins")]
    pub fn new(
        sockets: EndpointSockets,
        slot: u8,
        listener: u16,
        keys: &QuicKeys,
        buffers: &Rc<QuicBuffers>,
        context: &Rc<Context>,
        connections: &Rc<Connections>,
        busy: &Rc<Notify>,
    ) -> Rc<Self> {
        let retries = Arc::default();
        let ids = SlotIds::new(slot, keys.tags(), Arc::clone(&retries));
        let state = EndpointState {
            proto: ServerEndpoint::new(endpoint_config(keys), Box::new(ids)),
            initials: InitialBudget::default(),
            first_packets: InitialBudget::default(),
            pauses_until: None,
            settings: None,
            members: Vec::new(),
            waiting: VecDeque::new(),
            timers: Timers::default(),
            unsent: None,
            blocked: Vec::new(),
            waker: None,
        };
        Rc::new(Self {
            context: Rc::clone(context),
            connections: Rc::clone(connections),
            busy: Rc::clone(busy),
            listener,
            sockets,
            buffers: Rc::clone(buffers),
            unvalidated: Cell::new(0),
            role: Cell::new(EndpointRole::Accepts),
            retries,
            state: RefCell::new(state),
        })
    }

    /// Listener whose sites the endpoint serves.
    pub fn listener(&self) -> u16 {
        self.listener
    }

    /// Local address of the sockets.
    pub fn local_address(&self) -> SocketAddr {
        self.sockets.own.local_address()
    }

    /// Sets the use of the endpoint from now on.
    pub fn set_role(&self, role: EndpointRole) {
        self.role.set(role);
        self.state.borrow_mut().wake();
    }

    /// True if there is no connection, and no client that waits for one.
    pub fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        state.waiting.is_empty() && state.members.iter().all(Option::is_none)
    }

    /// Receives and accepts. Returns when the endpoint ends.
    pub async fn run(self: Rc<Self>) {
        let mut timer = Box::pin(tokio::time::sleep(FOREVER));
        loop {
            poll_fn(|task| self.poll_work(timer.as_mut(), task)).await;
            if self.has_ended() {
                return;
            }
            self.drive();
            // The runtime processes its other sockets and timers, then continues here.
            tokio::task::yield_now().await;
        }
    }

    fn has_ended(&self) -> bool {
        self.role.get() == EndpointRole::Ends && self.is_idle()
    }

    /// Waits until there is something to do.
    fn poll_work(&self, mut timer: Pin<&mut Sleep>, task: &mut Task<'_>) -> Poll<()> {
        let has_ended = self.has_ended();
        let state = &mut *self.state.borrow_mut();
        state.waker = Some(task.waker().clone());
        // An error of the runtime is met again by the next call.
        let is_readable = self.sockets.own.poll_readable(task).is_ready();
        let accepting = self.sockets.accepting.as_ref().filter(|_| state.pauses_until.is_none());
        let has_first_packets = accepting.is_some_and(|socket| socket.poll_readable(task).is_ready());
        let is_writable = state.unsent.is_some() && self.sockets.own.poll_writable(task).is_ready();
        let next = state.timers.next().into_iter().chain(state.pauses_until).min();
        let next = next.unwrap_or_else(|| Instant::now() + FOREVER);
        if timer.deadline().into_std() != next {
            timer.as_mut().reset(next.into());
        }
        let is_due = timer.poll(task).is_ready();
        match is_readable || has_first_packets || is_writable || is_due || has_ended || !state.waiting.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Handles input, timers and new clients once, and polls all connections that have news.
    fn drive(self: &Rc<Self>) {
        let now = Instant::now();
        let news = &mut std::mem::take(&mut *self.buffers.news.borrow_mut());
        self.state.borrow_mut().apply(self.context.generation().quic(self.listener));
        self.resume_sending(news);
        for _ in 0..RECEIVES_A_TURN_MAX {
            if !self.receive(now, news) {
                break;
            }
        }
        self.receive_first_packets(now, news);
        while let Some(slot) = self.state.borrow_mut().timers.pop_due(now) {
            news.push(slot);
        }
        // Connections first: new clients must not delay those that are known.
        self.connections.poll_slots(news);
        news.clear();
        std::mem::swap(&mut *self.buffers.news.borrow_mut(), news);
        self.accept_waiting(now);
    }

    /// Accepts clients, as many as may begin a handshake in a turn.
    fn accept_waiting(self: &Rc<Self>, now: Instant) {
        if self.state.borrow().waiting.is_empty() {
            return;
        }
        self.context.handshakes.on_turn();
        while self.context.handshakes.take_turn() {
            let Some(incoming) = self.state.borrow_mut().waiting.pop_front() else { break };
            self.accept(incoming, now);
        }
    }

    /// Receives packets of connections once. Returns true if there may be more.
    fn receive(&self, now: Instant, news: &mut Vec<u32>) -> bool {
        self.receive_from(&self.sockets.own, now, news, |state, datagram| {
            !is_initial(datagram) || state.initials.take(now)
        })
    }

    /// Receives packets with IDs of clients once, unless there were too many of late.
    fn receive_first_packets(&self, now: Instant, news: &mut Vec<u32>) {
        let Some(accepting) = &self.sockets.accepting else { return };
        self.state.borrow_mut().pauses_until.take_if(|until| *until <= now);
        if self.state.borrow().pauses_until.is_none() {
            self.receive_from(accepting, now, news, |state, _| state.first_packets.take(now));
            let state = &mut *self.state.borrow_mut();
            state.pauses_until = state.first_packets.spent_until(now);
            if state.pauses_until.is_some() {
                self.context.count_limit(Limit::TlsHandshakesPerSecondMax);
            }
        }
    }

    /// Receives once from a socket. Drops datagrams for which `is_in_budget` returns false. Returns true if there may be more.
    fn receive_from(
        &self,
        socket: &QuicSocket,
        now: Instant,
        news: &mut Vec<u32>,
        is_in_budget: impl Fn(&mut EndpointState, &[u8]) -> bool,
    ) -> bool {
        let state = &mut *self.state.borrow_mut();
        let response = &mut *self.buffers.send.borrow_mut();
        let mut received_bytes = 0;
        let has_more = socket.receive(&mut self.buffers.receive.borrow_mut(), |datagram| {
            let datagram_bytes = datagram.payload.len();
            received_bytes += datagram_bytes;
            if !is_in_budget(state, &datagram.payload) {
                self.context.count_limit(Limit::TlsHandshakesPerSecondMax);
                return;
            }
            response.clear();
            match state.proto.handle(now, datagram, response) {
                Handled::Connection(key, datagram) => {
                    if let Some(Some(member)) = state.members.get_mut(key.0) {
                        if let Some(farewell) = member.farewell_for(datagram.remote, datagram_bytes) {
                            let transmit = farewell.to(datagram.remote, datagram.local);
                            let _ = self.sockets.own.send(&transmit, &farewell.datagram);
                        }
                        if member.datagrams.is_empty() {
                            news.push(member.slot);
                        }
                        member.datagrams.push(datagram);
                        member.datagram_bytes_max = member.datagram_bytes_max.max(datagram_bytes);
                    }
                }
                Handled::NewClient(incoming)
                    if state.waiting.len() < WAITING_MAX && self.role.get() == EndpointRole::Accepts =>
                {
                    state.waiting.push_back(incoming);
                }
                Handled::NewClient(incoming) => state.proto.ignore(incoming),
                // If it is lost, the client asks again.
                Handled::Response(transmit) => _ = self.sockets.own.send(&transmit, response),
                Handled::Dropped => {}
            }
        });
        self.context.count_received(received_bytes);
        has_more
    }

    /// Sends what the socket has not accepted before. Then the connections that wait for it may continue.
    fn resume_sending(&self, news: &mut Vec<u32>) {
        let state = &mut *self.state.borrow_mut();
        let Some((transmit, payload)) = &state.unsent else { return };
        if self.sockets.own.send(transmit, payload) != Sent::Blocked {
            state.unsent = None;
            news.append(&mut state.blocked);
        }
    }

    /// Accepts a client, if there is a place.
    fn accept(self: &Rc<Self>, incoming: NewClient, now: Instant) {
        let client = LogClient::Ip(incoming.remote());
        let is_validated = incoming.is_validated();
        if !is_validated && incoming.may_retry() && self.unvalidated.get() >= UNVALIDATED_MAX {
            return self.demand_token(incoming);
        }
        // A client that gets no response goes to TCP, or to the process that serves now.
        let is_draining = self.context.is_draining.get() || self.role.get() != EndpointRole::Accepts;
        let settings = self.context.generation().quic(self.listener).filter(|_| !is_draining).cloned();
        let admission = settings.as_ref().and_then(|_| self.connections.admit(client, self.listener));
        let (Some(settings), Some(admission)) = (settings, admission) else {
            return self.state.borrow_mut().proto.ignore(incoming);
        };
        if !self.find_place(&admission) || !self.has_turn(client) {
            // The client sends its packet again, when there may be a place.
            self.connections.turn_away(admission);
            return self.state.borrow_mut().proto.ignore(incoming);
        }
        let (remote, local) = (incoming.remote(), incoming.local());
        let connected_to = local.or_else(|| Some(self.sockets.own.local_address().ip()));
        let tls = settings.tls_at(connected_to);
        let transport = settings.transport(remote.ip(), !self.sockets.own.may_fragment());
        let accepted = self.state.borrow_mut().proto.accept(incoming, now, &tls, &transport);
        match accepted {
            Ok((key, proto)) => {
                self.busy.notify_one();
                let slot = self.context.table.borrow_mut().insert(admission.newcomer);
                self.state.borrow_mut().add(key, slot);
                let transport = QuicTransport::new(Rc::clone(self), key, proto, slot, local, !is_validated);
                let connection = H3WorkerConnection::new(transport, client, slot);
                self.connections.start_quic(connection, slot, admission);
            }
            Err(_) => self.connections.turn_away(admission),
        }
    }

    /// Sends a Retry packet.
    fn demand_token(&self, incoming: NewClient) {
        let output = &mut *self.buffers.send.borrow_mut();
        output.clear();
        self.retries.store(true, Ordering::Relaxed);
        let retry = self.state.borrow_mut().proto.retry(incoming, output);
        self.retries.store(false, Ordering::Relaxed);
        // Fails only for a client that has a token, which the caller has excluded.
        if let Some(transmit) = retry {
            let _ = self.sockets.own.send(&transmit, output);
        }
    }

    /// Returns true if the client's handshake may begin now, by the limit of handshakes per second.
    fn has_turn(&self, client: LogClient) -> bool {
        let now_ms = self.context.clock.now().monotonic_ms;
        let has_turn = match self.context.handshakes.join(client) {
            Ok(None) => true,
            Ok(Some(mut place)) => place.poll_turn(now_ms, &mut Task::from_waker(Waker::noop())).is_ready(),
            Err(_) => false,
        };
        if !has_turn {
            self.context.count_limit(Limit::TlsHandshakesPerSecondMax);
        }
        has_turn
    }

    /// Returns true if there is a place for a client. Otherwise evicts others, so that there may be one when the client
    /// tries again.
    fn find_place(&self, admission: &Admission) -> bool {
        let context = &self.context;
        let (shares, connections_max) = {
            let generation = context.generation();
            (generation.shares, generation.connections_max)
        };
        let table = &mut *context.table.borrow_mut();
        let on_evicted = |stage| context.count_eviction(stage);
        match table.room(admission.newcomer, shares, connections_max) {
            Room::Free => true,
            Room::OverShare(claimant, is_free) => {
                context.count_limit(match claimant {
                    Claimant::Client(_) => Limit::ConnectionsPerClientMax,
                    Claimant::Network(_) => Limit::ConnectionsPerNetworkMax,
                });
                table.make_room_within(claimant, admission.newcomer, is_free, on_evicted);
                is_free
            }
            Room::None => {
                context.count_limit(Limit::ConnectionsMax);
                table.make_room(admission.newcomer, on_evicted);
                false
            }
        }
    }

    /// Takes the datagrams that have arrived for a connection. Returns the size of the largest one so far.
    pub(super) fn take_datagrams(&self, key: ConnectionKey, datagrams: &mut Vec<Datagram>) -> usize {
        let state = &mut *self.state.borrow_mut();
        let Some(Some(member)) = state.members.get_mut(key.0) else { return 0 };
        std::mem::swap(&mut member.datagrams, datagrams);
        member.datagram_bytes_max
    }

    /// Frees memory that an idle connection does not need.
    pub(super) fn shrink(&self, key: ConnectionKey) {
        if let Some(Some(member)) = self.state.borrow_mut().members.get_mut(key.0) {
            member.datagrams.shrink_to_fit();
        }
    }

    /// Sends what a connection has to send, as far as the socket accepts it, and sets its timer. Returns the bytes sent,
    /// and true if more is left for the connection's next turn. `closed` is the key of a connection that this side
    /// has closed.
    pub(super) fn transmit(
        &self,
        slot: u32,
        proto: &mut Connection,
        timer: &mut TimerEntry,
        closed: Option<ConnectionKey>,
        now: Instant,
    ) -> (usize, bool) {
        let state = &mut *self.state.borrow_mut();
        let output = &mut *self.buffers.send.borrow_mut();
        let (mut sent_bytes, mut sends) = (0, 0);
        let has_more = loop {
            if state.unsent.is_some() {
                state.blocked.push(slot);
                break false;
            }
            if sends == SENDS_A_TURN_MAX {
                break true;
            }
            output.clear();
            let datagram_bytes = usize::from(proto.datagram_bytes());
            let Some(transmit) = proto.poll_transmit(now, self.sockets.own.segments_max(datagram_bytes), output) else {
                break false;
            };
            sends += 1;
            sent_bytes += transmit.bytes;
            if let Some(key) = closed {
                state.keep_farewell(key, &transmit, output);
            }
            let datagrams = transmit.segment_bytes.map_or(1, |bytes| transmit.bytes.div_ceil(bytes));
            match self.sockets.own.send(&transmit, output) {
                Sent::All => self.context.count_quic_send(datagrams, false),
                Sent::Blocked => {
                    state.unsent = Some((transmit, output.clone()));
                    state.wake();
                }
                // A probe for a larger size may exceed what the path carries (RFC 8899).
                Sent::Failed => self.context.count_quic_send(datagrams, transmit.bytes <= datagram_bytes),
            }
        };
        timer.expire(now);
        let first_before = state.timers.next();
        state.timers.set(slot, timer, proto.poll_timeout());
        if state.timers.next() != first_before {
            state.wake();
        }
        (sent_bytes, has_more)
    }

    /// Passes an event of a connection to the endpoint. Returns new IDs, if the connection needs some.
    pub(super) fn handle_event(&self, key: ConnectionKey, event: EndpointEvent) -> Option<Vec<IssuedId>> {
        let state = &mut *self.state.borrow_mut();
        if matches!(event, EndpointEvent::Drained)
            && let Some(member) = state.members.get_mut(key.0)
        {
            *member = None;
            if self.role.get() == EndpointRole::Ends {
                state.wake();
            }
        }
        state.proto.handle_event(key, event)
    }
}

impl Member {
    /// Packet to repeat to an address from which a datagram has arrived. A client whose address is not validated gets no
    /// more than three times its bytes (RFC 9000, section 10.2.1).
    fn farewell_for(&mut self, remote: SocketAddr, datagram_bytes: usize) -> Option<&Farewell> {
        let farewell = self.farewell.as_deref_mut()?;
        let is_due = farewell.remote != remote && farewell.datagram.len() <= 3 * datagram_bytes;
        if !is_due || farewell.repeats_left == 0 {
            return None;
        }
        farewell.repeats_left -= 1;
        Some(farewell)
    }
}

impl Farewell {
    fn to(&self, remote: SocketAddr, local: Option<std::net::IpAddr>) -> Transmit {
        Transmit { remote, local, ecn: None, bytes: self.datagram.len(), segment_bytes: None }
    }
}

impl EndpointState {
    /// Applies the settings of the current configuration; without any, clients are not accepted.
    fn apply(&mut self, settings: Option<&Arc<QuicSettings>>) {
        let is_same = match (&self.settings, settings) {
            (Some(known), Some(settings)) => Arc::ptr_eq(known, settings),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            self.settings = settings.cloned();
            self.proto.set_accepts(settings.map(|settings| settings.tls()));
        }
    }

    fn add(&mut self, key: ConnectionKey, slot: u32) {
        if self.members.len() <= key.0 {
            self.members.resize_with(key.0 + 1, || None);
        }
        self.members[key.0] = Some(Member { slot, datagrams: Vec::new(), datagram_bytes_max: 0, farewell: None });
    }

    /// Keeps the packet that closes a connection.
    fn keep_farewell(&mut self, key: ConnectionKey, transmit: &Transmit, output: &[u8]) {
        let Some(Some(member)) = self.members.get_mut(key.0) else { return };
        let datagram = &output[..transmit.segment_bytes.unwrap_or(transmit.bytes).min(transmit.bytes)];
        let (remote, datagram) = (transmit.remote, datagram.to_vec());
        member.farewell = Some(Box::new(Farewell { remote, datagram, repeats_left: FAREWELLS_MAX }));
    }

    /// Wakes the endpoint's task, because it waits for the wrong time or event.
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
