//! The block `bots`, of all sites or of one.

use std::sync::Arc;

use super::rules::RulePosition;
use super::{ConfigReader, Setting};
use crate::diagnostic::Diagnostics;
use crate::model::bots::BotsConfig;
use crate::options::{OptionContext, OptionSetter};

/// A `bots` block at a position; `None` is `off`. Adds the places of the files of its crawlers.
pub(super) fn read_bots(
    position: &RulePosition,
    setting: &Setting<'_>,
    crawlers: &mut Vec<RulePosition>,
    diagnostics: &mut Diagnostics,
) -> Option<Arc<BotsConfig>> {
    let preset = BotsConfig::preset(&setting.values.text("preset").unwrap_or_default());
    let mut bots = preset.clone().unwrap_or_default();
    bots.is_dry_run = setting.values.flag("dry-run").unwrap_or(false);
    crawlers.resize(bots.crawlers.len(), position.clone());
    let (source, _) = position;
    if let Some(document) = setting.children {
        for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Bots) {
            if let OptionSetter::Bots(set) = inner.option.set {
                set(&mut bots, &inner.values);
                let span = inner.values.all("ranges").next().map_or(&inner.span, |(_, span)| span);
                crawlers.resize(bots.crawlers.len(), (source.clone(), span.clone()));
            }
        }
    }
    preset.map(|_| Arc::new(bots))
}
