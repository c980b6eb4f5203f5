//! What is told apart when something is counted: closed sets, so that counters are rows of a fixed length.

use serde::{Deserialize, Serialize};
use wire::http::Version;

/// A closed set, whose members have numbers from 0 and names.
macro_rules! kinds {
    ($(#[$doc:meta])* $kind:ident { $($(#[$of:meta])* $member:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $kind {
            $($(#[$of])* $member,)*
        }

        impl $kind {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$member,)*];

            /// What it is called in metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$member => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Who has answered a request.
    HandlerKind {
        /// Nobody: no handler wanted it, or it could not be read.
        None = "none",
        /// Rules: a redirect, or a refusal.
        Rules = "rules",
        /// Files below a root.
        Files = "files",
        /// A fixed answer.
        Respond = "respond",
        /// Another server.
        Forward = "forward",
        /// A script behind FastCGI.
        FastCgi = "fastcgi",
        /// A program that was started for it.
        Cgi = "cgi",
        /// An application behind SCGI.
        Scgi = "scgi",
        /// An application behind uwsgi.
        Uwsgi = "uwsgi",
        /// A WebAssembly module.
        Module = "module",
        /// What tells of this server itself.
        Status = "status",
    }
}

kinds! {
    /// The first digit of a status.
    StatusClass {
        /// 101, for there is one answer a request.
        Informational = "1xx",
        /// 2xx
        Successful = "2xx",
        /// 3xx
        Redirection = "3xx",
        /// 4xx
        ClientError = "4xx",
        /// 5xx, and what no server should send.
        ServerError = "5xx",
    }
}

kinds! {
    /// The version of HTTP in which a request came.
    VersionKind {
        /// It could not be read.
        Unknown = "unknown",
        /// HTTP/1.0
        Http10 = "1.0",
        /// HTTP/1.1
        Http11 = "1.1",
        /// HTTP/2
        Http2 = "2",
        /// HTTP/3
        Http3 = "3",
    }
}

kinds! {
    /// What the cache before another server did, as the access log has it.
    CacheResult {
        /// A stored response was served.
        Hit = "hit",
        /// There was none.
        Miss = "miss",
        /// There was one, too old, and another came in its place.
        Expired = "expired",
        /// There was one, and the server said that it was still good.
        Revalidated = "revalidated",
        /// One that was too old was served.
        Stale = "stale",
        /// The request was not for the cache.
        Bypass = "bypass",
    }
}

kinds! {
    /// A limit that somebody has come to, by the name of its option.
    Limit {
        /// All places were taken, and connections were closed to make room for others.
        ConnectionsMax = "connections-max",
        /// A client had as many connections as it may, or more than its share of the places when most were taken.
        ConnectionsPerClientMax = "connections-per-client-max",
        /// Count of a client's network, likewise.
        ConnectionsPerNetworkMax = "connections-per-network-max",
        /// A banned client has connected.
        Ban = "ban",
        /// The kernel gave no descriptor or memory for a connection; the limit is that of open files, if anything.
        OpenFiles = "open-files",
        /// Too many handshakes began at the same time.
        TlsHandshakesPerSecondMax = "tls-handshakes-per-second-max",
        /// A handshake took too long.
        TlsHandshakeTimeout = "tls-handshake-timeout",
        /// A head took too long.
        HeadTimeout = "head-timeout",
        /// A head was too large, or had too many fields (`fields-max`): both are answered with 431.
        HeadBytesMax = "head-bytes-max",
        /// A target was too long.
        TargetBytesMax = "target-bytes-max",
        /// There was too much content.
        BodyBytesMax = "body-bytes-max",
        /// Content stood still.
        BodyTimeout = "body-timeout",
        /// A client took nothing of a response.
        WriteTimeout = "write-timeout",
        /// Content or a response was too slow.
        RateMin = "rate-bytes-per-second-min",
        /// Too many requests in a time.
        RateLimit = "rate-limit",
        /// Too many requests at a time.
        RequestLimit = "request-limit",
        /// Clients held too much memory, so that a connection that held most was closed.
        ClientMemoryBytesMax = "client-memory-bytes-max",
        /// Too many passwords waited to be checked.
        PasswordChecksWaitingMax = "password-checks-waiting-max",
    }
}

kinds! {
    /// Evicted connections, by what they awaited.
    Eviction {
        /// The end of a TLS handshake, or a proxy's header.
        Opening = "opening",
        /// A request.
        Idle = "idle",
        /// The rest of a head.
        Head = "reading_head",
        /// Content of a request.
        Content = "reading_content",
        /// A response from a handler or an upstream.
        Answer = "answering",
        /// The client to take what is sent.
        Write = "writing",
        /// The end of the client, after the last response.
        Linger = "lingering",
        /// Either end of a tunnel.
        Tunnel = "tunneling",
    }
}

kinds! {
    /// Why a module did not answer a request, or not all of it: by the name of the option that ended it.
    ModuleFailure {
        /// By itself: it trapped, exited, gave no answer, or one that is none.
        Failed = "failed",
        /// It has computed for longer than it may.
        ProcessorTimeMax = "processor-time-max",
        /// It did not begin its answer in time.
        FirstByteTimeout = "first-byte-timeout",
        /// It was silent in the middle of its answer.
        BetweenBytesTimeout = "between-bytes-timeout",
        /// It did not get memory, and gave up.
        MemoryBytesMax = "memory-bytes-max",
        /// It did not get room in a table, and gave up.
        TableElementsMax = "table-elements-max",
        /// There was no instance for the request, neither of the module nor of all modules.
        InstancesMax = "instances-max",
        /// All modules together have as much memory as they may.
        AllMemoryBytesMax = "memory-bytes-max of modules",
        /// The request or the response has more content than is kept.
        BufferedBytesMax = "buffered-bytes-max",
        /// It wrote more content than it may.
        ResponseBytesMax = "response-bytes-max",
    }
}

kinds! {
    /// Why a request or a handshake was shed.
    ShedReason {
        /// Ready connections waited too long for their worker.
        Lag = "lag",
        /// TLS handshakes waited too long for their turn.
        Handshakes = "handshakes",
        /// Clients held more memory than they may.
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
    /// By the word of the access log; `None` where there is no cache.
    #[inline]
    pub fn of(word: &str) -> Option<Self> {
        if word.is_empty() {
            return None;
        }
        Self::ALL.iter().copied().find(|result| result.name() == word)
    }
}

impl Limit {
    /// The limit that a refusal of ours with this status stands for.
    #[inline]
    pub fn of_refusal(status: u16) -> Option<Self> {
        match status {
            413 => Some(Self::BodyBytesMax),
            414 => Some(Self::TargetBytesMax),
            431 => Some(Self::HeadBytesMax),
            _ => None,
        }
    }
}
