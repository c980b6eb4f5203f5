//! Classes and reasons of failed requests, and counts by class.

use std::fmt;

use wire::h2::ErrorCode;
use wire::h3::H3ErrorCode;

use serde::{Deserialize, Serialize};

macro_rules! failure_classes {
    ($($(#[$doc:meta])* $class:ident = $name:literal;)*) => {
        /// Class of a failed request. Each failed request counts in exactly one class, and never as served.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub(crate) enum FailureClass { $($(#[$doc])* $class,)* }

        impl FailureClass {
            /// All classes, in the order of the report.
            pub(crate) const ALL: &[Self] = &[$(Self::$class,)*];

            /// Name of the class in reports.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$class => $name,)* }
            }
        }
    };
}

failure_classes! {
    /// No connection: closed port, unreachable host, or no local port or file descriptor left.
    Connect = "failed connect";
    /// The TLS handshake or a TLS record failed.
    Tls = "TLS failure";
    /// The server closed or reset the connection after the request was written and before the response was complete. In
    /// HTTP/2 also before it was written, because the requests of a connection are written together.
    EarlyClose = "early close";
    /// The connection ended before the request was written (HTTP/1).
    Write = "write failure";
    /// Connecting or the response took longer than the timeout.
    TimeOut = "time-out";
    /// The server sent bytes that are not an HTTP response.
    Malformed = "malformed response";
    /// Unexpected status.
    Status = "wrong status";
    /// Unexpected content length, or more bytes than announced.
    Length = "wrong length";
    /// A field that is missing or has another value.
    Field = "wrong field";
    /// Unexpected content.
    Body = "wrong body";
}

/// Reason of a failed request, more precise than its class. It costs no allocation where requests fail often.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureReason {
    /// No more is known than the class.
    Unknown,
    /// Status of the response.
    Status(u16),
    /// Error number of a system call.
    Errno(i32),
    /// The server reset the HTTP/2 stream with this code.
    StreamReset(u32),
    /// The server ended the HTTP/2 connection with this code.
    GoAway(u32),
    /// The server reset the HTTP/3 stream with this code.
    H3StreamReset(u64),
    /// The server closed the HTTP/3 connection with this code.
    H3Close(u64),
    /// The call ended with this gRPC status.
    GrpcStatus(u16),
    /// The server closed the WebSocket connection with this code.
    WebSocketClose(u16),
    /// Fixed text.
    Text(&'static str),
    /// Text of a library.
    Message(String),
}

impl FailureReason {
    /// The server closed the connection in order.
    pub(crate) const FIN: Self = Self::Text("the server closed the connection (FIN)");
    /// The server reset the connection.
    pub(crate) const RST: Self = Self::Text("the server reset the connection (RST)");

    /// Reason of a response that did not pass its check.
    pub(crate) fn of_verdict(class: FailureClass, status: u16) -> Self {
        if class == FailureClass::Status { Self::Status(status) } else { Self::Unknown }
    }

    /// Reason of a failed system call.
    pub(crate) fn of_errno(errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE => Self::RST,
            errno => Self::Errno(errno.raw_os_error()),
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(formatter, "unknown"),
            Self::Status(status) => write!(formatter, "{status}"),
            Self::Errno(number) => write!(formatter, "{}", std::io::Error::from_raw_os_error(*number)),
            Self::StreamReset(code) => write!(formatter, "stream reset: {}", ErrorCode(*code)),
            Self::GoAway(code) => write!(formatter, "GOAWAY: {}", ErrorCode(*code)),
            Self::H3StreamReset(code) => write!(formatter, "stream reset: {}", H3ErrorCode(*code)),
            Self::H3Close(code) => write!(formatter, "the server closed the connection: {}", H3ErrorCode(*code)),
            Self::GrpcStatus(status) => {
                write!(formatter, "grpc-status {status} ({})", super::grpc::status_name(*status))
            }
            Self::WebSocketClose(code) => write!(formatter, "the server closed the WebSocket connection: {code}"),
            Self::Text(text) => write!(formatter, "{text}"),
            Self::Message(text) => write!(formatter, "{text}"),
        }
    }
}

/// Failed requests, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures([u64; FailureClass::ALL.len()]);

impl Failures {
    /// Counts a failed request.
    pub(crate) fn add(&mut self, class: FailureClass) {
        self.0[class as usize] += 1;
    }

    /// Number of failed requests of a class.
    pub(crate) fn of(&self, class: FailureClass) -> u64 {
        self.0[class as usize]
    }

    /// Number of failed requests of all classes.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds others to them.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }

    /// The classes that occurred, with their counts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FailureClass, u64)> {
        FailureClass::ALL.iter().map(|&class| (class, self.of(class))).filter(|&(_, count)| count > 0)
    }
}

impl Serialize for Failures {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(FailureClass::ALL.iter().map(|class| (class.name(), self.of(*class))))
    }
}

impl<'de> Deserialize<'de> for Failures {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = std::collections::BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut failures = Self::default();
        for class in FailureClass::ALL {
            failures.0[*class as usize] = counts.get(class.name()).copied().unwrap_or(0);
        }
        Ok(failures)
    }
}

impl schemars::JsonSchema for Failures {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Failures".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        std::collections::BTreeMap::<String, u64>::json_schema(generator)
    }
}
