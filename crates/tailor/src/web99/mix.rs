//! Mix of operations of a run.

use fastrand::Rng;

use super::file_set::{CLASS_SHARES, FILES_BY_RANK, FILES_PER_CLASS, FileId};
use super::operation::{Operation, OperationKind};
use super::tables::ADS;

/// Shares of the kinds of operations, which add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mix([f64; 5]);

impl Default for Mix {
    fn default() -> Self {
        Self([0.70, 0.1245, 0.126, 0.048, 0.0015])
    }
}

impl Mix {
    /// Parses five numbers in percent: static GET, dynamic GET, ad rotation GET, POST, CGI GET.
    ///
    /// # Errors
    /// The text has not five numbers, or they do not add up to 100.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<f64>, _> = text.split(',').map(|number| number.trim().parse::<f64>()).collect();
        match numbers.map(<[f64; 5]>::try_from) {
            Ok(Ok(percents)) if percents.iter().all(|percent| *percent >= 0.0) => match percents.iter().sum::<f64>() {
                sum if (sum - 100.0).abs() < 1e-6 => Ok(Self(percents.map(|percent| percent / 100.0))),
                sum => Err(format!("`{text}` adds up to {sum}, not 100")),
            },
            _ => Err(format!("`{text}` is not five shares in percent, as in 70,12.45,12.6,4.8,0.15")),
        }
    }

    /// True if the mix has operations other than static GET.
    pub(crate) fn is_dynamic(self) -> bool {
        self.0[1..].iter().any(|share| *share > 0.0)
    }

    pub(crate) fn has(self, kind: OperationKind) -> bool {
        self.0[kind as usize] > 0.0
    }

    /// Draws `count` operations in random order. The frequency of each kind, class and file deviates from its share by
    /// at most one. Independent draws would vary more.
    pub(crate) fn sample(self, count: usize, directories: u32, users: u32, rng: &mut Rng) -> Vec<Operation> {
        let mut operations = Vec::with_capacity(count);
        for (kind, count) in OperationKind::ALL.into_iter().zip(apportion(&self.0, count)) {
            for file in sample_files(count, directories, rng) {
                let (user, last_ad) = (rng.u32(..users), rng.u16(..ADS));
                operations.push(Operation { kind, file, user, last_ad, client: 0 });
            }
        }
        rng.shuffle(&mut operations);
        for (index, operation) in operations.iter_mut().enumerate() {
            operation.client = index as u32;
        }
        operations
    }
}

fn sample_files(count: usize, directories: u32, rng: &mut Rng) -> Vec<FileId> {
    let zipf = |count: u32| cumulative((1..=count).map(|rank| 1.0 / f64::from(rank)));
    let (directory_sums, rank_sums) = (zipf(directories), zipf(u32::from(FILES_PER_CLASS)));
    let mut files = Vec::with_capacity(count);
    for (class, count) in apportion(&CLASS_SHARES, count).into_iter().enumerate() {
        let directories = stratified(&directory_sums, count, rng);
        let ranks = stratified(&rank_sums, count, rng);
        files.extend(directories.into_iter().zip(ranks).map(|(directory, rank)| FileId {
            directory: directory as u32,
            class: class as u8,
            number: FILES_BY_RANK[rank],
        }));
    }
    rng.shuffle(&mut files);
    files
}

/// Divides a count by shares. Each share above 0 gets at least one, if the count is not 0.
fn apportion(shares: &[f64], count: usize) -> Vec<usize> {
    let sum: f64 = shares.iter().sum();
    let exact = |share: &f64| share / sum * count as f64;
    let mut parts: Vec<usize> =
        shares.iter().map(|share| (exact(share) as usize).max(usize::from(*share > 0.0 && count > 0))).collect();
    while parts.iter().sum::<usize>() < count {
        let most_short = (0..shares.len())
            .max_by(|a, b| (exact(&shares[*a]) - parts[*a] as f64).total_cmp(&(exact(&shares[*b]) - parts[*b] as f64)));
        parts[most_short.unwrap_or(0)] += 1;
    }
    parts
}

fn cumulative(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sum = 0.0;
    weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect()
}

/// Draws indices in random order; the frequency of each deviates from its weight by at most one. It takes a random
/// point in each of `count` equal sections.
fn stratified(sums: &[f64], count: usize, rng: &mut Rng) -> Vec<usize> {
    let total = sums.last().copied().unwrap_or(0.0);
    let mut indices: Vec<usize> = (0..count)
        .map(|stretch| (stretch as f64 + rng.f64()) / count as f64 * total)
        .map(|point| sums.partition_point(|sum| *sum <= point).min(sums.len() - 1))
        .collect();
    rng.shuffle(&mut indices);
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes() {
        assert_eq!(Mix::parse("70,12.45,12.6,4.8,0.15").unwrap(), Mix::default());
        assert!(!Mix::parse("100,0,0,0,0").unwrap().is_dynamic() && Mix::default().is_dynamic());
        for text in ["", "100", "50,50,0,0,1", "110,-10,0,0,0", "a,b,c,d,e"] {
            assert!(Mix::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parts() {
        for (shares, count, expect) in [
            (&[0.5, 0.5][..], 4, &[2, 2][..]),
            (&[0.7, 0.3], 11, &[8, 3]),
            (&[0.999, 0.001], 10, &[9, 1]),
            (&[1.0, 0.0], 5, &[5, 0]),
            (&[1.0, 1.0], 0, &[0, 0]),
        ] {
            assert_eq!(apportion(shares, count), expect, "{shares:?} of {count}");
        }
    }

    #[test]
    fn samples_have_the_shares() {
        let operations = Mix::default().sample(20_000, 90, 1000, &mut Rng::with_seed(1));
        let share = |test: &dyn Fn(&Operation) -> bool| {
            operations.iter().filter(|operation| test(operation)).count() as f64 / operations.len() as f64
        };
        for (kind, expect) in OperationKind::ALL.into_iter().zip(Mix::default().0) {
            assert!((share(&|it| it.kind == kind) - expect).abs() < 1e-3, "{}", kind.name());
        }
        for (class, expect) in CLASS_SHARES.into_iter().enumerate() {
            assert!((share(&|it| usize::from(it.file.class) == class) - expect).abs() < 1e-3, "class {class}");
        }
        let directory = |number| share(&|it| it.file.directory == number);
        assert!((directory(0) / directory(1) - 2.0).abs() < 0.05 && directory(89) > 0.0);
        // Of ranks 1, 1/2 … 1/9, the first has a share of 35 %.
        assert!((share(&|it| it.file.number == 4) - 0.353_5).abs() < 0.005);
        assert!(operations.iter().any(|it| it.user > 900) && operations.iter().all(|it| it.user < 1000));
    }
}
