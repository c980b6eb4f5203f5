//! Filters of rules and backends.

use routes::{Cors, ExternalAuth, ExternalAuthKind, FieldChanges, Filter, Mirror, PathRewrite, Redirect, Rewrite};

use super::Context;
use super::backends::{Backends, Wanted};
use super::references::{Referrer, Unresolved};
use crate::objects::{
    BackendRefSpec, ExternalAuthSpec, FilterSpec, HeaderModifier, MirrorSpec, NamedValue, PathModifier,
};

/// Reason why a rule is dropped.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) message: String,
    /// True if its filters exclude each other.
    pub(crate) is_incompatible: bool,
}

/// Surroundings in which filters and backends of a rule are resolved.
pub(crate) struct RuleScope<'a, 'b> {
    pub(crate) context: &'a Context<'b>,
    pub(crate) from: Referrer<'a>,
    pub(crate) backends: &'a mut Backends,
    pub(crate) is_grpc: bool,
    /// First reference that leads nowhere.
    pub(crate) unresolved: Option<Unresolved>,
}

impl Problem {
    pub(crate) fn invalid(message: String) -> Self {
        Self { message, is_incompatible: false }
    }
}

impl RuleScope<'_, '_> {
    /// Name of a backend, or `None` for a reference that leads nowhere, which is noted.
    pub(crate) fn backend(&mut self, to: &BackendRefSpec, wanted: &Wanted<'_>) -> Option<String> {
        match self.backends.resolve(self.context, self.from, to, wanted) {
            Ok(name) => Some(name),
            Err(unresolved) => {
                self.unresolved.get_or_insert(unresolved);
                None
            }
        }
    }

    /// Backend that gets copies of requests, or questions about them.
    fn side_backend(&mut self, to: &BackendRefSpec, is_grpc: bool) -> Option<String> {
        self.backend(to, &Wanted { transport: "TCP", is_grpc, ..Wanted::default() })
    }
}

/// Translates filters. The second value is the reason why requests are answered with 500.
pub(crate) fn filters(
    scope: &mut RuleScope<'_, '_>,
    all: &[FilterSpec],
) -> Result<(Vec<Filter>, Option<String>), Problem> {
    let has = |kind: &str| all.iter().any(|filter| filter.r#type == kind);
    if has("RequestRedirect") && has("URLRewrite") {
        let message = "RequestRedirect and URLRewrite exclude each other".to_owned();
        return Err(Problem { message, is_incompatible: true });
    }
    let (mut translated, mut error) = (Vec::new(), None);
    for filter in all {
        match one(scope, filter) {
            Ok(filter) => translated.extend(filter),
            Err(Failed::Invalid(message)) => return Err(Problem::invalid(message)),
            Err(Failed::Unresolved(unresolved)) => {
                error.get_or_insert(unresolved.1.clone());
                scope.unresolved.get_or_insert(unresolved);
            }
        }
    }
    Ok((translated, error))
}

enum Failed {
    Invalid(String),
    Unresolved(Unresolved),
}

fn one(scope: &mut RuleScope<'_, '_>, filter: &FilterSpec) -> Result<Option<Filter>, Failed> {
    let lacks = || Failed::Invalid(format!("the filter {} lacks its settings", filter.r#type));
    Ok(match filter.r#type.as_str() {
        "RequestHeaderModifier" => {
            Some(Filter::RequestHeaders(changes(filter.request_header_modifier.as_ref().ok_or_else(lacks)?)))
        }
        "ResponseHeaderModifier" => {
            Some(Filter::ResponseHeaders(changes(filter.response_header_modifier.as_ref().ok_or_else(lacks)?)))
        }
        "RequestRedirect" => {
            let spec = filter.request_redirect.as_ref().ok_or_else(lacks)?;
            Some(Filter::Redirect(Redirect {
                scheme: spec.scheme.clone(),
                hostname: spec.hostname.clone(),
                port: spec.port,
                path: spec.path.as_ref().map(path).transpose().map_err(Failed::Invalid)?,
                query: None,
                status: spec.status_code,
            }))
        }
        "URLRewrite" => {
            let spec = filter.url_rewrite.as_ref().ok_or_else(lacks)?;
            Some(Filter::Rewrite(Rewrite {
                hostname: spec.hostname.clone(),
                path: spec.path.as_ref().map(path).transpose().map_err(Failed::Invalid)?,
            }))
        }
        "RequestMirror" => mirror(scope, filter.request_mirror.as_ref().ok_or_else(lacks)?),
        "CORS" => {
            let spec = filter.cors.as_ref().ok_or_else(lacks)?;
            Some(Filter::Cors(Cors {
                allow_origins: spec.allow_origins.clone(),
                allow_methods: spec.allow_methods.clone(),
                allow_headers: spec.allow_headers.clone(),
                expose_headers: spec.expose_headers.clone(),
                allow_credentials: spec.allow_credentials.unwrap_or(false),
                max_age_seconds: spec.max_age,
            }))
        }
        "ExternalAuth" => Some(external_auth(scope, filter.external_auth.as_ref().ok_or_else(lacks)?)?),
        "ExtensionRef" => {
            let kind = filter.extension_ref.as_ref().and_then(|it| it.kind.as_deref()).unwrap_or_default();
            let message =
                format!("filters of the kind {kind} are not known; attach a TrafficPolicy to the route instead");
            return Err(Failed::Unresolved(("InvalidKind", message)));
        }
        other => return Err(Failed::Invalid(format!("filters of the type {other} are not supported"))),
    })
}

fn changes(spec: &HeaderModifier) -> FieldChanges {
    let pairs = |all: &[NamedValue]| all.iter().map(|field| (field.name.clone(), field.value.clone())).collect();
    FieldChanges { set: pairs(&spec.set), add: pairs(&spec.add), remove: spec.remove.clone() }
}

fn path(spec: &PathModifier) -> Result<PathRewrite, String> {
    match (spec.r#type.as_str(), &spec.replace_full_path, &spec.replace_prefix_match) {
        ("ReplaceFullPath", Some(path), _) => Ok(PathRewrite::Full(path.clone())),
        ("ReplacePrefixMatch", _, Some(path)) => Ok(PathRewrite::Prefix(path.clone())),
        (other, ..) => Err(format!("changes of paths of the type {other} are not supported, or lack their value")),
    }
}

fn mirror(scope: &mut RuleScope<'_, '_>, spec: &MirrorSpec) -> Option<Filter> {
    let backend = scope.side_backend(&spec.backend_ref, scope.is_grpc)?;
    let fraction = match (&spec.fraction, spec.percent) {
        (Some(fraction), _) => (fraction.numerator, fraction.denominator.unwrap_or(100)),
        (None, Some(percent)) => (percent, 100),
        (None, None) => (1, 1),
    };
    Some(Filter::Mirror(Mirror { backend, fraction }))
}

fn external_auth(scope: &mut RuleScope<'_, '_>, spec: &ExternalAuthSpec) -> Result<Filter, Failed> {
    let is_grpc = match spec.protocol.as_str() {
        "HTTP" => false,
        "GRPC" => true,
        // Requests must not pass without a decision of the server: they are answered with 500.
        other => {
            let message = format!("external authorization over {other} is not supported; use HTTP or GRPC");
            return Err(Failed::Unresolved(("UnsupportedProtocol", message)));
        }
    };
    let Some(backend) = scope.side_backend(&spec.backend_ref, is_grpc) else {
        let unresolved = scope.unresolved.clone();
        return Err(Failed::Unresolved(unresolved.unwrap_or(("BackendNotFound", String::new()))));
    };
    let config = if is_grpc { spec.grpc.as_ref() } else { spec.http.as_ref() };
    let path = config.map(|config| config.path.clone()).unwrap_or_default();
    Ok(Filter::ExternalAuth(ExternalAuth {
        backend,
        kind: if is_grpc { ExternalAuthKind::Grpc } else { ExternalAuthKind::Http(path) },
        request_headers: config.map(|config| config.allowed_headers.clone()).unwrap_or_default(),
        response_headers: config.map(|config| config.allowed_response_headers.clone()).unwrap_or_default(),
        login: None,
        body_bytes_max: spec.forward_body.as_ref().map_or(0, |body| body.max_size),
    }))
}

/// Milliseconds of a duration such as `1h30m` (GEP-2257).
pub(crate) fn duration_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a duration such as \"1m30s\"");
    let (mut total, mut rest) = (0u64, text);
    if text.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = match &rest[..letters] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        total = number.checked_mul(unit).and_then(|ms| total.checked_add(ms)).ok_or_else(wrong)?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expect) in [
            ("0s", Some(0)),
            ("500ms", Some(500)),
            ("1h2m3s4ms", Some(3_723_004)),
            ("", None),
            ("5", None),
            ("s", None),
            ("1d", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(duration_ms(text).ok(), expect, "{text}");
        }
    }
}
