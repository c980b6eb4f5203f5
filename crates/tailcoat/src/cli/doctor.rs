//! `doctor`: what in the kernel's settings, limits, permissions and configuration costs speed or safety.

mod facts;
mod findings;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::facts::MachineFacts;
use self::findings::{DoctorFinding, FindingCost, examine};
use super::configuration::{self, ConfigFile};
use super::{EXIT_CONFIG, EXIT_FAILURE, fail, print};
use crate::config;

#[derive(Debug, Args)]
pub(super) struct DoctorArguments {
    #[command(flatten)]
    file: ConfigFile,

    /// Check the machine only
    #[arg(long, conflicts_with = "config")]
    no_config: bool,

    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl DoctorArguments {
    /// The exit code is 1 if there is something that costs safety, or keeps the server from working.
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let file = self.file.config.or(of_top).unwrap_or_else(|| config::DEFAULT_PATH.into());
        let config = match self.no_config {
            true => None,
            false => match config::check_file(&file) {
                Ok(checked) => match checked.config {
                    Some(config) => Some(config),
                    None => {
                        configuration::print_findings(&checked.diagnostics);
                        return ExitCode::from(EXIT_CONFIG);
                    }
                },
                Err(error) => {
                    fail(format_args!("{}: {error}", file.display()));
                    eprintln!("  run `tailcoat doctor --no-config` to check the machine only");
                    return ExitCode::from(EXIT_CONFIG);
                }
            },
        };
        let facts = MachineFacts::gather(config.as_ref(), config.is_some().then_some(file.as_path()));
        let findings = examine(&facts, config.as_ref());
        let text = if self.json { json(&findings) } else { text(&findings) };
        let printed = print(&text);
        let is_serious = findings.iter().any(|finding| finding.cost != FindingCost::Speed);
        if is_serious { ExitCode::from(EXIT_FAILURE) } else { printed }
    }
}

fn text(findings: &[DoctorFinding]) -> String {
    if findings.is_empty() {
        return "no problems found\n".into();
    }
    let one = |finding: &DoctorFinding| {
        let DoctorFinding { cost, what, why, mend } = finding;
        format!("{}: {what}\n  why: {why}\n  fix: {mend}\n", cost.name())
    };
    findings.iter().map(one).collect()
}

fn json(findings: &[DoctorFinding]) -> String {
    let list: Vec<_> = findings
        .iter()
        .map(|finding| {
            serde_json::json!({
                "cost": finding.cost.name(), "what": finding.what, "why": finding.why, "mend": finding.mend,
            })
        })
        .collect();
    // Local invariant: a list of objects of strings.
    serde_json::to_string_pretty(&list).unwrap_or_default() + "\n"
}
