//! Labels of metrics: closed sets, so that counters are arrays of fixed length.

use serde::{Deserialize, Serialize};
use wire::http::Version;

/// Defines a closed set whose members have numbers from 0 and names.
macro_rules! kinds {
    ($(#[$doc:meta])* $kind:ident { $($(#[$of:meta])* $member:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $kind {
            $($(#[$of])* $member,)*
        }

        impl $kind {
            /// All members, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$member,)*];

            /// Name in metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$member => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Kind of handler that responded to a request.
    HandlerKind {
        /// No handler: none accepted the request, or it could not be parsed.
        None = "none",
        /// Rules: a redirect or a rejection.
        Rules = "rules",
        /// Files below a root.
        Files = "files",
        /// A fixed response.
        Respond = "respond",
        /// An upstream server.
        Forward = "forward",
        /// A script over FastCGI.
        FastCgi = "fastcgi",
        /// A CGI program started for the request.
        Cgi = "cgi",
        /// An application over SCGI.
        Scgi = "scgi",
        /// An application over uwsgi.
        Uwsgi = "uwsgi",
        /// A WebAssembly module.
        Module = "module",
        /// Status page or metrics of this server.
        Status = "status",
        /// Files over FTP.
        Ftp = "ftp",
    }
}

kinds! {
    /// Class of a status: its first digit.
    StatusClass {
        /// 101; other interim responses are not counted.
        Informational = "1xx",
        /// 2xx
        Successful = "2xx",
        /// 3xx
        Redirection = "3xx",
        /// 4xx
        ClientError = "4xx",
        /// 5xx, and invalid statuses.
        ServerError = "5xx",
    }
}

kinds! {
    /// Version of HTTP of a request.
    VersionKind {
        /// The request could not be parsed.
        Unknown = "unknown",
        /// HTTP/1.0
        Http10 = "1.0",
        /// HTTP/1.1
        Http11 = "1.1",
        /// HTTP/2
        Http2 = "2",
        /// HTTP/3
        Http3 = "3",
        /// FTP
        Ftp = "ftp",
    }
}

kinds! {
    /// Result of the response cache, as in the access log.
    CacheResult {
        /// A response stored in memory was served.
        Hit = "hit",
        /// A response stored on disk was served.
        DiskHit = "disk-hit",
        /// A response of another instance was served.
        SharedHit = "shared-hit",
        /// No stored response matched.
        Miss = "miss",
        /// The stored response was too old, and the upstream sent another.
        Expired = "expired",
        /// The stored response was too old, and the upstream confirmed it.
        Revalidated = "revalidated",
        /// A stored response was served although it was too old.
        Stale = "stale",
        /// The request bypassed the cache.
        Bypass = "bypass",
    }
}

kinds! {
    /// Class of a request, by the handling of bots.
    BotKind {
        /// The score is too low for a challenge.
        Visitor = "visitor",
        /// The path needs no challenge.
        Exempt = "exempt",
        /// A challenge was passed.
        Passed = "passed",
        /// A crawler whose address is confirmed.
        Crawler = "crawler",
        /// An agent whose signature is valid.
        Agent = "agent",
        /// A challenge is the response.
        Challenged = "challenged",
        /// The request is rejected.
        Rejected = "rejected",
    }
}

kinds! {
    /// Result of a challenge that a client has returned.
    ChallengeResult {
        /// Passed by a proof of work.
        Work = "work",
        /// Passed by waiting.
        Wait = "wait",
        /// Not passed.
        Failed = "failed",
    }
}

kinds! {
    /// Limit that a client reached, by the name of its option.
    Limit {
        /// All connections were in use, and some were closed to make room.
        ConnectionsMax = "connections-max",
        /// A client reached its limit of connections, or its share when most were in use.
        ConnectionsPerClientMax = "connections-per-client-max",
        /// A client's network reached its limit or share.
        ConnectionsPerNetworkMax = "connections-per-network-max",
        /// A banned client connected.
        Ban = "ban",
        /// The kernel had no file descriptor or memory for a connection.
        OpenFiles = "open-files",
        /// Too many handshakes started at the same time.
        TlsHandshakesPerSecondMax = "tls-handshakes-per-second-max",
        /// A handshake took too long.
        TlsHandshakeTimeout = "tls-handshake-timeout",
        /// A head took too long to arrive.
        HeadTimeout = "head-timeout",
        /// A head was too large, or had too many fields (`header-fields-max`); both get 431.
        HeadBytesMax = "head-bytes-max",
        /// A target was too long.
        TargetBytesMax = "target-bytes-max",
        /// A request had too much content.
        BodyBytesMax = "body-bytes-max",
        /// Content of a request stopped.
        BodyTimeout = "body-timeout",
        /// A client stopped reading a response.
        WriteTimeout = "write-timeout",
        /// Content or a response was too slow.
        RateMin = "rate-bytes-per-second-min",
        /// Too many requests per time.
        RateLimit = "rate-limit",
        /// Too many concurrent requests.
        RequestLimit = "request-limit",
        /// A client was banned because its requests were rejected too often.
        AutoBan = "auto-ban",
        /// Clients held too much memory, and one of the largest connections was closed.
        ClientMemoryBytesMax = "client-memory-bytes-max",
        /// Too many passwords waited for their check.
        PasswordChecksWaitingMax = "password-checks-waiting-max",
    }
}

kinds! {
    /// State of an evicted connection, by what it waited for.
    Eviction {
        /// End of a TLS handshake, or a PROXY header.
        Opening = "opening",
        /// Next request.
        Idle = "idle",
        /// Rest of a head.
        Head = "reading_head",
        /// Content of a request.
        Content = "reading_content",
        /// Response from a handler or an upstream.
        Answer = "answering",
        /// Client that reads the response.
        Write = "writing",
        /// Close by the client after the last response.
        Linger = "lingering",
        /// Either end of a tunnel.
        Tunnel = "tunneling",
    }
}

kinds! {
    /// Cause of a module's failure, by the name of the option that ended it.
    ModuleFailure {
        /// The module itself: it trapped, exited, or sent no response or an invalid one.
        Failed = "failed",
        /// Too much CPU time used.
        ProcessorTimeMax = "cpu-time-max",
        /// Response not started in time.
        FirstByteTimeout = "first-byte-timeout",
        /// Response stopped in the middle.
        BetweenBytesTimeout = "between-bytes-timeout",
        /// Memory denied, and the module failed.
        MemoryBytesMax = "memory-bytes-max",
        /// Room in a table denied, and the module failed.
        TableElementsMax = "table-elements-max",
        /// No instance was free, of the module or of all modules.
        InstancesMax = "instances-max",
        /// All modules together reached their limit of memory.
        AllMemoryBytesMax = "memory-bytes-max of modules",
        /// The request or the response had more content than may be buffered.
        BufferedBytesMax = "buffered-bytes-max",
        /// Too much content written.
        ResponseBytesMax = "response-bytes-max",
    }
}

kinds! {
    /// Direction of a transfer over FTP.
    FtpDirection {
        /// A file to the client.
        Download = "download",
        /// A file from the client.
        Upload = "upload",
        /// A listing to the client.
        Listing = "listing",
    }
}

kinds! {
    /// Reason for shedding a request or a handshake.
    ShedReason {
        /// Ready connections waited too long for their worker.
        Lag = "lag",
        /// TLS handshakes waited too long.
        Handshakes = "handshakes",
        /// Clients held too much memory.
        Memory = "memory",
        /// Requests waited too long for a connection to an upstream.
        Queue = "queue",
    }
}

impl StatusClass {
    /// The class of a status.
    #[inline]
    pub fn of(status: u16) -> Self {
        match status / 100 {
            1 => Self::Informational,
            2 => Self::Successful,
            3 => Self::Redirection,
            4 => Self::ClientError,
            _ => Self::ServerError,
        }
    }
}

impl From<Option<Version>> for VersionKind {
    #[inline]
    fn from(version: Option<Version>) -> Self {
        match version {
            None => Self::Unknown,
            Some(Version::Http10) => Self::Http10,
            Some(Version::Http11) => Self::Http11,
            Some(Version::Http2) => Self::Http2,
            Some(Version::Http3) => Self::Http3,
        }
    }
}

impl CacheResult {
    /// Result for a word of the access log; `None` without a cache.
    #[inline]
    pub fn of(word: &str) -> Option<Self> {
        if word.is_empty() {
            return None;
        }
        Self::ALL.iter().copied().find(|result| result.name() == word)
    }
}

impl Limit {
    /// Limit that a rejection with this status means.
    #[inline]
    pub fn of_rejection(status: u16) -> Option<Self> {
        match status {
            413 => Some(Self::BodyBytesMax),
            414 => Some(Self::TargetBytesMax),
            431 => Some(Self::HeadBytesMax),
            _ => None,
        }
    }
}
