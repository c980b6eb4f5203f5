//! The block `bots`, of all sites or of one.

use std::sync::Arc;

use super::{ConfigReader, Setting};
use crate::diagnostic::{ConfigSource, Diagnostics};
use crate::model::bots::BotsConfig;
use crate::options::{OptionContext, OptionSetter};

/// A `bots` block; `None` is `off`.
pub(super) fn read_bots(
    source: &Arc<ConfigSource>,
    setting: &Setting<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<Arc<BotsConfig>> {
    let preset = BotsConfig::preset(&setting.values.text("preset").unwrap_or_default());
    let mut bots = preset.clone().unwrap_or_default();
    bots.is_dry_run = setting.values.flag("dry-run").unwrap_or(false);
    if let Some(document) = setting.children {
        for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Bots) {
            if let OptionSetter::Bots(set) = inner.option.set {
                set(&mut bots, &inner.values);
            }
        }
    }
    preset.map(|_| Arc::new(bots))
}
