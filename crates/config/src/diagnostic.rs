use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use expression::ExpressionReference;
use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteError, MietteSpanContents, SourceCode, SourceSpan,
    SpanContents,
};
use serde_json::json;

use crate::places::ConfigPlaces;

/// End of the message about words such as `true`.
const IS_NO_VALUE: &str = "` is not a value";

/// A configuration text and where it came from.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigSource {
    /// Name in messages: a path, or `<stdin>`.
    pub name: String,
    /// The text.
    pub text: String,
    /// Absolute directory that relative paths in the text start from.
    pub directory: PathBuf,
}

impl ConfigSource {
    /// Line and column of a byte offset, both counted from 1; columns are code points.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        (line, String::from_utf8_lossy(&before[line_start..]).chars().count() + 1)
    }
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration can't be used.
    Error,
    /// The configuration can be used, but it is probably not what was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One finding in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The text it is in.
    pub source: Arc<ConfigSource>,
    /// The bytes of the text it is about.
    pub span: Range<usize>,
    /// Severity of the finding.
    pub severity: Severity,
    /// Sentence without a full stop: what is wrong.
    pub message: String,
    /// Text at the caret.
    pub label: String,
    /// Way to fix it.
    pub help: Option<String>,
    /// Related place, and the text at its caret.
    pub related: Option<(Arc<ConfigSource>, Range<usize>, String)>,
    /// True if the process lacks the permission for a file.
    pub is_denied: bool,
}

/// Finding at a place of a text.
pub(crate) struct ConfigFinding {
    pub(crate) span: Range<usize>,
    pub(crate) message: String,
    pub(crate) label: &'static str,
    pub(crate) help: Option<String>,
    pub(crate) related: Option<(Arc<ConfigSource>, Range<usize>, String)>,
    /// True if the process lacks the permission for a file.
    pub(crate) is_denied: bool,
}

impl ConfigFinding {
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>, label: &'static str) -> Self {
        Self { span, message: message.into(), label, help: None, related: None, is_denied: false }
    }

    pub(crate) fn help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into();
        self
    }

    pub(crate) fn denied(mut self, is_denied: bool) -> Self {
        self.is_denied = is_denied;
        self
    }

    pub(crate) fn related(mut self, source: Arc<ConfigSource>, span: Range<usize>, label: &str) -> Self {
        self.related = Some((source, span, label.to_owned()));
        self
    }
}

/// The findings of one run, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    omitted: usize,
    error_count: usize,
    /// References to maps and secrets, which may be defined later in the text.
    pub(crate) references: Vec<(Arc<ConfigSource>, Range<usize>, ExpressionReference)>,
    /// Places of options; `None` if they are not kept.
    pub(crate) places: Option<ConfigPlaces>,
}

impl Diagnostics {
    /// Maximum number of findings that are kept; further ones are only counted.
    pub const LIST_MAX: usize = 100;

    /// The findings that were kept.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// Returns `true` if there is an error.
    pub fn has_error(&self) -> bool {
        self.error_count > 0
    }

    /// Number of errors, with those that were not kept.
    pub fn error_count(&self) -> usize {
        self.error_count
    }

    /// Returns `true` if there are no findings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of warnings, with those that were not kept.
    pub fn warning_count(&self) -> usize {
        self.list.len() + self.omitted - self.error_count
    }

    /// Returns `true` if further findings are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= Self::LIST_MAX
    }

    /// Adds an error in a text.
    pub(crate) fn error(&mut self, source: &Arc<ConfigSource>, finding: ConfigFinding) {
        self.note(source, Severity::Error, finding);
    }

    /// Adds a warning about a text.
    pub(crate) fn warning(&mut self, source: &Arc<ConfigSource>, finding: ConfigFinding) {
        self.note(source, Severity::Warning, finding);
    }

    fn note(&mut self, source: &Arc<ConfigSource>, severity: Severity, finding: ConfigFinding) {
        let ConfigFinding { span, mut message, label, help, related, is_denied } = finding;
        // A fault of the value says more than that its word is none.
        let is_of_word = |one: &Diagnostic| {
            one.span == span && one.message.ends_with(IS_NO_VALUE) && Arc::ptr_eq(&one.source, source)
        };
        if severity == Severity::Error && self.list.last().is_some_and(is_of_word) {
            let word = self.take_errors(is_of_word).pop().map(|word| word.message.replace(IS_NO_VALUE, "`"));
            message = message.replace("`on`", word.as_deref().unwrap_or("`on`"));
        }
        let (source, label) = (Arc::clone(source), label.to_owned());
        self.push(Diagnostic { source, span, severity, message, label, help, related, is_denied });
    }

    /// Takes out the errors that a condition holds for.
    pub fn take_errors(&mut self, is_meant: impl Fn(&Diagnostic) -> bool) -> Vec<Diagnostic> {
        self.take(|one| one.severity == Severity::Error && is_meant(one))
    }

    /// Takes out the findings that a condition holds for.
    pub fn take(&mut self, is_meant: impl Fn(&Diagnostic) -> bool) -> Vec<Diagnostic> {
        let (taken, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.list).into_iter().partition(is_meant);
        self.list = kept;
        self.error_count -= taken.iter().filter(|one| one.severity == Severity::Error).count();
        taken
    }

    /// Adds findings of a user who may open fewer files than the user of the other findings.
    pub fn add_denied(&mut self, found: &Self, user: &str) {
        for denied in found.iter().filter(|one| one.is_denied) {
            let is_same = |known: &Diagnostic| known.span == denied.span && known.message == denied.message;
            if self.list.iter().any(is_same) {
                continue;
            }
            let message = format!("{} for `{user}`", denied.message);
            let help = format!(
                "the server runs as `{user}`: give that user permission for the file (`chown`, or `chgrp` and `chmod`), and \
                 `x` on the directories above it"
            );
            self.push(Diagnostic { message, help: Some(help), ..denied.clone() });
        }
    }

    pub(super) fn push(&mut self, diagnostic: Diagnostic) {
        self.error_count += usize::from(diagnostic.severity == Severity::Error);
        if !self.is_full() {
            self.list.push(diagnostic);
        } else {
            self.omitted += 1;
        }
    }

    /// The findings in the order of the text; those of an included file stay together.
    pub(super) fn sort(&mut self) {
        let mut files: Vec<*const ConfigSource> = Vec::new();
        for diagnostic in &self.list {
            if !files.contains(&Arc::as_ptr(&diagnostic.source)) {
                files.push(Arc::as_ptr(&diagnostic.source));
            }
        }
        let file = |diagnostic: &Diagnostic| files.iter().position(|&file| file == Arc::as_ptr(&diagnostic.source));
        self.list.sort_by_key(|diagnostic| (file(diagnostic), diagnostic.span.start, diagnostic.span.end));
    }

    /// For a person: each finding with its line, a caret, and help. `fancy` is colours and box drawing, for terminals.
    pub fn to_text(&self, fancy: bool) -> String {
        let theme = if fancy { GraphicalTheme::unicode() } else { plain_theme() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(110).with_context_lines(1);
        let mut shown: HashMap<*const ConfigSource, ShownSource> = HashMap::new();
        for Diagnostic { source, .. } in &self.list {
            shown.entry(Arc::as_ptr(source)).or_insert_with(|| ShownSource::new(source));
        }
        let mut text = String::new();
        for diagnostic in &self.list {
            let source = &shown[&Arc::as_ptr(&diagnostic.source)];
            // Writing to a `String` never fails.
            let _ = handler.render_report(&mut text, &DiagnosticReport::new(diagnostic, source));
            text.push('\n');
        }
        if self.omitted > 0 {
            text.push_str(&format!("... and {} more\n", self.omitted));
        }
        text
    }

    /// For editors: a JSON object with `errors`, `warnings`, `omitted` (numbers) and `diagnostics`, a list of objects
    /// with `file`, `severity`, `message`, `help` (or null), `span` (`start` and `end`, in bytes), and `line`,
    /// `column`, `end_line`, `end_column` (from 1, in code points).
    pub fn to_json(&self) -> String {
        let list: Vec<_> = self.list.iter().map(diagnostic_to_json).collect();
        let object = json!({
            "errors": self.error_count,
            "warnings": self.warning_count(),
            "omitted": self.omitted,
            "diagnostics": list,
        });
        format!("{object:#}")
    }
}

fn diagnostic_to_json(diagnostic: &Diagnostic) -> serde_json::Value {
    let (line, column) = diagnostic.source.position(diagnostic.span.start);
    let (end_line, end_column) = diagnostic.source.position(diagnostic.span.end);
    json!({
        "file": diagnostic.source.name,
        "severity": diagnostic.severity.to_string(),
        "message": diagnostic.message,
        "help": diagnostic.help,
        "span": { "start": diagnostic.span.start, "end": diagnostic.span.end },
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
    })
}

fn plain_theme() -> GraphicalTheme {
    let mut theme = GraphicalTheme::none();
    theme.characters.error = "error:".into();
    theme.characters.warning = "warning:".into();
    theme
}

/// A [`Diagnostic`] in miette's terms.
#[derive(Debug)]
struct DiagnosticReport<'a> {
    diagnostic: &'a Diagnostic,
    source: &'a ShownSource,
    labels: Vec<LabeledSpan>,
    help: Option<String>,
}

impl<'a> DiagnosticReport<'a> {
    fn new(diagnostic: &'a Diagnostic, source: &'a ShownSource) -> Self {
        // Texts may quote values of the file, in which escapes stand for any character.
        let mut help = diagnostic.help.as_deref().map(shown_text);
        let mut labels =
            vec![LabeledSpan::new_primary_with_span(Some(shown_text(&diagnostic.label)), diagnostic.span.clone())];
        match &diagnostic.related {
            Some((source, span, label)) if Arc::ptr_eq(source, &diagnostic.source) => {
                labels.push(LabeledSpan::new_with_span(Some(shown_text(label)), span.clone()));
            }
            Some((source, span, label)) => {
                let place = shown_text(&format!("{label}: {}:{}", source.name, source.position(span.start).0));
                help = Some(help.map_or(place.clone(), |help| format!("{help}\n{place}")));
            }
            None => {}
        }
        Self { diagnostic, source, labels, help }
    }
}

/// A source as it is shown. Of its text, miette reads only the lines around what it shows: it would read all from the
/// first line on, each time.
#[derive(Debug)]
struct ShownSource {
    name: String,
    text: String,
    /// Offsets of line starts: 0, and after each line feed.
    line_starts: Vec<usize>,
}

impl ShownSource {
    fn new(source: &ConfigSource) -> Self {
        let text = printable(&source.text);
        let line_starts =
            std::iter::once(0).chain(memchr::memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1)).collect();
        Self { name: shown_text(&source.name), text, line_starts }
    }

    /// The line, from 0, that this byte is in.
    fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset) - 1
    }
}

impl SourceCode for ShownSource {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        context_lines_before: usize,
        context_lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        // A line more at each side, so that the ends are as they would be in the whole.
        let first_line = self.line_of(span.offset()).saturating_sub(context_lines_before + 1);
        let end_line = self.line_of(span.offset() + span.len()) + context_lines_after + 2;
        let start = self.line_starts[first_line];
        let end = self.line_starts.get(end_line).copied().unwrap_or(self.text.len());
        let inner_span = (span.offset() - start, span.len()).into();
        let excerpt = &self.text.as_bytes()[start..end];
        let contents = excerpt.read_span(&inner_span, context_lines_before, context_lines_after)?;
        let contents_span = (start + contents.span().offset(), contents.span().len());
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            contents.data(),
            contents_span.into(),
            first_line + contents.line(),
            contents.column(),
            contents.line_count(),
        )))
    }
}

/// The text without characters that would act on a terminal, each byte where it was.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        // KDL takes these for white space or line ends. A terminal moves its cursor.
        let moves = match character {
            '\r' => characters.peek() != Some(&'\n'),
            _ => matches!(character, '\x0b' | '\x0c' | '\u{85}'),
        };
        match moves || is_harmful(character) {
            true => shown.extend(std::iter::repeat_n('?', character.len_utf8())),
            false => shown.push(character),
        }
    }
    shown
}

/// A text of a finding, which may quote a value with tabs.
fn shown_text(text: &str) -> String {
    printable(text).replace('\t', " ")
}

/// Characters that KDL forbids (KDL 2, "Disallowed Literal Code Points"), which are those that act on a terminal.
pub(super) fn is_harmful(character: char) -> bool {
    matches!(character, '\0'..='\x08' | '\x0e'..='\x1f' | '\x7f'..='\u{9f}' | '\u{200e}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        && character != '\u{85}'
}

impl fmt::Display for DiagnosticReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_text(&self.diagnostic.message))
    }
}

impl std::error::Error for DiagnosticReport<'_> {}

impl miette::Diagnostic for DiagnosticReport<'_> {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.diagnostic.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.labels.iter().cloned()))
    }
}
