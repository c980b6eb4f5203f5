//! Remarks about directives that were not translated.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use crate::directive::Directive;
use crate::{ImportOutcome, Remark};

/// Directives that were not translated.
#[derive(Default)]
pub(crate) struct Notes {
    remarks: Vec<Remark>,
    /// Texts of all remarks.
    known: HashSet<String>,
    /// Number of them that are already in the translation as comments, or need not be.
    written: usize,
}

impl Notes {
    pub(crate) fn left(&mut self, directive: &Directive, why: impl Into<String>) {
        self.push(directive, ImportOutcome::Left(why.into()));
    }

    pub(crate) fn needless(&mut self, directive: &Directive, why: &'static str) {
        self.push(directive, ImportOutcome::Needless(why));
    }

    /// Notes a directive whose paths are rejected instead. Returns the comment for that place.
    pub(crate) fn rejected(&mut self, directive: &Directive, why: impl Into<String>) -> String {
        self.push(directive, ImportOutcome::Rejected(why.into())).to_string()
    }

    /// A directive that nothing here knows of.
    pub(crate) fn unknown(&mut self, directive: &Directive) {
        let why = if directive.name == "include" { "there is no such file" } else { "there is no counterpart" };
        self.left(directive, why);
    }

    fn push(&mut self, directive: &Directive, outcome: ImportOutcome) -> Remark {
        let remark = Remark { place: directive.place.clone(), directive: directive.line(), outcome };
        // An inherited directive occurs once in each place that inherits it.
        if self.known.insert(remark.to_string()) {
            self.remarks.push(remark.clone());
        }
        remark
    }

    /// Remarks since the last call, a line each: a comment for the place of the translation.
    pub(crate) fn unwritten(&mut self) -> Vec<String> {
        let new = &self.remarks[self.written..];
        let left = new.iter().filter(|remark| matches!(remark.outcome, ImportOutcome::Left(_)));
        let lines = left.map(ToString::to_string).collect();
        self.written = self.remarks.len();
        lines
    }

    /// In the order in which directives stand, file by file.
    pub(crate) fn sorted(mut self, directives: &[Directive]) -> Vec<Remark> {
        let mut files = HashMap::new();
        collect_files(directives, &mut files);
        let position = |remark: &Remark| files.get(&*remark.place.file).copied();
        self.remarks.sort_by_cached_key(|remark| (position(remark), remark.place.line));
        self.remarks
    }
}

/// Numbers files in the order in which they occur.
fn collect_files<'a>(directives: &'a [Directive], files: &mut HashMap<&'a Path, usize>) {
    for directive in directives {
        let number = files.len();
        files.entry(&directive.place.file).or_insert(number);
        collect_files(directive.children(), files);
    }
}
