//! Checks of `bots`: files that must be readable and whole.

use std::path::Path;

use bots::challenge::KEY_BYTES;
use bots::ranges::parse_ranges;
use bots::signature::AgentKeys;

use super::finding::{ModelFinding, ModelPart, RulePart};
use crate::model::bots::BotsConfig;
use crate::regular_file::is_denied;

/// Notes faults of a block.
pub(super) fn check_bots(bots: &BotsConfig, part: impl Fn(RulePart) -> ModelPart, findings: &mut Vec<ModelFinding>) {
    let fault = |at: RulePart, message: String, help: &str| {
        let label = if at == RulePart::Bots { "in here" } else { "in this file" };
        ModelFinding::error(part(at), message, label).help(help)
    };
    let mut check = |at: RulePart, file: &Path, help: &str, read: &dyn Fn(&[u8]) -> Result<(), String>| {
        let (message, denied) = match std::fs::read(file) {
            Ok(bytes) => match read(&bytes) {
                Ok(()) => return,
                Err(message) => (message, false),
            },
            Err(error) => (error.to_string(), is_denied(&error)),
        };
        findings.push(fault(at, format!("{}: {message}", file.display()), help).denied(denied));
    };
    for (index, crawler) in bots.crawlers.iter().enumerate() {
        if let Some(file) = &crawler.ranges {
            let help = "name a file of networks, one a line, or the JSON that the crawler's operator publishes";
            check(RulePart::Crawler(index), file, help, &|bytes| {
                parse_ranges(bytes).map(drop).map_err(|error| error.0)
            });
        }
    }
    for (agent, file) in &bots.agent_keys {
        let help = "name a JSON Web Key Set, such as the agent's `http-message-signatures-directory`";
        check(RulePart::Bots, file, help, &|bytes| AgentKeys::default().add(agent, bytes).map_err(|error| error.0));
    }
    if let Some(file) = &bots.robots {
        check(RulePart::Bots, file, "name the site's robots.txt", &|_| Ok(()));
    }
    if let Some(file) = &bots.key_file {
        check(
            RulePart::Bots,
            file,
            "create it with `head -c 32 /dev/urandom`",
            &|bytes| match bytes.len() >= KEY_BYTES {
                true => Ok(()),
                false => Err(format!("the file has fewer than {KEY_BYTES} bytes")),
            },
        );
    }
    if bots.policy.challenge_score.zip(bots.policy.reject_score).is_some_and(|(challenge, reject)| challenge >= reject)
    {
        findings.push(fault(
            RulePart::Bots,
            "`challenge-score` is not below `reject-score`".into(),
            "no request would get a challenge",
        ));
    }
}
