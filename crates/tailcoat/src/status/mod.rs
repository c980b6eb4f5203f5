//! What there is to see of the running server: gathered from all workers and rooms, and told as JSON, as metrics, or as a
//! page that plots it.

mod model;
mod observer;
mod openmetrics;
mod process;

pub use model::{
    CacheResultCount, EvictionCount, LimitCount, LogStatus, ModuleFailureCount, ModuleStatus, ObjectCacheStatus,
    OverloadStatus, PlaceStatus, ProgramStatus, RequestCount, ServerStatus, ShedCount, SiteStatus, Status, TimesStatus,
    TlsStatus, UpstreamStatus, WorkerStatus,
};
pub use observer::{Observer, Sources};
pub use openmetrics::{MetricsFormat, render};
pub use process::ProcessStatus;

/// The page that plots what it asks the server for, in one file.
pub const PAGE: &str = include_str!("page.html");
