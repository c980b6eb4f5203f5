//! Directives of nginx that need nothing here.

use super::Notes;
use super::syntax::NginxDirective;
use crate::config;

/// Notes the directive if it needs nothing here. Returns `false` for all others.
pub(super) fn add(directive: &NginxDirective, notes: &mut Notes) -> bool {
    match config::needless_in_nginx(&directive.name) {
        Some(why) => {
            notes.needless(directive, why);
            true
        }
        None => false,
    }
}
