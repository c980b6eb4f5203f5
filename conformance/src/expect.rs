//! Allowed outcomes of a case, and the check of an outcome.

use std::fmt;

use crate::response::ParsedResponse;

/// State of a connection after the responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The server closed it.
    Closed,
    /// A request sent afterwards got its own answer.
    InSync,
    /// A request sent afterwards got something else: the server takes its bytes for something else than they are.
    OutOfSync(String),
    /// The server waits for more, whether it answered already or not; then our half was closed, and this came.
    Waiting(Vec<ParsedResponse>),
}

/// Result of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseOutcome {
    /// The responses, in order, 1xx among them.
    pub responses: Vec<ParsedResponse>,
    /// Bytes that are no (whole) response; empty if all are.
    pub garbage: Vec<u8>,
    /// State of the connection at the end.
    pub end: ConnectionEnd,
}

impl fmt::Display for CaseOutcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses: Vec<_> = self.responses.iter().map(|response| response.status.to_string()).collect();
        if statuses.is_empty() {
            write!(formatter, "none")?;
        }
        write!(formatter, "{}", statuses.join(", "))?;
        if !self.garbage.is_empty() {
            write!(formatter, " + {}", crate::escape(&self.garbage[..self.garbage.len().min(60)]))?;
        }
        match &self.end {
            ConnectionEnd::Closed => write!(formatter, " close"),
            ConnectionEnd::InSync => write!(formatter, " keep"),
            ConnectionEnd::OutOfSync(what) => write!(formatter, " OUT OF SYNC: {what}"),
            ConnectionEnd::Waiting(late) => {
                write!(formatter, " waiting")?;
                late.iter().try_for_each(|response| write!(formatter, ", {} at end of input", response.status))
            }
        }
    }
}

impl CaseOutcome {
    /// True if statuses and end are the same, as they must be for two ways of sending an input.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let statuses = |outcome: &Self| outcome.responses.iter().map(|response| response.status).collect::<Vec<_>>();
        statuses(self) == statuses(other)
            && self.garbage.is_empty() == other.garbage.is_empty()
            && std::mem::discriminant(&self.end) == std::mem::discriminant(&other.end)
    }
}

/// The outcomes that are right, as the `expect` line of a case says.
///
/// Alternatives are separated by ` or `. Each is a list of responses, then `close` (the server must close the connection),
/// `keep` (it must not), `awaits` (it must not, but the input is incomplete) or nothing (close or keep). If a complete
/// input leaves the connection open, the next request must get its own response.
///
/// A response is `400`, `400|501`, `2xx`, or `error` (any 4xx or 5xx). `HEAD` comes before it if it responds to a HEAD request
/// (`HEAD?` if it may), `?` after it if it may be missing, `with Name` if it must have that field. `none`: no response,
/// the server waits for more. `raw`: bytes that are no HTTP/1 response (HTTP/0.9, HTTP/2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    alternatives: Vec<Alternative>,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Alternative {
    None,
    Raw,
    Answers(Vec<ExpectedResponse>, ExpectedConnection),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ExpectedResponse {
    /// First and last status of each range.
    statuses: Vec<(u16, u16)>,
    /// True if it may respond to HEAD, so that its head may be everything.
    head: bool,
    /// True if it does respond to HEAD, so that it has no content (RFC 9110, section 9.3.2).
    is_without_content: bool,
    optional: bool,
    field: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedConnection {
    Close,
    Keep,
    Awaits,
    Either,
}

impl fmt::Display for Expect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Expect {
    /// Reads an `expect` line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let alternatives = text.split(" or ").map(parse_alternative).collect::<Result<_, _>>()?;
        Ok(Self { alternatives, text: text.into() })
    }

    /// Fault of an outcome, or `Ok`. With `silent_close`, a server that must respond with an error and close may only close.
    pub fn check(&self, outcome: &CaseOutcome, silent_close: bool) -> Result<(), String> {
        let is_silent =
            outcome.responses.is_empty() && outcome.garbage.is_empty() && outcome.end == ConnectionEnd::Closed;
        let allows = |alternative: &Alternative| {
            alternative.allows(outcome) || silent_close && is_silent && alternative.is_rejection()
        };
        if self.alternatives.iter().any(allows) { Ok(()) } else { Err(format!("expected {self}, got {outcome}")) }
    }

    /// The greatest number of possible responses.
    pub(crate) fn answers_max(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// True if the response with this index (final ones counted, from 0) may be one to HEAD.
    pub(crate) fn is_head(&self, index: usize) -> bool {
        self.alternatives.iter().any(|alternative| match alternative {
            Alternative::Answers(answers, _) => {
                answers.iter().filter(|answer| !answer.is_interim()).nth(index).is_some_and(|answer| answer.head)
            }
            _ => false,
        })
    }

    /// True if the responses depend on the speed of the input: 100 is for clients that wait.
    pub(crate) fn depends_on_time(&self) -> bool {
        self.alternatives.iter().any(|alternative| match alternative {
            Alternative::Answers(answers, _) => answers.iter().any(ExpectedResponse::is_interim),
            _ => false,
        })
    }

    /// True if the server may send nothing.
    pub(crate) fn may_wait(&self) -> bool {
        self.alternatives.contains(&Alternative::None)
    }

    /// True if the input may be incomplete, so that further bytes would be part of it.
    pub(crate) fn may_be_incomplete(&self) -> bool {
        self.alternatives
            .iter()
            .any(|alternative| matches!(alternative, Alternative::Answers(_, ExpectedConnection::Awaits)))
    }

    /// True if the connection must be closed at the end, whatever the response.
    pub(crate) fn must_close(&self) -> bool {
        self.alternatives.iter().all(|alternative| match alternative {
            Alternative::Answers(_, connection) => *connection == ExpectedConnection::Close,
            _ => true,
        })
    }

    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.alternatives.iter().map(|alternative| match alternative {
            Alternative::None => 0,
            Alternative::Raw => 1,
            Alternative::Answers(answers, _) => answers.len(),
        })
    }
}

impl Alternative {
    /// True for one error and close.
    fn is_rejection(&self) -> bool {
        matches!(self, Self::Answers(answers, ExpectedConnection::Close | ExpectedConnection::Either)
            if answers.len() == 1 && answers[0].statuses.iter().all(|(first, _)| *first >= 400))
    }

    fn allows(&self, outcome: &CaseOutcome) -> bool {
        match self {
            // Nothing that an incomplete request asks for may be done (RFC 9112, section 8).
            Self::None => {
                outcome.responses.is_empty()
                    && outcome.garbage.is_empty()
                    && match &outcome.end {
                        ConnectionEnd::Waiting(late) => late.iter().all(ParsedResponse::is_error),
                        ConnectionEnd::Closed => true,
                        _ => false,
                    }
            }
            Self::Raw => !outcome.garbage.is_empty() && outcome.responses.iter().all(|response| response.status == 101),
            Self::Answers(answers, connection) => {
                outcome.garbage.is_empty()
                    && answers_match(answers, &outcome.responses)
                    && match connection {
                        ExpectedConnection::Close => outcome.end == ConnectionEnd::Closed,
                        ExpectedConnection::Keep => outcome.end == ConnectionEnd::InSync,
                        ExpectedConnection::Awaits => {
                            matches!(&outcome.end, ConnectionEnd::Waiting(late) if late.iter().all(ParsedResponse::is_error))
                        }
                        ExpectedConnection::Either => {
                            matches!(outcome.end, ConnectionEnd::Closed | ConnectionEnd::InSync)
                        }
                    }
            }
        }
    }
}

impl ExpectedResponse {
    fn allows(&self, response: &ParsedResponse) -> bool {
        self.statuses.iter().any(|(first, last)| (*first..=*last).contains(&response.status))
            && (!self.is_without_content || response.body.is_empty())
            && self.field.as_ref().is_none_or(|name| response.field(name).is_some())
    }

    fn is_interim(&self) -> bool {
        self.statuses.iter().all(|(_, last)| *last < 200)
    }
}

fn answers_match(answers: &[ExpectedResponse], responses: &[ParsedResponse]) -> bool {
    match (answers, responses) {
        ([], []) => true,
        ([answer, rest @ ..], responses) => {
            responses
                .split_first()
                .is_some_and(|(response, others)| answer.allows(response) && answers_match(rest, others))
                || answer.optional && answers_match(rest, responses)
        }
        _ => false,
    }
}

fn parse_alternative(text: &str) -> Result<Alternative, String> {
    match text {
        "none" => return Ok(Alternative::None),
        "raw" => return Ok(Alternative::Raw),
        _ => {}
    }
    let (list, connection) = if let Some(list) = text.strip_suffix(" close") {
        (list, ExpectedConnection::Close)
    } else if let Some(list) = text.strip_suffix(" keep") {
        (list, ExpectedConnection::Keep)
    } else if let Some(list) = text.strip_suffix(" awaits") {
        (list, ExpectedConnection::Awaits)
    } else {
        (text, ExpectedConnection::Either)
    };
    Ok(Alternative::Answers(list.split(", ").map(parse_answer).collect::<Result<_, _>>()?, connection))
}

fn parse_answer(text: &str) -> Result<ExpectedResponse, String> {
    let (text, is_without_content) = text.strip_prefix("HEAD ").map_or((text, false), |rest| (rest, true));
    let (text, head) = text.strip_prefix("HEAD? ").map_or((text, is_without_content), |rest| (rest, true));
    let (text, field) = text.split_once(" with ").map_or((text, None), |(rest, name)| (rest, Some(name.to_owned())));
    let (text, optional) = text.strip_suffix('?').map_or((text, false), |rest| (rest, true));
    let mut statuses = Vec::new();
    for status in text.split('|') {
        statuses.push(match status {
            "error" => (400, 599),
            "1xx" => (100, 199),
            "2xx" => (200, 299),
            "3xx" => (300, 399),
            "4xx" => (400, 499),
            "5xx" => (500, 599),
            _ => match status.parse() {
                Ok(number @ 100..=599) => (number, number),
                _ => return Err(format!("not a status: {status}")),
            },
        });
    }
    Ok(ExpectedResponse { statuses, head, is_without_content, optional, field })
}

#[cfg(test)]
mod tests {
    use super::{CaseOutcome, ConnectionEnd, Expect};
    use crate::response::ParsedResponse;

    fn outcome(statuses: &[u16], end: ConnectionEnd) -> CaseOutcome {
        let responses =
            statuses.iter().map(|status| ParsedResponse { status: *status, ..ParsedResponse::default() }).collect();
        CaseOutcome { responses, garbage: Vec::new(), end }
    }

    #[test]
    fn outcomes_against_expectations() {
        let out_of_sync = ConnectionEnd::OutOfSync(String::new());
        let late = |status| ConnectionEnd::Waiting(vec![ParsedResponse { status, ..ParsedResponse::default() }]);
        for (expect, statuses, end, right) in [
            ("400 close", &[400][..], ConnectionEnd::Closed, true),
            ("400 close", &[400], ConnectionEnd::InSync, false),
            ("400 close", &[400, 200], ConnectionEnd::Closed, false),
            ("400|501 close", &[501], ConnectionEnd::Closed, true),
            ("error", &[404], ConnectionEnd::InSync, true),
            ("error", &[404], out_of_sync.clone(), false),
            ("2xx keep", &[204], ConnectionEnd::InSync, true),
            ("2xx keep", &[204], ConnectionEnd::Closed, false),
            ("2xx, 404", &[200, 404], ConnectionEnd::Closed, true),
            ("2xx, 404", &[200], ConnectionEnd::Closed, false),
            ("400 close or 2xx", &[200], ConnectionEnd::InSync, true),
            ("100?, 2xx", &[200], ConnectionEnd::InSync, true),
            ("100?, 2xx", &[100, 200], ConnectionEnd::InSync, true),
            ("100, 2xx", &[200], ConnectionEnd::InSync, false),
            ("2xx", &[100, 200], ConnectionEnd::InSync, false),
            ("none", &[], ConnectionEnd::Waiting(Vec::new()), true),
            ("none", &[], late(400), true),
            ("none", &[], late(200), false),
            ("none", &[], ConnectionEnd::Closed, true),
            ("none", &[400], ConnectionEnd::Closed, false),
            ("405 with Allow", &[405], ConnectionEnd::InSync, false),
        ] {
            let parsed = Expect::parse(expect).expect("a valid expectation");
            assert_eq!(
                parsed.check(&outcome(statuses, end.clone()), false).is_ok(),
                right,
                "{expect}: {statuses:?} {end:?}"
            );
        }
        let silent = outcome(&[], ConnectionEnd::Closed);
        let rejection = Expect::parse("400 close").expect("a valid expectation");
        assert!(rejection.check(&silent, true).is_ok());
        assert!(rejection.check(&silent, false).is_err());
        for wrong in ["", "600", "2xx and close", "4xy", "none close"] {
            assert!(Expect::parse(wrong).is_err(), "{wrong}");
        }
    }
}
