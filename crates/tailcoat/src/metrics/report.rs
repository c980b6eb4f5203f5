use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// Open requests of which a worker tells, at most: those that have been open longest.
pub const REQUESTS_TOLD_MAX: usize = 100;

/// What a worker is asked: to tell of itself, with so many of its open requests.
#[derive(Debug)]
pub struct Inquiry {
    /// Open requests that are wanted.
    pub requests_max: usize,
    /// Where it is told.
    pub answer: oneshot::Sender<WorkerReport>,
}

/// What a worker tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerReport {
    /// Time that its thread has had a processor, in microseconds.
    pub busy_us: u64,
    /// Its connections by what they await.
    pub connections: StageCounts,
    /// Connections that it may have.
    pub places: u64,
    /// Clients with most connections, if requests were wanted as well.
    pub clients: Vec<HolderCount>,
    /// Networks with most connections.
    pub networks: Vec<HolderCount>,
    /// Open requests.
    pub requests_open: usize,
    /// Those that have been open longest.
    pub requests: Vec<LiveRequest>,
    /// Connections to other servers that are kept for further requests, by the upstreams of the configuration.
    pub upstream_idle: Vec<usize>,
    /// Objects in its own table.
    pub objects: usize,
    /// How long ready connections waited for it in the last tenth of a second, in milliseconds.
    pub lag_ms: u64,
    /// How much it sheds: 0 to 1,000 for TLS handshakes, as much again for programs and modules, and again for upstreams.
    pub shed_level_permille: u64,
    /// Why it sheds; empty if it doesn't.
    pub shed_reason: String,
}

/// Connections of a client or a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderCount {
    /// Its address, or what its addresses begin with.
    pub holder: String,
    /// How many it has.
    pub connections: u64,
}

/// Connections by what they await.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageCounts {
    /// A request, the beginning of TLS included.
    pub idle: u64,
    /// The rest of a head.
    pub reading_head: u64,
    /// Content of a request.
    pub reading_content: u64,
    /// An answer.
    pub answering: u64,
    /// A client that takes what is sent.
    pub writing: u64,
    /// The end of a client, after the last answer.
    pub lingering: u64,
    /// Either end of a tunnel.
    pub tunneling: u64,
}

impl StageCounts {
    /// Each with its name.
    pub fn by_name(&self) -> [(&'static str, u64); 7] {
        [
            ("idle", self.idle),
            ("reading_head", self.reading_head),
            ("reading_content", self.reading_content),
            ("answering", self.answering),
            ("writing", self.writing),
            ("lingering", self.lingering),
            ("tunneling", self.tunneling),
        ]
    }

    /// Adds those of another worker.
    pub fn add(&mut self, other: &Self) {
        self.idle += other.idle;
        self.reading_head += other.reading_head;
        self.reading_content += other.reading_content;
        self.answering += other.answering;
        self.writing += other.writing;
        self.lingering += other.lingering;
        self.tunneling += other.tunneling;
    }
}

/// A request that is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveRequest {
    /// Who sent it.
    pub client: String,
    /// Its method.
    pub method: String,
    /// For which host.
    pub host: String,
    /// Its target, cut if it is long.
    pub target: String,
    /// Version of HTTP.
    pub version: String,
    /// Who answers it, as far as that is known.
    pub handler: String,
    /// What is done: `answering`, `reading`, `writing`, `tunneling`.
    pub stage: String,
    /// How long it has been open, in milliseconds.
    pub age_ms: u64,
    /// Bytes of its answer that were sent.
    pub sent_bytes: u64,
    /// The server that it was sent on to.
    pub upstream: String,
}
