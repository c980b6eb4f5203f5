//! Reports as JSON.

use super::BenchReport;

/// Formats a report as JSON, which follows [`schema`].
pub(crate) fn to_string(report: &BenchReport) -> String {
    // The report has only text as keys of maps, so JSON can express all of it.
    serde_json::to_string_pretty(report).expect("a report can be written as JSON")
}

/// JSON schema of a report.
pub(crate) fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(BenchReport)).expect("a schema can be written as JSON")
}
