//! Ingresses with the annotations of ingress-nginx.

mod convert;
mod import;
mod print;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use self::convert::{IngressHost, IngressRule, IngressShare, convert};
pub use self::import::{ImportedIngresses, import};
pub use self::table::AnnotationOutcome;

/// Each documented annotation of ingress-nginx, what becomes of it, and a note.
pub fn annotation_table() -> impl Iterator<Item = (String, AnnotationOutcome, &'static str)> {
    table::ANNOTATIONS.iter().map(|(name, outcome, note)| (format!("{}{name}", table::PREFIX), *outcome, *note))
}
