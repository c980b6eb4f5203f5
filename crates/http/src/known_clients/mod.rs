//! Knowledge about clients: crawlers and their addresses, keys of agents, countries, and decisions of CrowdSec.
//!
//! Workers read it from memory. Files, DNS and CrowdSec are the business of [`keep`], on the main thread.

mod address_set;
mod bans;
mod claims;
mod crowdsec;
mod dns;
mod keeper;
mod lists;
mod locations;
mod report;

pub use address_set::AddressSet;
pub use bans::{BanVerdict, Bans, RuleBan, TarpitPlace, TooManyBans};
pub use claims::{Claim, ClaimFuture, Claims};
pub use keeper::{Kept, keep};
pub use lists::{BotLists, ListContent, SiteLists};
pub use locations::Locations;
pub use report::BotReport;

use crate::config;
use crate::log;

/// Time between two looks at files.
const LOOK_TIME: std::time::Duration = std::time::Duration::from_secs(5);
