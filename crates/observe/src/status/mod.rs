//! Status of a server as JSON, as metrics, and as a page with charts.

mod model;
mod openmetrics;
mod process;

pub use model::{
    BotCount, BotStatus, BufferStatus, CacheResultCount, CertificateStatus, ClientMemoryStatus, DiscoveryStatus,
    DiskCacheStatus, EvictionCount, FtpStatus, FtpTransferCount, InstanceStatus, LimitCount, LogStatus,
    ModuleFailureCount, ModuleStatus, ObjectCacheStatus, OverloadStatus, PlaceStatus, ProgramStatus, QuicStatus,
    RequestCount, ServerStatus, SharedCacheStatus, ShedCount, SiteStatus, SpanStatus, StatusReport, StoreStatus,
    StreamRejectionCount, StreamStatus, StreamsStatus, TimesStatus, TlsStatus, UpstreamStatus, WorkerStatus,
};
pub use openmetrics::{MetricsFormat, render};
pub use process::ProcessStatus;

/// Status page with its script and style, in one file; it polls the server for JSON.
pub const PAGE: &str = include_str!("page.html");
