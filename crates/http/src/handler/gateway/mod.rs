//! Scripts and applications behave as in CGI: run by a FastCGI, SCGI or uwsgi server, or as local programs.
//!
//! [`Gateway::handle`] finds the script and its variables; the exchange itself is that of [`forward`](super::forward).

mod script;
#[cfg(test)]
mod tests;
mod variables;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use wire::cgi::{write_scgi_request, write_uwsgi_request};
use wire::fastcgi::{write_begin, write_parameters, write_stdin_end};
use wire::h1::BodyFraming;
use wire::http::readings::has_hidden_dot_segments;
use wire::http::{Fields, Method, Status, path};

pub use self::script::{Script, ScriptTree, script_paths};
use self::script::{ScriptLookup, ScriptRejection, Scripts};
use self::variables::variables;
use super::cgi::{ErrorLines, ProgramLaunch};
use super::forward::{Dialect, Forward, GatewayRequest, guarded_target, not_allowed};
use super::response_cache::{Fetch, FetchFuture};
use super::static_file::first_rejection;
use super::{
    BuiltResponse, BuiltResult, FileRejection, HandlerOutcome, LateOutcome, OwnedRequest, Response, Routed, not_found,
    redirect_to_directory,
};
use crate::config::{self, GatewayPart, GatewayProtocol, Precedence};
use crate::log::{ServerLog, escaped, event};
use crate::object_cache::ObjectStore;

/// Part of a handler that all workers share.
#[derive(Debug)]
pub struct GatewayPlan {
    config: Arc<config::GatewayConfig>,
    /// Tree of the scripts, if they are files.
    tree: Option<Arc<ScriptTree>>,
    log: ServerLog,
    /// True if heads say `Server: tailcoat`.
    server_field: bool,
    precedence: Precedence,
}

impl GatewayPlan {
    /// Creates the plan for this configuration, with its tree of scripts if it
    /// [has files](config::GatewayConfig::has_files).
    pub fn new(
        config: Arc<config::GatewayConfig>,
        tree: Option<Arc<ScriptTree>>,
        log: &ServerLog,
        server_field: bool,
        precedence: Precedence,
    ) -> Arc<Self> {
        Arc::new(Self { config, tree, log: log.clone(), server_field, precedence })
    }

    /// True if these settings would create the same plan.
    pub fn is_as(&self, server_field: bool, precedence: &Precedence) -> bool {
        self.server_field == server_field && self.precedence == *precedence
    }
}

/// Handler for scripts or an application, on one worker.
pub struct Gateway {
    inner: Rc<GatewayInner>,
    part: GatewayPart,
}

struct GatewayInner {
    plan: Arc<GatewayPlan>,
    scripts: Option<Scripts>,
    forward: Forward,
}

/// Result of resolving a path.
enum PathOutcome {
    /// This script handles the path.
    Script(Script),
    /// The path names a directory with an index script, but lacks the slash.
    Directory,
    /// The path is not this handler's.
    Nothing,
    /// The script is there, but must not be run.
    Rejected(ScriptRejection),
    /// The path names a directory that can't be entered, or a file that is no script and can't be read.
    Closed,
    /// Respond with this status.
    Failed(Status),
}

impl Gateway {
    /// Creates a worker's handler for this part of the requests; `forward` sends them.
    pub fn new(plan: &Arc<GatewayPlan>, part: GatewayPart, forward: Forward) -> Self {
        let scripts = plan.tree.as_ref().map(Scripts::new);
        Self { inner: Rc::new(GatewayInner { plan: Arc::clone(plan), scripts, forward }), part }
    }

    /// Protocol spoken with the runner of the scripts.
    pub fn protocol(&self) -> GatewayProtocol {
        self.inner.plan.config.protocol
    }

    /// Handles a request.
    pub fn handle(&self, routed: &Routed<'_>) -> HandlerOutcome {
        match routed.request.method() {
            // Neither concerns a resource of a script.
            Method::Connect => return HandlerOutcome::Decline,
            Method::Options if routed.path == b"*" => return HandlerOutcome::Decline,
            // TRACE reveals fields that a browser hides from scripts.
            Method::Trace => return not_allowed(Status::METHOD_NOT_ALLOWED),
            // Scripts that drop path parameters would resolve a path other than the one that was checked here.
            _ if has_hidden_dot_segments(routed.path) || hides_dot_segments(routed.request.target_asked()) => {
                return answer(BuiltResponse::rejection(Status::BAD_REQUEST, "hidden dot segments"));
            }
            _ => {}
        }
        if self.part == GatewayPart::Scripts && !self.inner.may_have(routed.path) {
            return HandlerOutcome::Decline;
        }
        // Variables of a delayed request include facts that the connection adds to this link later.
        routed.link.link();
        let (inner, part, has_next) = (Rc::clone(&self.inner), self.part, routed.has_next);
        let request = Rc::new(OwnedRequest::new(routed));
        HandlerOutcome::Wait(Box::pin(inner.answer(request, part, has_next)))
    }
}

impl GatewayInner {
    /// True if a path may be a script's, judged by its name.
    fn may_have(&self, path: &[u8]) -> bool {
        self.scripts.as_ref().is_none_or(|scripts| scripts.may_have(&self.plan.config, path))
    }

    async fn answer(self: Rc<Self>, request: Rc<OwnedRequest>, part: GatewayPart, has_next: bool) -> LateOutcome {
        let found = find(&self.plan.config, self.scripts.as_ref(), &request.routed(false), part).await;
        let routed = request.routed(has_next);
        let script = match found {
            PathOutcome::Script(script) => script,
            PathOutcome::Nothing if has_next => return HandlerOutcome::Decline,
            PathOutcome::Nothing => return HandlerOutcome::Ready(nothing(&routed, part)),
            PathOutcome::Rejected(rejection) => return self.on_rejected(rejection, &routed),
            PathOutcome::Closed if has_next => return HandlerOutcome::Reject(FileRejection::Forbidden),
            PathOutcome::Closed => return HandlerOutcome::Ready(first_rejection(&routed, FileRejection::Forbidden)),
            PathOutcome::Failed(status) => return answer(BuiltResponse::new(status)),
            PathOutcome::Directory => return HandlerOutcome::Ready(redirect_to_directory(&routed)),
        };
        if script.is_led_to() && self.plan.precedence.tells_apart(routed.path, &script.name) {
            return HandlerOutcome::Elsewhere(script.name);
        }
        if let Some(rejected) = self.forward.reject_content(&routed) {
            return answer(rejected);
        }
        match self.forward.cache() {
            Some(cache) => {
                cache.handle(&routed, &Rc::new(ScriptFetch { inner: Rc::clone(&self), script })).late().await
            }
            None => HandlerOutcome::of_built(self.run(&routed, &script, &Fields::new()).await),
        }
    }

    /// Handles a script that must not be run. The log names the reason, even if another handler has the path.
    fn on_rejected(&self, rejection: ScriptRejection, routed: &Routed<'_>) -> LateOutcome {
        let path = escaped(routed.path);
        let values: &[(&str, &dyn fmt::Display)] = &[("path", &path), ("reason", &rejection.reason())];
        self.plan.log.notice_of(routed.client, event("script not run", values));
        match routed.has_next {
            true => HandlerOutcome::Reject(FileRejection::NotRun),
            false => answer(BuiltResponse::new(Status::FORBIDDEN)),
        }
    }

    /// Runs a script and returns its response. Fields in `changes` replace the request's of the same names.
    async fn run(&self, routed: &Routed<'_>, script: &Script, changes: &Fields) -> BuiltResult {
        if let Some(rejected) = self.forward.receive_content(routed).await {
            return Ok(rejected);
        }
        let content_length = match routed.link.link().framing() {
            BodyFraming::None => None,
            BodyFraming::Length(length) => Some(length),
            // RFC 3875, section 4.1.2: a script with content gets its length, which takes buffering to find out.
            BodyFraming::Chunked => return Ok(BuiltResponse::new(Status::LENGTH_REQUIRED)),
        };
        let config = &self.plan.config;
        let variables = variables(routed, script, config, content_length, changes);
        let name = String::from_utf8_lossy(&script.name);
        let errors = ErrorLines::new(&self.plan.log, &name, config.error_bytes_max);
        let Some((head, dialect)) = self.encode(variables, content_length, script, errors) else {
            return Ok(BuiltResponse::new(Status::REQUEST_HEADER_FIELDS_TOO_LARGE));
        };
        let line = [routed.request.method_name(), b" ", routed.request.target()].concat();
        let mut response = self.forward.ask(routed, GatewayRequest { head, line, dialect }).await?;
        if let Some(forwarded) = &mut response.forwarded {
            match forwarded.local_redirect.take() {
                Some(location) if config.local_redirects_max == 0 => {
                    response.status = Status::FOUND;
                    response.fields.set("Location", location);
                }
                location => forwarded.local_redirect = location,
            }
            forwarded.local_redirects_max = config.local_redirects_max;
            if self.plan.server_field && !response.fields.has("Server") {
                response.fields.push("Server", "tailcoat");
            }
        }
        Ok(response)
    }

    /// Encodes the request for its protocol. `None` if it is too long for that.
    fn encode(
        &self,
        variables: Fields,
        content_length: Option<u64>,
        script: &Script,
        errors: ErrorLines,
    ) -> Option<(Vec<u8>, Dialect)> {
        let config = &self.plan.config;
        let mut head = Vec::with_capacity(2048);
        let dialect = match config.protocol {
            GatewayProtocol::FastCgi => {
                write_begin(config.keeps_connections, &mut head);
                write_parameters(variables.iter(), &mut head);
                if content_length.is_none() {
                    write_stdin_end(&mut head);
                }
                Dialect::FastCgi { errors, is_kept: config.keeps_connections }
            }
            GatewayProtocol::Scgi => {
                let mut variables = variables;
                variables.remove("CONTENT_LENGTH");
                write_scgi_request(&variables, content_length.unwrap_or(0), &mut head);
                Dialect::Script
            }
            GatewayProtocol::Uwsgi => {
                write_uwsgi_request(&variables, &mut head).ok()?;
                Dialect::Script
            }
            GatewayProtocol::Cgi => {
                let has_content = content_length.is_some();
                Dialect::Program(Box::new(ProgramLaunch { file: script.file.clone(), variables, has_content, errors }))
            }
        };
        Some((head, dialect))
    }
}

/// Finds the script for a path.
async fn find(
    config: &config::GatewayConfig,
    scripts: Option<&Scripts>,
    routed: &Routed<'_>,
    part: GatewayPart,
) -> PathOutcome {
    let Some(scripts) = scripts else { return PathOutcome::Script(Script::of_application(config, routed.path)) };
    let found = match part {
        GatewayPart::Scripts => scripts.find(config, routed).await,
        GatewayPart::Rest => match scripts.find_directory(config, routed).await {
            ScriptLookup::Nothing => match &config.fallback {
                Some(fallback) => scripts.find_fallback(fallback, routed).await,
                None => ScriptLookup::Nothing,
            },
            ScriptLookup::Found(_) if matches!(routed.request.method(), Method::Get | Method::Head) => {
                return PathOutcome::Directory;
            }
            // A redirect would lose the content; respond with an error at once.
            ScriptLookup::Found(_) => ScriptLookup::Nothing,
            other => other,
        },
    };
    match found {
        ScriptLookup::Found(script) => PathOutcome::Script(script),
        ScriptLookup::Nothing => PathOutcome::Nothing,
        // An index is looked up below the path; if the path itself is closed, no script is.
        ScriptLookup::Rejected(ScriptRejection::Forbidden)
            if (part == GatewayPart::Rest || routed.path.ends_with(b"/")) && scripts.is_closed(routed).await =>
        {
            PathOutcome::Closed
        }
        ScriptLookup::Rejected(rejection) => PathOutcome::Rejected(rejection),
        ScriptLookup::Failed(status) => PathOutcome::Failed(status),
    }
}

/// Script for a path, as far as it can be told without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayLookup {
    /// This script, or the application.
    Script(Script),
    /// The file of the script has a path of its own, which is routed again.
    Elsewhere(Vec<u8>),
    /// A redirect to the directory with a slash.
    Directory,
    /// No script has the path.
    Nothing,
    /// The script must not be run, for this reason.
    Rejected(&'static str),
    /// The lookup failed with this status.
    Failed(Status),
}

/// Looks up the script for a path as a handler does, without running it.
pub async fn look_up(
    config: &Arc<config::GatewayConfig>,
    part: GatewayPart,
    precedence: &Precedence,
    store: &Arc<ObjectStore>,
    routed: &Routed<'_>,
) -> GatewayLookup {
    let tree = config.has_files().then(|| ScriptTree::new(config, store));
    let scripts = tree.as_ref().map(Scripts::new);
    let may_have = scripts.as_ref().is_none_or(|scripts| scripts.may_have(config, routed.path));
    if part == GatewayPart::Scripts && !may_have {
        return GatewayLookup::Nothing;
    }
    match find(config, scripts.as_ref(), routed, part).await {
        PathOutcome::Script(script) if script.is_led_to() && precedence.tells_apart(routed.path, &script.name) => {
            GatewayLookup::Elsewhere(script.name)
        }
        PathOutcome::Script(script) => GatewayLookup::Script(script),
        PathOutcome::Directory => GatewayLookup::Directory,
        PathOutcome::Nothing => GatewayLookup::Nothing,
        PathOutcome::Rejected(rejection) => GatewayLookup::Rejected(rejection.reason()),
        PathOutcome::Closed => GatewayLookup::Rejected(FileRejection::Forbidden.reason()),
        PathOutcome::Failed(status) => GatewayLookup::Failed(status),
    }
}

/// A script as the response cache's source.
struct ScriptFetch {
    inner: Rc<GatewayInner>,
    script: Script,
}

impl Fetch for ScriptFetch {
    fn fetch(self: Rc<Self>, request: Rc<OwnedRequest>, changes: Fields) -> FetchFuture {
        Box::pin(async move { self.inner.run(&request.routed(false), &self.script, &changes).await })
    }
}

/// True if the original path has hidden dot segments: scripts get it even after a rewrite.
fn hides_dot_segments(target: &[u8]) -> bool {
    // Skip decoding if no byte can hide a dot segment.
    if memchr::memchr3(b';', b'\\', b'%', target).is_none() {
        return false;
    }
    let target = guarded_target(target);
    let raw = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    let mut buffer = Vec::new();
    path::normalise(raw, &mut buffer).is_ok_and(has_hidden_dot_segments)
}

/// Response for a path without a script. After files, it allows only the methods of files.
fn nothing(routed: &Routed<'_>, part: GatewayPart) -> Response {
    let status = match routed.request.method() {
        _ if part == GatewayPart::Scripts => return not_found(routed),
        Method::Get | Method::Head => return not_found(routed),
        Method::Options => Status::NO_CONTENT,
        _ => Status::METHOD_NOT_ALLOWED,
    };
    let mut response = BuiltResponse::new(status);
    response.fields.push("Allow", "GET, HEAD, OPTIONS");
    Response::Built(response)
}

fn answer<W>(response: Box<BuiltResponse>) -> HandlerOutcome<W> {
    HandlerOutcome::Ready(Response::Built(response))
}
