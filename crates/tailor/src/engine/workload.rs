//! Requests of a run, and their order.

use std::sync::Arc;

use fastrand::Rng;
use wire::h1::write_request_head;
use wire::http::{Fields, Method, Version};

use super::check::ResponseCheck;
use super::http2::Http2Request;
use super::http3::Http3Request;

/// Request of a list, with the check of its response.
#[derive(Debug)]
pub(crate) struct WorkloadRequest {
    /// Method of the request; the response's framing depends on it.
    pub method: Method,
    /// Check of the response.
    pub check: ResponseCheck,
    /// True if a scenario needs the head of the response.
    pub(crate) keeps_head: bool,
    /// True if a scenario needs the content of the response.
    pub(crate) keeps_content: bool,
    /// True for a unary call of gRPC.
    pub(crate) is_grpc: bool,
    /// HTTP/1 encodings, one for each [`RequestForm`].
    encoded: [Box<[u8]>; RequestForm::COUNT],
    /// HTTP/2 encoding, if the run uses it.
    pub(crate) http2: Option<Http2Request>,
    /// Form of HTTP/3, if the run uses it.
    pub(crate) http3: Option<Http3Request>,
}

/// Variant of an HTTP/1 request: version, and persistence of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestForm {
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// True for the last request on its connection.
    pub is_last: bool,
}

impl RequestForm {
    const COUNT: usize = 4;

    fn index(self) -> usize {
        usize::from(self.version == Version::Http10) * 2 + usize::from(self.is_last)
    }

    /// Returns the Connection field that this variant needs (RFC 9112, section 9.3).
    pub(crate) fn connection_field(self) -> Option<&'static str> {
        match (self.version == Version::Http10, self.is_last) {
            (true, false) => Some("keep-alive"),
            (false, true) => Some("close"),
            _ => None,
        }
    }
}

impl WorkloadRequest {
    /// Creates a request. `fields` must contain Host; the encoder adds Content-Length and Connection.
    pub(crate) fn new(method_name: &str, target: &str, fields: &Fields, content: &[u8], check: ResponseCheck) -> Self {
        let method = Method::from_name(method_name.as_bytes());
        let mut encoded = <[Vec<u8>; RequestForm::COUNT]>::default();
        for version in [Version::Http11, Version::Http10] {
            for is_last in [false, true] {
                let form = RequestForm { version, is_last };
                let mut fields = fields.clone();
                if let Some(option) = form.connection_field() {
                    fields.push("Connection", option);
                }
                if !content.is_empty() || method == Method::Post {
                    fields.push("Content-Length", content.len().to_string());
                }
                let out = &mut encoded[form.index()];
                write_request_head(out, method_name.as_bytes(), target.as_bytes(), version, &fields);
                out.extend_from_slice(content);
            }
        }
        let encoded = encoded.map(Vec::into_boxed_slice);
        Self {
            method,
            check,
            keeps_head: false,
            keeps_content: false,
            is_grpc: false,
            encoded,
            http2: None,
            http3: None,
        }
    }

    /// Creates a message of WebSocket from its frame.
    pub(crate) fn web_socket(frame: &[u8], check: ResponseCheck) -> Self {
        let mut request = Self::new("GET", "/", &Fields::new(), b"", check);
        request.encoded = std::array::from_fn(|_| frame.into());
        request
    }

    /// Makes the request a unary call of gRPC. It needs an HTTP/2 encoding.
    pub(crate) fn with_grpc(self) -> Self {
        Self { is_grpc: true, ..self }
    }

    /// Sets the parts of the response that a scenario needs.
    pub(crate) fn keep(&mut self, head: bool, content: bool) {
        (self.keeps_head, self.keeps_content) = (head || content, content);
    }

    /// Adds the HTTP/2 encoding.
    pub(crate) fn with_http2(self, http2: Http2Request) -> Self {
        Self { http2: Some(http2), ..self }
    }

    /// Adds the form of HTTP/3.
    pub(crate) fn with_http3(self, http3: Http3Request) -> Self {
        Self { http3: Some(http3), ..self }
    }

    /// Returns the HTTP/1 encoding.
    pub(crate) fn encoded(&self, form: RequestForm) -> &[u8] {
        &self.encoded[form.index()]
    }
}

/// Order of the requests in a list.
#[derive(Clone, Debug)]
pub(crate) enum RequestOrder {
    /// Cycles through the list.
    InTurn,
    /// Cycles through these indices.
    Sequence(Arc<[u32]>),
    /// Random by weight; contains the cumulative weights.
    Weighted(Arc<[f64]>),
}

impl RequestOrder {
    /// Creates a random order by weight.
    pub(crate) fn weighted(weights: impl IntoIterator<Item = f64>) -> Self {
        let mut sum = 0.0;
        let sums = weights.into_iter().map(|weight| {
            sum += weight;
            sum
        });
        Self::Weighted(sums.collect())
    }

    /// Creates a random order by Zipf's law: the frequency of rank r (from 1) is proportional to 1 / r^alpha.
    pub(crate) fn zipf(count: usize, alpha: f64) -> Self {
        Self::weighted((1..=count).map(|rank| (rank as f64).powf(-alpha)))
    }
}

/// Source of requests for a thread.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    requests: Arc<[WorkloadRequest]>,
    order: RequestOrder,
    next: usize,
    step: usize,
}

impl Workload {
    /// Creates a workload from a list, which must not be empty.
    pub(crate) fn new(requests: Arc<[WorkloadRequest]>, order: RequestOrder) -> Self {
        assert!(!requests.is_empty(), "a workload has requests");
        Self { requests, order, next: 0, step: 1 }
    }

    /// Returns the share of one of several threads, which take turns.
    pub(crate) fn for_thread(&self, thread: usize, threads: usize) -> Self {
        Self { next: thread, step: threads, ..self.clone() }
    }

    /// Returns the list of requests.
    pub(crate) fn requests(&self) -> &Arc<[WorkloadRequest]> {
        &self.requests
    }

    /// Returns the index of the next request.
    pub(crate) fn next(&mut self, rng: &mut Rng) -> u32 {
        let index = match &self.order {
            _ if self.requests.len() == 1 => 0,
            RequestOrder::InTurn => self.turn(self.requests.len()),
            RequestOrder::Sequence(indices) => {
                let indices = Arc::clone(indices);
                indices[self.turn(indices.len())] as usize
            }
            RequestOrder::Weighted(sums) => {
                let point = rng.f64() * sums[sums.len() - 1];
                sums.partition_point(|&sum| sum <= point).min(sums.len() - 1)
            }
        };
        index as u32
    }

    fn turn(&mut self, count: usize) -> usize {
        let turn = self.next % count;
        self.next = turn + self.step;
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str) -> WorkloadRequest {
        let mut fields = Fields::new();
        fields.push("Host", "h");
        WorkloadRequest::new("POST", name, &fields, b"ab", ResponseCheck::default())
    }

    #[test]
    fn forms() {
        let request = request("/x");
        for (version, is_last, expect) in [
            (Version::Http11, false, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"),
            (Version::Http11, true, "POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"),
            (
                Version::Http10,
                false,
                "POST /x HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nab",
            ),
            (Version::Http10, true, "POST /x HTTP/1.0\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"),
        ] {
            assert_eq!(String::from_utf8_lossy(request.encoded(RequestForm { version, is_last })), expect);
        }
    }

    #[test]
    fn orders() {
        let requests: Arc<[WorkloadRequest]> = (0..4).map(|_| request("/")).collect();
        let draw = |order: RequestOrder| {
            let (mut workload, mut rng) = (Workload::new(requests.clone(), order), Rng::with_seed(1));
            let mut counts = [0; 4];
            for _ in 0..10_000 {
                counts[workload.next(&mut rng) as usize] += 1;
            }
            counts
        };
        assert_eq!(draw(RequestOrder::InTurn), [2500; 4]);
        assert_eq!(draw(RequestOrder::Sequence([3, 0, 0, 1].into())), [5000, 2500, 0, 2500]);
        for (order, expect) in [
            (RequestOrder::weighted([1.0, 0.0, 2.0, 1.0]), [0.25, 0.0, 0.5, 0.25]),
            (RequestOrder::zipf(4, 1.0), [0.48, 0.24, 0.16, 0.12]),
            (RequestOrder::zipf(4, 0.0), [0.25; 4]),
        ] {
            for (count, share) in draw(order).into_iter().zip(expect) {
                assert!((f64::from(count) / 10_000.0 - share).abs() < 0.02, "{count} of 10,000, expected {share}");
            }
        }
    }
}
