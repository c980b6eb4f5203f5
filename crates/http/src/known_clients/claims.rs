//! Claims of clients to be a crawler, confirmed by DNS. Verdicts are remembered; lookups in progress are shared.

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bots::fcrdns::ClaimVerdict;
use tokio::sync::{mpsc, watch};

/// Maximum number of verdicts that are remembered.
const VERDICTS_MAX: usize = 16_384;

/// Maximum number of lookups that wait or are in progress. Beyond it, claims stay unknown.
const LOOKUPS_MAX: usize = 256;

/// Time for which verdicts hold.
const CONFIRMED_TIME: Duration = Duration::from_secs(86_400);
const REFUTED_TIME: Duration = Duration::from_secs(3_600);
const UNKNOWN_TIME: Duration = Duration::from_secs(30);

/// Longest wait of a request for a verdict.
const WAIT_TIME: Duration = Duration::from_secs(3);

/// Claim of an address to be of one of these domains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Address of the client.
    pub address: IpAddr,
    /// Domains of the crawler.
    pub domains: Vec<String>,
    /// Name server; `None` is the first of the system.
    pub resolver: Option<SocketAddr>,
}

/// Verdict that a request waits for.
pub type ClaimFuture = Pin<Box<dyn Future<Output = ClaimVerdict>>>;

/// Claims with their verdicts, shared by all workers. They survive reloads.
#[derive(Debug)]
pub struct Claims {
    table: Mutex<HashMap<Claim, ClaimState>>,
    lookups: mpsc::Sender<Claim>,
    /// Taken by the task that makes the lookups.
    receiver: Mutex<Option<mpsc::Receiver<Claim>>>,
}

#[derive(Debug)]
enum ClaimState {
    /// DNS is being asked.
    Asked(watch::Receiver<Option<ClaimVerdict>>, watch::Sender<Option<ClaimVerdict>>),
    Known(ClaimVerdict, Instant),
}

impl Default for Claims {
    fn default() -> Self {
        let (lookups, receiver) = mpsc::channel(LOOKUPS_MAX);
        Self { table: Mutex::default(), lookups, receiver: Mutex::new(Some(receiver)) }
    }
}

impl Claims {
    /// Verdict about a claim.
    ///
    /// # Errors
    /// The verdict must be waited for.
    pub fn verdict(self: &Arc<Self>, claim: Claim, now: Instant) -> Result<ClaimVerdict, ClaimFuture> {
        let mut table = self.table();
        let mut receiver = match table.get(&claim) {
            Some(ClaimState::Known(verdict, until)) if *until > now => return Ok(*verdict),
            Some(ClaimState::Asked(receiver, _)) => receiver.clone(),
            _ => {
                if !make_room(&mut table, now) || self.lookups.try_send(claim.clone()).is_err() {
                    return Ok(ClaimVerdict::Unknown);
                }
                let (sender, receiver) = watch::channel(None);
                table.insert(claim, ClaimState::Asked(receiver.clone(), sender));
                receiver
            }
        };
        drop(table);
        Err(Box::pin(async move {
            let known = tokio::time::timeout(WAIT_TIME, receiver.wait_for(Option::is_some)).await;
            known.ok().and_then(|verdict| *verdict.ok()?).unwrap_or(ClaimVerdict::Unknown)
        }))
    }

    /// Sets the verdict about a claim, and wakes the requests that wait for it.
    pub(super) fn decide(&self, claim: &Claim, verdict: ClaimVerdict, now: Instant) {
        let time = match verdict {
            ClaimVerdict::Confirmed => CONFIRMED_TIME,
            ClaimVerdict::Refuted => REFUTED_TIME,
            ClaimVerdict::Unknown => UNKNOWN_TIME,
        };
        let before = self.table().insert(claim.clone(), ClaimState::Known(verdict, now + time));
        if let Some(ClaimState::Asked(_, sender)) = before {
            sender.send_replace(Some(verdict));
        }
    }

    /// Takes the queue of lookups; `None` if another task has it.
    pub(super) fn take_lookups(&self) -> Option<mpsc::Receiver<Claim>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the queue of lookups, for the next task.
    pub(super) fn return_lookups(&self, receiver: mpsc::Receiver<Claim>) {
        *self.receiver.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Claim, ClaimState>> {
        // A panic while the lock is held leaves whole entries.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes room for one more claim. Returns false if there is none: then all are recent.
fn make_room(table: &mut HashMap<Claim, ClaimState>, now: Instant) -> bool {
    if table.len() < VERDICTS_MAX {
        return true;
    }
    // Verdicts about false crawlers come from clients that may have many addresses; confirmed ones stay.
    table.retain(|_, state| match state {
        ClaimState::Asked(..) => true,
        ClaimState::Known(verdict, until) => *until > now && *verdict == ClaimVerdict::Confirmed,
    });
    table.len() < VERDICTS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(number: u32) -> Claim {
        Claim { address: std::net::Ipv4Addr::from(number).into(), domains: vec![".a.example".into()], resolver: None }
    }

    #[tokio::test(start_paused = true)]
    async fn verdicts() {
        let (claims, now) = (Arc::new(Claims::default()), Instant::now());
        let mut lookups = claims.take_lookups().unwrap();
        let [first, second] = [(); 2].map(|()| claims.verdict(claim(1), now).err().unwrap());
        assert_eq!(lookups.try_recv(), Ok(claim(1)));
        assert!(lookups.try_recv().is_err(), "requests share a lookup");
        claims.decide(&claim(1), ClaimVerdict::Refuted, now);
        assert_eq!((first.await, second.await), (ClaimVerdict::Refuted, ClaimVerdict::Refuted));
        assert_eq!(claims.verdict(claim(1), now).ok(), Some(ClaimVerdict::Refuted));
        assert!(claims.verdict(claim(1), now + REFUTED_TIME).is_err(), "it is looked up again");
        // DNS does not answer.
        let silent = claims.verdict(claim(2), now).err().unwrap();
        assert_eq!(silent.await, ClaimVerdict::Unknown);
    }

    #[test]
    fn a_flood_of_claims_is_bounded() {
        let (claims, now) = (Arc::new(Claims::default()), Instant::now());
        let waiting = (0..10_000).filter(|number| claims.verdict(claim(*number), now).is_err()).count();
        assert_eq!(waiting, LOOKUPS_MAX);
        claims.decide(&claim(u32::MAX), ClaimVerdict::Confirmed, now);
        for number in 0..100_000 {
            if make_room(&mut claims.table(), now) {
                claims.decide(&claim(number), ClaimVerdict::Refuted, now);
            }
        }
        assert!(claims.table().len() <= VERDICTS_MAX);
        assert_eq!(claims.verdict(claim(u32::MAX), now).ok(), Some(ClaimVerdict::Confirmed), "it is not forgotten");
    }
}
