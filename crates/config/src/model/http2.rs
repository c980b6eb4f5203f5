use wire::h2::BudgetLimit;

/// Versions of HTTP that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpVersions {
    /// HTTP/1.1 and HTTP/1.0.
    pub http1: bool,
    /// HTTP/2.
    pub http2: bool,
    /// HTTP/3.
    pub http3: bool,
}

/// Congestion control of HTTP/3 connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// BBR, by the rate and delay of the line.
    Bbr,
    /// NewReno (RFC 9002).
    NewReno,
}

impl Default for HttpVersions {
    fn default() -> Self {
        Self { http1: true, http2: true, http3: true }
    }
}

/// Limits of an HTTP/2 connection, in addition to those of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Requests that may be open at a time.
    pub concurrent_streams_max: u32,
    /// Bytes of content, of a stream and of all, that may wait to be read.
    pub window_bytes_max: u32,
    /// Bytes of fields that the client may have kept.
    pub header_table_bytes_max: u32,
    /// CONTINUATION frames of a head.
    pub continuations_max: u32,
    /// Streams that the client resets.
    pub peer_resets: BudgetLimit,
    /// Streams that have to be reset for the client's faults.
    pub stream_faults: BudgetLimit,
    /// SETTINGS frames.
    pub settings: BudgetLimit,
    /// PING frames.
    pub pings: BudgetLimit,
    /// PRIORITY and PRIORITY_UPDATE frames.
    pub priorities: BudgetLimit,
    /// WINDOW_UPDATE frames.
    pub window_updates: BudgetLimit,
    /// Frames that say nothing.
    pub idle_frames: BudgetLimit,
}

impl Default for Http2Limits {
    fn default() -> Self {
        let defaults = wire::h2::H2Limits::default();
        Self {
            concurrent_streams_max: defaults.concurrent_streams_max,
            window_bytes_max: defaults.window_bytes_max,
            header_table_bytes_max: defaults.header_table_bytes_max,
            continuations_max: defaults.continuations_max,
            peer_resets: defaults.peer_resets,
            stream_faults: defaults.stream_faults,
            settings: defaults.settings,
            pings: defaults.pings,
            priorities: defaults.priorities,
            window_updates: defaults.window_updates,
            idle_frames: defaults.idle_frames,
        }
    }
}
