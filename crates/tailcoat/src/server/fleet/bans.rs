//! Bans by rules that instances share: those of this instance go to a board in the store, and those of others come back.

use std::sync::Arc;
use std::time::Duration;

use tailcoat_fleet::{Board, BoardChange, BoardEntry, InstanceTime, StoreRequest, StoreResult};

use crate::config::{BanAction, Network, network_from_text};
use crate::known_clients::{Bans, RuleBan};
use crate::log::{ServerLog, event};

/// Key of the board.
const KEY: &str = "bans";

/// Reads of events in the time between two reads of the board.
const POLLS: u32 = 2;

/// Bans by rules that instances share.
pub(super) struct SharedBans {
    board: Board,
    /// Bans of this instance; `None` if they are not shared.
    bans: Option<Arc<Bans>>,
    log: ServerLog,
}

impl SharedBans {
    pub(super) fn new(poll_interval: Duration, log: ServerLog) -> Self {
        Self { board: Board::new(KEY, poll_interval * POLLS), bans: None, log }
    }

    /// Shares these bans.
    pub(super) fn set_bans(&mut self, bans: Arc<Bans>) {
        bans.share(true);
        self.bans = Some(bans);
    }

    /// Time of the next request.
    pub(super) fn next_wake(&self) -> Option<InstanceTime> {
        self.bans.as_ref().and(self.board.next_wake())
    }

    /// Request that is due.
    pub(super) fn poll(&mut self, now: InstanceTime, unix_ms: u64) -> Option<StoreRequest> {
        let bans = self.bans.as_ref()?;
        let request = self.board.poll(now)?;
        for (network, change) in bans.take_changes() {
            match change {
                Some((left, action)) => {
                    let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                    let until_unix_ms = unix_ms.saturating_add(left_ms);
                    // Without a place, the ban stays with this instance.
                    self.board.set(network.to_string(), BoardEntry { value: action.to_string(), until_unix_ms });
                }
                None => self.board.remove(&network.to_string()),
            }
        }
        Some(request)
    }

    /// Takes a reply, and returns the next request.
    pub(super) fn handle_reply(
        &mut self,
        now: InstanceTime,
        unix_ms: u64,
        result: StoreResult,
    ) -> Option<StoreRequest> {
        let mut changes = Vec::new();
        let next = self.board.handle_reply(now, unix_ms, result, &mut changes);
        if let Some(bans) = &self.bans {
            let wanted = changes.iter().filter_map(|change| change_of(change, unix_ms));
            let applied = wanted.filter(|(network, change)| bans.apply_change(*network, *change)).count();
            if applied > 0 {
                self.log.info(event("bans of other instances applied", &[("changes", &applied)]));
            }
        }
        next
    }
}

impl Drop for SharedBans {
    fn drop(&mut self) {
        if let Some(bans) = &self.bans {
            bans.share(false);
        }
    }
}

/// Change of a ban. `None` if no rule makes such a ban: the store is not trusted to ban whole networks.
fn change_of(change: &BoardChange, unix_ms: u64) -> Option<(Network, RuleBan)> {
    let (key, entry) = match change {
        BoardChange::Set(key, entry) => (key, Some(entry)),
        BoardChange::Removed(key) => (key, None),
    };
    let network = network_from_text(key).ok()?;
    let is_of_one = network.prefix_bits() == if network.first().is_ipv4() { 32 } else { 64 };
    let ban = entry.map(|entry| {
        let left_ms = entry.until_unix_ms.saturating_sub(unix_ms);
        // An action of a later version is one of this.
        (Duration::from_millis(left_ms), BanAction::from_text(&entry.value).unwrap_or_default())
    });
    is_of_one.then_some((network, ban))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes() {
        let set = |key: &str, value: &str| {
            let entry = BoardEntry { value: value.to_owned(), until_unix_ms: 61_000 };
            change_of(&BoardChange::Set(key.to_owned(), entry), 1_000)
        };
        let ban = |action| Some((Duration::from_secs(60), action));
        let network = |text: &str| network_from_text(text).unwrap();
        for (key, value, expect) in [
            ("192.0.2.1/32", "tarpit", Some((network("192.0.2.1/32"), ban(BanAction::Tarpit)))),
            ("2001:db8::/64", "limit:2:10", Some((network("2001:db8::/64"), ban(BanAction::Limit(2, 10))))),
            ("192.0.2.1/32", "later", Some((network("192.0.2.1/32"), ban(BanAction::Reject)))),
            // A hostile store.
            ("0.0.0.0/0", "reject", None),
            ("192.0.2.0/24", "reject", None),
            ("2001:db8::/32", "reject", None),
            ("", "reject", None),
            ("x", "reject", None),
        ] {
            assert_eq!(set(key, value), expect, "{key} {value}");
        }
        let removed = BoardChange::Removed("192.0.2.1/32".to_owned());
        assert_eq!(change_of(&removed, 0), Some((network("192.0.2.1/32"), None)));
    }
}
