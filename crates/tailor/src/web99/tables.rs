//! Tables for the rotation of advertisements: the users' personalities, and the advertisements with their target
//! groups. Servers create them on `Reset` from three numbers. The client creates the same tables, so it can judge a
//! reply without asking the server.

/// Number of advertisements.
pub(crate) const ADS: u16 = 360;
/// Id of user 0; each user's id is this plus the user's number.
pub(crate) const USER_ID_FIRST: u32 = 10_000;
/// Maximum number of users, because ids have five digits.
pub(crate) const USERS_MAX: u32 = 89_999;

/// Masks of the groups in a word of demographics: gender, age, region, and two of interests.
const GROUPS: [u32; 5] = [0x3000_0000, 0x0f00_0000, 0x00f0_0000, 0x000f_fc00, 0x0000_03ff];
const DAY_SECONDS: u64 = 86_400;

/// Tables of users and advertisements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdTables {
    personalities: Vec<u32>,
    ads: Vec<Ad>,
}

/// Advertisement with its target groups.
#[derive(Clone, Debug, PartialEq)]
struct Ad {
    demographics: u32,
    /// Weight of each group that a user matches.
    weights: [u32; 5],
    minimum: u32,
    /// Expiry time in seconds since 1970.
    expiry_seconds: u64,
}

/// Numbers that `Reset` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) users: u32,
    pub(crate) seed: u32,
    /// Time of the reset in seconds since 1970.
    pub(crate) now_seconds: u64,
}

/// Advertisement chosen for a user, as the reply's cookie gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdChoice {
    /// Number of the advertisement; `None` if the request is invalid or no advertisement suits the user.
    pub(crate) ad: Option<u16>,
    weight: u32,
    is_expired: bool,
}

impl AdTables {
    /// Creates the tables that `Reset` creates from these numbers.
    pub(crate) fn new(seed: Seed) -> Self {
        let mut random = TableRandom(seed.seed);
        let ads = (0..ADS).map(|_| Ad::draw(&mut random, seed.now_seconds)).collect();
        let personalities = (0..seed.users).map(|_| draw_personality(&mut random)).collect();
        Self { personalities, ads }
    }

    /// Chooses the first advertisement after the user's last one that suits the user.
    pub(crate) fn choose(&self, user: u32, last_ad: u16, now_seconds: u64) -> AdChoice {
        let none = AdChoice { ad: None, weight: 0, is_expired: true };
        let Some(personality) = self.personalities.get(user as usize).filter(|_| last_ad < ADS) else { return none };
        (1..=ADS)
            .map(|step| (last_ad + step) % ADS)
            .map(|number| (number, &self.ads[usize::from(number)]))
            .map(|(number, ad)| (number, ad, ad.weight_for(*personality)))
            .find(|(_, ad, weight)| *weight >= ad.minimum)
            .map_or(none, |(number, ad, weight)| AdChoice {
                ad: Some(number),
                weight,
                is_expired: now_seconds > ad.expiry_seconds,
            })
    }

    /// `Custom.Ads`: records of 39 bytes.
    #[cfg(test)]
    pub(crate) fn ads_file(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for (number, ad) in self.ads.iter().enumerate() {
            let weights = ad.weights.iter().fold(0, |word, weight| word << 4 | weight);
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{number:5} {:08X} {weights:08X} {:3} {:10}",
                ad.demographics, ad.minimum, ad.expiry_seconds
            );
        }
        text
    }

    /// `User.Personality`: records of 15 bytes.
    #[cfg(test)]
    pub(crate) fn personality_file(&self) -> String {
        let record = |(user, word): (usize, &u32)| format!("{:5} {word:08X}\n", USER_ID_FIRST + user as u32);
        self.personalities.iter().enumerate().map(record).collect()
    }
}

impl Ad {
    fn draw(random: &mut TableRandom, now_seconds: u64) -> Self {
        let shifts = [(3, 28), (15, 24), (15, 20), (1023, 10), (1023, 0)];
        let demographics = shifts.iter().fold(0, |word, (count, shift)| word | (1 + random.draw(*count)) << shift);
        let weights = std::array::from_fn(|_| random.draw(10));
        let minimum = 10 + random.draw(25);
        let is_expired = random.draw(10) == 0;
        let expiry_seconds = if is_expired { now_seconds - DAY_SECONDS } else { now_seconds + 30 * DAY_SECONDS };
        Self { demographics, weights, minimum, expiry_seconds }
    }

    /// Sum of the weights of the groups that a user matches.
    fn weight_for(&self, personality: u32) -> u32 {
        let common = self.demographics & personality;
        GROUPS.iter().zip(self.weights).filter(|(mask, _)| common & **mask != 0).map(|(_, weight)| weight).sum()
    }
}

fn draw_personality(random: &mut TableRandom) -> u32 {
    let shifts = [(2, 28), (4, 24), (4, 20), (10, 10), (10, 10), (10, 0), (10, 0)];
    shifts.iter().fold(0, |word, (count, shift)| word | 1 << (shift + random.draw(*count)))
}

impl AdChoice {
    /// Value of the reply's Set-Cookie field.
    pub(crate) fn cookie(self) -> String {
        let ad = self.ad.map_or(-1, i32::from);
        format!("found_cookie=Ad_id={ad}&Ad_weight={}&Expired={}", self.weight, u8::from(self.is_expired))
    }
}

/// Linear congruential generator: random numbers that are easy to reproduce in every language.
struct TableRandom(u32);

impl TableRandom {
    fn draw(&mut self, count: u32) -> u32 {
        self.0 = (u64::from(self.0) * 1_103_515_245 + 12_345) as u32 & 0x7fff_ffff;
        (self.0 >> 8) % count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: Seed = Seed { users: 1000, seed: 99, now_seconds: 1_700_000_000 };

    #[test]
    fn files() {
        let tables = AdTables::new(SEED);
        let (ads, personalities) = (tables.ads_file(), tables.personality_file());
        assert_eq!((ads.len(), personalities.len()), (360 * 39, 1000 * 15));
        // web99.php and web99.pl write the same records.
        assert!(ads.starts_with("    0 3EF400CC 00019696  16 1702592000\n    1 3CC659B5 00060420  28 1702592000\n"));
        assert!(personalities.starts_with("10000 228810A0\n10001 21411120\n10002 28450208\n"));
    }

    #[test]
    fn choices() {
        let ad = |demographics, minimum, expiry_seconds| Ad {
            demographics,
            weights: [9, 8, 7, 6, 5],
            minimum,
            expiry_seconds,
        };
        let mut ads = vec![ad(0, 1, 100); 360];
        ads[5] = ad(0x1000_0000, 9, 100);
        ads[7] = ad(0x3f00_0001, 23, 10);
        let tables = AdTables { personalities: vec![0x1100_0400, 0x2100_0001, 0x0f00_0000], ads };
        for (user, last_ad, expect) in [
            (0, 0, "found_cookie=Ad_id=5&Ad_weight=9&Expired=0"),
            (0, 5, "found_cookie=Ad_id=5&Ad_weight=9&Expired=0"), // The search wraps around to the first advertisement.
            (0, 359, "found_cookie=Ad_id=5&Ad_weight=9&Expired=0"),
            (1, 0, "found_cookie=Ad_id=-1&Ad_weight=0&Expired=1"), // 9 + 8 + 5 is 22, below the minimum.
            (2, 0, "found_cookie=Ad_id=-1&Ad_weight=0&Expired=1"),
            (3, 0, "found_cookie=Ad_id=-1&Ad_weight=0&Expired=1"), // No such user exists.
            (0, 360, "found_cookie=Ad_id=-1&Ad_weight=0&Expired=1"),
        ] {
            assert_eq!(tables.choose(user, last_ad, 50).cookie(), expect, "{user} after {last_ad}");
        }
        let mut tables = tables;
        tables.ads[7].minimum = 22;
        assert_eq!(tables.choose(1, 0, 50).cookie(), "found_cookie=Ad_id=7&Ad_weight=22&Expired=1");
    }

    #[test]
    fn most_users_find_an_advertisement_soon() {
        let tables = AdTables::new(SEED);
        let choices: Vec<AdChoice> =
            (0..1000).map(|user| tables.choose(user, (user % 360) as u16, SEED.now_seconds)).collect();
        assert!(choices.iter().all(|choice| choice.ad.is_some()));
        let expired = choices.iter().filter(|choice| choice.is_expired).count();
        assert!((20..300).contains(&expired), "{expired} of 1,000 are expired");
    }
}
