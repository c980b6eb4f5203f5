//! Parts of the text that are written once and used often: snippets, and files that are included.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diagnostic::{ConfigFinding, ConfigSource, Diagnostics};
use crate::regular_file::is_denied;
use crate::suggest::nearest;
use crate::text::kdl::{KdlDocument, KdlEntry, KdlValue, NodeOrigin, ParsedNode};
use crate::text::{parse_document, read_bytes, to_source};

/// Deepest nesting of included files and of snippets in each other.
pub(crate) const DEPTH_MAX: usize = 16;

/// Most nodes that snippets and files may add to the blocks of a configuration.
const NODES_MAX: usize = 1_000_000;

/// Most files that one `include` may read.
const INCLUDED_FILES_MAX: usize = 10_000;

/// Beginning of a parameter's placeholder.
const PARAMETER: &str = "{param.";

/// Snippets of all texts so far.
#[derive(Default)]
pub(crate) struct SnippetTable {
    snippets: HashMap<String, Arc<SnippetDraft>>,
    /// Nodes that were added, uses of snippets and included files.
    nodes: usize,
    /// Files whose snippets are known, without symbolic links.
    collected: HashSet<PathBuf>,
    /// Files that were included in blocks.
    pub(crate) files: Vec<PathBuf>,
}

struct SnippetDraft {
    source: Arc<ConfigSource>,
    span: Range<usize>,
    parameters: Vec<String>,
    nodes: Vec<ParsedNode>,
}

/// Place from which nodes are inserted: the outermost `use` or `include`.
#[derive(Clone)]
struct InsertionPoint {
    source: Arc<ConfigSource>,
    span: Range<usize>,
    /// Names of the snippets and files around.
    within: Vec<String>,
}

impl SnippetTable {
    /// Adds the snippets of a text, and those of the files that it includes. Their other faults are found when they are
    /// read.
    pub(crate) fn collect(
        &mut self,
        source: &Arc<ConfigSource>,
        document: &KdlDocument,
        depth: usize,
        diagnostics: &mut Diagnostics,
    ) {
        for node in &document.nodes {
            match node.name.as_str() {
                "snippet" => self.define(source, node, diagnostics),
                "include" if depth < DEPTH_MAX => {
                    for file in pattern_of(source, node).and_then(|pattern| expand(&pattern).ok()).unwrap_or_default() {
                        // Files may include each other. Each is searched for snippets once.
                        if !self.collected.insert(canonical(&file)) {
                            continue;
                        }
                        let Ok(bytes) = read_bytes(&file) else { continue };
                        // Most files have none, and there may be thousands.
                        if memchr::memmem::find(&bytes, b"snippet").is_none() {
                            continue;
                        }
                        let mut unused = Diagnostics::default();
                        let included = source_of(&file, bytes, &mut unused);
                        if let Some(document) = parse_document(&included, &mut unused) {
                            self.collect(&included, &document, depth + 1, &mut unused);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn define(&mut self, source: &Arc<ConfigSource>, node: &ParsedNode, diagnostics: &mut Diagnostics) {
        let help = "write, for example, `snippet \"cached\" \"age\" { cache-control \"*\" \"max-age={param.age}\" }`";
        let names: Option<Vec<String>> = node
            .entries
            .iter()
            .map(|entry| entry.value.as_string().filter(|_| entry.name.is_none()).map(str::to_owned))
            .collect();
        let (Some([name, parameters @ ..]), Some(children)) = (names.as_deref(), &node.children) else {
            let finding = ConfigFinding::new(node.span.clone(), "`snippet` needs a name and a block", "this");
            return diagnostics.error(source, finding.help(help.to_owned()));
        };
        if let Some(first) = self.snippets.get(name) {
            // A text is collected with those that include it, and again when it is read.
            if first.source.name == source.name && first.span == node.span {
                return;
            }
            let finding =
                ConfigFinding::new(node.span.clone(), format!("the snippet `{name}` is given twice"), "again here")
                    .related(first.source.clone(), first.span.clone(), "first here");
            return diagnostics.error(source, finding);
        }
        let snippet = SnippetDraft {
            source: source.clone(),
            span: node.span.clone(),
            parameters: parameters.to_vec(),
            nodes: children.nodes.clone(),
        };
        self.snippets.insert(name.clone(), Arc::new(snippet));
    }

    /// The document with the content of snippets and files in the places that use them; `None` if it has no such places.
    pub(crate) fn expanded(
        &mut self,
        source: &Arc<ConfigSource>,
        document: &KdlDocument,
        diagnostics: &mut Diagnostics,
    ) -> Option<KdlDocument> {
        if !document.nodes.iter().any(|node| is_reuse(node, true)) {
            return None;
        }
        let nodes = document.nodes.iter().filter(|node| node.name != "snippet");
        Some(KdlDocument { nodes: self.expand_nodes(source, nodes, None, true, diagnostics) })
    }

    fn expand_nodes<'n>(
        &mut self,
        source: &Arc<ConfigSource>,
        nodes: impl Iterator<Item = &'n ParsedNode>,
        point: Option<&InsertionPoint>,
        is_top: bool,
        diagnostics: &mut Diagnostics,
    ) -> Vec<ParsedNode> {
        let mut expanded = Vec::new();
        for node in nodes {
            match node.name.as_str() {
                "use" => expanded.extend(self.use_snippet(source, node, point, is_top, diagnostics)),
                "include" if !is_top => expanded.extend(self.include(source, node, point, diagnostics)),
                _ => {
                    let children = node.children.as_ref().map(|document| KdlDocument {
                        nodes: self.expand_nodes(source, document.nodes.iter(), point, false, diagnostics),
                    });
                    let (name, span, entries) = (node.name.clone(), node.span.clone(), node.entries.clone());
                    let origin = point.map(|point| NodeOrigin { source: source.clone(), used_at: point.span.clone() });
                    expanded.push(ParsedNode { name, span, entries, children, origin });
                }
            }
        }
        self.nodes += if point.is_some() { expanded.len() } else { 0 };
        expanded
    }

    fn use_snippet(
        &mut self,
        source: &Arc<ConfigSource>,
        node: &ParsedNode,
        point: Option<&InsertionPoint>,
        is_top: bool,
        diagnostics: &mut Diagnostics,
    ) -> Vec<ParsedNode> {
        let fault = |message: String, help: String, diagnostics: &mut Diagnostics| {
            let finding = ConfigFinding::new(node.span.clone(), message, "this").help(help);
            diagnostics.error(source, finding);
            Vec::new()
        };
        let name = node.entries.first().and_then(|entry| entry.value.as_string());
        let (Some(name), true) = (name, node.entries.iter().all(|entry| entry.name.is_none())) else {
            let help = "write, for example, `use \"cached\" \"3600\"`".to_owned();
            return fault("`use` needs the name of a snippet, and its values".to_owned(), help, diagnostics);
        };
        let Some(snippet) = self.snippets.get(name).cloned() else {
            let known: Vec<&str> = self.snippets.keys().map(String::as_str).collect();
            let help = match nearest(name, &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("add `snippet \"{name}\" {{ … }}` at the top level"),
            };
            return fault(format!("there is no snippet `{name}`"), help, diagnostics);
        };
        let values = &node.entries[1..];
        if values.len() != snippet.parameters.len() {
            let message =
                format!("the snippet `{name}` takes {} values, not {}", snippet.parameters.len(), values.len());
            let parameters: String = snippet.parameters.iter().map(|name| format!(" \"{name}\"")).collect();
            return fault(
                message,
                format!("write `use \"{name}\"{parameters}`, with values for the names"),
                diagnostics,
            );
        }
        let within = point.map(|point| point.within.clone()).unwrap_or_default();
        if within.iter().any(|around| around == name) || within.len() >= DEPTH_MAX || self.nodes > NODES_MAX {
            let message = format!("the snippet `{name}` leads to itself, or to too many options");
            return fault(message, format!("break the circle: {}, {name}", within.join(", ")), diagnostics);
        }
        // Also one without options: those that use each other twice would take for ever.
        self.nodes += 1;
        let point = InsertionPoint {
            source: point.map_or_else(|| source.clone(), |point| point.source.clone()),
            span: point.map_or_else(|| node.span.clone(), |point| point.span.clone()),
            within: within.into_iter().chain([name.to_owned()]).collect(),
        };
        let mut nodes = snippet.nodes.clone();
        let mut unknown = Vec::new();
        for inner in &mut nodes {
            set_parameters(inner, &snippet.parameters, values, &mut unknown);
        }
        for (parameter, span) in unknown {
            let known: Vec<&str> = snippet.parameters.iter().map(String::as_str).collect();
            let help = nearest(&parameter, &known)
                .map_or("name it after the snippet's name".into(), |near| format!("did you mean `{near}`?"));
            let finding = ConfigFinding::new(span, format!("the snippet has no parameter `{parameter}`"), "in here");
            diagnostics.error(&snippet.source, finding.help(help));
        }
        self.expand_nodes(&snippet.source, nodes.iter(), Some(&point), is_top, diagnostics)
    }

    /// Options of files in a block.
    fn include(
        &mut self,
        source: &Arc<ConfigSource>,
        node: &ParsedNode,
        point: Option<&InsertionPoint>,
        diagnostics: &mut Diagnostics,
    ) -> Vec<ParsedNode> {
        let fault = |message: String, is_denied: bool, diagnostics: &mut Diagnostics| {
            let finding = ConfigFinding::new(node.span.clone(), message, "included here").denied(is_denied);
            diagnostics.error(source, finding);
        };
        let Some(pattern) = pattern_of(source, node) else {
            fault("`include` needs the name of a file".to_owned(), false, diagnostics);
            return Vec::new();
        };
        let files = match expand(&pattern) {
            Ok(files) => files,
            Err(error) => {
                fault(format!("{}: {error}", pattern.display()), is_denied(&error), diagnostics);
                return Vec::new();
            }
        };
        if files != [pattern.clone()] {
            self.files.extend(pattern.parent().map(Path::to_owned));
        }
        let within = point.map(|point| point.within.clone()).unwrap_or_default();
        let mut nodes = Vec::new();
        for file in files {
            let name = canonical(&file).display().to_string();
            if within.contains(&name) || within.len() >= DEPTH_MAX || self.nodes > NODES_MAX {
                fault(format!("{} includes itself, or too many others", file.display()), false, diagnostics);
                continue;
            }
            self.nodes += 1;
            self.files.push(file.clone());
            let bytes = match read_bytes(&file) {
                Ok(bytes) => bytes,
                Err(error) => {
                    fault(format!("{}: {error}", file.display()), is_denied(&error), diagnostics);
                    continue;
                }
            };
            let included = source_of(&file, bytes, diagnostics);
            let Some(document) = parse_document(&included, diagnostics) else { continue };
            let point = InsertionPoint {
                source: point.map_or_else(|| source.clone(), |point| point.source.clone()),
                span: point.map_or_else(|| node.span.clone(), |point| point.span.clone()),
                within: within.iter().cloned().chain([name]).collect(),
            };
            nodes.extend(self.expand_nodes(&included, document.nodes.iter(), Some(&point), false, diagnostics));
        }
        nodes
    }
}

/// Returns `true` if the node, or one in its block, must be replaced.
fn is_reuse(node: &ParsedNode, is_top: bool) -> bool {
    let is_itself = match node.name.as_str() {
        "use" => true,
        "snippet" => is_top,
        "include" => !is_top,
        _ => false,
    };
    is_itself || node.children.as_ref().is_some_and(|document| document.nodes.iter().any(|node| is_reuse(node, false)))
}

/// The file, or the pattern of files, of an `include`.
fn pattern_of(source: &ConfigSource, node: &ParsedNode) -> Option<PathBuf> {
    let [KdlEntry { name: None, value: KdlValue::String(text), .. }] = node.entries.as_slice() else { return None };
    (!text.is_empty()).then(|| source.directory.join(text))
}

pub(crate) fn source_of(file: &Path, bytes: Vec<u8>, diagnostics: &mut Diagnostics) -> Arc<ConfigSource> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    to_source(&file.display().to_string(), bytes, directory, diagnostics)
}

/// The file without symbolic links, to tell whether it is the same as another.
pub(crate) fn canonical(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

/// Puts the values of parameters in their places. Notes those that the snippet does not have.
fn set_parameters(
    node: &mut ParsedNode,
    parameters: &[String],
    values: &[KdlEntry],
    unknown: &mut Vec<(String, Range<usize>)>,
) {
    for entry in &mut node.entries {
        let KdlValue::String(text) = &entry.value else { continue };
        let alone = text.strip_prefix(PARAMETER).and_then(|rest| rest.strip_suffix('}'));
        let position = |name: &str| parameters.iter().position(|parameter| parameter == name);
        if let Some(value) = alone.and_then(position).map(|at| &values[at].value) {
            entry.value = value.clone();
            continue;
        }
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once(PARAMETER) {
            let Some((name, after)) = after.split_once('}') else { break };
            out.push_str(before);
            match position(name) {
                Some(at) => out.push_str(&values[at].value.to_text()),
                None => unknown.push((name.to_owned(), entry.span.clone())),
            }
            rest = after;
        }
        out.push_str(rest);
        entry.value = KdlValue::String(out);
    }
    for child in node.children.iter_mut().flat_map(|document| &mut document.nodes) {
        set_parameters(child, parameters, values, unknown);
    }
}

/// Files that match a pattern with at most one `*` in each part of the path. A directory that is not there has none.
pub fn expand(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    let mut has_star = false;
    for part in pattern.components() {
        let name = part.as_os_str().to_str().unwrap_or_default();
        let Some((before, after)) = name.split_once('*') else {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        has_star = true;
        let mut next = Vec::new();
        for directory in found {
            let entries = match std::fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            for entry in entries {
                let entry = entry?.file_name();
                let fits = entry.to_str().is_some_and(|name| {
                    name.len() >= before.len() + after.len()
                        && name.starts_with(before)
                        && name.ends_with(after)
                        && !name.starts_with('.')
                });
                if fits {
                    next.push(directory.join(entry));
                }
                if next.len() > INCLUDED_FILES_MAX {
                    return Err(io::Error::other(format!("more than {INCLUDED_FILES_MAX} files")));
                }
            }
        }
        found = next;
    }
    if has_star {
        found.retain(|path| path.exists());
        found.sort();
    }
    Ok(found)
}
