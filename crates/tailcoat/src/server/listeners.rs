//! The listeners of the process, by the addresses that configurations name.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{ListenAddress, ServerStartError};
use crate::config::{self, Config, Listen};
use crate::log::{ServerLog, event};
use crate::worker::{self, Inherited, Listener, ListenerKey, ListenerPlan};

/// How long a listener that is not wanted any more is still accepted from: who was told to be connected has to come in, and
/// be kept back by the kernel till its first data is there.
const RETIREMENT: Duration = Duration::from_secs(3);

/// The listeners.
pub(super) struct Listeners {
    inherited: Inherited,
    /// The number of each address, for good.
    numbers: HashMap<Listen, u16>,
    open: HashMap<u16, OpenAddress>,
    /// What the configuration wants, with the numbers.
    plans: Vec<(u16, ListenerPlan)>,
    has_retired: bool,
    /// What another process has handed over and nobody has wanted yet.
    handed: HashMap<Listen, Vec<Listener>>,
}

/// An address that is listened on.
struct OpenAddress {
    listen: Listen,
    /// Each with its number.
    sockets: Vec<(u16, Listener)>,
    next_socket: u16,
    /// Since when it is not wanted any more.
    retired_at: Option<Instant>,
}

/// Listeners that are open for a configuration that is not in use yet.
pub(super) struct NewListeners {
    plans: Vec<(u16, ListenerPlan)>,
    open: Vec<(u16, Listen, Vec<Listener>)>,
}

impl Listeners {
    /// None yet, but what another process has handed over.
    pub(super) fn new(mut inherited: Inherited, handed: Vec<(Listen, Vec<Listener>)>) -> Self {
        let (numbers, open, plans) = Default::default();
        let mut by_address = HashMap::new();
        for (listen, sockets) in handed {
            match listen {
                Listen::Inherited(name) => {
                    inherited = inherited.with(sockets.into_iter().map(|socket| (name.clone(), socket)));
                }
                listen => _ = by_address.insert(key(&listen), sockets),
            }
        }
        Self { inherited, numbers, open, plans, has_retired: false, handed: by_address }
    }

    /// What there is for another process: addresses, each with the number of its sockets, and these. Those of TCP that were
    /// retired are among them, because no other process can listen there until they are closed.
    ///
    /// # Errors
    /// Out of descriptors.
    #[allow(clippy::type_complexity, reason = "two lists that are taken apart at once")]
    pub(super) fn estate(&self) -> io::Result<(Vec<(Listen, usize)>, Vec<OwnedFd>)> {
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

    /// What of that was handed over to this process is listened on.
    pub(super) fn taken(&mut self) -> Vec<Listen> {
        // Nobody accepts from the others here.
        self.handed.clear();
        self.open.values().map(|address| key(&address.listen)).collect()
    }

    /// Leaves these addresses to another process, and gives up the others. The workers accept what waits in the queues from
    /// descriptors of their own. Here none is kept: this process may have much under way, and as long as it has a socket
    /// open, the other process could not listen on an address that it had given up and wants again.
    pub(super) fn hand_on(&mut self, taken: &[Listen], log: &ServerLog) {
        for (_, mut address) in self.open.drain() {
            let is_given_up = address.retired_at.is_none() && !taken.contains(&key(&address.listen));
            if is_given_up && let Err(error) = address.retire() {
                log.warn(
                    event("closing listener failed", &[("listen", &address.listen), ("error", &error)]),
                    "connections that clients open now may be reset",
                );
            }
        }
    }

    /// Opens what a configuration wants and is not open. All else of the configuration should be good by now, for what has
    /// been opened may be connected to.
    ///
    /// # Errors
    /// What can't be listened on.
    pub(super) fn prepare(&mut self, config: &Config, workers: usize) -> Result<NewListeners, ServerStartError> {
        let mut new = NewListeners { plans: Vec::new(), open: Vec::new() };
        for plan in worker::plan(config) {
            let address = key(&plan.listen);
            let next = self.numbers.len();
            let number = *self.numbers.entry(address).or_insert(u16::try_from(next).unwrap_or(u16::MAX));
            if number == u16::MAX {
                let error = io::Error::other("more than 65,535 addresses since the start; run `tailcoat upgrade`");
                return Err(ServerStartError::binding(&plan.listen)(error));
            }
            if let Some(sockets) = self.handed.remove(&key(&plan.listen)) {
                new.open.push((number, plan.listen.clone(), sockets));
            } else if !self.open.get(&number).is_some_and(OpenAddress::can_stay) {
                let sockets = worker::bind(&plan.listen, workers, &config.server, &self.inherited);
                let sockets = sockets.map_err(ServerStartError::binding(&plan.listen))?;
                new.open.push((number, plan.listen.clone(), sockets));
            }
            new.plans.push((number, plan));
        }
        Ok(new)
    }

    /// Takes what has been opened into use, and retires what is not wanted any more.
    pub(super) fn apply(&mut self, new: NewListeners, server: &config::ServerSettings, log: &ServerLog) {
        for (number, listen, sockets) in new.open {
            let address = self.open.entry(number).or_insert_with(|| OpenAddress::new(&listen));
            address.listen = listen;
            address.retired_at = None;
            sockets.into_iter().for_each(|socket| address.add(socket));
        }
        self.plans = new.plans;
        self.has_retired = false;
        for (number, address) in &mut self.open {
            let plan = self.plans.iter().find(|(other, _)| other == number);
            let result = match plan {
                Some((_, plan)) => address.stay(&plan.listen, server),
                None if address.retired_at.is_none() => {
                    self.has_retired = true;
                    address.retire()
                }
                None => Ok(()),
            };
            if let Err(error) = result {
                log.warn(
                    event("changing listener failed", &[("listen", &address.listen), ("error", &error)]),
                    "the listener stays as it was",
                );
            }
        }
    }

    /// Opens more sockets, so that each of so many workers has one of its own, where that can be.
    pub(super) fn widen(&mut self, workers: usize, server: &config::ServerSettings) {
        for address in self.open.values_mut().filter(|address| address.is_shared_out()) {
            while address.sockets.len() < workers {
                let another = address.sockets.first().map(|(_, first)| first.open_another(server));
                // Then workers share what there is, which is slower, but serves all the same.
                let Some(Ok(Some(socket))) = another else { break };
                address.add(socket);
            }
        }
    }

    /// The sockets that a worker is to accept from, of `workers` in all.
    pub(super) fn of_worker(&self, worker: usize, workers: usize) -> Vec<ListenerKey> {
        let mut keys = Vec::new();
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

    /// Another descriptor of a socket.
    pub(super) fn descriptor(&self, (number, socket): ListenerKey) -> io::Result<Listener> {
        let sockets = self.open.get(&number).into_iter().flat_map(|address| &address.sockets);
        let mut found = sockets.filter(|(other, _)| *other == socket).map(|(_, listener)| listener.try_clone());
        found.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    /// Closes what was retired long enough ago; `None` if nothing is left that is, else when there will be.
    pub(super) fn close_retired(&mut self, now: Instant) -> Option<Instant> {
        self.open.retain(|_, address| address.retired_at.is_none_or(|at| now < at + RETIREMENT));
        self.open.values().filter_map(|address| address.retired_at).min().map(|at| at + RETIREMENT)
    }

    /// One more than the highest number.
    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// What the configuration wants, with the numbers.
    pub(super) fn plans(&self) -> impl Iterator<Item = (u16, &ListenerPlan)> {
        self.plans.iter().map(|(number, plan)| (*number, plan))
    }

    /// Whether something was retired when listeners changed last.
    pub(super) fn has_retired(&self) -> bool {
        self.has_retired
    }

    /// The addresses of TCP.
    pub(super) fn addresses(&self) -> Vec<ListenAddress> {
        let address = |(number, plan): &(u16, ListenerPlan)| {
            let socket: SocketAddr = self.open.get(number)?.sockets.first()?.1.tcp_address()?;
            Some(ListenAddress { socket, has_tls: plan.has_tls })
        };
        self.plans.iter().filter_map(address).collect()
    }

    /// Takes the files of unix sockets away.
    pub(super) fn remove_files(&self) {
        self.open.values().for_each(|address| _ = address.remove_file());
    }
}

impl OpenAddress {
    fn new(listen: &Listen) -> Self {
        Self { listen: listen.clone(), sockets: Vec::new(), next_socket: 0, retired_at: None }
    }

    fn add(&mut self, socket: Listener) {
        self.sockets.push((self.next_socket, socket));
        self.next_socket = self.next_socket.wrapping_add(1);
    }

    /// Whether it need not be opened anew if it is wanted. The file of a unix socket that was retired is gone.
    fn can_stay(&self) -> bool {
        self.retired_at.is_none() || !matches!(self.listen, Listen::Unix(..))
    }

    /// True if another process may go on with it: clients can connect, or can again.
    fn can_be_offered(&self) -> bool {
        let accepts_again = || self.sockets.iter().all(|(_, socket)| socket.ignore_new(false).is_ok());
        self.retired_at.is_none() || (self.can_stay() && accepts_again())
    }

    /// Whether the kernel shares connections out among its sockets.
    fn is_shared_out(&self) -> bool {
        matches!(self.listen, Listen::Tcp(_)) && self.retired_at.is_none()
    }

    /// Goes on, perhaps with other options, or after it was retired.
    fn stay(&mut self, listen: &Listen, server: &config::ServerSettings) -> io::Result<()> {
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
            // What is inherited is as who opened it wants it.
            Listen::Inherited(_) => Ok(()),
            _ => self.sockets.iter().try_for_each(|(_, socket)| socket.apply(server)),
        }
    }

    fn retire(&mut self) -> io::Result<()> {
        self.retired_at = Some(Instant::now());
        match self.listen {
            Listen::Tcp(_) => self.sockets.iter().try_for_each(|(_, socket)| socket.ignore_new(true)),
            Listen::Unix(..) => self.remove_file(),
            // It stays open for whoever inherits it, who may want it again.
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

/// Takes a socket's file away; not what somebody has put in its place since.
fn remove_socket_file(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if file.file_type().is_socket() => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// What tells one listener from another: not the permissions of a file.
fn key(listen: &Listen) -> Listen {
    match listen {
        Listen::Unix(path, _) => Listen::Unix(path.clone(), 0),
        listen => listen.clone(),
    }
}
