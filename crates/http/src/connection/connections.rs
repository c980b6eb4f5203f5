//! Open connections of a worker, and the task that polls them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, Waker, ready};

use rustix::event::epoll;
use rustix::time::Timespec;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::detached::{DetachedConnection, HeldPlace};
use super::group::{ConnectionGroup, Turn};
use super::holders::top_holders;
use super::live::longest_open;
use super::opening::{DetachedSocket, OpeningEnd};
use super::woken::{PlaceWaker, Woken};
use super::{
    ClientLimit, ClientPlace, Context, FtpConnection, Generation, H1Connection, H2Connection, H3WorkerConnection,
    Newcomer, OpenedConnection, OpeningConnection, Socket, TarpitConnection,
};
use crate::known_clients::{BanVerdict, TarpitPlace};
use crate::log::LogClient;
use crate::metrics::{HolderCount, Limit, LiveFtpSession, LiveRequest};
use crate::overload::RequestCost;

/// Maximum number of connections polled before the runtime gets its turn.
const EVENTS_A_TURN_MAX: usize = 256;

/// Bit that marks events of the second socket of a connection; the other bits are its slot.
const DATA_SOCKET: u64 = 1 << 32;

/// Events of a socket; the flag is true for the second socket of a connection.
pub(super) type SocketEvents = (epoll::EventFlags, bool);

/// Connections of a worker.
///
/// They share an epoll instance, which the runtime watches like a socket, and one task polls them all. As separate
/// tasks and sockets of the runtime, each connection would need some 500 bytes more. A small response would need a
/// tenth more user time. Connections are futures nevertheless, so that timers and other sockets of the runtime can wake
/// them.
pub struct Connections {
    context: Rc<Context>,
    client_limit: Arc<ClientLimit>,
    /// Epoll descriptor in the form of a stream. This type of the runtime accepts any descriptor, and lets the caller
    /// make the system call.
    epoll: TcpStream,
    /// Connections by slot of the table of connections.
    places: RefCell<Vec<ConnectionSlot>>,
    group: RefCell<ConnectionGroup>,
    woken: Arc<Woken>,
}

pub(super) struct ConnectionSlot {
    pub(super) connection: Option<WorkerConnection>,
    client_place: ClientPlace,
    slot: u32,
    /// Wakes the connection that is in this place.
    waker: Waker,
}

/// Admission of an accepted connection that is not started yet, with its place in the counts.
#[derive(Debug, Default)]
pub struct Admission {
    /// Origin of the connection, for the table of connections.
    pub newcomer: Newcomer,
    client_place: ClientPlace,
    /// Place in the tarpit, for a client that a rule has banned to it.
    tarpit: Option<TarpitPlace>,
}

/// Connection, by its protocol.
pub(super) enum WorkerConnection {
    Opening(Box<OpeningConnection>),
    Http1(Box<H1Connection>),
    Http2(Box<H2Connection>),
    Http3(Box<H3WorkerConnection>),
    Ftp(Box<FtpConnection>),
    Tarpit(Box<TarpitConnection>),
}

/// Next state of a connection that has completed its current one.
enum ConnectionNext {
    /// The connection must be closed.
    Closed,
    /// The connection continues in a version of HTTP.
    Opened(OpenedConnection),
    /// The connection continues in the proxy of connections.
    Detached(DetachedSocket),
    /// The client has asked for TLS with AUTH.
    Tls,
    /// The client speaks HTTP/2, so the connection continues in it.
    Http2,
    /// The connection is kept without a response.
    Tarpit,
}

impl Connections {
    /// Makes an empty set of connections. Must be called within the worker's runtime.
    ///
    /// # Errors
    /// The system is out of file descriptors or memory.
    pub fn new(context: Rc<Context>, client_limit: Arc<ClientLimit>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Waiting on it with a zero timeout never blocks, but the runtime requires this mode.
        rustix::io::ioctl_fionbio(&epoll, true)?;
        let epoll = TcpStream::from_std(epoll.into())?;
        let (places, group) = Default::default();
        Ok(Self { context, client_limit, epoll, places, group, woken: Arc::default() })
    }

    /// Admits a client's connection from a listener. Returns `None` if the client is banned, has reached its limit of
    /// connections, or the worker sheds handshakes. Must be called before room is made for the connection.
    pub fn admit(&self, client: LogClient, listener: u16) -> Option<Admission> {
        let generation = self.context.generation();
        if self.sheds_handshake(&generation, client, listener) {
            return None;
        }
        let bans = generation.router.ban_table();
        let verdict = bans.verdict_on_connection(client);
        let tarpit = (verdict == Some(BanVerdict::Tarpit))
            .then(|| bans.take_tarpit_place(generation.limits.tarpit.connections_max))
            .flatten();
        let limit = match verdict.is_some() && tarpit.is_none() {
            true => Limit::Ban,
            false => match self.client_limit.take(client, &generation) {
                Ok(client_place) => {
                    if tarpit.is_some() {
                        self.context.count_limit(Limit::Ban);
                    }
                    let newcomer = self.context.newcomer(client, listener);
                    return Some(Admission { newcomer, client_place, tarpit });
                }
                Err(limit) => limit,
            },
        };
        self.context.count_limit(limit);
        None
    }

    /// Cancels an admission after the connection was closed because no place was free for it.
    pub fn turn_away(&self, admission: Admission) {
        self.client_limit.give_back(admission.client_place);
    }

    /// Starts a connection that was accepted from a listener, and polls it once.
    pub fn start(&self, socket: Socket, client: LogClient, listener: u16, admission: Admission) {
        let Admission { newcomer, client_place, tarpit } = admission;
        if let Some(metrics) = self.context.metrics() {
            metrics.connections_opened.add(1);
        }
        if let Some(place) = tarpit {
            let slot = self.context.table.borrow_mut().insert(newcomer);
            let context = Rc::clone(&self.context);
            let connection = TarpitConnection::new(socket, client, slot, false, place, context);
            return self.put(slot, WorkerConnection::Tarpit(Box::new(connection)), client_place);
        }
        let (is_proxied, tls) = self.context.generation().beginning(listener, client);
        let context = Rc::clone(&self.context);
        let (connection, slot) = if is_proxied || tls.is_some() {
            let (opening, slot) = OpeningConnection::new(socket, client, listener, newcomer, is_proxied, tls, context);
            (WorkerConnection::Opening(Box::new(opening)), slot)
        } else {
            let opened = OpenedConnection::at_once(socket, client, newcomer, &context);
            let slot = opened.slot;
            let is_ftp = self.context.generation().router.ftp_site(listener, None).is_some();
            let connection = match is_ftp {
                true => WorkerConnection::Ftp(Box::new(FtpConnection::new(opened, listener, context))),
                false => WorkerConnection::of(opened, listener, context),
            };
            (connection, slot)
        };
        self.put(slot, connection, client_place);
    }

    /// Starts a QUIC connection in its slot of the table of connections, and polls it once.
    pub(super) fn start_quic(&self, connection: H3WorkerConnection, slot: u32, admission: Admission) {
        if let Some(metrics) = self.context.metrics() {
            metrics.connections_opened.add(1);
        }
        self.put(slot, WorkerConnection::Http3(Box::new(connection)), admission.client_place);
    }

    /// Puts a connection into its place, and polls it once.
    fn put(&self, slot: u32, connection: WorkerConnection, client_place: ClientPlace) {
        let places = &mut *self.places.borrow_mut();
        while places.len() <= slot as usize {
            places.push(ConnectionSlot::new(places.len() as u32, &self.woken));
        }
        let place = &mut places[slot as usize];
        place.connection = Some(connection);
        place.client_place = client_place;
        let group = &mut *self.group.borrow_mut();
        group.poll_alone(place, self);
        self.keep_memory(places, group);
    }

    /// Gives a socket to the proxy of connections. Its place in the counts of its client stays until the proxy ends it.
    fn detach(&self, detached: DetachedSocket, client_place: ClientPlace) {
        let DetachedSocket { mut socket, server_name, received } = detached;
        let place = HeldPlace::new(Arc::clone(&self.client_limit), client_place);
        if socket.end_watch() && epoll::delete(self.epoll.as_fd(), socket.as_fd()).is_err() {
            return;
        }
        if let Some(proxy) = &self.context.generation().stream_taker {
            proxy.take(DetachedConnection { socket: socket.into_descriptor(), server_name, received, place });
        }
    }

    /// Polls the connections in these slots, each once.
    pub(super) fn poll_slots(&self, slots: &mut Vec<u32>) {
        slots.sort_unstable();
        slots.dedup();
        self.go_on(&mut slots.drain(..).map(|slot| (slot as usize, None)));
    }

    /// Returns true if a new connection must be closed because the worker is overloaded. Listeners with reserved places
    /// are exempt. Listeners are also exempt during an ACME validation by TLS, because its handshake looks like any
    /// other.
    fn sheds_handshake(&self, generation: &Generation, client: LogClient, listener: u16) -> bool {
        let overload = &self.context.overload;
        if !overload.is_shedding() || generation.is_reserved(listener) {
            return false;
        }
        let (_, tls) = generation.beginning(listener, client);
        tls.is_some_and(|tls| !tls.has_validations()) && overload.sheds(RequestCost::Handshake)
    }

    /// Polls connections whenever they have events; never returns.
    pub async fn run(self: Rc<Self>) {
        let mut events = Vec::with_capacity(EVENTS_A_TURN_MAX);
        let mut slots = Vec::new();
        let mut has_events = true;
        loop {
            self.context.handshakes.on_turn();
            if has_events {
                events.clear();
                // Fails only if interrupted; the next call then returns the events.
                let _ =
                    epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&Timespec::default()));
                has_events = events.len() == events.capacity();
                self.context.overload.on_look(!has_events);
                self.on_events(&events);
                if !has_events {
                    // Tells the runtime to wait for an edge. Events since the call above cause one.
                    let _ = self.epoll.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
                }
            }
            self.poll_woken(&mut slots);
            if has_events || self.woken.is_any() {
                // The runtime processes its sockets and timers, then continues here.
                tokio::task::yield_now().await;
            }
            if !has_events {
                has_events = poll_fn(|task| self.poll_wait(task)).await;
            }
        }
    }

    fn on_events(&self, events: &[epoll::Event]) {
        self.go_on(&mut events.iter().map(|event| {
            let data = event.data.u64();
            ((data & !DATA_SOCKET) as usize, Some((event.flags, data & DATA_SOCKET != 0)))
        }));
    }

    /// Polls the connections in these places, in groups.
    fn go_on(&self, waiting: &mut impl Iterator<Item = (usize, Option<SocketEvents>)>) {
        let places = &mut *self.places.borrow_mut();
        let group = &mut *self.group.borrow_mut();
        while group.gather(places, waiting) {
            group.go_on(places, self);
            self.keep_memory(places, group);
        }
    }

    /// Closes this worker's part of the connections while clients hold too much memory. Must be called after each poll of
    /// connections: timers and connections that are woken may have to wait for many others.
    #[inline]
    fn keep_memory(&self, places: &mut [ConnectionSlot], group: &mut ConnectionGroup) {
        if self.context.is_out_of_memory() {
            for slot in self.shed(places) {
                if let Some(place) = places.get_mut(slot as usize) {
                    group.poll_alone(place, self);
                }
            }
        }
    }

    /// Does this worker's part in closing connections while clients hold too much memory. Must be called from time to
    /// time meanwhile, in case no connection has events.
    pub fn shed_memory(&self) {
        self.shed(&self.places.borrow());
    }

    /// Wakes the connections that must be closed, and returns their slots.
    #[cold]
    fn shed(&self, places: &[ConnectionSlot]) -> Vec<u32> {
        self.context.shed_connections(|slot| Some(places.get(slot as usize)?.connection.as_ref()?.client()))
    }

    fn poll_woken(&self, slots: &mut Vec<u32>) {
        std::mem::swap(slots, &mut self.woken.state().slots);
        // Each connection is polled once, because a group has one output for each connection.
        self.poll_slots(slots);
    }

    /// Waits for events or wakers; returns true if sockets have events. If only a waker was used (for example by an
    /// upstream response), this saves a system call.
    fn poll_wait(&self, task: &mut Task<'_>) -> Poll<bool> {
        // An error would mean that the runtime has ended.
        let has_events = self.epoll.poll_read_ready(task).is_ready();
        let state = &mut *self.woken.state();
        if !has_events && state.slots.is_empty() {
            state.sleeper = Some(task.waker().clone());
            self.context.overload.on_sleep();
            return Poll::Pending;
        }
        state.sleeper = None;
        Poll::Ready(has_events)
    }

    /// Returns the number of open requests, and the ones open longest, at most `requests_max`.
    pub fn longest_open_requests(&self, requests_max: usize) -> (usize, Vec<LiveRequest>) {
        let places = &*self.places.borrow();
        longest_open(requests_max, &self.context, |tell| {
            for place in places {
                match &place.connection {
                    Some(WorkerConnection::Http1(connection)) => connection.each_request(tell),
                    Some(WorkerConnection::Http2(connection)) => connection.each_request(tell),
                    Some(WorkerConnection::Http3(connection)) => connection.each_request(tell),
                    Some(WorkerConnection::Opening(_) | WorkerConnection::Ftp(_) | WorkerConnection::Tarpit(_))
                    | None => {}
                }
            }
        })
    }

    /// Returns the number of FTP sessions, and some of them, at most `sessions_max`: first those with transfers.
    pub fn ftp_sessions(&self, sessions_max: usize) -> (usize, Vec<LiveFtpSession>) {
        let places = &*self.places.borrow();
        let sessions = || {
            places.iter().filter_map(|place| match &place.connection {
                Some(WorkerConnection::Ftp(connection)) => Some(connection),
                _ => None,
            })
        };
        let busy = sessions().filter(|session| session.is_transferring());
        let idle = sessions().filter(|session| !session.is_transferring());
        (sessions().count(), busy.chain(idle).take(sessions_max).map(|session| session.live()).collect())
    }

    /// Returns the clients, and the networks, with the most connections, in descending order.
    pub fn top_holders(&self) -> [Vec<HolderCount>; 2] {
        let places = &*self.places.borrow();
        top_holders(places.iter().filter_map(|place| place.connection.as_ref()).map(WorkerConnection::client))
    }

    /// Registers the sockets of a connection with epoll for the events they wait for, unless they are registered
    /// already.
    fn watch_all(&self, slot: u32, connection: &mut WorkerConnection) -> io::Result<()> {
        if let WorkerConnection::Http3(_) = connection {
            // The endpoint waits for their socket.
            return Ok(());
        }
        self.watch(slot.into(), connection.socket().ok_or(io::ErrorKind::NotConnected)?)?;
        match connection.data_socket() {
            Some(socket) => self.watch(u64::from(slot) | DATA_SOCKET, socket),
            None => Ok(()),
        }
    }

    fn watch(&self, data: u64, socket: &mut Socket) -> io::Result<()> {
        let Some((events, is_new)) = socket.unwatched() else { return Ok(()) };
        let data = epoll::EventData::new_u64(data);
        let change = if is_new { epoll::add } else { epoll::modify };
        Ok(change(self.epoll.as_fd(), socket.as_fd(), data, events)?)
    }
}

impl ConnectionSlot {
    fn new(slot: u32, woken: &Arc<Woken>) -> Self {
        let waker = PlaceWaker { woken: Arc::clone(woken), slot };
        Self { connection: None, client_place: ClientPlace::default(), slot, waker: Arc::new(waker).into() }
    }

    /// Polls the connection, and closes it if it is done, fails or panics.
    pub(super) fn poll(&mut self, connections: &Connections, turn: &mut Turn<'_>) {
        let was_open = self.connection.is_some();
        while let Some(connection) = &mut self.connection {
            let task = &mut Task::from_waker(&self.waker);
            let polled = catch_unwind(AssertUnwindSafe(|| connection.poll(task, turn)));
            if polled.is_err()
                && let Some(metrics) = connections.context.metrics()
            {
                metrics.panics.add(1);
            }
            match polled {
                Ok(Poll::Pending) => {
                    if connections.watch_all(self.slot, connection).is_err() {
                        self.end();
                    }
                    break;
                }
                Ok(Poll::Ready(ConnectionNext::Closed)) | Err(_) => self.end(),
                Ok(Poll::Ready(ConnectionNext::Detached(detached))) => {
                    connections.detach(detached, std::mem::take(&mut self.client_place));
                    self.end();
                }
                Ok(Poll::Ready(next)) => self.connection = self.connection.take().and_then(|before| before.into(next)),
            }
        }
        if self.connection.is_some() || !was_open {
            return;
        }
        if let Some(metrics) = connections.context.metrics() {
            metrics.connections_closed.add(1);
        }
        connections.client_limit.give_back(std::mem::take(&mut self.client_place));
    }

    fn end(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.close();
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.end();
    }
}

impl WorkerConnection {
    /// Polls until the connection must wait. Ready with the next state.
    fn poll(&mut self, task: &mut Task<'_>, turn: &mut Turn<'_>) -> Poll<ConnectionNext> {
        match self {
            // A peer's error ends its own connection only.
            Self::Opening(opening) => opening.poll(task).map(|end| match end {
                Ok(OpeningEnd::Opened(opened)) => ConnectionNext::Opened(opened),
                Ok(OpeningEnd::Detached(detached)) => ConnectionNext::Detached(detached),
                Err(_) => ConnectionNext::Closed,
            }),
            Self::Http1(connection) => {
                ready!(connection.poll(task, turn));
                Poll::Ready(match (connection.is_http2(), connection.is_for_tarpit()) {
                    (true, _) => ConnectionNext::Http2,
                    (_, true) => ConnectionNext::Tarpit,
                    _ => ConnectionNext::Closed,
                })
            }
            Self::Http2(connection) => {
                ready!(connection.poll(task));
                Poll::Ready(if connection.is_for_tarpit() { ConnectionNext::Tarpit } else { ConnectionNext::Closed })
            }
            Self::Http3(connection) => connection.poll(task).map(|()| ConnectionNext::Closed),
            Self::Ftp(connection) => {
                ready!(connection.poll(task));
                Poll::Ready(if connection.begins_tls() { ConnectionNext::Tls } else { ConnectionNext::Closed })
            }
            Self::Tarpit(connection) => connection.poll(task).map(|()| ConnectionNext::Closed),
        }
    }

    /// Converts the connection to its next state; `None` if it must be closed.
    fn into(self, next: ConnectionNext) -> Option<Self> {
        let (opened, listener, context) = match (self, next) {
            (Self::Opening(opening), ConnectionNext::Opened(opened)) => {
                (opened, opening.listener(), Rc::clone(opening.context()))
            }
            (Self::Http1(connection), ConnectionNext::Http2) => connection.into_opened(),
            (Self::Ftp(connection), ConnectionNext::Tls) => {
                return Some(Self::Opening(Box::new(connection.into_opening())));
            }
            (Self::Http1(connection), ConnectionNext::Tarpit) => {
                return connection.into_tarpit().map(|connection| Self::Tarpit(Box::new(connection)));
            }
            (Self::Http2(connection), ConnectionNext::Tarpit) => {
                return connection.into_tarpit().map(|connection| Self::Tarpit(Box::new(connection)));
            }
            _ => return None,
        };
        Some(Self::of(opened, listener, context))
    }

    /// Makes a connection that awaits its first request.
    fn of(opened: OpenedConnection, listener: u16, context: Rc<Context>) -> Self {
        if opened.ftp.is_some() {
            return Self::Ftp(Box::new(FtpConnection::new(opened, listener, context)));
        }
        if opened.is_http2 || !context.generation().http_versions.http1 {
            return Self::Http2(Box::new(H2Connection::new(opened, listener, context)));
        }
        Self::Http1(Box::new(H1Connection::new(opened, listener, context)))
    }

    fn client(&self) -> LogClient {
        match self {
            Self::Opening(opening) => opening.client(),
            Self::Http1(connection) => connection.client(),
            Self::Http2(connection) => connection.client(),
            Self::Http3(connection) => connection.client(),
            Self::Ftp(connection) => connection.client(),
            Self::Tarpit(connection) => connection.client(),
        }
    }

    /// Closes the connection in any state. Must be called once.
    fn close(&mut self) {
        match self {
            // Dropping it releases its resources.
            Self::Opening(_) => {}
            Self::Http1(connection) => connection.close(),
            Self::Http2(connection) => connection.close(),
            Self::Http3(connection) => connection.close(),
            Self::Ftp(connection) => connection.close(),
            Self::Tarpit(connection) => connection.close(),
        }
    }

    /// Socket to wait for after `poll` returned `Pending`.
    pub(super) fn socket(&mut self) -> Option<&mut Socket> {
        match self {
            Self::Opening(opening) => opening.socket(),
            Self::Http1(connection) => Some(connection.socket()),
            Self::Http2(connection) => Some(connection.socket()),
            Self::Http3(_) => None,
            Self::Ftp(connection) => Some(connection.socket()),
            Self::Tarpit(connection) => Some(connection.socket()),
        }
    }

    /// Second socket to wait for.
    pub(super) fn data_socket(&mut self) -> Option<&mut Socket> {
        match self {
            Self::Ftp(connection) => connection.data_socket(),
            Self::Opening(_) | Self::Http1(_) | Self::Http2(_) | Self::Http3(_) | Self::Tarpit(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::{spawn_local, yield_now};

    use super::*;
    use crate::config::{Limits, LogLevel};
    use crate::connection::output::Output;
    use crate::connection::{Generation, WorkerClock};
    use crate::log::{ServerLog, Trouble};
    use crate::memory_budget::{MemoryBudget, WorkerBudget};
    use crate::overload::Overload;
    use crate::routing::Router;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

    /// Context without sites: each request gets a 404 response.
    fn context(limits: Limits) -> Rc<Context> {
        Rc::new(new_context(limits))
    }

    fn new_context(limits: Limits) -> Context {
        let server_log = ServerLog::stderr(LogLevel::Error);
        let (log, _) = crate::log::start(&[], crate::log::LogOptions::default(), server_log).unwrap();
        let generation = Generation::new(Router::new(&[], &[Vec::new()]), limits);
        let clock = WorkerClock::new(Arc::new(AtomicBool::new(true)));
        Context::new(generation, log.recorder(), clock, Overload::off())
    }

    fn connect(connections: &Connections, listener: u16) -> UnixStream {
        connect_with(connections, listener, b"")
    }

    /// Connects; the server finds this input when it accepts.
    fn connect_with(connections: &Connections, listener: u16, input: &[u8]) -> UnixStream {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        client.write_all(input).unwrap();
        server.set_nonblocking(true).unwrap();
        connections.start(Socket::new(server.into()), LogClient::Unix, listener, Admission::default());
        client
    }

    /// Sends a request and reads the response; an empty string means end of stream.
    async fn exchange(client: &mut UnixStream) -> String {
        client.write_all(REQUEST).unwrap();
        let mut answer = [0; 4096];
        loop {
            match client.read(&mut answer) {
                Ok(length) => return String::from_utf8_lossy(&answer[..length]).into_owned(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn a_panic_costs_one_connection() {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            // Routing panics because there is no second listener.
            let connections = Rc::new(Connections::new(context(Limits::default()), Arc::default()).unwrap());
            spawn_local(Rc::clone(&connections).run());
            let mut others = [connect(&connections, 0), connect(&connections, 0)];
            for round in 0..3 {
                let mut panicking = connect(&connections, 1);
                assert_eq!(exchange(&mut panicking).await, "", "round {round}: it is closed");
                for other in &mut others {
                    let answer = exchange(other).await;
                    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "round {round}: {answer}");
                }
            }
            let mut new = connect(&connections, 0);
            assert!(exchange(&mut new).await.starts_with("HTTP/1.1 404 "));
            assert_eq!(connections.context.table.borrow().len(), 3, "the others' places are free");
        });
    }

    /// The other connections of a group get their responses even if one does not read, disconnects or ends.
    #[test]
    fn those_that_go_on_together_are_answered_as_if_they_were_alone() {
        const CLIENTS: usize = 20;
        const ROUNDS: usize = 300;
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let connections = Rc::new(Connections::new(context(Limits::default()), Arc::default()).unwrap());
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(&connections, 0)).collect();
            spawn_local(Rc::clone(&connections).run());
            // More responses than the socket buffers hold, and no client reads.
            for _ in 0..ROUNDS {
                for client in &mut clients {
                    while client.write(REQUEST).is_err() {
                        yield_now().await;
                    }
                }
                yield_now().await;
            }
            clients.iter_mut().for_each(|client| client.write_all(&REQUEST.repeat(20)).unwrap());
            clients[1].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let broken = clients.pop().unwrap();
            clients.iter().for_each(|client| client.shutdown(Shutdown::Write).unwrap());
            drop(broken);
            for (number, client) in clients.iter_mut().enumerate() {
                let mut answers = String::new();
                while let Err(error) = client.read_to_string(&mut answers) {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    yield_now().await;
                }
                let count = |status| answers.matches(&format!("HTTP/1.1 {status} ")).count();
                assert_eq!((count(404), count(400)), (ROUNDS + 20, usize::from(number == 1)), "client {number}");
            }
            while !connections.context.table.borrow().is_empty() {
                yield_now().await;
            }
        });
    }

    /// Connections of a worker whose clients may hold this many bytes.
    fn budgeted(limit_bytes: u64) -> (Rc<Connections>, Arc<MemoryBudget>) {
        let budget = Arc::new(MemoryBudget::default());
        budget.set_limit_bytes(limit_bytes);
        let memory = WorkerBudget::new(Arc::clone(&budget), 0);
        let trouble = Arc::new(Trouble::new(ServerLog::stderr(LogLevel::Error), ""));
        let context = Rc::new(new_context(Limits::default()).budgeting(memory, trouble));
        (Rc::new(Connections::new(context, Arc::default()).unwrap()), budget)
    }

    /// A worker that accepted many connections in a row closed none meanwhile: on a busy machine, clients held eight times
    /// the limit.
    #[test]
    fn memory_is_released_while_connections_are_accepted() {
        const LIMIT_BYTES: u64 = 256 << 10;
        let runtime = Builder::new_current_thread().enable_io().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let (connections, budget) = budgeted(LIMIT_BYTES);
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "x".repeat(10_000));
            // All are accepted before anything else has its turn.
            let clients: Vec<_> = (0..400).map(|_| connect_with(&connections, 0, head.as_bytes())).collect();
            assert!(budget.held_bytes() < 4 * LIMIT_BYTES, "{} bytes", budget.held_bytes());
            assert!(connections.context.table.borrow().len() > 5, "no more are closed than must be");
            drop(clients);
        });
    }

    /// Issue 17: connections were closed only when timers ran, so a saturated worker closed them late.
    #[test]
    fn memory_is_released_between_connections_and_without_timers() {
        const LIMIT_BYTES: u64 = 256 << 10;
        // The runtime has no timers.
        let runtime = Builder::new_current_thread().enable_io().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let (connections, budget) = budgeted(LIMIT_BYTES);
            let mut clients: Vec<_> = (0..100).map(|_| connect(&connections, 0)).collect();
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "x".repeat(10_000));
            clients.iter_mut().for_each(|client| client.write_all(head.as_bytes()).unwrap());
            spawn_local(Rc::clone(&connections).run());
            let start = std::time::Instant::now();
            let is_closed = |client: &mut UnixStream| match client.read(&mut [0]) {
                Ok(0) => true,
                Err(error) => error.kind() == ErrorKind::ConnectionReset,
                Ok(_) => false,
            };
            while !clients.iter_mut().any(is_closed) {
                assert!(start.elapsed().as_secs() < 30, "{} bytes", budget.held_bytes());
                yield_now().await;
            }
            // Without events, another task does the next steps.
            while budget.held_bytes() >= LIMIT_BYTES {
                assert!(start.elapsed().as_secs() < 30, "{} bytes", budget.held_bytes());
                connections.shed_memory();
                yield_now().await;
            }
            assert!(connections.context.table.borrow().len() > 5, "no more are closed than must be");
        });
    }

    #[test]
    fn others_have_their_turn_however_much_is_pipelined() {
        struct Noted(AtomicBool);
        impl Wake for Noted {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }

        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let (mut client, server) = UnixStream::pair().unwrap();
            client.set_nonblocking(true).unwrap();
            server.set_nonblocking(true).unwrap();
            // The handler ignores the content, so that the responses are few and do not fill the socket.
            let mut requests = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 20000\r\n\r\n".to_vec();
            requests.resize(requests.len() + 20_000, b'x');
            let mut sent = 0;
            while let Ok(length) = client.write(&requests[sent % requests.len()..]) {
                sent += length;
            }
            let whole = sent / requests.len();
            // Each read is small.
            let context = context(Limits { head_bytes_max: 1024, ..Limits::default() });
            let opened =
                OpenedConnection::at_once(Socket::new(server.into()), LogClient::Unix, Newcomer::default(), &context);
            let mut connection = H1Connection::new(opened, 0, context);
            let noted = Arc::new(Noted(AtomicBool::new(false)));
            let waker = Waker::from(Arc::clone(&noted));
            let turn = &mut Turn { input: None, output: &mut Output::default(), gathers: false };
            assert!(connection.poll(&mut Task::from_waker(&waker), turn).is_pending());
            let mut answers = vec![0; 1 << 20];
            let length = client.read(&mut answers).unwrap();
            let answered = String::from_utf8_lossy(&answers[..length]).matches("HTTP/1.1 404 ").count();
            assert!((1..whole).contains(&answered), "{answered} of {whole} requests answered");
            assert!(noted.0.load(Ordering::Relaxed), "it goes on when the others had their turn");
        });
    }
}
