//! Parts of a site, in the order in which they are written.

use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::pattern::ForeignPattern;

/// Lines of a site, by kind.
#[derive(Default)]
pub(crate) struct SiteParts {
    /// True if the original ignores the case of paths.
    pub(crate) ignores_case: bool,
    pub(crate) names: Vec<String>,
    /// Listeners, certificates and limits.
    pub(crate) options: Vec<KdlNode>,
    /// Root and options of static files.
    pub(crate) files: Vec<KdlNode>,
    /// Rejections in place of what cannot be translated.
    pub(crate) closed: Vec<KdlNode>,
    /// Paths to which only rewrites lead.
    pub(crate) internal: Vec<KdlNode>,
    /// Rejections of redirects and rewrites, which no access rule lifts.
    pub(crate) rejections: Vec<KdlNode>,
    /// Access rules: the first match counts.
    pub(crate) guards: Vec<KdlNode>,
    /// Redirects and rewrites: the first match counts.
    pub(crate) redirects: Vec<KdlNode>,
    /// Header fields: a later line replaces an earlier one.
    pub(crate) fields: Vec<KdlNode>,
    /// Handlers, in the order in which they are tried.
    pub(crate) handlers: Vec<KdlNode>,
    /// Handler of all other requests.
    pub(crate) last: Option<KdlNode>,
    /// Error pages and access logs.
    pub(crate) others: Vec<KdlNode>,
}

impl SiteParts {
    /// Adds an option of a site in place of one with the same name.
    pub(crate) fn set_file_option(&mut self, node: KdlNode) {
        self.files.retain(|other| other.name() != node.name());
        self.files.push(node);
    }

    /// Paths that a protection must cover: routes are in the case as written, but what they lead to may ignore it.
    pub(crate) fn protected(&self, patterns: &[ForeignPattern]) -> Vec<ForeignPattern> {
        match self.ignores_case {
            true => patterns.iter().map(ForeignPattern::without_case).collect(),
            false => patterns.to_vec(),
        }
    }

    /// Rejects the paths of a rule or handler that cannot be translated.
    pub(crate) fn close(
        &mut self,
        directive: &Directive,
        patterns: &[ForeignPattern],
        why: impl Into<String>,
        notes: &mut Notes,
    ) {
        let comment = notes.rejected(directive, why);
        self.closed.extend(for_each(&self.protected(patterns), |pattern| {
            with_path(KdlNode::new("deny").word("all"), pattern).comment(comment.clone())
        }));
    }

    /// Rejects paths as an access rule does that no other lifts.
    pub(crate) fn reject(&mut self, patterns: &[ForeignPattern]) {
        let nodes = for_each(&self.protected(patterns), |pattern| with_path(KdlNode::new("deny").word("all"), pattern));
        self.rejections.extend(nodes);
    }

    /// The site.
    pub(crate) fn into_node(mut self, comment: &str) -> KdlNode {
        let mut node = KdlNode::new("site");
        for name in &self.names {
            node = node.text(name);
        }
        // A rule without a path rejects all requests: others of its kind need no line.
        if let Some(all) = self.closed.iter().find(|node| !node.has_properties()).cloned() {
            self.closed = vec![all];
        }
        self.closed.dedup();
        let is_alternative = |node: &KdlNode| node.has_property("satisfy");
        if self.guards.iter().any(is_alternative) {
            for node in self.closed.iter_mut().chain(&mut self.rejections) {
                *node = node.clone().property("satisfy", "all");
            }
        }
        let has_root = self.files.iter().any(|node| node.name() == "root");
        let redirects = self.redirects.iter().any(|node| node.name() == "redirect");
        if !has_root && self.handlers.is_empty() && !redirects && self.last.is_none() {
            // A site must have something to serve.
            self.handlers.push(KdlNode::with("respond", "*").word(404));
        }
        let lines = [
            self.options,
            self.files,
            self.internal,
            self.closed,
            self.rejections,
            self.guards,
            self.redirects,
            self.fields,
            self.handlers,
            self.last.into_iter().collect(),
            self.others,
        ];
        node.required_block(lines.concat()).comment(comment)
    }
}

/// A node for each pattern; one for all paths if there is no pattern.
pub(crate) fn for_each(patterns: &[ForeignPattern], make: impl Fn(Option<String>) -> KdlNode) -> Vec<KdlNode> {
    match patterns {
        [] => vec![make(None)],
        patterns => patterns.iter().map(|pattern| make(pattern.text())).collect(),
    }
}

/// The node with a property `path`.
pub(crate) fn with_path(node: KdlNode, pattern: Option<String>) -> KdlNode {
    match pattern {
        Some(pattern) => node.property("path", pattern),
        None => node,
    }
}

/// A node whose first value is a pattern.
pub(crate) fn on_path(name: &'static str, pattern: Option<String>) -> KdlNode {
    KdlNode::with(name, pattern.as_deref().unwrap_or("*"))
}
