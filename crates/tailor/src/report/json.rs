//! Reports as JSON.

use super::BenchReport;

/// The report as JSON, after the schema that [`schema`] gives.
pub fn to_string(report: &BenchReport) -> String {
    // Maps with text as keys and numbers: nothing that can't be written.
    serde_json::to_string_pretty(report).expect("a report can be written as JSON")
}

/// The JSON schema of a report.
pub fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(BenchReport)).expect("a schema can be written as JSON")
}
