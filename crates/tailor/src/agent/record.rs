//! Counts and histograms in messages.

use base64ct::{Base64, Encoding};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as HistogramDeserializer, Serializer as _, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::engine::{
    DatagramCounts, FailureClass, FailureReason, Failures, GroupRecord, HandshakeCounts, IntervalRecord, LineUsage,
    ProcessorTime, RunOutcome, ScenarioRecord, latency_histogram,
};

/// Maximum number of groups and lines in a message.
const ENTRIES_MAX: usize = 1_000_000;

/// [`IntervalRecord`] in a message.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct SentRecord {
    served: u64,
    in_time: u64,
    failures: Failures,
    /// Name of the class, reason, count.
    reasons: Vec<(String, String, u64)>,
    aborted: u64,
    statuses: [u64; 10],
    connections: u64,
    handshakes: HandshakeCounts,
    bytes_received: u64,
    bytes_sent: u64,
    datagrams: DatagramCounts,
    waited: u64,
    /// Latency, service, lag, connect and handshake.
    histograms: [String; 5],
}

impl SentRecord {
    pub(super) fn new(record: &IntervalRecord) -> Self {
        let reasons = record.failure_reasons.iter();
        let histograms = [&record.latency, &record.service, &record.lag, &record.connect, &record.handshake];
        Self {
            served: record.served,
            in_time: record.in_time,
            failures: record.failures.clone(),
            reasons: reasons
                .map(|((class, reason), count)| (class.name().to_owned(), reason.to_string(), *count))
                .collect(),
            aborted: record.aborted,
            statuses: record.statuses,
            connections: record.connections,
            handshakes: record.handshakes,
            bytes_received: record.bytes_received,
            bytes_sent: record.bytes_sent,
            datagrams: record.datagrams,
            waited: record.waited,
            histograms: histograms.map(encode),
        }
    }

    pub(super) fn record(&self) -> Result<IntervalRecord, String> {
        let mut record = IntervalRecord {
            served: self.served,
            in_time: self.in_time,
            failures: self.failures.clone(),
            aborted: self.aborted,
            statuses: self.statuses,
            connections: self.connections,
            handshakes: self.handshakes,
            bytes_received: self.bytes_received,
            bytes_sent: self.bytes_sent,
            datagrams: self.datagrams,
            waited: self.waited,
            ..IntervalRecord::default()
        };
        for (class, reason, count) in &self.reasons {
            let known = FailureClass::ALL.iter().find(|known| known.name() == class);
            let class = known.ok_or_else(|| format!("unknown class of failures `{class}`"))?;
            *record.failure_reasons.entry((*class, FailureReason::Message(reason.clone()))).or_default() += count;
        }
        let [latency, service, lag, connect, handshake] = &self.histograms;
        decode(latency, &mut record.latency)?;
        decode(service, &mut record.service)?;
        decode(lag, &mut record.lag)?;
        decode(connect, &mut record.connect)?;
        decode(handshake, &mut record.handshake)?;
        Ok(record)
    }
}

/// [`RunOutcome`] in a message.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct SentOutcome {
    record: SentRecord,
    /// Total, user, system and waited.
    processor_nanos: [u64; 4],
    spin_nanos: u64,
    served_in_time: u64,
    duration_nanos: u64,
    /// Bytes, busy time and received bytes of each line.
    lines: Vec<[u64; 3]>,
    phases: Vec<SentGroup>,
    runs: Vec<SentGroup>,
    steps: Vec<SentGroup>,
    unfinished: u64,
    sources: usize,
    port_shortages: u64,
    descriptor_shortages: u64,
    busiest_thread_share: f64,
    waiting_share: f64,
}

/// [`GroupRecord`] in a message.
#[derive(Debug, Deserialize, Serialize)]
struct SentGroup {
    served: u64,
    failed: u64,
    in_time: u64,
    late_until: Option<u64>,
    latency: String,
}

impl SentGroup {
    fn new(group: &GroupRecord) -> Self {
        Self {
            served: group.served,
            failed: group.failed,
            in_time: group.in_time,
            late_until: group.late_until,
            latency: encode(&group.latency),
        }
    }

    fn group(&self) -> Result<GroupRecord, String> {
        let mut group = GroupRecord {
            served: self.served,
            failed: self.failed,
            in_time: self.in_time,
            late_until: self.late_until,
            ..GroupRecord::default()
        };
        if !self.latency.is_empty() {
            group.latency = latency_histogram();
            decode(&self.latency, &mut group.latency)?;
        }
        Ok(group)
    }
}

impl SentOutcome {
    pub(super) fn new(outcome: &RunOutcome) -> Self {
        let ProcessorTime { total, user, system, waited } = outcome.processor_time;
        let groups = |groups: &[GroupRecord]| groups.iter().map(SentGroup::new).collect();
        Self {
            record: SentRecord::new(&outcome.record),
            processor_nanos: [total, user, system, waited],
            spin_nanos: outcome.spin,
            served_in_time: outcome.served_in_time,
            duration_nanos: outcome.duration.as_nanos() as u64,
            lines: outcome.lines.iter().map(|line| [line.bytes, line.busy, line.received_bytes]).collect(),
            phases: groups(&outcome.phases),
            runs: groups(&outcome.scenarios.runs),
            steps: groups(&outcome.scenarios.steps),
            unfinished: outcome.unfinished,
            sources: outcome.sources,
            port_shortages: outcome.port_shortages,
            descriptor_shortages: outcome.descriptor_shortages,
            busiest_thread_share: outcome.busiest_thread_share,
            waiting_share: outcome.waiting_share,
        }
    }

    pub(super) fn outcome(&self) -> Result<RunOutcome, String> {
        let entries = [self.lines.len(), self.phases.len(), self.runs.len(), self.steps.len()];
        if entries.iter().any(|count| *count > ENTRIES_MAX) {
            return Err(format!("more than {ENTRIES_MAX} entries in a message"));
        }
        let [total, user, system, waited] = self.processor_nanos;
        let groups = |groups: &[SentGroup]| groups.iter().map(SentGroup::group).collect::<Result<Vec<_>, _>>();
        Ok(RunOutcome {
            record: self.record.record()?,
            processor_time: ProcessorTime { total, user, system, waited },
            spin: self.spin_nanos,
            served_in_time: self.served_in_time,
            duration: std::time::Duration::from_nanos(self.duration_nanos),
            lines: self
                .lines
                .iter()
                .map(|&[bytes, busy, received_bytes]| LineUsage { bytes, busy, received_bytes })
                .collect(),
            phases: groups(&self.phases)?,
            scenarios: ScenarioRecord { runs: groups(&self.runs)?, steps: groups(&self.steps)? },
            unfinished: self.unfinished,
            sources: self.sources,
            port_shortages: self.port_shortages,
            descriptor_shortages: self.descriptor_shortages,
            busiest_thread_share: self.busiest_thread_share,
            waiting_share: self.waiting_share,
            ..RunOutcome::empty()
        })
    }
}

/// Encodes a histogram; an empty one is an empty text.
fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    match histogram.is_empty() || V2Serializer::new().serialize(histogram, &mut bytes).is_err() {
        true => String::new(),
        false => Base64::encode_string(&bytes),
    }
}

/// Adds an encoded histogram to one with our bounds.
fn decode(text: &str, histogram: &mut Histogram<u64>) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    let bytes = Base64::decode_vec(text).map_err(|_| "a histogram that is not base64".to_owned())?;
    let sent: Histogram<u64> = HistogramDeserializer::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| format!("a histogram that cannot be read: {error:?}"))?;
    histogram.add(&sent).map_err(|error| format!("a histogram with other bounds: {error:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_arrive_as_they_were() {
        let mut outcome = RunOutcome::empty();
        let record = &mut outcome.record;
        (record.served, record.bytes_sent, record.statuses[2]) = (100, 7, 100);
        for value in 1..=100 {
            record.latency.record(value * 1_000_003).unwrap();
        }
        record.fail(FailureClass::TimeOut, FailureReason::Unknown);
        record.fail(FailureClass::Status, FailureReason::Status(404));
        outcome.phases.push(GroupRecord { served: 3, late_until: Some(5), ..GroupRecord::default() });
        outcome.lines.push(LineUsage { bytes: 1, busy: 2, received_bytes: 3 });
        outcome.duration = std::time::Duration::from_millis(1234);
        let text = serde_json::to_string(&SentOutcome::new(&outcome)).unwrap();
        let sent: SentOutcome = serde_json::from_str(&text).unwrap();
        let arrived = sent.outcome().unwrap();
        assert_eq!((arrived.record.served, arrived.duration), (100, outcome.duration));
        assert_eq!(arrived.record.latency, outcome.record.latency);
        assert_eq!(arrived.record.failures, outcome.record.failures);
        assert_eq!(arrived.record.failure_reasons.keys().next().unwrap().1.to_string(), "404");
        assert_eq!((arrived.phases[0].served, arrived.phases[0].late_until), (3, Some(5)));
        assert_eq!(arrived.lines, outcome.lines);
        for (from, to) in [("\"latency\":\"", "\"latency\":\"*"), ("time-out", "tide-out")] {
            if text.contains(from) {
                let sent = serde_json::from_str::<SentOutcome>(&text.replace(from, to));
                let _ = sent.map(|sent| sent.outcome()); // An error or an unknown class without a count; no panic.
            }
        }
    }
}
