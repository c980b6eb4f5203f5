//! Selection of the advertisement for a user.

/// Number of advertisements.
pub(crate) const ADS: u32 = 360;

/// Bytes of a record of the table of users.
pub(crate) const PERSONALITY_RECORD_BYTES: usize = 15;

const AD_RECORD_BYTES: usize = 39;

/// The groups of a word of demographics: gender, age, region, and two of interests.
const GROUPS: [u32; 5] = [0x3000_0000, 0x0f00_0000, 0x00f0_0000, 0x000f_fc00, 0x0000_03ff];

/// The advertisement chosen for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) ad: Option<u32>,
    weight: u32,
    is_expired: bool,
}

impl Choice {
    /// Of a request that can't be answered.
    pub(crate) fn none() -> Self {
        Self { ad: None, weight: 0, is_expired: true }
    }

    pub(crate) fn cookie(self) -> String {
        let ad = self.ad.map_or(-1, i64::from);
        format!("found_cookie=Ad_id={ad}&Ad_weight={}&Expired={}", self.weight, u8::from(self.is_expired))
    }
}

/// The first advertisement after the user's last one that suits the user, whose demographics these are.
pub(crate) fn choose(ads: &[u8], personality: u32, last_ad: u32, now_seconds: u64) -> Choice {
    if last_ad >= ADS {
        return Choice::none();
    }
    let mut ads = (1..=ADS).map(|step| (last_ad + step) % ADS).filter_map(|ad| Some((ad, Ad::of(ads, ad)?)));
    let found = ads.find_map(|(number, ad)| {
        let weight = ad.weight_for(personality);
        (weight >= ad.minimum).then_some((number, weight, now_seconds > ad.expiry_seconds))
    });
    found.map_or_else(Choice::none, |(ad, weight, is_expired)| Choice { ad: Some(ad), weight, is_expired })
}

/// The demographics in a record of the table of users.
pub(crate) fn demographics(record: &[u8]) -> Option<u32> {
    number(record.get(6..14)?, 16)
}

struct Ad {
    demographics: u32,
    weights: u32,
    minimum: u32,
    expiry_seconds: u64,
}

impl Ad {
    fn of(ads: &[u8], ad: u32) -> Option<Self> {
        let record = ads.get(ad as usize * AD_RECORD_BYTES..)?.get(..AD_RECORD_BYTES)?;
        Some(Self {
            demographics: number(&record[6..14], 16)?,
            weights: number(&record[15..23], 16)?,
            minimum: number(&record[24..27], 10)?,
            expiry_seconds: number(&record[28..38], 10)?.into(),
        })
    }

    /// The sum of the weights of the groups that a user meets: a nibble a group, the last the lowest.
    fn weight_for(&self, personality: u32) -> u32 {
        let common = self.demographics & personality;
        let weights = (0..5).rev().map(|nibble| self.weights >> (4 * nibble) & 15);
        GROUPS.iter().zip(weights).filter(|(mask, _)| common & **mask != 0).map(|(_, weight)| weight).sum()
    }
}

fn number(text: &[u8], radix: u32) -> Option<u32> {
    u32::from_str_radix(str::from_utf8(text).ok()?.trim_start(), radix).ok()
}
