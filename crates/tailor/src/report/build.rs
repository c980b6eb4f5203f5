//! Conversion of the engine's counts to a report.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use hdrhistogram::Histogram;

use super::observe::{Observed, Usage};
use super::*;
use crate::bench::{LoadOptions, Requirement};
use crate::engine::{self, ArrivalPace, IntervalRecord, LineUsage, LoadPlan, LoadVersion, RunOutcome, TargetAddress};

/// Builder that collects the intervals of a run and creates the report at its end.
#[derive(Debug)]
pub(crate) struct Builder {
    arguments: Vec<String>,
    plan: LoadPlan,
    requirements: Vec<Requirement>,
    /// Text of the load profile.
    profile: Option<String>,
    watched: Option<Observed>,
    first_usage: Usage,
    last_usage: Usage,
    server: ServerUsage,
    intervals: Vec<IntervalReport>,
    end_seconds: f64,
}

impl Builder {
    pub(crate) fn new(options: &LoadOptions, plan: &LoadPlan, watched: Option<Observed>) -> Self {
        Self {
            arguments: std::env::args().skip(1).collect(),
            plan: plan.clone(),
            requirements: options.require.clone(),
            profile: options.profile.as_ref().map(|profile| profile.text.clone()),
            watched,
            first_usage: Usage::default(),
            last_usage: Usage::default(),
            server: ServerUsage::default(),
            intervals: Vec::new(),
            end_seconds: 0.0,
        }
    }

    /// Begins counting. The server's CPU time before this moment does not belong to the run.
    pub(crate) fn begin(&mut self) {
        self.first_usage = self.watched.as_ref().map(Observed::read).unwrap_or_default();
        self.last_usage = self.first_usage;
    }

    /// Adds an interval that ended, and writes it to the outputs that the options name.
    pub(crate) fn add(
        &mut self,
        interval: &engine::Interval,
        outputs: &mut IntervalOutputs,
    ) -> Result<IntervalReport, String> {
        let start_seconds = self.end_seconds;
        let length = (interval.end_seconds - start_seconds).max(1e-9);
        let record = &interval.record;
        let usage = self.watched.as_ref().map(Observed::read);
        let share = |micros: u64, earlier: u64| micros.saturating_sub(earlier) as f64 / 1e6 / length;
        let report = IntervalReport {
            start_seconds,
            end_seconds: interval.end_seconds,
            served: record.served,
            served_per_second: record.served as f64 / length,
            failures: record.failures.clone(),
            bytes_received: record.bytes_received,
            p50_nanos: record.latency.value_at_quantile(0.5),
            p99_nanos: record.latency.value_at_quantile(0.99),
            max_nanos: record.latency.max(),
            client_processor_share: interval.processor_time.total.saturating_sub(interval.spin) as f64 / 1e9 / length,
            server_user_share: usage.map(|usage| share(usage.user_micros, self.last_usage.user_micros)),
            server_system_share: usage.map(|usage| share(usage.system_micros, self.last_usage.system_micros)),
            server_memory_bytes: usage.map(|usage| usage.memory_bytes),
            server_own_memory_bytes: usage.map(|usage| usage.own_memory_bytes),
        };
        if let Some(usage) = usage {
            self.server.memory_bytes_max = self.server.memory_bytes_max.max(usage.memory_bytes);
            self.server.swap_bytes_max = self.server.swap_bytes_max.max(usage.swap_bytes);
            self.last_usage = usage;
        }
        self.end_seconds = interval.end_seconds;
        outputs.add(&report, &interval.record.latency)?;
        // A tiny rest after the last whole interval would distort the plots, so it is kept only if it is alone.
        if length > 1e-3 || self.intervals.is_empty() {
            self.intervals.push(report.clone());
        }
        Ok(report)
    }

    pub(crate) fn finish(mut self, outcome: &RunOutcome, limits: Vec<Limit>, interrupted: bool) -> BenchReport {
        let record = &outcome.record;
        let finished = record.finished().max(1) as f64;
        let server = self.watched.is_some().then(|| {
            let micros = |last: u64, first: u64| last.saturating_sub(first) as f64;
            let user = micros(self.last_usage.user_micros, self.first_usage.user_micros);
            let system = micros(self.last_usage.system_micros, self.first_usage.system_micros);
            self.server.user_seconds = user / 1e6;
            self.server.system_seconds = system / 1e6;
            self.server.processor_micros_per_request = (user + system) / finished;
            self.server.clone()
        });
        let is_open = !matches!(self.plan.pace, ArrivalPace::Closed);
        let failed = record.failures.total();
        let mut report = BenchReport {
            format_version: FORMAT_VERSION,
            tailor_version: env!("CARGO_PKG_VERSION").to_owned(),
            start_unix_seconds: outcome.start_time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            address: match &self.plan.address {
                TargetAddress::Tcp(address) => address.to_string(),
                TargetAddress::Unix(path) => path.display().to_string(),
            },
            load: LoadShape { profile: self.profile, ..load(&self.plan) },
            interrupted,
            duration_seconds: outcome.duration.as_secs_f64(),
            served: record.served,
            served_per_second: outcome.served_per_second(),
            goodput_per_second: self
                .plan
                .deadline
                .map(|_| record.in_time as f64 / outcome.duration.as_secs_f64().max(1e-9)),
            deadline_nanos: self.plan.deadline.map(|deadline| deadline.as_nanos() as u64),
            failures: record.failures.clone(),
            failure_reasons: most_frequent_reasons(record),
            failure_details: details(record),
            aborted: record.aborted,
            unfinished: outcome.unfinished,
            statuses: record
                .statuses
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .map(|(class, count)| (format!("{class}xx"), *count))
                .collect(),
            connections: record.connections,
            handshakes: self.plan.tls.is_some().then_some(record.handshakes),
            bytes_received: record.bytes_received,
            bytes_sent: record.bytes_sent,
            datagrams: (self.plan.version == LoadVersion::Http3).then_some(record.datagrams),
            latency: distribution(&record.latency, failed),
            latency_uncorrected: is_open.then(|| distribution(&record.service, failed)),
            lag: is_open.then(|| distribution(&record.lag, 0)),
            waited: is_open.then_some(record.waited),
            connect: distribution(&record.connect, 0),
            tls_handshake: self.plan.tls.is_some().then(|| distribution(&record.handshake, 0)),
            phases: self
                .plan
                .profile()
                .map_or(Vec::new(), |profile| phases::build(profile, &outcome.phases, self.plan.deadline.is_some())),
            scenarios: self.plan.scenarios.as_ref().map_or(Vec::new(), |set| scenarios::build(set, &outcome.scenarios)),
            lines: self.plan.line.and_then(|line| lines(line.receive_bits_per_second, &outcome.lines)),
            shared_line: None,
            client: GeneratorUsage {
                processor_micros_per_request: outcome.processor_time.total.saturating_sub(outcome.spin) as f64
                    / 1e3
                    / finished,
                user_seconds: outcome.processor_time.user as f64 / 1e9,
                system_seconds: outcome.processor_time.system as f64 / 1e9,
                spin_seconds: outcome.spin as f64 / 1e9,
                busiest_thread_share: outcome.busiest_thread_share,
                waiting_share: outcome.waiting_share,
                sources: outcome.sources as u64,
            },
            server,
            precision: None,
            limits,
            requirements: Vec::new(),
            passed: false,
            arguments: self.arguments,
            intervals: self.intervals,
        };
        let percentile = |percentile: f64| value_at(&record.latency, failed, percentile);
        report.requirements = self
            .requirements
            .iter()
            .map(|requirement| {
                let (holds, value) = requirement.judge(&report, percentile);
                RequirementResult { text: requirement.text.clone(), holds, value }
            })
            .collect();
        report.passed = !interrupted && report.served > 0 && report.requirements.iter().all(|result| result.holds);
        report
    }
}

/// Failed requests by class and reason.
fn details(record: &IntervalRecord) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut details: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for ((class, reason), count) in &record.failure_reasons {
        *details.entry(class.name().to_owned()).or_default().entry(reason.to_string()).or_default() += count;
    }
    details
}

fn most_frequent_reasons(record: &IntervalRecord) -> BTreeMap<String, String> {
    let most = |(class, reasons): (String, BTreeMap<String, u64>)| {
        Some((class, reasons.into_iter().max_by_key(|(_, count)| *count)?.0))
    };
    details(record).into_iter().filter_map(most).collect()
}

fn load(plan: &LoadPlan) -> LoadShape {
    let (pace, rate_per_second) = match plan.pace {
        ArrivalPace::Closed => ("closed", None),
        ArrivalPace::Constant(rate) => ("constant", Some(rate)),
        ArrivalPace::Poisson(rate) => ("poisson", Some(rate)),
        ArrivalPace::Profile { .. } => ("profile", None),
        ArrivalPace::Recorded(_) => ("recorded", None),
    };
    LoadShape {
        pace: pace.to_owned(),
        rate_per_second,
        profile: None,
        connections: plan.connections as u64,
        threads: plan.threads as u64,
        pipeline: plan.pipeline as u64,
        protocol: plan.protocol().to_owned(),
        tls: plan.tls.is_some(),
        seed: Some(plan.seed),
    }
}

/// Distribution of a histogram, with percentiles ever closer to 100: 50, 75, 90, 99, 99.9 and more between them. In the
/// percentiles, `failed` requests rank above all values.
fn distribution(histogram: &Histogram<u64>, failed: u64) -> Distribution {
    if histogram.is_empty() {
        return Distribution { failed, ..Distribution::default() };
    }
    let mut percentiles: Vec<f64> = (0..50).map(|step| f64::from(step) * 2.0).collect();
    for nines in 1..=5 {
        let below = 100.0 - 10f64.powi(2 - nines);
        let step = 10f64.powi(1 - nines);
        // 90, 91 … 99, 99.1 … 99.9 and so on, as long as there are values.
        percentiles.extend((0..10).map(|tenth| below + f64::from(tenth) * step * 0.9));
        percentiles.push(100.0 - 10f64.powi(1 - nines));
    }
    percentiles.extend([25.0, 75.0, 95.0, 99.5, 100.0]);
    for percentile in &mut percentiles {
        *percentile = (*percentile * 1e6).round() / 1e6;
    }
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup();
    let count = (histogram.len() + failed) as f64;
    let has_values = |percentile: &f64| *percentile == 100.0 || count * (100.0 - percentile) / 100.0 >= 1.0 - 1e-6;
    Distribution {
        count: histogram.len(),
        min_nanos: histogram.min(),
        mean_nanos: histogram.mean(),
        deviation_nanos: histogram.stdev(),
        max_nanos: histogram.max(),
        percentiles: percentiles
            .into_iter()
            .filter(has_values)
            .filter_map(|percentile| Some(Percentile { percentile, nanos: value_at(histogram, failed, percentile)? }))
            .collect(),
        failed,
    }
}

/// Value at a percentile of a histogram and of `failed` requests, which rank above all its values. Returns `None` if the
/// percentile falls on a failed request, or if there are no values.
pub(super) fn value_at(histogram: &Histogram<u64>, failed: u64, percentile: f64) -> Option<u64> {
    let served = histogram.len() as f64;
    // The small subtraction keeps the rounding error of 99.9 / 100 from selecting the next value.
    let rank = (percentile / 100.0 - 1e-12).max(0.0) * (served + failed as f64);
    (served > 0.0 && rank <= served).then(|| histogram.value_at_quantile(rank / served))
}

fn lines(asked: Option<u64>, usages: &[LineUsage]) -> Option<LineTraffic> {
    let rate = |usage: &LineUsage| usage.bytes as f64 * 8e9 / usage.busy.max(1) as f64;
    let mut rates: Vec<f64> = usages.iter().filter(|usage| usage.busy > 0).map(rate).collect();
    rates.sort_by(f64::total_cmp);
    let within =
        asked.map_or(0, |asked| rates.iter().filter(|rate| (*rate / asked as f64 - 1.0).abs() <= 0.02).count());
    Some(LineTraffic {
        receive_bits_per_second: asked,
        count: rates.len() as u64,
        starved: rates.iter().filter(|rate| **rate == 0.0).count() as u64,
        min: *rates.first()?,
        median: rates[rates.len() / 2],
        mean: rates.iter().sum::<f64>() / rates.len() as f64,
        max: *rates.last()?,
        within_2_percent_share: within as f64 / rates.len() as f64,
        rates,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_go_as_far_as_the_values() {
        let mut histogram = Histogram::new(3).unwrap();
        for value in 1..=1000u64 {
            histogram.record(value).unwrap();
        }
        let distribution = distribution(&histogram, 0);
        for (percentile, expect) in [(50.0, 500), (75.0, 750), (90.0, 900), (99.0, 990), (99.9, 999), (100.0, 1000)] {
            assert_eq!(distribution.at(percentile), Some(expect), "{percentile}");
        }
        let finest = distribution.percentiles.iter().rev().nth(1).unwrap().percentile;
        assert!((finest - 99.9).abs() < 1e-9, "{finest}");
        assert!(distribution.percentiles.windows(2).all(|pair| pair[0].percentile < pair[1].percentile));
    }

    #[test]
    fn percentiles_that_need_more_values() {
        for (count, percentile, expect) in [
            (200, 99.0, true),
            (200, 99.5, true),
            (200, 99.9, false),
            (200, 99.99, false),
            (1, 50.0, true),
            (1, 90.0, false),
            (200, 100.0, true),
        ] {
            let mut histogram = Histogram::new(3).unwrap();
            histogram.record_n(5, count).unwrap();
            assert_eq!(distribution(&histogram, 0).at(percentile).is_some(), expect, "p{percentile} of {count}");
        }
    }

    #[test]
    fn failed_requests_rank_above_all_values() {
        let mut histogram = Histogram::new(3).unwrap();
        for value in 1..=1000u64 {
            histogram.record(value).unwrap();
        }
        for (failed, percentile, expect) in [
            (0, 100.0, Some(1000)),
            (1000, 25.0, Some(500)),
            (1000, 50.0, Some(1000)),
            (1000, 50.1, None),
            (1000, 99.0, None),
            (10, 99.0, Some(1000)),
            (11, 99.0, None),
            (1, 100.0, None),
        ] {
            assert_eq!(value_at(&histogram, failed, percentile), expect, "{failed} failed, p{percentile}");
        }
        let distribution = distribution(&histogram, 1000);
        assert_eq!((distribution.count, distribution.failed, distribution.max_nanos), (1000, 1000, 1000));
        assert_eq!((distribution.at(50.0), distribution.at(75.0)), (Some(1000), None));
        assert_eq!(value_at(&Histogram::new(3).unwrap(), 5, 0.0), None);
    }

    #[test]
    fn rates_of_lines() {
        let usage = |bytes, busy| LineUsage { bytes, busy, received_bytes: bytes };
        let usages = [usage(1000, 1_000_000_000), usage(970, 1_000_000_000), usage(0, 1_000_000_000), usage(0, 0)];
        let both = lines(Some(8_000), &usages[..2]).unwrap();
        assert_eq!((both.count, both.starved, both.min, both.within_2_percent_share), (2, 0, 7_760.0, 0.5));
        // A line without a byte is slow. Only a line without a request is none.
        let starved = lines(Some(8_000), &usages).unwrap();
        assert_eq!((starved.count, starved.starved, starved.min, starved.max), (3, 1, 0.0, 8_000.0));
        assert!((starved.within_2_percent_share - 1.0 / 3.0).abs() < 1e-9);
    }
}
