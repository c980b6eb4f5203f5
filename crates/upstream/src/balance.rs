//! Load balancing: the choice of a server for each request.
//!
//! Every method looks at all candidates, a few nanoseconds each. With the number of servers in real upstreams, that
//! costs less than keeping tables up to date with weights, health and slow starts.

use fastrand::Rng;

use super::health::FULL_SHARE;
use crate::config::Balance;

/// A server that may take the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Index of the server in the upstream.
    pub(super) server: u16,
    /// Current weight, in thousandths; above 0.
    pub(super) weight: u32,
    /// Requests in progress.
    pub(super) in_use: u32,
    /// Number derived from the server's address, for [`Balance::Hash`].
    pub(super) hash: u64,
}

/// Load, in quarters of the mean, above which a server's keys go to another server (Mirrokni, Thorup, Zadimoghaddam:
/// Consistent Hashing with Bounded Loads, 2016).
const BUSY_QUARTERS: u64 = 5;

/// A worker's load balancing state.
#[derive(Debug)]
pub(super) struct Balancer {
    method: Balance,
    random: Rng,
    /// Credit of each server, for [`Balance::RoundRobin`].
    credit: Vec<i64>,
}

impl Balancer {
    pub(super) fn new(method: Balance, servers: usize, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        // If all workers began with the same server, it would get a burst.
        let credit = (0..servers).map(|_| random.i64(0..i64::from(FULL_SHARE))).collect();
        Self { method, random, credit }
    }

    /// Follows a change of the servers. `before` has the former index of each server; `None` is a new one.
    pub(super) fn rearrange(&mut self, before: &[Option<usize>]) {
        let credit = |index: &Option<usize>| index.and_then(|index| self.credit.get(index).copied()).unwrap_or(0);
        self.credit = before.iter().map(credit).collect();
    }

    /// Chooses a server; `None` if there is no candidate. A request without a key is balanced by connections.
    pub(super) fn choose(&mut self, candidates: &[Candidate], key: Option<u64>) -> Option<u16> {
        match (&self.method, key) {
            _ if candidates.len() < 2 => candidates.first().map(|only| only.server),
            (Balance::RoundRobin, _) => self.next_in_turn(candidates),
            (Balance::Hash(_), Some(key)) => by_hash(candidates, key),
            (Balance::LeastConnections | Balance::Hash(_), _) => Some(self.less_busy_of_two(candidates)),
        }
    }

    /// Smooth weighted round robin, as in nginx: each server earns its weight, and the one with most credit is chosen
    /// and pays the total. So requests to a heavy server are spread among those to others.
    fn next_in_turn(&mut self, candidates: &[Candidate]) -> Option<u16> {
        let mut total = 0;
        for candidate in candidates {
            self.credit[usize::from(candidate.server)] += i64::from(candidate.weight);
            total += i64::from(candidate.weight);
        }
        let credit = |candidate: &&Candidate| self.credit[usize::from(candidate.server)];
        let chosen = candidates.iter().max_by_key(credit)?.server;
        self.credit[usize::from(chosen)] -= total;
        Some(chosen)
    }

    /// Power of two random choices (Mitzenmacher, 2001). It is nearly as even as the least busy of all. Workers that
    /// decide at the same time do not all choose the same server. Needs at least two candidates.
    fn less_busy_of_two(&mut self, candidates: &[Candidate]) -> u16 {
        let first = self.draw(candidates, None);
        let second = self.draw(candidates, Some(first));
        let [first, second] = [candidates[first], candidates[second]];
        // Compares in_use / weight without dividing. Equally busy servers get shares by weight, because the first draw is
        // weighted and wins: otherwise, an idle server of less weight would never be chosen.
        let burden = |one: Candidate, other: Candidate| u64::from(one.in_use) * u64::from(other.weight);
        if burden(second, first) < burden(first, second) { second.server } else { first.server }
    }

    /// Draws a candidate by weight, skipping `except`.
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
        // Reached only if all weights are 0.
        usize::from(except == Some(0))
    }
}

/// Weighted rendezvous hashing (Thaler and Ravishankar, 1998): each server has a score for the key, and the highest
/// wins. When a server goes away, only its keys move, spread over the others by weight; they return when it comes
/// back. A ring or a table is less exact and must be rebuilt when weights change.
fn by_hash(candidates: &[Candidate], key: u64) -> Option<u16> {
    let requests: u64 = candidates.iter().map(|one| u64::from(one.in_use)).sum::<u64>() + 1;
    let weights: u64 = candidates.iter().map(|one| u64::from(one.weight)).sum();
    let has_room = |one: &&Candidate| {
        let most = (BUSY_QUARTERS * requests * u64::from(one.weight)).div_ceil(4 * weights.max(1));
        u64::from(one.in_use) < most
    };
    let score = |one: &Candidate| {
        // Evenly distributed in (0, 1): with -weight / ln, a server has the highest score as often as its weight
        // says.
        let part = ((mix(key ^ one.hash) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -f64::from(one.weight) / part.ln()
    };
    let best = candidates.iter().filter(has_room).max_by(|one, other| score(one).total_cmp(&score(other)));
    best.map(|best| best.server)
}

/// Hashes a client's address, a header field or a cookie to the key of [`Balance::Hash`]. The key is the same in each
/// process and on each machine, so that several proxies send a key to the same server.
pub fn hash_key(bytes: &[u8]) -> u64 {
    // FNV-1a.
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    mix(hash)
}

/// Finalizer of SplitMix64: each bit of the input flips each bit of the output with even chance.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HashKey;

    const HASH: Balance = Balance::Hash(HashKey::Address);

    fn candidates(weights: &[u32], in_use: &[u32]) -> Vec<Candidate> {
        let each = weights.iter().zip(in_use).enumerate();
        each.map(|(server, (weight, in_use))| Candidate {
            server: server as u16,
            weight: weight * FULL_SHARE,
            in_use: *in_use,
            hash: hash_key(format!("http://10.0.0.{server}:80").as_bytes()),
        })
        .collect()
    }

    /// Number of requests each server gets when none is in progress; each request has its own key.
    fn shares(method: Balance, candidates: &[Candidate], requests: u64, seed: u64) -> Vec<u32> {
        let mut balancer = Balancer::new(method, candidates.len(), seed);
        let mut counts = vec![0; candidates.len()];
        for request in 0..requests {
            let chosen = balancer.choose(candidates, Some(hash_key(&request.to_be_bytes()))).unwrap();
            counts[usize::from(chosen)] += 1;
        }
        counts
    }

    #[test]
    fn no_server_to_choose_from() {
        for method in [Balance::LeastConnections, Balance::RoundRobin, HASH] {
            let mut balancer = Balancer::new(method, 3, 1);
            assert_eq!(balancer.choose(&[], Some(1)), None);
            let only = &candidates(&[1, 1, 1], &[0, 0, 9])[2..];
            assert_eq!(balancer.choose(only, Some(1)), Some(2));
        }
    }

    /// Round robin is exact after each round, whatever the seed; the others come within 5 % of 100,000 requests.
    #[test]
    fn each_server_gets_its_share() {
        for (weights, requests) in
            [(&[1, 1][..], 2), (&[1, 1, 1], 3), (&[5, 1, 1], 7), (&[3, 2], 5), (&[1, 1000], 1001), (&[2, 2, 2], 300)]
        {
            let candidates = candidates(weights, &[0; 3]);
            let total: u32 = weights.iter().sum();
            let exact =
                |requests: u64| -> Vec<u32> { weights.iter().map(|weight| weight * requests as u32 / total).collect() };
            for seed in 0..20 {
                assert_eq!(
                    shares(Balance::RoundRobin, &candidates, requests, seed),
                    exact(requests),
                    "{weights:?} {seed}"
                );
            }
            let counts = shares(HASH, &candidates, 100_000, 1);
            for (count, expect) in counts.iter().zip(exact(100_000)) {
                assert!(count.abs_diff(expect) < 5_000, "{weights:?}: {counts:?}");
            }
        }
        // With no requests in progress, shares follow the weights.
        let counts = shares(Balance::LeastConnections, &candidates(&[3, 1], &[0, 0]), 100_000, 1);
        assert!(counts[0].abs_diff(75_000) < 500, "{counts:?}");
        let counts = shares(Balance::LeastConnections, &candidates(&[1, 1, 1, 1], &[0; 4]), 100_000, 1);
        assert!(counts.iter().all(|count| count.abs_diff(25_000) < 500), "{counts:?}");
    }

    /// Requests last, so that some are in progress when others are balanced: the numbers in progress follow the
    /// weights.
    #[test]
    fn two_random_choices_keep_servers_evenly_busy() {
        for weights in [&[1, 1, 1, 1][..], &[4, 2, 1, 1]] {
            let mut balancer = Balancer::new(Balance::LeastConnections, 4, 7);
            let mut in_use = [0; 4];
            let total: u32 = weights.iter().sum();
            let mut random = Rng::with_seed(3);
            for request in 0..20_000 {
                let chosen = balancer.choose(&candidates(weights, &in_use), None).unwrap();
                in_use[usize::from(chosen)] += 1;
                if request < 800 {
                    continue;
                }
                // 800 are in progress at any time; any of them may end.
                let mut ends = random.u32(0..in_use.iter().sum());
                let server = in_use.iter().position(|count| {
                    let is_here = ends < *count;
                    ends = ends.wrapping_sub(*count);
                    is_here
                });
                in_use[server.unwrap()] -= 1;
            }
            for (count, weight) in in_use.iter().zip(weights) {
                let expect = 800 * weight / total;
                assert!(count.abs_diff(expect) <= expect / 10, "{weights:?}: {in_use:?}");
            }
        }
    }

    #[test]
    fn the_busier_of_two_is_passed_over() {
        let mut balancer = Balancer::new(Balance::LeastConnections, 2, 1);
        let mut check = |weights: [u32; 2], in_use: [u32; 2], expect: u16| {
            for _ in 0..100 {
                assert_eq!(
                    balancer.choose(&candidates(&weights, &in_use), None),
                    Some(expect),
                    "{weights:?} {in_use:?}"
                );
            }
        };
        check([1, 1], [1, 0], 1);
        check([1, 1], [0, 1], 0);
        check([2, 1], [1, 1], 0);
        check([2, 1], [4, 1], 1);
    }

    #[test]
    fn smooth_turns() {
        let candidates = candidates(&[5, 1, 1], &[0; 3]);
        let mut balancer = Balancer { credit: vec![0; 3], ..Balancer::new(Balance::RoundRobin, 3, 1) };
        let turns: Vec<_> = (0..7).map(|_| balancer.choose(&candidates, None).unwrap()).collect();
        // The heavy server never gets five in a row.
        assert_eq!(turns, [0, 0, 2, 0, 1, 0, 0]);
    }

    #[test]
    fn keys_stay_where_they_are() {
        let all = candidates(&[1, 1, 1, 1], &[0; 4]);
        let place = |candidates: &[Candidate], key: u64| by_hash(candidates, hash_key(&key.to_be_bytes()));
        for gone in 0..4 {
            let others: Vec<_> = all.iter().copied().filter(|one| one.server != gone).collect();
            let mut moved = [0; 4];
            for key in 0..10_000 {
                let (before, after) = (place(&all, key), place(&others, key));
                if before == Some(gone) {
                    moved[usize::from(after.unwrap())] += 1;
                } else {
                    assert_eq!(before, after, "only keys of the server that went move");
                }
            }
            // And they spread over all others.
            assert!(
                moved.iter().enumerate().all(|(server, count)| server == usize::from(gone) || *count > 600),
                "{moved:?}"
            );
        }
        let reversed: Vec<_> = all.iter().copied().rev().collect();
        assert!((0..1_000).all(|key| place(&all, key) == place(&reversed, key)), "the order does not matter");
    }

    /// Keys of a server that is a quarter busier than the mean go to one other server.
    #[test]
    fn no_server_is_overrun_for_its_keys() {
        let key = hash_key(b"everybody's");
        let mut in_use = [0; 4];
        for _ in 0..400 {
            let chosen = by_hash(&candidates(&[1, 1, 1, 1], &in_use), key).unwrap();
            in_use[usize::from(chosen)] += 1;
        }
        let mut sorted = in_use;
        sorted.sort_unstable();
        assert_eq!(sorted, [25, 125, 125, 125]);
        let busy = candidates(&[1, 1, 1, 1], &in_use);
        let second = by_hash(&busy, key);
        assert!((0..100).all(|_| by_hash(&busy, key) == second));
    }

    #[test]
    fn keys_are_the_same_everywhere() {
        assert_eq!(hash_key(b""), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(hash_key(b"192.0.2.1"), 0x4d0e_1bc6_8452_59f5);
    }
}
