//! Which of several servers gets a request.
//!
//! Every method looks at all servers that come into question, a few nanoseconds each: with the number of servers that
//! people have, that costs less than keeping tables up to date with weights, health and slow starts.

use fastrand::Rng;

use super::health::FULL_SHARE;
use crate::config::Balance;

/// A server that comes into question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its index in the upstream.
    pub(super) server: u16,
    /// Its weight at this moment, in thousandths; above 0.
    pub(super) weight: u32,
    /// Its requests in progress.
    pub(super) in_use: u32,
    /// A number that stands for its address, for [`Balance::Hash`].
    pub(super) hash: u64,
}

/// How much busier than the mean a server may be, in quarters, before requests with its keys go to another
/// (Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, 2016).
const BUSY_QUARTERS: u64 = 5;

/// A worker's choices.
#[derive(Debug)]
pub(super) struct Balancer {
    method: Balance,
    random: Rng,
    /// For [`Balance::RoundRobin`], how much each server is behind.
    behind: Vec<i64>,
}

impl Balancer {
    pub(super) fn new(method: Balance, servers: usize, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        // Workers that all began with the same server would send it a burst.
        let behind = (0..servers).map(|_| random.i64(0..i64::from(FULL_SHARE))).collect();
        Self { method, random, behind }
    }

    /// Chooses; `None` if there is nobody to choose from. A request without a key is balanced by connections.
    pub(super) fn choose(&mut self, candidates: &[Candidate], key: Option<u64>) -> Option<u16> {
        match (&self.method, key) {
            _ if candidates.len() < 2 => candidates.first().map(|only| only.server),
            (Balance::RoundRobin, _) => self.next_in_turn(candidates),
            (Balance::Hash(_), Some(key)) => by_hash(candidates, key),
            (Balance::LeastConnections | Balance::Hash(_), _) => Some(self.less_busy_of_two(candidates)),
        }
    }

    /// Smooth weighted round robin, as nginx has it: each gets its weight, who is furthest behind is chosen and pays for
    /// all. So requests to a heavy server are spread among those to others.
    fn next_in_turn(&mut self, candidates: &[Candidate]) -> Option<u16> {
        let mut total = 0;
        for candidate in candidates {
            self.behind[usize::from(candidate.server)] += i64::from(candidate.weight);
            total += i64::from(candidate.weight);
        }
        let behind = |candidate: &&Candidate| self.behind[usize::from(candidate.server)];
        let chosen = candidates.iter().max_by_key(behind)?.server;
        self.behind[usize::from(chosen)] -= total;
        Some(chosen)
    }

    /// The power of two random choices (Mitzenmacher, 2001): nearly as even as the least busy of all, and workers that
    /// decide at the same time do not all run to the same server. There are at least two candidates.
    fn less_busy_of_two(&mut self, candidates: &[Candidate]) -> u16 {
        let first = self.draw(candidates, None);
        let second = self.draw(candidates, Some(first));
        let [first, second] = [candidates[first], candidates[second]];
        // Compares (in_use + 1) / weight without dividing.
        let burden = |one: Candidate, other: Candidate| (u64::from(one.in_use) + 1) * u64::from(other.weight);
        if burden(second, first) < burden(first, second) { second.server } else { first.server }
    }

    /// Draws one by weight, not this one.
    fn draw(&mut self, candidates: &[Candidate], except: Option<usize>) -> usize {
        let others = || candidates.iter().enumerate().filter(|(index, _)| Some(*index) != except);
        let total: u64 = others().map(|(_, candidate)| u64::from(candidate.weight)).sum();
        let mut left = self.random.u64(0..total.max(1));
        for (index, candidate) in others() {
            let weight = u64::from(candidate.weight);
            if left < weight {
                return index;
            }
            left -= weight;
        }
        // Only if all weights are 0.
        usize::from(except == Some(0))
    }
}

/// Weighted rendezvous hashing (Thaler and Ravishankar, 1998): each server has a score for the key, the highest wins. When
/// a server goes, only its keys move, and they spread over all others by weight; when it comes back, just they return.
/// A ring or a table would do the same less exactly, and would have to be built again when weights change.
fn by_hash(candidates: &[Candidate], key: u64) -> Option<u16> {
    let requests: u64 = candidates.iter().map(|one| u64::from(one.in_use)).sum::<u64>() + 1;
    let weights: u64 = candidates.iter().map(|one| u64::from(one.weight)).sum();
    let has_room = |one: &&Candidate| {
        let most = (BUSY_QUARTERS * requests * u64::from(one.weight)).div_ceil(4 * weights.max(1));
        u64::from(one.in_use) < most
    };
    let score = |one: &Candidate| {
        // Evenly distributed in (0, 1), and so with -weight / ln as the chance to be highest that the weight stands for.
        let part = ((mix(key ^ one.hash) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -f64::from(one.weight) / part.ln()
    };
    let best = candidates.iter().filter(has_room).max_by(|one, other| score(one).total_cmp(&score(other)));
    best.map(|best| best.server)
}

/// The key that a client's address, a field or a cookie is for [`Balance::Hash`]: the same in each process and on each
/// machine, so that several accelerators send a key to the same server.
pub fn hash_key(bytes: &[u8]) -> u64 {
    // FNV-1a.
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mix(hash)
}

/// SplitMix64's finish: each bit of the input changes each of the output with even chance.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
