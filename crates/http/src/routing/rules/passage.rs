//! State of a request on its way through the rules.

use std::rc::Rc;

use wire::http::{Request, RequestHead};

use super::guarded_paths::{GuardedPath, OtherPath};
use super::{RewrittenTarget, Visit};
use crate::handler::{FieldChange, Routed};

/// State of a request on its way through the rules.
pub struct Passage {
    /// Data that rules have found about the request.
    pub visit: Rc<Visit>,
    /// Further state; `None` for most requests, so that little is moved and nothing allocated for them.
    state: Option<Box<PassageState>>,
}

/// State of a request that rules have rewritten, authenticated or edited.
pub(super) struct PassageState {
    /// Targets that the request was rewritten to. Handlers are asked for the last.
    pub(super) targets: Vec<RewrittenTarget>,
    /// Index of a redirect that waits until passwords and authentication servers have let the client in.
    pub(super) redirect: Option<usize>,
    /// Number of times that a handler sent the request to another path; never reset.
    pub(super) sent_elsewhere: usize,
    /// Other readings of the request's paths and targets that guards were evaluated for.
    pub(super) other_paths: Vec<OtherPath>,
    /// Indices of the password rules that the request has passed.
    pub(super) asked: Vec<usize>,
    /// Indices of the rules of forward authentication that have permitted the request.
    pub(super) authorized: Vec<usize>,
    /// Fields that authentication servers have given the request.
    pub(super) identity: Vec<FieldChange>,
    /// Names of fields that the request loses because authentication servers say so.
    pub(super) unidentified: Vec<String>,
    /// Cookies and other fields of authentication servers for the response.
    pub(super) cookies: Vec<FieldChange>,
    /// Number of times that all handlers declined and the request was rewritten after that.
    pub(super) missing_rewrites: usize,
    /// First rule for missing paths that may still apply.
    pub(super) next_missing: usize,
    /// True if a local redirect of a script led to the last target.
    pub(super) is_redirected: bool,
    /// True if a handler has changed the request. That handler had already received the edited fields.
    pub(super) is_changed: bool,
    /// Head that replaces the client's, with the last target.
    pub(super) head: Option<Box<(RequestHead, Vec<u8>)>>,
}

impl PassageState {
    const fn new() -> Self {
        Self {
            targets: Vec::new(),
            redirect: None,
            sent_elsewhere: 0,
            other_paths: Vec::new(),
            asked: Vec::new(),
            authorized: Vec::new(),
            identity: Vec::new(),
            unidentified: Vec::new(),
            cookies: Vec::new(),
            missing_rewrites: 0,
            next_missing: 0,
            is_redirected: false,
            is_changed: false,
            head: None,
        }
    }
}

impl Passage {
    /// Begins the passage of a request.
    pub(super) fn new(visit: Visit) -> Self {
        Self { visit: Rc::new(visit), state: None }
    }

    pub(super) fn state(&self) -> &PassageState {
        static NONE: PassageState = PassageState::new();
        self.state.as_deref().unwrap_or(&NONE)
    }

    pub(super) fn state_mut(&mut self) -> &mut PassageState {
        self.state.get_or_insert_with(|| Box::new(PassageState::new()))
    }

    /// Adds readings that guards were evaluated for.
    pub(super) fn add_other_paths(&mut self, others: Vec<OtherPath>) {
        if !others.is_empty() {
            self.state_mut().other_paths.extend(others);
        }
    }

    /// Returns true if handlers get the request as the client has sent it.
    #[inline]
    pub(super) fn is_as_asked(&self) -> bool {
        self.state.is_none()
    }

    /// Sets the user for handlers, if the password was right.
    pub fn tell_user(&self, routed: &Routed<'_>) {
        let user = self.visit.signed_in_user();
        if !user.is_empty() {
            routed.link.link().set_user(user);
        }
    }

    /// Returns the request in the form for handlers.
    pub fn seen<'a>(&'a self, routed: &Routed<'a>) -> Routed<'a> {
        let mut seen = *routed;
        if let Some((head, bytes)) = self.state().head.as_deref() {
            seen.request = Request { head, bytes };
        }
        if let Some(target) = self.state().targets.last() {
            seen.path = &target.path;
            seen.query = target.query.as_deref();
        }
        seen
    }

    /// Requested path, and the paths that it was rewritten to.
    pub(super) fn asked_paths<'a>(&'a self, routed: &Routed<'a>) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(routed.path).chain(self.state().targets.iter().map(|target| target.path.as_slice()))
    }

    /// All paths that guards were evaluated for.
    pub(super) fn guarded<'a>(&'a self, routed: &Routed<'a>) -> Vec<GuardedPath<'a>> {
        let asked = self.asked_paths(routed).map(GuardedPath::asked);
        asked.chain(self.state().other_paths.iter().map(OtherPath::guarded)).collect()
    }

    /// Requested and rewritten paths, in all spellings.
    pub(super) fn paths<'a>(&'a self, routed: &Routed<'a>) -> Vec<&'a [u8]> {
        let others = self.state().other_paths.iter().filter(|other| other.is_spelling()).map(OtherPath::path);
        self.asked_paths(routed).chain(others).collect()
    }

    /// Requested and rewritten paths, in all readings with unfolded case.
    pub(super) fn paths_in_given_case<'a>(&'a self, routed: &Routed<'a>) -> Vec<&'a [u8]> {
        let others = self.state().other_paths.iter().filter(|other| !other.is_folded()).map(OtherPath::path);
        self.asked_paths(routed).chain(others).collect()
    }
}
