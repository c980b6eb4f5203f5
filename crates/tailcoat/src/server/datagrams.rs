//! UDP sockets of HTTP/3.

use std::any::Any;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

use super::lives::{Life, LifeLine};
use crate::config::Listen;
use crate::connection::{SLOTS_MAX, TagKey, steer};
use crate::worker::{LEFT_KEY, Listener, ListenerKey, OpenListener, UDP_KEY, bind_udp};

/// Banks of sockets, if there are not too many workers. A process accepts connections with one, while the processes before
/// it complete theirs with others.
const BANKS_MAX: usize = 8;
const BANKS_MIN: usize = 2;

/// Part of the file descriptors that the sockets of an address may take.
const DESCRIPTOR_PARTS: usize = 4;

/// Index of a process that is not in an offer. Banks that it uses are not taken.
const NO_PROCESS: usize = usize::MAX;

/// Group of the sockets of an address. The kernel numbers them in the order in which they were bound, and connection IDs
/// have these numbers. So all are bound at first, when the server may bind any port, and closed together.
///
/// Each slot of a connection ID has two sockets: its own, and one that accepts, for packets with IDs that clients have chosen.
/// All accepting sockets are after those of the slots.
pub(super) struct DatagramGroup {
    sockets: Arc<DatagramSockets>,
    /// Slots in a bank.
    bank_size: usize,
    /// User of each bank.
    users: Vec<BankUser>,
    /// Bank in use; at first the one of the process before, if all others have users.
    bank: usize,
    is_ipv6: bool,
    tags: TagKey,
}

/// Facts that limit the sockets of a group.
#[derive(Clone, Copy)]
pub(super) struct BankRoom {
    /// CPU cores that the process may use, and so workers that an operator may want.
    pub(super) cores: usize,
    /// File descriptors that the process may have.
    pub(super) descriptors_max: usize,
}

/// Open sockets of a group. They close when the main thread and all workers have dropped them.
struct DatagramSockets {
    /// Sockets of slots, then as many that accept.
    all: Vec<UdpSocket>,
    /// Shows other processes that this one reads its bank.
    _life_line: Arc<LifeLine>,
}

/// Group that no configuration uses any more, while workers complete its connections.
pub(super) struct RetiredGroup {
    sockets: Weak<DatagramSockets>,
    rest: DatagramGroupState,
}

/// State of a group without its sockets.
struct DatagramGroupState {
    bank_size: usize,
    users: Vec<BankUser>,
    bank: usize,
    is_ipv6: bool,
    tags: TagKey,
}

/// Last process that has read the sockets of a bank.
#[derive(Clone)]
enum BankUser {
    /// No process has.
    None,
    /// This process.
    Own,
    /// Another process.
    Other(Arc<Life>),
    /// A process that does not tell when it has ended.
    Unknown,
}

/// Group that a process hands over.
#[derive(Serialize, Deserialize)]
pub(super) struct DatagramOffer {
    /// Address of the listener.
    pub(super) listen: Listen,
    /// Number of sockets, whose descriptors follow.
    pub(super) sockets: usize,
    bank_size: usize,
    /// First socket of the bank in use.
    first: usize,
    /// Last user of each bank, as an index into the processes of the offer. Empty in offers of earlier versions. To these,
    /// the accepting sockets are banks of a process that is not in the offer, so that they don't use them.
    #[serde(default)]
    users: Vec<Option<usize>>,
    /// Number of accepting sockets, the last ones.
    #[serde(default)]
    accepting: usize,
}

impl BankRoom {
    /// Slots in a bank, and number of banks. Banks have slots for more workers, because sockets can't be added later. If file
    /// descriptors are scarce, there are fewer banks.
    fn sizes(self, workers: usize) -> (usize, usize) {
        let slots_max = SLOTS_MAX.min(self.descriptors_max / DESCRIPTOR_PARTS / 2);
        let bank_size = workers.max(self.cores.min(slots_max / BANKS_MAX)).clamp(1, SLOTS_MAX / BANKS_MIN);
        (bank_size, (slots_max / bank_size).clamp(1, BANKS_MAX))
    }
}

impl DatagramOffer {
    /// True if this version can use the sockets. Earlier ones, none of which was released, have no accepting sockets.
    pub(super) fn is_usable(&self) -> bool {
        self.sockets == 2 * self.accepting
    }
}

impl DatagramGroup {
    /// Binds the sockets of an address, of which this number of workers accepts clients. `is_alone` is false if this process has a
    /// listener that overlaps it.
    ///
    /// # Errors
    /// The address is in use or not permitted, or the kernel lacks the filter.
    pub(super) fn bind(
        address: SocketAddr,
        workers: usize,
        room: BankRoom,
        tags: TagKey,
        life_line: Arc<LifeLine>,
        is_alone: bool,
    ) -> io::Result<Self> {
        let (bank_size, banks) = room.sizes(workers);
        let slots = banks * bank_size;
        let sockets = DatagramSockets { all: bind_udp(address, slots, slots, is_alone)?, _life_line: life_line };
        let mut users = vec![BankUser::None; banks];
        users[0] = BankUser::Own;
        let group = Self { sockets: Arc::new(sockets), bank_size, users, bank: 0, is_ipv6: address.is_ipv6(), tags };
        // Without the filter, packets would get to sockets that no worker reads.
        group.steer(workers)?;
        Ok(group)
    }

    /// Takes over the group of another process; uses the next bank without a user.
    ///
    /// # Errors
    /// A descriptor is no socket.
    pub(super) fn handed_over(
        offer: &DatagramOffer,
        descriptors: Vec<OwnedFd>,
        tags: TagKey,
        lives: &[Arc<Life>],
        life_line: Arc<LifeLine>,
    ) -> io::Result<Self> {
        let all: Vec<UdpSocket> = descriptors.into_iter().map(UdpSocket::from).collect();
        let is_ipv6 = all.first().ok_or(io::ErrorKind::InvalidData)?.local_addr()?.is_ipv6();
        let slots = (all.len() / 2).clamp(1, SLOTS_MAX);
        let bank_size = offer.bank_size.clamp(1, slots);
        let bank = offer.first / bank_size;
        let mut users = vec![BankUser::None; slots / bank_size];
        let bank = bank.min(users.len() - 1);
        if offer.users.is_empty() {
            users[bank] = BankUser::Unknown;
        }
        for (user, index) in users.iter_mut().zip(&offer.users) {
            if let Some(index) = index {
                *user = lives.get(*index).cloned().map_or(BankUser::Unknown, BankUser::Other);
            }
        }
        let sockets = Arc::new(DatagramSockets { all, _life_line: life_line });
        let mut group = Self { sockets, bank_size, users, bank, is_ipv6, tags };
        group.find_bank();
        Ok(group)
    }

    /// Offers the group to another process. `index` returns the index of a process in the offer.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn offer(
        &self,
        listen: &Listen,
        descriptors: &mut Vec<OwnedFd>,
        mut index: impl FnMut(Option<&Arc<Life>>) -> Option<usize>,
    ) -> io::Result<DatagramOffer> {
        for socket in &self.sockets.all {
            descriptors.push(socket.try_clone()?.into());
        }
        let users = self.users.iter().map(|user| match user {
            BankUser::None | BankUser::Unknown => None,
            BankUser::Own => index(None),
            BankUser::Other(life) => index(Some(life)),
        });
        let accepting = self.sockets.slots();
        let not_for_slots = std::iter::repeat_n(Some(NO_PROCESS), accepting / self.bank_size);
        Ok(DatagramOffer {
            listen: listen.clone(),
            sockets: self.sockets.all.len(),
            bank_size: self.bank_size,
            first: self.bank * self.bank_size,
            users: users.chain(not_for_slots).collect(),
            accepting,
        })
    }

    /// Takes a bank, if the group has none. Returns false if processes before this one still use all of them.
    pub(super) fn find_bank(&mut self) -> bool {
        let banks = self.users.len();
        let is_free = |bank: &usize| self.users[*bank].is_free();
        if !self.has_bank()
            && let Some(bank) = (1..=banks).map(|step| (self.bank + step) % banks).find(is_free)
        {
            self.bank = bank;
            self.users[bank] = BankUser::Own;
        }
        self.has_bank()
    }

    /// True if this process has a bank.
    pub(super) fn has_bank(&self) -> bool {
        matches!(self.users.get(self.bank), Some(BankUser::Own))
    }

    /// Lets new connections go to the sockets of this number of workers.
    ///
    /// # Errors
    /// The kernel lacks the filter.
    pub(super) fn steer(&self, workers: usize) -> io::Result<()> {
        let Some(socket) = self.sockets.all.first().filter(|_| self.has_bank()) else { return Ok(()) };
        let first = self.sockets.slots() + self.bank * self.bank_size;
        steer(socket, self.is_ipv6, self.tags, first, workers.clamp(1, self.bank_size))
    }

    /// Port of the address.
    pub(super) fn port(&self) -> Option<u16> {
        Some(self.sockets.all.first()?.local_addr().ok()?.port())
    }

    /// Socket of a worker.
    pub(super) fn of_worker(&self, number: u16, worker: usize) -> Option<ListenerKey> {
        let is_present = self.has_bank() && worker < self.bank_size;
        is_present.then(|| key(number, self.bank * self.bank_size + worker))
    }

    /// Sockets whose process has ended, and which one of `workers` workers reads for it.
    pub(super) fn left_to(&self, number: u16, worker: usize, workers: usize) -> impl Iterator<Item = ListenerKey> {
        let has_ended = |bank: usize| matches!(&self.users[bank], BankUser::Other(life) if life.has_ended());
        let banks = (0..self.users.len()).filter(move |bank| has_ended(*bank));
        let slots = banks.flat_map(|bank| (bank * self.bank_size..).take(self.bank_size));
        let own = slots.filter(move |slot| slot % workers.max(1) == worker);
        own.map(move |slot| (number, UDP_KEY | LEFT_KEY | slot as u16))
    }

    /// True for a socket that workers accept connections from.
    pub(super) fn is_own(&self, socket: u16) -> bool {
        self.has_bank() && socket & LEFT_KEY == 0 && slot(socket) / self.bank_size == self.bank
    }

    /// Duplicate of a slot's sockets, with what keeps the group open as long as a worker needs them.
    ///
    /// # Errors
    /// There is no such socket, or no more file descriptors.
    pub(super) fn duplicate(&self, key: ListenerKey) -> io::Result<OpenListener> {
        let (sockets, slot) = (&self.sockets, slot(key.1));
        let own = sockets.all.get(slot).ok_or(io::ErrorKind::NotFound)?;
        // First packets go to a process that has not ended.
        let accepting = sockets.all.get(sockets.slots() + slot).filter(|_| key.1 & LEFT_KEY == 0);
        Ok(OpenListener {
            key,
            listener: Listener::Udp(own.try_clone()?),
            accepting: accepting.map(UdpSocket::try_clone).transpose()?,
            keeper: Some(Arc::clone(sockets) as Arc<dyn Any + Send + Sync>),
        })
    }

    /// Leaves the group to the workers that complete its connections.
    pub(super) fn retire(self) -> RetiredGroup {
        let Self { sockets, bank_size, users, bank, is_ipv6, tags } = self;
        let rest = DatagramGroupState { bank_size, users, bank, is_ipv6, tags };
        RetiredGroup { sockets: Arc::downgrade(&sockets), rest }
    }
}

impl DatagramSockets {
    fn slots(&self) -> usize {
        self.all.len() / 2
    }
}

impl RetiredGroup {
    /// Uses the group again, unless its sockets are closed.
    pub(super) fn reuse(self) -> Option<DatagramGroup> {
        let sockets = self.sockets.upgrade()?;
        let DatagramGroupState { bank_size, users, bank, is_ipv6, tags } = self.rest;
        Some(DatagramGroup { sockets, bank_size, users, bank, is_ipv6, tags })
    }
}

impl BankUser {
    /// True if a process may use the bank.
    fn is_free(&self) -> bool {
        match self {
            Self::None => true,
            Self::Own | Self::Unknown => false,
            Self::Other(life) => life.has_ended(),
        }
    }
}

fn slot(socket: u16) -> usize {
    usize::from(socket & !(UDP_KEY | LEFT_KEY))
}

fn key(number: u16, slot: usize) -> ListenerKey {
    (number, UDP_KEY | slot as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::QuicKeys;

    fn tags() -> TagKey {
        QuicKeys::generate().unwrap().tags()
    }

    /// Process with a group that it has bound or taken over.
    struct Process {
        life: Arc<Life>,
        group: DatagramGroup,
    }

    impl Process {
        fn first() -> Self {
            let (life_line, life) = LifeLine::new().unwrap();
            let address = "127.0.0.1:0".parse().unwrap();
            let group = DatagramGroup::bind(address, 2, ROOM, tags(), Arc::new(life_line), true).unwrap();
            Self { life: Arc::new(life), group }
        }

        fn next(before: &Self) -> Self {
            let (mut lives, mut descriptors) = (Vec::<Arc<Life>>::new(), Vec::new());
            let index = |life: Option<&Arc<Life>>| {
                lives.push(Arc::clone(life.unwrap_or(&before.life)));
                Some(lives.len() - 1)
            };
            let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
            let offer = before.group.offer(&listen, &mut descriptors, index).unwrap();
            let (life_line, life) = LifeLine::new().unwrap();
            let life_line = Arc::new(life_line);
            let group = DatagramGroup::handed_over(&offer, descriptors, tags(), &lives, life_line).unwrap();
            Self { life: Arc::new(life), group }
        }

        fn bank(&self) -> Option<usize> {
            self.group.has_bank().then_some(self.group.bank)
        }
    }

    const ROOM: BankRoom = BankRoom { cores: 2, descriptors_max: 1_024 };

    #[test]
    fn banks_have_slots_for_more_workers_and_fit_the_file_descriptors() {
        for (workers, cores, descriptors_max, expect) in [
            (1, 1, 20_000, (1, 8)),
            (2, 8, 20_000, (8, 8)),
            (2, 64, 20_000, (32, 8)),
            (64, 64, 20_000, (64, 4)),
            (500, 64, 20_000, (128, 2)),
            (64, 64, 1_024, (64, 2)),
            (4, 64, 1_024, (16, 8)),
            (4, 4, 64, (4, 2)),
            (4, 4, 0, (4, 1)),
        ] {
            let room = BankRoom { cores, descriptors_max };
            assert_eq!(room.sizes(workers), expect, "{workers} workers, {cores}, {descriptors_max}");
        }
    }

    #[test]
    fn a_bank_with_a_user_is_not_taken() {
        let mut processes = vec![Process::first()];
        for _ in 0..BANKS_MAX {
            processes.push(Process::next(processes.last().unwrap()));
        }
        let banks: Vec<_> = processes.iter().map(Process::bank).collect();
        let expect: Vec<_> = (0..BANKS_MAX).map(Some).chain([None]).collect();
        assert_eq!(banks, expect);
        let mut last = processes.pop().unwrap();
        assert_eq!(last.group.of_worker(7, 0), None);
        // The third process ends. Its bank is free, and its sockets are read for it.
        drop(processes.remove(2));
        let left: Vec<_> = (0..2).flat_map(|worker| last.group.left_to(7, worker, 2)).collect();
        assert_eq!(left, [(7, UDP_KEY | LEFT_KEY | 4), (7, UDP_KEY | LEFT_KEY | 5)]);
        assert!(last.group.find_bank());
        assert_eq!((last.bank(), last.group.of_worker(7, 1)), (Some(2), Some((7, UDP_KEY | 5))));
        assert_eq!(last.group.left_to(7, 0, 1).count(), 0);
        assert!(last.group.is_own(UDP_KEY | 5) && !last.group.is_own(UDP_KEY | 6));
    }

    #[test]
    fn a_retired_group_stays_open_while_a_worker_needs_it() {
        let Process { group, .. } = Process::first();
        let worker = group.duplicate((0, UDP_KEY)).unwrap();
        let address = worker.accepting.as_ref().unwrap().local_addr().unwrap();
        let retired = group.retire();
        assert!(UdpSocket::bind(address).is_err());
        let group = retired.reuse().unwrap();
        drop(worker);
        assert!(UdpSocket::bind(address).is_err());
        let retired = group.retire();
        assert!(UdpSocket::bind(address).is_ok());
        assert!(retired.reuse().is_none());
    }

    /// Position of the socket that receives a client's first packet.
    fn accepting_socket(group: &DatagramGroup) -> usize {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(&[0xc0, 0, 0, 0, 1, 0], ("127.0.0.1", group.port().unwrap())).unwrap();
        let all = &group.sockets.all;
        all.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        loop {
            if let Some(found) = all.iter().position(|socket| socket.recv(&mut [0; 10]).is_ok()) {
                return found;
            }
        }
    }

    #[test]
    fn first_packets_go_to_sockets_without_slots() {
        let first = Process::first();
        let next = Process::next(&first);
        assert_eq!(next.group.sockets.slots(), 2 * BANKS_MAX);
        next.group.steer(1).unwrap();
        assert_eq!(accepting_socket(&next.group), 2 * BANKS_MAX + 2);
        // The upgrade has failed.
        first.group.steer(1).unwrap();
        assert_eq!(accepting_socket(&first.group), 2 * BANKS_MAX);
        let left = next.group.duplicate((0, UDP_KEY | LEFT_KEY)).unwrap();
        assert!(left.accepting.is_none());
    }

    #[test]
    fn earlier_versions_do_not_use_the_accepting_sockets() {
        let first = Process::first();
        let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        let mut offer = first.group.offer(&listen, &mut Vec::new(), |_| Some(0)).unwrap();
        assert!(offer.is_usable());
        // To them, each entry is a bank. They take none of a process that they don't know.
        assert_eq!(offer.users.len() * offer.bank_size, offer.sockets);
        assert!(offer.users[BANKS_MAX..].iter().all(|user| *user == Some(NO_PROCESS)));
        offer.accepting = 0;
        assert!(!offer.is_usable());
    }
}
