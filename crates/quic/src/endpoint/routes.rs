//! Tables by which an endpoint finds the connections of datagrams.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};

use super::reset::TOKEN_BYTES;
use crate::id::{ConnectionId, ResetToken};
use crate::types::ConnectionKey;

/// Free places of a table that are kept when it shrinks, as a factor of the used ones.
const SPARE_FACTOR: usize = 2;

/// Places per used one above which a table shrinks. Far above [`SPARE_FACTOR`], so that this is rare.
const SHRINK_FACTOR: usize = 8;

/// Places of a table below which it does not shrink.
const KEPT_PLACES: usize = 128;

/// Tables of an endpoint.
#[derive(Default)]
pub(super) struct Routes {
    /// Connections by the IDs that this endpoint has issued.
    own: HashMap<ConnectionId, u32, RandomState>,
    /// Targets by the destination IDs of the first packets, which clients have chosen.
    first: HashMap<ConnectionId, RouteTarget, RandomState>,
    /// Connections by the reset tokens of their clients.
    resets: HashMap<Token, u32, RandomState>,
    /// Connections by their keys.
    members: Vec<Place>,
    /// Free place that is used next.
    free: Option<u32>,
    count: usize,
}

/// Receiver of datagrams with a destination ID that a client has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteTarget {
    Connection(u32),
    /// Client whose connection is not accepted yet.
    Waiting(u32),
}

enum Place {
    Used(Member),
    /// Next free place.
    Free(Option<u32>),
}

/// Connection of the endpoint.
struct Member {
    /// IDs that are in use.
    ids: Vec<OwnId>,
    /// Sequence number of the next ID.
    next_sequence: u32,
    first_dcid: ConnectionId,
    reset: Option<Box<PeerReset>>,
}

struct OwnId {
    sequence: u32,
    id: ConnectionId,
}

/// Token by which the client can reset the connection.
struct PeerReset {
    remote: SocketAddr,
    token: Token,
}

/// Reset token as a key. Compares in constant time (RFC 9000, section 10.3.1).
#[derive(Clone, Copy)]
struct Token([u8; TOKEN_BYTES]);

/// Bytes of an ID, for look-ups without a copy.
struct RawId<'a>(&'a [u8]);

impl Routes {
    /// Number of connections.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Connection to which this endpoint has issued the ID.
    #[inline]
    pub(super) fn by_own(&self, id: &[u8]) -> Option<ConnectionKey> {
        self.own.get(&RawId(id)).map(|&number| key(number))
    }

    /// Target of the destination ID that a client has chosen.
    pub(super) fn by_first(&self, id: &[u8]) -> Option<RouteTarget> {
        self.first.get(&RawId(id)).copied()
    }

    /// Connection that the datagram resets: it comes from the client's address, and ends with its token.
    pub(super) fn by_reset(&self, remote: SocketAddr, datagram: &[u8]) -> Option<ConnectionKey> {
        if self.resets.is_empty() {
            return None;
        }
        let number = *self.resets.get(&Token(*datagram.last_chunk()?))?;
        let reset = self.member(key(number))?.reset.as_deref()?;
        (reset.remote == remote).then_some(key(number))
    }

    /// Adds a client whose connection is not accepted yet.
    pub(super) fn wait(&mut self, dcid: ConnectionId, number: u32) {
        self.first.insert(dcid, RouteTarget::Waiting(number));
    }

    /// Removes a client whose connection is not accepted. Returns false if the table does not have it.
    pub(super) fn stop_waiting(&mut self, dcid: &ConnectionId, number: u32) -> bool {
        let is_known = self.first.get(dcid) == Some(&RouteTarget::Waiting(number));
        if is_known {
            self.first.remove(dcid);
            shrink(&mut self.first);
        }
        is_known
    }

    /// Adds a connection without issued IDs; `None` if there are too many.
    pub(super) fn add(&mut self, first_dcid: ConnectionId) -> Option<ConnectionKey> {
        let place = Place::Used(Member { ids: Vec::new(), next_sequence: 0, first_dcid, reset: None });
        let number = match self.free {
            Some(number) => {
                let old = std::mem::replace(self.members.get_mut(number as usize)?, place);
                if let Place::Free(next) = old {
                    self.free = next;
                }
                number
            }
            None => {
                let number = u32::try_from(self.members.len()).ok()?;
                self.members.push(place);
                number
            }
        };
        self.first.insert(first_dcid, RouteTarget::Connection(number));
        self.count += 1;
        Some(key(number))
    }

    /// Issues an ID to a connection. Returns its sequence number; `None` if the ID or the connection cannot be used.
    pub(super) fn issue(&mut self, connection: ConnectionKey, id: ConnectionId) -> Option<u64> {
        if self.own.contains_key(&id) {
            return None;
        }
        let member = self.member_mut(connection)?;
        let sequence = member.next_sequence;
        member.next_sequence = sequence.checked_add(1)?;
        member.ids.push(OwnId { sequence, id });
        self.own.insert(id, connection.0 as u32);
        Some(sequence.into())
    }

    /// Makes room for IDs of a connection, not more.
    pub(super) fn reserve(&mut self, connection: ConnectionKey, count: usize) {
        if let Some(member) = self.member_mut(connection) {
            member.ids.reserve_exact(count);
        }
    }

    /// Removes an ID that the client has retired.
    pub(super) fn retire(&mut self, connection: ConnectionKey, sequence: u64) {
        let Some(member) = self.member_mut(connection) else { return };
        if let Some(at) = member.ids.iter().position(|own| u64::from(own.sequence) == sequence) {
            let own = member.ids.swap_remove(at);
            self.own.remove(&own.id);
        }
    }

    /// Sets the token by which the client can reset the connection.
    pub(super) fn set_reset(&mut self, connection: ConnectionKey, remote: SocketAddr, token: ResetToken) {
        let token = Token(token.0);
        let Some(member) = self.member_mut(connection) else { return };
        let old = member.reset.replace(Box::new(PeerReset { remote, token }));
        self.remove_reset(connection, old);
        self.resets.insert(token, connection.0 as u32);
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, connection: ConnectionKey) {
        let Some(place @ Place::Used(_)) = self.members.get_mut(connection.0) else { return };
        let number = connection.0 as u32;
        let Place::Used(member) = std::mem::replace(place, Place::Free(self.free.replace(number))) else { return };
        self.count -= 1;
        for own in &member.ids {
            self.own.remove(&own.id);
        }
        // A later client may have chosen the same ID.
        if self.first.get(&member.first_dcid) == Some(&RouteTarget::Connection(number)) {
            self.first.remove(&member.first_dcid);
        }
        self.remove_reset(connection, member.reset);
        shrink(&mut self.own);
        shrink(&mut self.first);
        shrink(&mut self.resets);
        if self.count == 0 {
            (self.members, self.free) = (Vec::new(), None);
        }
    }

    fn remove_reset(&mut self, connection: ConnectionKey, old: Option<Box<PeerReset>>) {
        // Two connections of a client may have the same token. The later one has the entry.
        if let Some(old) = old
            && self.resets.get(&old.token) == Some(&(connection.0 as u32))
        {
            self.resets.remove(&old.token);
        }
    }

    fn member(&self, connection: ConnectionKey) -> Option<&Member> {
        match self.members.get(connection.0)? {
            Place::Used(member) => Some(member),
            Place::Free(_) => None,
        }
    }

    fn member_mut(&mut self, connection: ConnectionKey) -> Option<&mut Member> {
        match self.members.get_mut(connection.0)? {
            Place::Used(member) => Some(member),
            Place::Free(_) => None,
        }
    }
}

fn key(number: u32) -> ConnectionKey {
    ConnectionKey(number as usize)
}

/// Frees memory of a table that was much larger, such as after a flood.
fn shrink<K: Eq + Hash, V>(table: &mut HashMap<K, V, RandomState>) {
    if table.capacity() > KEPT_PLACES && table.len() * SHRINK_FACTOR < table.capacity() {
        table.shrink_to(table.len() * SPARE_FACTOR);
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for Token {}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl Hash for RawId<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As connection IDs are hashed.
        state.write(self.0);
    }
}

impl Equivalent<ConnectionId> for RawId<'_> {
    fn equivalent(&self, id: &ConnectionId) -> bool {
        self.0 == &id[..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> ConnectionId {
        ConnectionId::new(&number.to_be_bytes()).unwrap()
    }

    fn remote() -> SocketAddr {
        "192.0.2.1:5".parse().unwrap()
    }

    #[test]
    fn connections_are_found_by_their_ids() {
        let mut routes = Routes::default();
        let first = routes.add(id(1)).unwrap();
        let second = routes.add(id(2)).unwrap();
        assert_eq!([10, 11].map(|number| routes.issue(first, id(number))), [Some(0), Some(1)]);
        assert_eq!(routes.issue(second, id(11)), None, "in use");
        assert_eq!(routes.issue(second, id(12)), Some(0));
        let found = |routes: &Routes| [10, 11, 12, 13].map(|number| routes.by_own(&id(number)));
        assert_eq!(found(&routes), [Some(first), Some(first), Some(second), None]);
        assert_eq!(routes.by_first(&id(2)), Some(RouteTarget::Connection(1)));
        routes.retire(first, 0);
        routes.retire(first, 7);
        assert_eq!(found(&routes), [None, Some(first), Some(second), None]);
        assert_eq!(routes.issue(first, id(13)), Some(2));
        routes.remove(first);
        routes.remove(first);
        assert_eq!(found(&routes), [None, None, Some(second), None]);
        assert_eq!((routes.by_first(&id(1)), routes.len()), (None, 1));
        assert_eq!(routes.issue(first, id(14)), None, "removed");
        assert_eq!(routes.add(id(3)), Some(first), "the place is used again");
    }

    #[test]
    fn a_later_client_may_choose_the_same_id() {
        let mut routes = Routes::default();
        let connection = routes.add(id(1)).unwrap();
        routes.wait(id(1), 5);
        routes.remove(connection);
        assert_eq!(routes.by_first(&id(1)), Some(RouteTarget::Waiting(5)));
        assert!(!routes.stop_waiting(&id(1), 4) && routes.stop_waiting(&id(1), 5));
        assert_eq!(routes.by_first(&id(1)), None);
    }

    #[test]
    fn resets_come_from_the_address_with_the_current_token() {
        let mut routes = Routes::default();
        let [first, second] = [1, 2].map(|number| routes.add(id(number)).unwrap());
        let datagram = |token: u8| [vec![0x40; 9], vec![token; 16]].concat();
        routes.set_reset(first, remote(), ResetToken([1; 16]));
        assert_eq!(routes.by_reset(remote(), &datagram(1)), Some(first));
        assert_eq!(routes.by_reset("192.0.2.1:6".parse().unwrap(), &datagram(1)), None);
        assert_eq!(routes.by_reset(remote(), &[1; 15]), None);
        routes.set_reset(first, remote(), ResetToken([2; 16]));
        routes.set_reset(first, remote(), ResetToken([2; 16]));
        assert_eq!([1, 2].map(|token| routes.by_reset(remote(), &datagram(token))), [None, Some(first)]);
        // Two connections with one token.
        routes.set_reset(second, remote(), ResetToken([2; 16]));
        routes.remove(first);
        assert_eq!(routes.by_reset(remote(), &datagram(2)), Some(second));
        routes.remove(second);
        assert_eq!((routes.by_reset(remote(), &datagram(2)), routes.resets.len()), (None, 0));
    }

    #[test]
    fn a_connection_costs_little_and_frees_all() {
        // The table has a place of 28 bytes for each ID, and the connection another one.
        assert!(size_of::<(ConnectionId, u32)>() <= 28 && size_of::<OwnId>() <= 28 && size_of::<Place>() <= 64);
        let mut routes = Routes::default();
        for number in 0..10_000 {
            let connection = routes.add(id(number)).unwrap();
            routes.reserve(connection, 1);
            assert_eq!(routes.issue(connection, id(number)), Some(0));
            routes.set_reset(connection, remote(), ResetToken(std::array::from_fn(|at| (number >> at) as u8)));
            assert_eq!(routes.member(connection).unwrap().ids.capacity(), 1);
        }
        assert_eq!(routes.len(), 10_000);
        for number in 0..10_000 {
            routes.remove(key(number));
        }
        assert!(routes.own.is_empty() && routes.first.is_empty() && routes.resets.is_empty() && routes.len() == 0);
        assert!([routes.own.capacity(), routes.first.capacity()].iter().all(|&places| places <= 2 * KEPT_PLACES));
        assert_eq!(routes.members.capacity(), 0);
        assert!(routes.add(id(0)).is_some());
    }
}
