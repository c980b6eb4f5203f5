//! Settings that all sites share.

use super::access_log::{AccessLog, LogFilter};
use super::fixed::ErrorPageConfig;
use super::route::PathPattern;

/// Settings that all sites share and a site can replace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SiteDefaults {
    pub(crate) error_pages: Vec<ErrorPageConfig>,
    /// `None` without the option, `Some(None)` for `off`.
    pub(crate) access_log: Option<Option<AccessLog>>,
    /// Choice of the requests that the log has.
    pub(crate) log_filter: Option<LogFilter>,
    /// Paths whose requests are in no log.
    pub(crate) unlogged: Vec<PathPattern>,
}
