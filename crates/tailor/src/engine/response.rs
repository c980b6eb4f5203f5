//! Parser and checker for responses. Every byte is parsed or compared.

use wire::h1::{
    BodyDecoder, BodyFraming, BodyLimits, HeadLimits, MalformedResponse, ResponseFraming, ResponseHead,
    parse_response_head,
};

use super::check::BodyJudge;
use super::failure::FailureClass;
use super::workload::WorkloadRequest;

const HEAD_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 64 << 10, fields_max: 256, target_bytes_max: 0 };
const BODY_LIMITS: BodyLimits =
    BodyLimits { body_bytes_max: u64::MAX, extension_bytes_max: 1 << 20, trailer_bytes_max: 64 << 10 };

/// Result of parsing a head.
#[derive(Clone, Copy, Debug)]
struct HeadSummary {
    status: u16,
    framing: ResponseFraming,
    is_persistent: bool,
    verdict: Option<FailureClass>,
}

/// Last response head to a request, with its result. An identical head need not be parsed again. Servers send identical
/// heads until their Date changes, once a second.
#[derive(Debug, Default)]
pub(crate) struct KnownHead {
    bytes: Vec<u8>,
    outcome: Option<HeadSummary>,
}

/// Maximum size of content that is kept for a scenario. What follows it is not searched.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Parts of a response that a scenario needs.
#[derive(Debug, Default)]
pub(crate) struct KeptResponse {
    pub(crate) head: Vec<u8>,
    pub(crate) content: Vec<u8>,
}

impl KeptResponse {
    /// Values of the header fields with a name (case-insensitive).
    pub(crate) fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        // The parser has accepted the head, so each line after the first is a field.
        self.head.split(|&byte| byte == b'\n').skip(1).filter_map(move |line| {
            let at = line.iter().position(|&byte| byte == b':')?;
            line[..at].eq_ignore_ascii_case(name.as_bytes()).then(|| line[at + 1..].trim_ascii())
        })
    }
}

/// Keeps a piece of content, if the request wants it.
fn keep(kept: &mut Option<Box<KeptResponse>>, request: &WorkloadRequest, piece: &[u8]) {
    if let Some(kept) = kept.as_mut().filter(|_| request.keeps_content) {
        let room = KEPT_BYTES_MAX - kept.content.len();
        kept.content.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

/// Reader for consecutive responses.
#[derive(Debug, Default)]
pub(crate) struct ResponseReader {
    awaiting: AwaitedPart,
    /// Beginning of an incomplete head.
    partial: Vec<u8>,
    outcome: Option<HeadSummary>,
    content_bytes: u64,
    judge: BodyJudge,
    /// Parts of the response, if the request keeps them.
    kept: Option<Box<KeptResponse>>,
}

#[derive(Debug, Default)]
enum AwaitedPart {
    #[default]
    Head,
    /// Remaining bytes of content.
    Content(u64),
    Chunks(BodyDecoder),
    Close,
}

/// Progress of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadProgress {
    /// All input was consumed and the response is incomplete.
    Incomplete,
    /// The response is complete.
    Complete {
        /// Bytes of the input that belong to the response.
        consumed_bytes: usize,
    },
}

/// A complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FinishedResponse {
    pub(crate) status: u16,
    pub(crate) is_persistent: bool,
    pub(crate) verdict: Option<FailureClass>,
}

impl ResponseReader {
    /// Handles the next bytes of the response to `request`.
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        request: &WorkloadRequest,
        known: &mut KnownHead,
        scratch: &mut ResponseHead,
    ) -> Result<ReadProgress, MalformedResponse> {
        let mut at = 0;
        while let AwaitedPart::Head = self.awaiting {
            match self.read_head(&input[at..], request, known, scratch)? {
                Some(consumed_bytes) => at += consumed_bytes,
                None => return Ok(ReadProgress::Incomplete),
            }
        }
        let content_at = at;
        let is_complete = match &mut self.awaiting {
            AwaitedPart::Head => false,
            AwaitedPart::Content(remaining) => {
                let length = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len() - at);
                *remaining -= length as u64;
                at += length;
                self.judge.update(request.check.body.as_ref(), &input[content_at..at]);
                keep(&mut self.kept, request, &input[content_at..at]);
                self.content_bytes += length as u64;
                *remaining == 0
            }
            AwaitedPart::Close => {
                at = input.len();
                self.judge.update(request.check.body.as_ref(), &input[content_at..]);
                keep(&mut self.kept, request, &input[content_at..]);
                self.content_bytes += (at - content_at) as u64;
                false
            }
            AwaitedPart::Chunks(decoder) => {
                let mut is_complete = false;
                while at < input.len() && !is_complete {
                    let decoded = decoder
                        .decode(&input[at..], &BODY_LIMITS)
                        .map_err(|rejection| MalformedResponse(rejection.reason))?;
                    let content = &input[at..][decoded.content];
                    self.judge.update(request.check.body.as_ref(), content);
                    keep(&mut self.kept, request, content);
                    self.content_bytes += content.len() as u64;
                    at += decoded.consumed_bytes;
                    is_complete = decoded.is_complete;
                }
                is_complete
            }
        };
        Ok(if is_complete { ReadProgress::Complete { consumed_bytes: at } } else { ReadProgress::Incomplete })
    }

    /// Takes the parts of the last response that the request keeps.
    pub(crate) fn take_kept(&mut self) -> Option<Box<KeptResponse>> {
        self.kept.take()
    }

    /// Handles the end of the connection, which ends a response without other framing. Returns whether the response is
    /// complete.
    pub(crate) fn on_close(&self) -> bool {
        matches!(self.awaiting, AwaitedPart::Close)
    }

    /// Returns the bytes of content that are missing, if known.
    pub(crate) fn expected_bytes(&self) -> Option<u64> {
        match self.awaiting {
            AwaitedPart::Content(remaining) => Some(remaining),
            _ => None,
        }
    }

    /// Returns the verdict on the complete response, and resets the reader for the next.
    pub(crate) fn finish(&mut self, request: &WorkloadRequest) -> FinishedResponse {
        let outcome = self.outcome.take();
        self.awaiting = AwaitedPart::Head;
        let body = self.judge.finish(request.check.body.as_ref());
        let length = match outcome {
            // The announced length was checked with the head. Responses to HEAD and 304 announce one without content.
            Some(HeadSummary {
                framing: ResponseFraming::Delimited(BodyFraming::Length(_) | BodyFraming::None),
                ..
            }) => None,
            _ => request.check.judge_length(self.content_bytes),
        };
        self.content_bytes = 0;
        match outcome {
            Some(outcome) => FinishedResponse {
                status: outcome.status,
                is_persistent: outcome.is_persistent,
                verdict: outcome.verdict.or(length).or(body),
            },
            None => FinishedResponse { status: 0, is_persistent: false, verdict: Some(FailureClass::Malformed) },
        }
    }

    /// Parses a head, which may have begun in earlier input. Once it is complete, returns how many bytes of the input
    /// belong to it.
    fn read_head(
        &mut self,
        input: &[u8],
        request: &WorkloadRequest,
        known: &mut KnownHead,
        scratch: &mut ResponseHead,
    ) -> Result<Option<usize>, MalformedResponse> {
        if self.partial.is_empty() {
            if let Some(outcome) = known.outcome.filter(|_| input.starts_with(&known.bytes)) {
                self.begin(outcome, request);
                self.keep_head(request, &known.bytes);
                return Ok(Some(known.bytes.len()));
            }
            let length = self.parse_head(input, request, known, scratch)?;
            if length.is_none() {
                self.partial.extend_from_slice(input);
            }
            return Ok(length);
        }
        let earlier_bytes = self.partial.len();
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(input);
        let length = self.parse_head(&whole, request, known, scratch)?;
        if length.is_some() {
            whole.clear();
        }
        self.partial = whole;
        // The earlier bytes were an incomplete head, so it ends after them.
        Ok(length.map(|length| length - earlier_bytes))
    }

    fn parse_head(
        &mut self,
        bytes: &[u8],
        request: &WorkloadRequest,
        known: &mut KnownHead,
        head: &mut ResponseHead,
    ) -> Result<Option<usize>, MalformedResponse> {
        let Some(length) = parse_response_head(bytes, head, &HEAD_LIMITS)? else { return Ok(None) };
        if head.status.code() < 200 {
            return match head.status.code() {
                101 => Err(MalformedResponse("switched protocols without a request to")),
                _ => Ok(Some(length)), // An interim response (RFC 9110, section 15.2): the final one follows.
            };
        }
        let framing = head.framing(bytes, request.method)?;
        let announced_bytes = match framing {
            ResponseFraming::Delimited(BodyFraming::Length(length)) => Some(length),
            ResponseFraming::Delimited(BodyFraming::None) => Some(0),
            _ => None,
        };
        let outcome = HeadSummary {
            status: head.status.code(),
            framing,
            is_persistent: head.is_persistent(bytes) && framing != ResponseFraming::UntilClose,
            verdict: request.check.judge_head(head, bytes, announced_bytes),
        };
        known.bytes.clear();
        known.bytes.extend_from_slice(&bytes[..length]);
        known.outcome = Some(outcome);
        self.begin(outcome, request);
        self.keep_head(request, &known.bytes);
        Ok(Some(length))
    }

    fn keep_head(&mut self, request: &WorkloadRequest, head: &[u8]) {
        if request.keeps_head {
            let kept = self.kept.get_or_insert_default();
            kept.content.clear();
            kept.head.clear();
            kept.head.extend_from_slice(head);
        }
    }

    fn begin(&mut self, outcome: HeadSummary, request: &WorkloadRequest) {
        self.outcome = Some(outcome);
        self.judge = BodyJudge::new(request.check.body.as_ref());
        self.awaiting = match outcome.framing {
            ResponseFraming::UntilClose => AwaitedPart::Close,
            ResponseFraming::Delimited(framing) => match BodyDecoder::new(framing) {
                None => AwaitedPart::Content(0),
                Some(BodyDecoder::Length(length)) => AwaitedPart::Content(length),
                Some(decoder) => AwaitedPart::Chunks(decoder),
            },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::check::{BodyCheck, ResponseCheck};
    use wire::http::Fields;

    fn request(method: &str, check: ResponseCheck) -> WorkloadRequest {
        WorkloadRequest::new(method, "/", &Fields::new(), b"", check)
    }

    /// Returns the verdicts on the responses in `input`, or `Malformed`. Feeds the input in pieces of `step` bytes.
    fn read(request: &WorkloadRequest, input: &[u8], step: usize) -> Vec<FinishedResponse> {
        let (mut reader, mut known, mut scratch) = Default::default();
        let mut finished = Vec::new();
        for piece in input.chunks(step) {
            let mut rest = piece;
            while !rest.is_empty() {
                match ResponseReader::feed(&mut reader, rest, request, &mut known, &mut scratch) {
                    Ok(ReadProgress::Incomplete) => break,
                    Ok(ReadProgress::Complete { consumed_bytes }) => {
                        finished.push(reader.finish(request));
                        rest = &rest[consumed_bytes..];
                    }
                    Err(_) => {
                        finished.push(FinishedResponse {
                            status: 0,
                            is_persistent: false,
                            verdict: Some(FailureClass::Malformed),
                        });
                        return finished;
                    }
                }
            }
        }
        if reader.on_close() {
            finished.push(reader.finish(request));
        }
        finished
    }

    fn check(request: &WorkloadRequest, input: &str, expect: &[(u16, bool, Option<FailureClass>)]) {
        for step in [input.len(), 1, 2, 7] {
            let finished: Vec<_> = read(request, input.as_bytes(), step)
                .iter()
                .map(|finished| (finished.status, finished.is_persistent, finished.verdict))
                .collect();
            assert_eq!(finished, expect, "{input:?} in pieces of {step}");
        }
    }

    #[test]
    fn responses() {
        let get = request("GET", ResponseCheck::default());
        let ok = (200, true, None);
        check(&get, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", &[ok]);
        check(&get, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 204 x\r\n\r\n", &[ok, (204, true, None)]);
        check(&get, &"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na".repeat(3), &[ok, ok, ok]);
        check(&get, "HTTP/1.1 103 x\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", &[ok]);
        check(&get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", &[ok]);
        check(&get, "HTTP/1.1 200 OK\r\n\r\nuntil the end", &[(200, false, None)]);
        check(&get, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", &[(200, false, None)]);
        check(&get, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", &[]);
        check(&get, "HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\na", &[(500, true, Some(FailureClass::Status))]);
        check(&get, "HTTQ", &[(0, false, Some(FailureClass::Malformed))]);
        check(&request("HEAD", ResponseCheck::default()), "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", &[ok]);
    }

    #[test]
    fn checks() {
        let fails = |class| [(200, true, Some(class))];
        let length = request("GET", ResponseCheck { length_bytes: Some(2), ..ResponseCheck::default() });
        check(&length, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", &[(200, true, None)]);
        check(&length, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", &fails(FailureClass::Length));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
        check(&length, chunked, &fails(FailureClass::Length));
        let body = request("GET", ResponseCheck { body: Some(BodyCheck::bytes(*b"ab")), ..ResponseCheck::default() });
        check(&body, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", &[(200, true, None)]);
        check(&body, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\naB", &fails(FailureClass::Body));
        check(&body, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", &fails(FailureClass::Body));
        let fields = vec![(b"x-a".to_vec(), Some(b"1".to_vec())), (b"x-b".to_vec(), None)];
        let field = request("GET", ResponseCheck { fields, ..ResponseCheck::default() });
        check(&field, "HTTP/1.1 200 OK\r\nX-A: 1\r\nX-B: 2\r\nContent-Length: 0\r\n\r\n", &[(200, true, None)]);
        check(&field, "HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 0\r\n\r\n", &fails(FailureClass::Field));
    }
}
