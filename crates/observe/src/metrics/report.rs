use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// Open requests in a worker's report; those open for the longest time.
pub const REQUESTS_REPORTED_MAX: usize = 100;

/// Question to a worker, which replies with a report.
#[derive(Debug)]
pub struct Inquiry {
    /// Open requests wanted in the report.
    pub requests_max: usize,
    /// Channel for the report.
    pub answer: oneshot::Sender<WorkerReport>,
}

/// Report of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerReport {
    /// CPU time of the worker's thread, in microseconds.
    pub busy_us: u64,
    /// Connections by state.
    pub connections: StageCounts,
    /// Limit of its connections.
    pub places: u64,
    /// Clients with the most connections, if requests are wanted, too.
    pub clients: Vec<HolderCount>,
    /// Networks with the most connections.
    pub networks: Vec<HolderCount>,
    /// Number of open requests.
    pub requests_open: usize,
    /// Requests open for the longest time.
    pub requests: Vec<LiveRequest>,
    /// Number of FTP sessions.
    pub ftp_sessions_open: usize,
    /// FTP sessions, first those with transfers.
    pub ftp_sessions: Vec<LiveFtpSession>,
    /// Idle keep-alive connections, by upstream of the configuration.
    pub upstream_idle: Vec<usize>,
    /// Objects in the worker's own table.
    pub objects: usize,
    /// Event-loop lag in milliseconds: time that ready connections waited in the last tenth of a second.
    pub lag_ms: u64,
    /// Load that the worker sheds: 0 to 1,000 for TLS handshakes, the next 1,000 for programs and modules, the last for
    /// upstreams.
    pub shed_level_permille: u64,
    /// Reason of the shedding; empty without shedding.
    pub shed_reason: String,
}

/// Connections of one client or network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderCount {
    /// Address of the client, or prefix of the network.
    pub holder: String,
    /// Number of connections.
    pub connections: u64,
}

/// Connections by state: by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageCounts {
    /// Next request, or a TLS handshake.
    pub idle: u64,
    /// Rest of a head.
    pub reading_head: u64,
    /// Content of a request.
    pub reading_content: u64,
    /// Response from a handler.
    pub answering: u64,
    /// Client that reads the response.
    pub writing: u64,
    /// Close by the client after the last response.
    pub lingering: u64,
    /// Either end of a tunnel.
    pub tunneling: u64,
}

impl StageCounts {
    /// Counts with the names of their states.
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

    /// Word for people for a state of [`by_name`](Self::by_name), or for the stage of a request. Data and metrics keep the
    /// names.
    pub fn label(name: &str) -> &str {
        match name {
            "reading_head" => "reading head",
            "reading_content" | "reading" => "reading body",
            "answering" => "processing",
            "writing" => "sending",
            "lingering" => "closing",
            "tunneling" => "tunnel",
            name => name,
        }
    }

    /// Adds the counts of another worker.
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

/// Open request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveRequest {
    /// Address of the client.
    pub client: String,
    /// Method.
    pub method: String,
    /// Host.
    pub host: String,
    /// Target, cut if it is long.
    pub target: String,
    /// Version of HTTP.
    pub version: String,
    /// Kind of the handler, once known.
    pub handler: String,
    /// State: `answering`, `reading`, `writing`, `tunneling`.
    pub stage: String,
    /// Age in milliseconds.
    pub age_ms: u64,
    /// Bytes of the response sent.
    pub sent_bytes: u64,
    /// Upstream server, if the request was forwarded.
    pub upstream: String,
}

/// FTP session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveFtpSession {
    /// Address of the client.
    pub client: String,
    /// User; empty before the login.
    pub user: String,
    /// True if the control connection uses TLS.
    pub is_encrypted: bool,
    /// Command of the transfer in progress; empty without one.
    pub command: String,
    /// Path of the transfer, cut if it is long.
    pub path: String,
    /// Time since the begin of the transfer, or since the last command without one, in milliseconds.
    pub age_ms: u64,
    /// Bytes sent or received.
    pub moved_bytes: u64,
    /// Bytes that will be sent, if they are known.
    pub total_bytes: Option<u64>,
}
