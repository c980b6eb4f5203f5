//! Apache: reads its configuration, and translates it.
//!
//! [`syntax`] reads directives and decides conditions such as `<IfModule>`. [`host`] makes a site of each virtual host,
//! from its [`section`]s in the order in which Apache merges them. [`requirements`] reads access rules, and [`access`]
//! merges those of sections. [`rewrite`] translates rules of mod_rewrite, [`fields`] header fields, and [`proxy`]
//! upstreams. [`expression`] translates the conditions of Apache's expressions, and [`environment`] those of variables
//! that `SetEnvIf` sets.

mod access;
#[cfg(test)]
mod access_tests;
mod addresses;
mod alias;
mod conditional;
mod directory_index;
mod environment;
mod expression;
mod fields;
mod host;
mod known;
mod options;
mod overrides;
mod proxy;
mod redirects;
mod requirements;
mod rewrite;
mod rewrite_aliases;
mod rewrite_condition;
mod rewrite_forward;
mod rewrite_values;
mod section;
mod syntax;
#[cfg(test)]
mod tests;
mod wider;

use std::path::Path;

use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::{ImportError, Remark};

/// Nodes of the translation of an Apache configuration with its included files, and remarks.
pub(crate) fn translate(path: &Path) -> Result<(Vec<KdlNode>, Vec<Remark>), ImportError> {
    let is_of_directory = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".ht"));
    Ok(translate_directives(&syntax::read(path)?, is_of_directory.then_some(path)))
}

/// With `of_directory`, the directives are those of a `.htaccess` file.
fn translate_directives(directives: &[Directive], of_directory: Option<&Path>) -> (Vec<KdlNode>, Vec<Remark>) {
    let mut notes = Notes::default();
    let nodes = host::translate(directives, of_directory, &mut notes);
    (nodes, notes.sorted(directives))
}
