//! The tables of users and advertisements, as an instance keeps them.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ads::{self, Choice, PERSONALITY_RECORD_BYTES};

/// So long tables count as the files' own.
const FRESH: Duration = Duration::from_secs(1);

thread_local! {
    static TABLES: RefCell<Option<Tables>> = const { RefCell::new(None) };
}

pub(crate) struct Tables {
    users: Vec<u8>,
    ads: Vec<u8>,
    taken: SystemTime,
}

impl Tables {
    /// The advertisement for a user; `None` if the tables are not there, or no longer.
    pub(crate) fn choose(user: u32, last_ad: u32) -> Option<Choice> {
        TABLES.with_borrow(|tables| {
            let (tables, now) = (tables.as_ref()?, SystemTime::now());
            // An error: the clock was set back.
            now.duration_since(tables.taken).ok().filter(|age| *age < FRESH)?;
            let start = user as usize * PERSONALITY_RECORD_BYTES;
            let record = tables.users.get(start..start + PERSONALITY_RECORD_BYTES);
            let now_seconds = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let demographics = record.and_then(ads::demographics);
            Some(demographics.map_or_else(Choice::none, |user| ads::choose(&tables.ads, user, last_ad, now_seconds)))
        })
    }

    /// Removes the tables at the end of a reply. Returns the content before them.
    pub(crate) fn take(reply: &[u8]) -> &[u8] {
        let Some((rest, ads)) = split_table(reply) else { return reply };
        let Some((rest, users)) = split_table(rest) else { return reply };
        let tables = Self { users: users.to_vec(), ads: ads.to_vec(), taken: SystemTime::now() };
        TABLES.set(Some(tables));
        rest
    }

    pub(crate) fn forget() {
        TABLES.take();
    }
}

/// Content before a table, and the table. Its length follows it in four bytes.
fn split_table(reply: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, length) = reply.split_last_chunk::<4>()?;
    rest.split_at_checked(rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?)
}
