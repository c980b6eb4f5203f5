use std::fmt;

/// Why a stream or connection ends (RFC 9113, section 7). Codes that nobody registered are as good as any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

macro_rules! error_codes {
    ($($name:ident = $code:literal;)*) => {
        impl ErrorCode {
            $(#[doc = concat!("0x", stringify!($code))] pub const $name: Self = Self($code);)*

            /// The name in the registry, or `"unknown"`.
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

/// A fault of the peer's that ends the connection (RFC 9113, section 5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionError {
    /// What GOAWAY says.
    pub code: ErrorCode,
    /// What was wrong, for the log and GOAWAY's debug data; a fixed text, with nothing of the peer's in it.
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
