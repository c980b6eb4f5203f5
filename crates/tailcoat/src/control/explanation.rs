//! Explanation of a request: the question of an operator, and the explanation.

use serde::{Deserialize, Serialize};

/// Request that an operator asks about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainQuestion {
    /// Method.
    pub method: String,
    /// URL, with or without scheme and host.
    pub url: String,
    /// Header fields, each as `Name: value`.
    #[serde(default)]
    pub fields: Vec<String>,
    /// Address of the client; this machine without it.
    #[serde(default)]
    pub client: Option<String>,
    /// Address that the request is received on; that of the URL's port without it.
    #[serde(default)]
    pub listen: Option<String>,
}

/// Explanation of what the server does with a request, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// Method and URL.
    pub request: String,
    /// Address of the client, after trusted proxies.
    pub client: String,
    /// Address that the request is received on.
    pub listener: String,
    /// Site that gets the request; `None` if no site does.
    pub site: Option<ExplainedSite>,
    /// Rules and handlers, in their order.
    pub steps: Vec<ExplainedRule>,
    /// Path that handlers get.
    pub path: String,
    /// Handler that responds, as in the configuration; `None` if a rule responds, or no handler has the path.
    pub handler: Option<ExplainedRule>,
    /// Response, or what the handler does.
    pub outcome: String,
    /// Servers of the upstream, if the handler has one.
    pub servers: Vec<ExplainedServer>,
    /// Options that apply, the innermost first, and then defaults.
    pub options: Vec<ExplainedOption>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Site that gets a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainedSite {
    /// First name of the site.
    pub name: String,
    /// Reason that it gets the request.
    pub reason: String,
    /// Place in the configuration: `file:line`.
    pub line: Option<String>,
}

/// A rule or handler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainedRule {
    /// Rule, as in the configuration.
    pub rule: String,
    /// Place in the configuration: `file:line`.
    pub line: Option<String>,
    /// True if it applies to the request.
    pub applies: bool,
    /// Reason, or effect; may be empty.
    pub reason: String,
}

/// Server of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainedServer {
    /// Address.
    pub server: String,
    /// `up`, `trial` or `down`; `None` if no server runs.
    pub health: Option<String>,
}

/// Option that applies to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainedOption {
    /// Option with its values.
    pub option: String,
    /// Block that it stands in.
    pub block: String,
    /// Place in the configuration: `file:line`; `None` for a default.
    pub line: Option<String>,
}
