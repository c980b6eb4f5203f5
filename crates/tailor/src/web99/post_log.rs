//! Post log of a server: a line with the count, then a record of fixed columns for each POST.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file_set::FileId;
use super::operation::Operation;

const HEAD_BYTES: usize = 11;
const RECORD_BYTES: usize = 139;
/// Start and end of each column: number, time, pid, directory, class, file, client, file name, pid, user.
const COLUMNS: [(usize, usize); 10] =
    [(0, 10), (11, 21), (22, 32), (33, 38), (39, 41), (42, 44), (45, 55), (56, 116), (117, 127), (128, 138)];

/// POST of the run, and the number of times that the log may have it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SentPost {
    pub(crate) operation: Operation,
    /// Number of times that it got the right response.
    pub(crate) served: u64,
    /// Number of times that it was sent. If a request was cut off or failed, the log may or may not have it.
    pub(crate) sent: u64,
}

/// Comparison of the post log with the POSTs of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PostLogSummary {
    /// POSTs sent, including the warm-up.
    pub sent: u64,
    /// POSTs that got the right response.
    pub served: u64,
    /// Records in the log.
    pub recorded: u64,
    /// POSTs that got the right response and are missing in the log.
    pub lost: u64,
    /// Records beyond the number of times that their POST was sent.
    pub doubled: u64,
    /// Records that are malformed, that match no POST, or whose number is not their position.
    pub wrong: u64,
    /// Fault of the log as a whole.
    pub fault: Option<String>,
}

impl PostLogSummary {
    /// True if the log has each POST once, and nothing else.
    pub(crate) fn is_right(&self) -> bool {
        (self.lost, self.doubled, self.wrong) == (0, 0, 0) && self.fault.is_none()
    }
}

/// Values that identify a POST in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PostKey {
    directory: u32,
    class: u8,
    number: u8,
    client: u32,
    user: u32,
}

impl From<&Operation> for PostKey {
    fn from(operation: &Operation) -> Self {
        let FileId { directory, class, number } = operation.file;
        Self { directory, class, number, client: operation.client, user: operation.user }
    }
}

/// Compares a log with the POSTs sent.
pub(crate) fn judge(log: &[u8], sent: &[SentPost]) -> PostLogSummary {
    let mut summary = PostLogSummary {
        sent: sent.iter().map(|post| post.sent).sum(),
        served: sent.iter().map(|post| post.served).sum(),
        ..PostLogSummary::default()
    };
    let (head, records) = log.split_at(log.len().min(HEAD_BYTES));
    let count = std::str::from_utf8(head).ok().and_then(|line| line.strip_suffix('\n')?.trim().parse::<u64>().ok());
    summary.recorded = (records.len() / RECORD_BYTES) as u64;
    summary.fault = match count {
        None => Some("its first line is not a count".to_owned()),
        _ if records.len() % RECORD_BYTES != 0 => Some("its last record is incomplete".to_owned()),
        Some(count) if count != summary.recorded => {
            Some(format!("its first line says {count}, but it has {} records", summary.recorded))
        }
        Some(_) => None,
    };
    let mut counts: HashMap<PostKey, u64> = sent.iter().map(|post| (PostKey::from(&post.operation), 0)).collect();
    for (index, record) in records.chunks_exact(RECORD_BYTES).enumerate() {
        match parse_record(record, index as u64 + 1).and_then(|key| counts.get_mut(&key)) {
            Some(count) => *count += 1,
            None => summary.wrong += 1,
        }
    }
    for post in sent {
        let count = counts[&PostKey::from(&post.operation)];
        summary.lost += post.served.saturating_sub(count);
        summary.doubled += count.saturating_sub(post.sent);
    }
    summary
}

/// Returns true if the log has exactly these POSTs, in this order.
pub(crate) fn is_sequence(log: &[u8], operations: &[Operation]) -> bool {
    let records = log.get(HEAD_BYTES..).unwrap_or_default().chunks_exact(RECORD_BYTES);
    let keys = records.enumerate().map(|(index, record)| parse_record(record, index as u64 + 1));
    keys.eq(operations.iter().map(|operation| Some(PostKey::from(operation))))
}

/// Parses the record at a position, which counts from 1.
fn parse_record(record: &[u8], place: u64) -> Option<PostKey> {
    let text = std::str::from_utf8(record).ok()?;
    // A space must follow each column, and a newline the last one.
    let ends = COLUMNS.iter().map(|(_, end)| &text[*end..end + 1]);
    if !ends.eq(COLUMNS.iter().enumerate().map(|(index, _)| if index + 1 < COLUMNS.len() { " " } else { "\n" })) {
        return None;
    }
    let [number, time, pid, directory, class, file, client, name, pid_again, user] =
        COLUMNS.map(|(start, end)| text[start..end].trim_end());
    fn parse<T: std::str::FromStr>(column: &str) -> Option<T> {
        column.trim_start().parse().ok()
    }
    let key = PostKey {
        directory: parse(directory)?,
        class: parse(class)?,
        number: parse(file)?,
        client: parse(client)?,
        user: parse(user)?,
    };
    let path = FileId { directory: key.directory, class: key.class, number: key.number }.path();
    let is_right = parse::<u64>(number)? == place
        && parse::<u64>(time)? > 0
        && parse::<u64>(pid)? == parse::<u64>(pid_again)?
        && name == path;
    is_right.then_some(key)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::operation::OperationKind;
    use super::*;

    fn post(client: u32) -> Operation {
        let file = FileId { directory: 12, class: 1, number: 3 };
        Operation { kind: OperationKind::Post, file, user: 42, last_ad: 0, client }
    }

    fn record(number: u64, operation: &Operation) -> String {
        let FileId { directory, class, number: file } = operation.file;
        format!(
            "{number:10} 1700000000        123 {directory:5} {class:2} {file:2} {:10} {:<60}        123 {:10}\n",
            operation.client,
            operation.file.path(),
            operation.user
        )
    }

    #[test]
    fn logs() {
        let (a, b) = (post(1), post(2));
        let sent = [SentPost { operation: a, served: 1, sent: 1 }, SentPost { operation: b, served: 1, sent: 2 }];
        let log = |count: u64, records: &[String]| format!("{count:10}\n{}", records.concat());
        let one = record(1, &a);
        assert_eq!(one.len(), RECORD_BYTES);
        for (log, expect) in [
            (log(2, &[one.clone(), record(2, &b)]), (0, 0, 0, true)),
            (log(2, &[record(1, &b), record(2, &a)]), (0, 0, 0, true)),
            // A POST that was sent twice and got one response may be in the log twice.
            (log(3, &[one.clone(), record(2, &b), record(3, &b)]), (0, 0, 0, true)),
            (log(1, std::slice::from_ref(&one)), (1, 0, 0, true)),
            (log(0, &[]), (2, 0, 0, true)),
            (log(3, &[one.clone(), record(2, &a), record(3, &b)]), (0, 1, 0, true)),
            (log(3, &[one.clone(), record(2, &b), record(3, &post(9))]), (0, 0, 1, true)),
            (log(2, &[one.clone(), record(1, &b)]), (1, 0, 1, true)),
            (log(2, &[one.clone(), record(2, &b).replace("class1_3", "class1_4")]), (1, 0, 1, true)),
            (log(2, &[one.clone(), record(2, &b).replace("  123 ", "  124x")]), (1, 0, 1, true)),
            (log(1, &[one.clone(), record(2, &b)]), (0, 0, 0, false)),
            (log(2, &[one.clone(), record(2, &b)[..50].to_owned()]), (1, 0, 0, false)),
            (format!("x{}", log(2, &[one.clone(), record(2, &b)])), (2, 0, 2, false)),
            (String::new(), (2, 0, 0, false)),
        ] {
            let summary = judge(log.as_bytes(), &sent);
            let found = (summary.lost, summary.doubled, summary.wrong, summary.fault.is_none());
            assert_eq!(found, expect, "{log}");
            assert_eq!(summary.is_right(), expect == (0, 0, 0, true), "{log}");
        }
    }

    #[test]
    fn order() {
        let (a, b) = (post(1), post(2));
        let log = format!("         2\n{}{}", record(1, &a), record(2, &b));
        assert!(is_sequence(log.as_bytes(), &[a, b]));
        assert!(!is_sequence(log.as_bytes(), &[b, a]) && !is_sequence(log.as_bytes(), &[a]));
    }
}
