//! Tasks that keep knowledge about clients up to date.

use std::sync::Arc;
use std::time::Instant;

use tailcoat_dns::system_resolver;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::Bans;
use super::claims::{Claim, Claims};
use super::config::CrowdSec;
use super::dns::confirm;
use super::lists::SiteLists;
use super::locations::Locations;
use super::log::ServerLog;
use super::{LOOK_TIME, crowdsec};

/// Maximum number of lookups at a time.
const LOOKUPS_AT_ONCE: usize = 32;

/// Knowledge that is kept up to date.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Lists of sites.
    pub lists: Vec<Arc<SiteLists>>,
    /// Claims that are confirmed.
    pub claims: Arc<Claims>,
    /// Databases of places.
    pub locations: Arc<Locations>,
    /// CrowdSec, if its decisions are applied.
    pub crowdsec: Option<CrowdSec>,
    /// Bans of CrowdSec.
    pub bans: Arc<Bans>,
}

/// Keeps knowledge up to date, in a tokio runtime. Ends when it is dropped.
pub async fn keep(kept: Kept, log: ServerLog) {
    let Kept { lists, claims, locations, crowdsec, bans } = kept;
    let mut tasks = JoinSet::new();
    tasks.spawn(confirm_claims(claims));
    if let Some(settings) = crowdsec {
        tasks.spawn(crowdsec::follow(settings, bans, log.clone()));
    }
    if !lists.is_empty() || !locations.is_empty() {
        tasks.spawn(async move {
            loop {
                sleep(LOOK_TIME).await;
                let (lists, locations, log) = (lists.clone(), Arc::clone(&locations), log.clone());
                let look = move || {
                    lists.iter().for_each(|lists| lists.look(&log));
                    locations.look(&log);
                };
                // A panic would be a fault of this program; the next look may succeed.
                let _ = spawn_blocking(look).await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// Queue of lookups while a task has it. The next task gets it when this one ends.
struct Lookups {
    claims: Arc<Claims>,
    receiver: Option<tokio::sync::mpsc::Receiver<Claim>>,
}

impl Drop for Lookups {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            self.claims.return_lookups(receiver);
        }
    }
}

async fn confirm_claims(claims: Arc<Claims>) {
    let receiver = loop {
        // The task of the configuration before may not have ended yet.
        match claims.take_lookups() {
            Some(receiver) => break receiver,
            None => sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    let mut lookups = Lookups { claims: Arc::clone(&claims), receiver: Some(receiver) };
    let places = Arc::new(Semaphore::new(LOOKUPS_AT_ONCE));
    while let Some(receiver) = &mut lookups.receiver {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Some(claim) = receiver.recv().await else { return };
        let claims = Arc::clone(&claims);
        // Not a task of this one: a lookup that has begun ends, even after a reload.
        tokio::spawn(async move {
            let resolver = system_resolver();
            let verdict = confirm(&claim, resolver).await;
            claims.decide(&claim, verdict, Instant::now());
            drop(place);
        });
    }
}
