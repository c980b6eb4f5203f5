//! Requirements of one block: `Require` and its blocks, and `Order`, `Allow` and `Deny` of mod_access_compat.

use super::expression::{self, ApacheCondition, ExpressionScope};
use crate::directive::Directive;
use crate::pattern::quoted;

/// Clients that may request the paths of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientAccess {
    All,
    Denied,
    /// Addresses that are let in; others are not, unless a password is enough.
    Clients(Vec<String>),
    /// All clients except these.
    Except(Vec<String>),
    /// Requests that meet a condition.
    When(String),
}

/// Access and password of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AccessRule {
    pub(super) access: ClientAccess,
    pub(super) needs_password: bool,
    /// True if an address or a password is enough.
    pub(super) is_any: bool,
}

impl AccessRule {
    pub(super) fn of(access: ClientAccess) -> Self {
        Self { access, needs_password: false, is_any: false }
    }

    pub(super) fn is_open(&self) -> bool {
        self.access == ClientAccess::All && !self.needs_password
    }

    /// Returns `true` if no client has access.
    pub(super) fn is_shut(&self) -> bool {
        self.access == ClientAccess::Denied && !self.is_any
    }
}

/// A directive that cannot be translated, and the reason.
pub(super) type Refusal<'a> = (&'a Directive, String);

/// `Order`, `Allow from` and `Deny from`.
pub(super) fn old_rule<'a>(
    block: &'a [Directive],
    scope: ExpressionScope<'_>,
) -> Result<Option<ClientAccess>, Refusal<'a>> {
    let (mut allowed, mut denied) = (Vec::new(), Vec::new());
    let (mut if_allowed, mut if_denied) = (None, None);
    let mut order = None;
    for directive in block {
        let list = match directive.name.to_ascii_lowercase().as_str() {
            "order" => {
                order = Some(directive.arguments.join("").to_ascii_lowercase());
                continue;
            }
            "allow" => &mut allowed,
            "deny" => &mut denied,
            _ => continue,
        };
        for client in directive.arguments.iter().filter(|word| !word.eq_ignore_ascii_case("from")) {
            if let Some(name) = client.strip_prefix("env=") {
                let condition = of_environment(name, scope).ok_or_else(|| (directive, UNKNOWN_VARIABLE.to_owned()))?;
                let list = if directive.name.eq_ignore_ascii_case("allow") { &mut if_allowed } else { &mut if_denied };
                *list = Some(list.take().unwrap_or(ApacheCondition::Constant(false)).or(condition));
                continue;
            }
            list.push(client_of(client).ok_or_else(|| (directive, "clients are named by address".to_owned()))?);
        }
    }
    let is_closed = matches!(order.as_deref(), Some("allow,deny" | "mutual-failure"));
    match (if_allowed, if_denied) {
        (None, None) => {}
        // `Deny from all` and `Allow from env=a`, or `Order Allow,Deny` and the latter.
        (Some(condition), None) if allowed.is_empty() && (is_closed == denied.is_empty()) => {
            return Ok(Some(access_if(condition)));
        }
        (None, Some(condition))
            if denied.is_empty() && (!is_closed && allowed.is_empty() || is_closed && allowed == ["all"]) =>
        {
            return Ok(Some(access_if(condition.not())));
        }
        _ => return Err((&block[0], "variables and addresses are mixed".to_owned())),
    }
    if order.is_none() && allowed.is_empty() && denied.is_empty() {
        return Ok(None);
    }
    let is_all = |list: &[String]| list.iter().any(|client| client == "all");
    // `Order Deny,Allow` is the default: what no line names is allowed.
    let is_open = !matches!(order.as_deref(), Some("allow,deny" | "mutual-failure"));
    Ok(Some(match is_open {
        true if is_all(&allowed) => ClientAccess::All,
        true if is_all(&denied) && allowed.is_empty() => ClientAccess::Denied,
        true if is_all(&denied) => ClientAccess::Clients(allowed),
        true if denied.is_empty() => ClientAccess::All,
        true if allowed.is_empty() => ClientAccess::Except(denied),
        false if is_all(&denied) || allowed.is_empty() => ClientAccess::Denied,
        false if is_all(&allowed) && denied.is_empty() => ClientAccess::All,
        false if is_all(&allowed) => ClientAccess::Except(denied),
        false if denied.is_empty() => ClientAccess::Clients(allowed),
        _ => {
            let directive = block.iter().find(|child| child.name.eq_ignore_ascii_case("deny")).unwrap_or(&block[0]);
            return Err((directive, "some clients are both allowed and denied".to_owned()));
        }
    }))
}

/// Reason why a condition on a variable is not translated.
const UNKNOWN_VARIABLE: &str = "no directive here sets its variable for all these paths";

/// The condition under which a variable is set; `None` if it is unknown.
fn of_environment(name: &str, scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    scope.environment.get(name).cloned().flatten()
}

fn access_if(condition: ApacheCondition) -> ClientAccess {
    match condition {
        ApacheCondition::Constant(true) => ClientAccess::All,
        ApacheCondition::Constant(false) => ClientAccess::Denied,
        ApacheCondition::When(text) => ClientAccess::When(text),
    }
}

/// Network of a client in our form.
pub(super) fn client_of(text: &str) -> Option<String> {
    if text.eq_ignore_ascii_case("all") {
        return Some("all".to_owned());
    }
    let (address, mask) = text.split_once('/').unwrap_or((text, ""));
    if address.contains(':') {
        return address.parse::<std::net::Ipv6Addr>().ok().map(|_| text.to_owned());
    }
    // `10.1` is a network, too.
    let labels: Vec<&str> = address.split('.').filter(|label| !label.is_empty()).collect();
    if labels.len() > 4 || labels.iter().any(|label| label.parse::<u8>().is_err()) || labels.is_empty() {
        return None;
    }
    let full = [labels.as_slice(), &["0"; 4][labels.len()..]].concat().join(".");
    let bits = match mask.parse::<std::net::Ipv4Addr>() {
        Ok(mask) => mask.to_bits().leading_ones().to_string(),
        Err(_) if mask.is_empty() => (labels.len() * 8).to_string(),
        Err(_) => mask.to_owned(),
    };
    Some(if bits == "32" { full } else { format!("{full}/{bits}") })
}

/// `Require` lines. With `is_any`, one that holds is enough.
pub(super) fn required<'a>(
    block: &'a [Directive],
    is_any: bool,
    scope: ExpressionScope<'_>,
) -> Result<Option<AccessRule>, Refusal<'a>> {
    let open = AccessRule::of(ClientAccess::All);
    let mut found: Vec<(&Directive, AccessRule)> = Vec::new();
    for directive in block {
        let inner = match directive.name.to_ascii_lowercase().as_str() {
            "require" => Some(one(directive, scope)?),
            "requireall" => required(directive.children(), false, scope)?,
            "requireany" => required(directive.children(), true, scope)?,
            "requirenone" => match required(directive.children(), true, scope)? {
                Some(AccessRule { access: ClientAccess::Clients(networks), needs_password: false, .. }) => {
                    Some(AccessRule { access: ClientAccess::Except(networks), ..open.clone() })
                }
                Some(AccessRule { access: ClientAccess::When(condition), needs_password: false, .. }) => {
                    Some(AccessRule { access: ClientAccess::When(format!("not ({condition})")), ..open.clone() })
                }
                _ => return Err((directive, "only addresses can be excluded".to_owned())),
            },
            _ => None,
        };
        found.extend(inner.map(|rule| (directive, rule)));
    }
    let Some((first, mut rule)) = found.first().map(|(directive, rule)| (*directive, rule.clone())) else {
        return Ok(None);
    };
    for (directive, other) in &found[1..] {
        rule = if is_any { any(&rule, other) } else { all(&rule, other) }
            .ok_or_else(|| (*directive, format!("it cannot be combined with `{}`", first.line())))?;
    }
    Ok(Some(rule))
}

fn any(one: &AccessRule, other: &AccessRule) -> Option<AccessRule> {
    if one.is_open() || other.is_open() {
        return Some(AccessRule::of(ClientAccess::All));
    }
    match (&one.access, &other.access, one.needs_password, other.needs_password) {
        (ClientAccess::Denied, _, false, _) => Some(other.clone()),
        (_, ClientAccess::Denied, _, false) => Some(one.clone()),
        (ClientAccess::Clients(a), ClientAccess::Clients(b), false, false) => {
            Some(AccessRule { access: ClientAccess::Clients([a.as_slice(), b].concat()), ..one.clone() })
        }
        (ClientAccess::When(a), ClientAccess::When(b), false, false) => {
            Some(AccessRule { access: ClientAccess::When(format!("({a}) or ({b})")), ..one.clone() })
        }
        (ClientAccess::All, ClientAccess::All, true, true) => Some(one.clone()),
        (ClientAccess::All, ClientAccess::Clients(networks), true, false)
        | (ClientAccess::Clients(networks), ClientAccess::All, false, true) => {
            Some(AccessRule { access: ClientAccess::Clients(networks.clone()), needs_password: true, is_any: true })
        }
        _ => None,
    }
}

fn all(one: &AccessRule, other: &AccessRule) -> Option<AccessRule> {
    if one.is_any || other.is_any {
        return None;
    }
    let access = match (&one.access, &other.access) {
        (ClientAccess::Denied, _) | (_, ClientAccess::Denied) => ClientAccess::Denied,
        (ClientAccess::All, access) | (access, ClientAccess::All) => access.clone(),
        (ClientAccess::Except(a), ClientAccess::Except(b)) => ClientAccess::Except([a.as_slice(), b].concat()),
        (ClientAccess::When(a), ClientAccess::When(b)) => ClientAccess::When(format!("({a}) and ({b})")),
        _ => return None,
    };
    Some(AccessRule { access, needs_password: one.needs_password || other.needs_password, is_any: false })
}

fn one<'a>(directive: &'a Directive, scope: ExpressionScope<'_>) -> Result<AccessRule, Refusal<'a>> {
    let words: Vec<&str> = directive.arguments.iter().map(String::as_str).collect();
    let rule = AccessRule::of;
    let unknown = || (directive, UNKNOWN_VARIABLE.to_owned());
    let inexpressible = || (directive, "its expression has no counterpart".to_owned());
    let clients = |list: &[&str]| -> Result<Vec<String>, Refusal<'a>> {
        list.iter()
            .map(|client| client_of(client).ok_or_else(|| (directive, "clients are named by address".to_owned())))
            .collect()
    };
    Ok(match words.as_slice() {
        ["all", "granted"] => rule(ClientAccess::All),
        ["all", "denied"] => rule(ClientAccess::Denied),
        ["not", "all", "granted"] => rule(ClientAccess::Denied),
        ["local"] => rule(ClientAccess::Clients(["127.0.0.0/8", "::1"].map(str::to_owned).to_vec())),
        ["ip", list @ ..] => rule(ClientAccess::Clients(clients(list)?)),
        ["not", "ip", list @ ..] => rule(ClientAccess::Except(clients(list)?)),
        ["env", names @ ..] => rule(access_if(of_any(names, scope).ok_or_else(unknown)?)),
        ["not", "env", names @ ..] => rule(access_if(of_any(names, scope).ok_or_else(unknown)?.not())),
        ["expr", text @ ..] => rule(access_if(of_expression(text, scope).ok_or_else(inexpressible)?)),
        ["not", "expr", text @ ..] => rule(access_if(of_expression(text, scope).ok_or_else(inexpressible)?.not())),
        ["method", names @ ..] => rule(access_if(of_methods(names))),
        ["not", "method", names @ ..] => rule(access_if(of_methods(names).not())),
        ["valid-user"] => AccessRule { access: ClientAccess::All, needs_password: true, is_any: false },
        ["user" | "group", ..] => {
            return Err((directive, "all users of the file have access; write a file of these users".to_owned()));
        }
        _ => return Err((directive, "there is no such requirement".to_owned())),
    })
}

/// The condition that one of these variables is set.
fn of_any(names: &[&str], scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    names.iter().try_fold(ApacheCondition::Constant(false), |found, name| Some(found.or(of_environment(name, scope)?)))
}

/// `Require expr`; its text may be quoted as a whole.
fn of_expression(words: &[&str], scope: ExpressionScope<'_>) -> Option<ApacheCondition> {
    expression::condition(&words.join(" "), scope)
}

fn of_methods(names: &[&str]) -> ApacheCondition {
    let is_method = |found: ApacheCondition, name: &&str| {
        found.or(ApacheCondition::When(format!("method == {}", quoted(&name.to_ascii_uppercase()))))
    };
    // Apache takes HEAD for GET.
    let with_head = names.contains(&"GET").then_some("HEAD");
    names.iter().copied().chain(with_head).fold(ApacheCondition::Constant(false), |found, name| is_method(found, &name))
}
