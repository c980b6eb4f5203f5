use std::fmt;

/// Error code of a stream or connection (RFC 9113, section 7). Unregistered codes are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

macro_rules! error_codes {
    ($($name:ident = $code:literal;)*) => {
        impl ErrorCode {
            $(#[doc = concat!("0x", stringify!($code))] pub const $name: Self = Self($code);)*

            /// Returns the name in the IANA registry, or `"unknown"`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* _ => "unknown" }
            }
        }
    };
}

error_codes! {
    NO_ERROR = 0;
    PROTOCOL_ERROR = 1;
    INTERNAL_ERROR = 2;
    FLOW_CONTROL_ERROR = 3;
    SETTINGS_TIMEOUT = 4;
    STREAM_CLOSED = 5;
    FRAME_SIZE_ERROR = 6;
    REFUSED_STREAM = 7;
    CANCEL = 8;
    COMPRESSION_ERROR = 9;
    CONNECT_ERROR = 10;
    ENHANCE_YOUR_CALM = 11;
    INADEQUATE_SECURITY = 12;
    HTTP_1_1_REQUIRED = 13;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Error of the peer that ends the connection (RFC 9113, section 5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// Error code for GOAWAY.
    pub code: ErrorCode,
    /// Description for the log and the debug data of GOAWAY. The text is fixed and contains no input of the peer.
    pub reason: &'static str,
}

impl ConnectionError {
    pub(super) const fn new(code: ErrorCode, reason: &'static str) -> Self {
        Self { code, reason }
    }

    pub(super) const fn protocol(reason: &'static str) -> Self {
        Self::new(ErrorCode::PROTOCOL_ERROR, reason)
    }

    pub(super) const fn frame_size(reason: &'static str) -> Self {
        Self::new(ErrorCode::FRAME_SIZE_ERROR, reason)
    }

    pub(super) const fn too_much(reason: &'static str) -> Self {
        Self::new(ErrorCode::ENHANCE_YOUR_CALM, reason)
    }
}
