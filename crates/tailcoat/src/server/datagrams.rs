//! UDP sockets of HTTP/3.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::config::Listen;
use crate::connection::{SLOTS_MAX, steer};
use crate::worker::{ListenerKey, UDP_KEY, bind_udp};

/// Banks of sockets, if there are not too many workers. A process accepts connections with one, while the processes before
/// it complete theirs with others. If more processes run, two read from the same sockets, and lose packets.
const BANKS_MAX: usize = 8;
const BANKS_MIN: usize = 2;

/// Group of the sockets of an address. The kernel numbers them in the order in which they were bound, and connection IDs
/// have these numbers. So none is closed, and all are bound at first, when the server may bind any port.
pub(super) struct DatagramGroup {
    sockets: Vec<UdpSocket>,
    /// Sockets in a bank.
    bank_size: usize,
    /// First socket of the bank in use.
    first: usize,
    is_ipv6: bool,
}

/// Group that a process hands over.
#[derive(Serialize, Deserialize)]
pub(super) struct DatagramOffer {
    /// Address of the listener.
    pub(super) listen: Listen,
    /// Number of sockets, whose descriptors follow.
    pub(super) sockets: usize,
    bank_size: usize,
    first: usize,
}

impl DatagramGroup {
    /// Binds the sockets of an address, for this number of workers.
    ///
    /// # Errors
    /// The address is in use or not permitted, or the kernel lacks the filter.
    pub(super) fn bind(address: SocketAddr, workers: usize) -> io::Result<Self> {
        let bank_size = workers.clamp(1, SLOTS_MAX / BANKS_MIN);
        let banks = (SLOTS_MAX / bank_size).min(BANKS_MAX);
        let sockets = bind_udp(address, banks * bank_size)?;
        let group = Self { sockets, bank_size, first: 0, is_ipv6: address.is_ipv6() };
        // Without the filter, packets would get to sockets that no worker reads.
        group.steer(workers)?;
        Ok(group)
    }

    /// Takes over the group of another process; uses its next bank.
    ///
    /// # Errors
    /// A descriptor is no socket.
    pub(super) fn handed_over(offer: &DatagramOffer, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let sockets: Vec<UdpSocket> = descriptors.into_iter().map(UdpSocket::from).collect();
        let is_ipv6 = sockets.first().ok_or(io::ErrorKind::InvalidData)?.local_addr()?.is_ipv6();
        let bank_size = offer.bank_size.clamp(1, sockets.len());
        let next = offer.first + bank_size;
        let first = if next + bank_size <= sockets.len() { next } else { 0 };
        Ok(Self { sockets, bank_size, first, is_ipv6 })
    }

    /// Offers the group to another process.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn offer(&self, listen: &Listen, descriptors: &mut Vec<OwnedFd>) -> io::Result<DatagramOffer> {
        for socket in &self.sockets {
            descriptors.push(socket.try_clone()?.into());
        }
        let Self { bank_size, first, .. } = *self;
        Ok(DatagramOffer { listen: listen.clone(), sockets: self.sockets.len(), bank_size, first })
    }

    /// Lets new connections go to the sockets of this number of workers.
    ///
    /// # Errors
    /// The kernel lacks the filter.
    pub(super) fn steer(&self, workers: usize) -> io::Result<()> {
        let Some(socket) = self.sockets.first() else { return Ok(()) };
        steer(socket, self.is_ipv6, self.first as u8, workers.clamp(1, self.bank_size))
    }

    /// Port of the address.
    pub(super) fn port(&self) -> Option<u16> {
        Some(self.sockets.first()?.local_addr().ok()?.port())
    }

    /// Socket of a worker.
    pub(super) fn of_worker(&self, number: u16, worker: usize) -> Option<ListenerKey> {
        (worker < self.bank_size).then(|| (number, UDP_KEY | (self.first + worker) as u16))
    }

    /// Duplicate of a socket.
    ///
    /// # Errors
    /// There is no such socket, or no more file descriptors.
    pub(super) fn descriptor(&self, socket: u16) -> io::Result<UdpSocket> {
        let socket = self.sockets.get(usize::from(socket & !UDP_KEY));
        socket.ok_or(io::ErrorKind::NotFound)?.try_clone()
    }
}
