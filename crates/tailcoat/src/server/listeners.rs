//! Listening sockets of the process, by the addresses that configurations name.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::datagrams::{BankRoom, DatagramGroup, DatagramOffer, RetiredGroup};
use super::lives::{Life, LifeLine};
use super::{ListenAddress, ServerStartError};
use crate::config::{self, Config, Listen};
use crate::connection::TagKey;
use crate::log::{ServerLog, event};
use crate::worker::{self, Inherited, Listener, ListenerKey, ListenerPlan, OpenListener, UDP_KEY};

/// Time for which workers still accept from a retired listener. The kernel has already completed some handshakes, and
/// holds these connections back until their first data arrives.
const RETIREMENT: Duration = Duration::from_secs(3);

/// All listeners of the process.
pub(super) struct Listeners {
    inherited: Inherited,
    /// Number of each address; never reused for another one.
    numbers: HashMap<Listen, u16>,
    open: HashMap<u16, OpenAddress>,
    /// Listeners of the current configuration, with their numbers.
    plans: Vec<(u16, ListenerPlan)>,
    has_retired: bool,
    /// Sockets that the old process has handed over and no configuration has used yet.
    handed_over: HashMap<Listen, Vec<Listener>>,
    /// UDP sockets of HTTP/3, by the number of the address.
    datagrams: HashMap<u16, DatagramGroup>,
    /// UDP sockets that the old process has handed over and no configuration has used yet.
    handed_over_datagrams: HashMap<Listen, DatagramGroup>,
    /// Key of the tags in connection IDs of HTTP/3.
    tags: TagKey,
    /// Limits of the sockets of HTTP/3.
    room: BankRoom,
    /// UDP sockets of removed addresses, which workers may still need.
    retired_datagrams: HashMap<u16, RetiredGroup>,
    /// Shows other processes that this one reads UDP sockets. Workers hold it, too.
    life_line: Option<Arc<LifeLine>>,
    /// This process, as others see it.
    life: Arc<Life>,
    /// True while this process reads the UDP sockets of processes that have ended.
    reads_left: bool,
    /// Settings whose socket options are set.
    settings: Option<config::ServerSettings>,
}

/// Sockets that the old process has handed over, if there is one.
#[derive(Default)]
pub(super) struct HandedOverSockets {
    /// Sockets of each address.
    pub(super) listeners: Vec<(Listen, Vec<Listener>)>,
    /// UDP sockets, in the form of an offer with their descriptors.
    pub(super) datagrams: Vec<(DatagramOffer, Vec<OwnedFd>)>,
    /// Processes of the offer.
    pub(super) lives: Vec<Arc<Life>>,
}

/// Address with its open sockets.
struct OpenAddress {
    listen: Listen,
    /// Sockets, each with its number.
    sockets: Vec<(u16, Listener)>,
    next_socket: u16,
    /// Time at which a reload dropped the address.
    retired_at: Option<Instant>,
    /// True if the sockets have the options of FTP, false for those of HTTP; `None` before any are set.
    has_ftp_options: Option<bool>,
}

/// Listeners that are open for a configuration that is not in use yet.
pub(super) struct NewListeners {
    plans: Vec<(u16, ListenerPlan)>,
    open: Vec<(u16, Listen, Vec<Listener>)>,
    datagrams: Vec<(u16, DatagramGroup)>,
    /// Addresses whose UDP port could not be bound.
    without_datagrams: Vec<(Listen, DatagramError)>,
}

impl Listeners {
    /// Starts with no open listeners, only with the sockets that the old process has handed over.
    ///
    /// # Errors
    /// Out of file descriptors, or a descriptor is no socket.
    pub(super) fn new(
        mut inherited: Inherited,
        handed_over: HandedOverSockets,
        tags: TagKey,
        room: BankRoom,
    ) -> io::Result<Self> {
        let HandedOverSockets { listeners, datagrams, lives } = handed_over;
        let (life_line, life) = LifeLine::new()?;
        let (life_line, life) = (Arc::new(life_line), Arc::new(life));
        let (numbers, open, plans) = Default::default();
        let mut by_address = HashMap::new();
        for (listen, sockets) in listeners {
            match listen {
                Listen::Inherited(name) => {
                    inherited = inherited.with(sockets.into_iter().map(|socket| (name.clone(), socket)));
                }
                listen => _ = by_address.insert(key(&listen), sockets),
            }
        }
        let datagrams = datagrams.into_iter().filter(|(offer, _)| offer.is_usable());
        let groups = datagrams.map(|(offer, descriptors)| {
            let group = DatagramGroup::handed_over(&offer, descriptors, tags, &lives, Arc::clone(&life_line))?;
            Ok((offer.listen, group))
        });
        let handed_over_datagrams = groups.collect::<io::Result<_>>()?;
        Ok(Self {
            inherited,
            numbers,
            open,
            plans,
            has_retired: false,
            handed_over: by_address,
            datagrams: HashMap::new(),
            handed_over_datagrams,
            tags,
            room,
            retired_datagrams: HashMap::new(),
            life_line: Some(life_line),
            life,
            reads_left: true,
            settings: None,
        })
    }

    /// Addresses to hand over, each with the number of its sockets, and their descriptors. Retired TCP addresses are
    /// included: until they are closed, no other process can listen there.
    ///
    /// # Errors
    /// Out of file descriptors.
    #[allow(clippy::type_complexity, reason = "two lists that are taken apart at once")]
    pub(super) fn offer(&self) -> io::Result<(Vec<(Listen, usize)>, Vec<OwnedFd>)> {
        let (mut listeners, mut descriptors) = (Vec::new(), Vec::new());
        for address in self.open.values().filter(|address| address.can_be_offered()) {
            if !matches!(address.listen, Listen::Inherited(_)) {
                listeners.push((address.listen.clone(), address.sockets.len()));
                for (_, socket) in &address.sockets {
                    descriptors.push(socket.try_clone()?.into_descriptor());
                }
            }
        }
        for (name, socket) in self.inherited.all() {
            listeners.push((Listen::Inherited(name), 1));
            descriptors.push(socket.try_clone()?.into_descriptor());
        }
        Ok((listeners, descriptors))
    }

    /// Groups of UDP sockets to hand over, and the number of the processes that read them. The descriptors of the
    /// processes follow those of the sockets.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn offer_datagrams(&self, descriptors: &mut Vec<OwnedFd>) -> io::Result<(Vec<DatagramOffer>, usize)> {
        let mut lives: Vec<Arc<Life>> = Vec::new();
        let mut offers = Vec::new();
        for (number, group) in &self.datagrams {
            let Some(address) = self.open.get(number) else { continue };
            let index = |life: Option<&Arc<Life>>| {
                let life = life.unwrap_or(&self.life);
                let known = lives.iter().position(|other| Arc::ptr_eq(other, life));
                Some(known.unwrap_or_else(|| {
                    lives.push(Arc::clone(life));
                    lives.len() - 1
                }))
            };
            offers.push(group.offer(&address.listen, descriptors, index)?);
        }
        for life in &lives {
            descriptors.push(life.try_clone()?);
        }
        Ok((offers, lives.len()))
    }

    /// Reads the UDP sockets of processes that have ended, or leaves them to another process. Takes effect with the next
    /// order to the workers.
    pub(super) fn read_left(&mut self, reads_left: bool) {
        self.reads_left = reads_left;
    }

    /// Handed-over addresses that are in use here. Closes the sockets of the others.
    pub(super) fn used(&mut self) -> Vec<Listen> {
        // This process never accepts from the others.
        self.handed_over.clear();
        self.handed_over_datagrams.clear();
        self.open.values().map(|address| key(&address.listen)).collect()
    }

    /// Leaves these addresses to the new process and retires the others. The workers drain the queues through their own
    /// descriptors. No descriptor stays here, because this process may live long. While it has a socket open, the new
    /// process could not listen again on an address that it has closed.
    pub(super) fn release(&mut self, used: &[Listen], log: &ServerLog) {
        self.retire_all(used, |listen, error| warn_of_closing(log, listen, error));
    }

    /// Closes all listeners before a shutdown, so that the next server can listen there while this one completes its
    /// open requests. The workers drain the queues through their own descriptors.
    pub(super) fn close_all(&mut self, log: &ServerLog) {
        self.retire_all(&[], |listen, error| {
            // At a shutdown, it would tell operators nothing new.
            if error.kind() != io::ErrorKind::PermissionDenied {
                warn_of_closing(log, listen, error);
            }
        });
    }

    fn retire_all(&mut self, used: &[Listen], on_error: impl Fn(&Listen, &io::Error)) {
        // The workers keep what their connections need.
        self.datagrams.clear();
        self.life_line = None;
        for (_, mut address) in self.open.drain() {
            let is_unused = address.retired_at.is_none() && !used.contains(&key(&address.listen));
            if is_unused && let Err(error) = address.retire() {
                on_error(&address.listen, &error);
            }
        }
    }

    /// Opens the listeners of a configuration that are not open. Must be the last step that can fail, because clients
    /// may connect at once.
    ///
    /// # Errors
    /// The address that cannot be listened on.
    pub(super) fn prepare(&mut self, config: &Config, workers: usize) -> Result<NewListeners, ServerStartError> {
        let (plans, open, datagrams, without_datagrams) = Default::default();
        let mut new = NewListeners { plans, open, datagrams, without_datagrams };
        for plan in worker::plan(config) {
            let address = key(&plan.listen);
            let next = self.numbers.len();
            let number = *self.numbers.entry(address).or_insert(u16::try_from(next).unwrap_or(u16::MAX));
            if number == u16::MAX {
                let error = io::Error::other("more than 65,535 addresses since the start; run `tailcoat upgrade`");
                return Err(ServerStartError::binding(&plan.listen)(error));
            }
            if let Some(sockets) = self.handed_over.remove(&key(&plan.listen)) {
                new.open.push((number, plan.listen.clone(), sockets));
            } else if !self.open.get(&number).is_some_and(OpenAddress::can_stay) {
                let is_alone = !self.overlaps_own(&plan.listen, &new);
                let sockets = worker::bind(&plan, workers, &config.server, &self.inherited, is_alone);
                let sockets = sockets.map_err(ServerStartError::binding(&plan.listen))?;
                new.open.push((number, plan.listen.clone(), sockets));
            }
            match self.datagrams.get_mut(&number).map(DatagramGroup::find_bank) {
                _ if !plan.has_http3 => {}
                Some(true) => {}
                Some(false) => new.without_datagrams.push((plan.listen.clone(), DatagramError::BanksInUse)),
                None => self.prepare_datagrams(number, &plan, workers, &mut new),
            }
            new.plans.push((number, plan));
        }
        Ok(new)
    }

    /// Returns `true` if this process has another listener that the address overlaps.
    fn overlaps_own(&self, listen: &Listen, new: &NewListeners) -> bool {
        let open = self.open.values().map(|address| &address.listen);
        let own = open.chain(self.handed_over.keys()).chain(new.open.iter().map(|(_, listen, _)| listen));
        own.into_iter().any(|own| overlaps(listen, own))
    }

    /// Opens the UDP sockets of an address, at the port of its TCP sockets. Without them, clients use TCP.
    fn prepare_datagrams(&mut self, number: u16, plan: &ListenerPlan, workers: usize, new: &mut NewListeners) {
        if let Some(group) = self.handed_over_datagrams.remove(&plan.listen) {
            if !group.has_bank() {
                new.without_datagrams.push((plan.listen.clone(), DatagramError::BanksInUse));
            }
            return new.datagrams.push((number, group));
        }
        if let Some(group) = self.retired_datagrams.remove(&number).and_then(RetiredGroup::reuse) {
            return new.datagrams.push((number, group));
        }
        // None after the listeners were left to another process, when no configuration is applied.
        let Some(life_line) = self.life_line.clone() else { return };
        let opened = new.open.iter().find(|(other, ..)| *other == number).and_then(|(.., sockets)| sockets.first());
        let known = || self.open.get(&number)?.sockets.first().map(|(_, socket)| socket);
        let Some(address) = opened.or_else(known).and_then(Listener::tcp_address) else { return };
        let is_alone = !self.overlaps_own(&plan.listen, new);
        match DatagramGroup::bind(address, workers, self.room, self.tags, life_line, is_alone) {
            Ok(group) => new.datagrams.push((number, group)),
            Err(error) => new.without_datagrams.push((plan.listen.clone(), DatagramError::Bind(error))),
        }
    }

    /// Puts new listeners into use and retires those that the configuration does not name.
    pub(super) fn apply(&mut self, new: NewListeners, server: &config::ServerSettings, log: &ServerLog) {
        for (number, listen, sockets) in new.open {
            let address = self.open.entry(number).or_insert_with(|| OpenAddress::new(&listen));
            address.listen = listen;
            (address.retired_at, address.has_ftp_options) = (None, None);
            sockets.into_iter().for_each(|socket| address.add(socket));
        }
        self.datagrams.extend(new.datagrams);
        for (listen, error) in new.without_datagrams {
            let values: &[(&str, &dyn fmt::Display)] = &[("listen", &listen), ("error", &error)];
            log.warn(event("binding the UDP port of HTTP/3 failed", values), error.help());
        }
        self.plans = new.plans;
        self.has_retired = false;
        let plans: HashMap<u16, &ListenerPlan> = self.plans.iter().map(|(number, plan)| (*number, plan)).collect();
        let has_http3 = |number: u16| plans.get(&number).is_some_and(|plan| plan.has_http3);
        for (number, group) in self.datagrams.extract_if(|number, _| !has_http3(*number)) {
            self.has_retired = true;
            self.retired_datagrams.insert(number, group.retire());
        }
        let has_settings = self.settings.as_ref() == Some(server);
        for (number, address) in &mut self.open {
            match plans.get(number) {
                Some(plan) if has_settings && address.is_of(plan) => {}
                Some(plan) => {
                    if let Err(error) = address.stay(plan, server) {
                        log.warn(
                            event("changing listener failed", &[("listen", &address.listen), ("error", &error)]),
                            "the listener stays as it was",
                        );
                    }
                }
                None if address.retired_at.is_none() => {
                    self.has_retired = true;
                    if let Err(error) = address.retire() {
                        warn_of_closing(log, &address.listen, &error);
                    }
                }
                None => {}
            }
        }
        if !has_settings {
            self.settings = Some(server.clone());
        }
    }

    /// Opens more sockets, so that each worker has its own where the kernel allows it.
    pub(super) fn widen(&mut self, workers: usize, server: &config::ServerSettings) {
        let is_narrow = |address: &OpenAddress| address.is_shared_out() && address.sockets.len() < workers;
        for (number, address) in self.open.iter_mut().filter(|(_, address)| is_narrow(address)) {
            let is_ftp = self.plans.iter().any(|(other, plan)| other == number && plan.is_ftp);
            while address.sockets.len() < workers {
                let another = address.sockets.first().map(|(_, first)| first.open_another(server, is_ftp));
                // Without it, workers share the present sockets: slower, but correct.
                let Some(Ok(Some(socket))) = another else { break };
                address.add(socket);
            }
        }
    }

    /// Directs new HTTP/3 connections to the sockets of the first workers, as far as they are free for them.
    pub(super) fn steer(&self, workers: usize, is_free: impl Fn(&ListenerKey) -> bool) {
        for (number, group) in &self.datagrams {
            let is_served = |worker: &usize| group.of_worker(*number, *worker).is_some_and(|key| is_free(&key));
            // The kernel has accepted such a filter when the group was bound.
            let _ = group.steer((0..workers).take_while(is_served).count());
        }
    }

    /// Sockets that one of `workers` workers accepts from.
    pub(super) fn of_worker(&self, worker: usize, workers: usize) -> Vec<ListenerKey> {
        let mut keys = Vec::new();
        for (number, group) in &self.datagrams {
            keys.extend(group.of_worker(*number, worker));
            if self.reads_left {
                keys.extend(group.left_to(*number, worker, workers));
            }
        }
        for (number, address) in &self.open {
            let sockets = address.sockets.iter().map(|(socket, _)| (*number, *socket));
            if address.sockets.len() >= workers {
                keys.extend(sockets.enumerate().filter(|(index, _)| index % workers == worker).map(|(_, key)| key));
            } else {
                keys.extend(
                    sockets
                        .enumerate()
                        .filter(|(index, _)| *index == worker % address.sockets.len())
                        .map(|(_, key)| key),
                );
            }
        }
        keys
    }

    /// Duplicate of a socket's descriptor, for a worker.
    pub(super) fn duplicate(&self, key: ListenerKey) -> io::Result<OpenListener> {
        let (number, socket) = key;
        if socket & UDP_KEY == 0 {
            return Ok(OpenListener { key, listener: self.descriptor(key)?, accepting: None, keeper: None });
        }
        self.datagrams.get(&number).ok_or(io::ErrorKind::NotFound)?.duplicate(key)
    }

    /// True for a UDP socket whose connections need it until they have ended.
    pub(super) fn holds_connections(&self, (number, socket): ListenerKey) -> bool {
        socket & UDP_KEY != 0 && self.datagrams.get(&number).is_some_and(|group| group.is_own(socket))
    }

    fn descriptor(&self, (number, socket): ListenerKey) -> io::Result<Listener> {
        let sockets = self.open.get(&number).into_iter().flat_map(|address| &address.sockets);
        let mut found = sockets.filter(|(other, _)| *other == socket).map(|(_, listener)| listener.try_clone());
        found.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    /// Closes listeners whose retirement is over. Returns the time when the next one ends, or `None` if none is left.
    pub(super) fn close_retired(&mut self, now: Instant) -> Option<Instant> {
        self.open.retain(|_, address| address.retired_at.is_none_or(|at| now < at + RETIREMENT));
        self.open.values().filter_map(|address| address.retired_at).min().map(|at| at + RETIREMENT)
    }

    /// True if an address has UDP sockets for new connections of HTTP/3.
    pub(super) fn has_datagrams(&self, number: u16) -> bool {
        self.datagrams.get(&number).is_some_and(DatagramGroup::has_bank)
    }

    /// Port of an address's UDP sockets.
    pub(super) fn datagram_port(&self, number: u16) -> Option<u16> {
        self.datagrams.get(&number)?.port()
    }

    /// Number of addresses so far; all their numbers are below it.
    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// Listeners of the current configuration, with their numbers.
    pub(super) fn plans(&self) -> impl Iterator<Item = (u16, &ListenerPlan)> {
        self.plans.iter().map(|(number, plan)| (*number, plan))
    }

    /// True if the last change retired a listener.
    pub(super) fn has_retired(&self) -> bool {
        self.has_retired
    }

    /// TCP addresses in use, with the ports that the kernel chose.
    pub(super) fn addresses(&self) -> Vec<ListenAddress> {
        let address = |(number, plan): &(u16, ListenerPlan)| {
            let socket: SocketAddr = self.open.get(number)?.sockets.first()?.1.tcp_address()?;
            let has_http3 = plan.has_http3 && self.has_datagrams(*number);
            Some(ListenAddress { socket, has_tls: plan.has_tls, has_http3, is_ftp: plan.is_ftp })
        };
        self.plans.iter().filter_map(address).collect()
    }

    /// Removes the files of unix sockets.
    pub(super) fn remove_files(&self) {
        self.open.values().for_each(|address| _ = address.remove_file());
    }
}

impl OpenAddress {
    fn new(listen: &Listen) -> Self {
        Self { listen: listen.clone(), sockets: Vec::new(), next_socket: 0, retired_at: None, has_ftp_options: None }
    }

    fn add(&mut self, socket: Listener) {
        self.sockets.push((self.next_socket, socket));
        self.next_socket = self.next_socket.wrapping_add(1);
    }

    /// True if the open sockets can be used again. The file of a retired unix socket is gone.
    fn can_stay(&self) -> bool {
        self.retired_at.is_none() || !matches!(self.listen, Listen::Unix(..))
    }

    /// True if the new process can use the sockets: clients can connect, or can again.
    fn can_be_offered(&self) -> bool {
        let accepts_again = || self.sockets.iter().all(|(_, socket)| socket.ignore_new(false).is_ok());
        self.retired_at.is_none() || (self.can_stay() && accepts_again())
    }

    /// True if the kernel distributes connections among the sockets (`SO_REUSEPORT`).
    fn is_shared_out(&self) -> bool {
        matches!(self.listen, Listen::Tcp(_)) && self.retired_at.is_none()
    }

    /// True if the sockets accept connections, with the options of this plan.
    fn is_of(&self, plan: &ListenerPlan) -> bool {
        self.retired_at.is_none() && self.listen == plan.listen && self.has_ftp_options == Some(plan.is_ftp)
    }

    /// Keeps the sockets open, with the options of the new configuration; reverses a retirement.
    fn stay(&mut self, plan: &ListenerPlan, server: &config::ServerSettings) -> io::Result<()> {
        let listen = &plan.listen;
        self.has_ftp_options = None;
        if self.retired_at.take().is_some() {
            self.sockets.iter().try_for_each(|(_, socket)| socket.ignore_new(false))?;
        }
        if let Listen::Unix(path, mode) = listen
            && self.listen != *listen
        {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode))?;
            self.listen = listen.clone();
        }
        match self.listen {
            // The service manager that opened an inherited socket sets its options.
            Listen::Inherited(_) => {}
            _ => self.sockets.iter().try_for_each(|(_, socket)| socket.apply(server, plan.is_ftp))?,
        }
        self.has_ftp_options = Some(plan.is_ftp);
        Ok(())
    }

    fn retire(&mut self) -> io::Result<()> {
        self.retired_at = Some(Instant::now());
        match self.listen {
            Listen::Tcp(_) => self.sockets.iter().try_for_each(|(_, socket)| socket.ignore_new(true)),
            Listen::Unix(..) => self.remove_file(),
            // Stays open, because a later configuration may use the inherited socket again.
            Listen::Inherited(_) => Ok(()),
        }
    }

    fn remove_file(&self) -> io::Result<()> {
        match &self.listen {
            Listen::Unix(path, _) => remove_socket_file(path),
            _ => Ok(()),
        }
    }
}

/// Reason why an address has no UDP sockets for new connections.
enum DatagramError {
    /// The sockets could not be bound.
    Bind(io::Error),
    /// Processes before this one still use all sockets.
    BanksInUse,
}

impl DatagramError {
    fn help(&self) -> &'static str {
        match self {
            Self::Bind(_) => "clients use HTTP/2; the port must be free",
            Self::BanksInUse => "clients use HTTP/2; run `tailcoat reload` when an older process has ended",
        }
    }
}

impl fmt::Display for DatagramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(error) => error.fmt(f),
            Self::BanksInUse => {
                f.write_str("processes before this one still complete connections of HTTP/3 with all sockets")
            }
        }
    }
}

fn warn_of_closing(log: &ServerLog, listen: &Listen, error: &io::Error) {
    let values: &[(&str, &dyn fmt::Display)] = &[("listen", listen), ("error", error)];
    // Newer kernels (seen with 6.18) allow the filter only with CAP_NET_ADMIN. Operators can do nothing about that.
    match error.kind() {
        io::ErrorKind::PermissionDenied => log.info(event("closing listener without a filter", values)),
        _ => log.warn(event("closing listener failed", values), "connections that clients open now may be reset"),
    }
}

/// Removes a socket's file, unless another kind of file has replaced it.
fn remove_socket_file(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Returns `true` if one is an address, and the other one stands for all addresses of its family, with the same port.
fn overlaps(one: &Listen, other: &Listen) -> bool {
    let (Listen::Tcp(one), Listen::Tcp(other)) = (one, other) else { return false };
    one.port() == other.port()
        && one.is_ipv4() == other.is_ipv4()
        && one.ip().is_unspecified() != other.ip().is_unspecified()
}

/// Key by which listeners are compared; ignores a socket file's permissions.
fn key(listen: &Listen) -> Listen {
    match listen {
        Listen::Unix(path, _) => Listen::Unix(path.clone(), 0),
        listen => listen.clone(),
    }
}
