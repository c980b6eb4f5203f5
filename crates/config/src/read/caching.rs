//! The block `cache` of a `forward`.

use std::sync::Arc;

use super::{ConfigReader, Setting};
use crate::diagnostic::{ConfigSource, Diagnostics};
use crate::model::response_caching::ResponseCaching;
use crate::options::{OptionContext, OptionSetter};

/// A `cache` block of a `forward`.
pub(super) fn read_caching(
    source: &Arc<ConfigSource>,
    setting: &Setting<'_>,
    diagnostics: &mut Diagnostics,
) -> ResponseCaching {
    let mut caching = ResponseCaching::default();
    if let Some(document) = setting.children {
        for inner in (ConfigReader { source: source.clone(), diagnostics }).read(document, OptionContext::Caching) {
            if let OptionSetter::Caching(set) = inner.option.set {
                set(&mut caching, &inner.values);
            }
        }
    }
    caching
}
