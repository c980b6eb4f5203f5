//! `explain`: what a configuration, or the running server, does with a request, and why.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use clap::Args;

use super::control::{ServerSocket, unexpected};
use super::{EXIT_CONFIG, configuration, fail, print};
use crate::config;
use crate::control::{ControlOrder, ControlReport, ExplainQuestion, ExplainedRule, Explanation};
use crate::server::explain::{ExplainedConfig, explain};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat explain https://example.com/blog/
  tailcoat explain /admin/ --client 203.0.113.7 -H 'Cookie: a=b'
  tailcoat explain -X POST https://example.com/api/login --running")]
pub(super) struct ExplainArgs {
    /// URL of the request; a path alone is for the first site
    #[arg(value_name = "URL")]
    url: String,

    /// Method
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    method: String,

    /// Header field of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    fields: Vec<String>,

    /// User and password for `basic-auth`
    #[arg(short = 'u', long, value_name = "USER:PASSWORD")]
    credentials: Option<String>,

    /// Address of the client; `unix` for a Unix socket [default: this machine]
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,

    /// Address that receives the request, as in `listen` [default: that of the URL's port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,

    /// Ask the running server instead of the configuration file
    #[arg(long)]
    running: bool,

    /// Print rules that do not apply, and the defaults of options
    #[arg(short, long)]
    all: bool,

    /// Print all data as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerSocket,
}

impl ExplainArgs {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let mut fields = self.fields.clone();
        if let Some(credentials) = &self.credentials {
            fields.push(format!("Authorization: Basic {}", Base64::encode_string(credentials.as_bytes())));
        }
        let question = ExplainQuestion {
            method: self.method.clone(),
            url: self.url.clone(),
            fields,
            client: self.client.clone(),
            listen: self.listen.clone(),
        };
        if self.running || self.server.names_socket() {
            return self.server.give(of_top, &ControlOrder::Explain { question }, |report| match report {
                ControlReport::Explained(explanation) => self.show(&explanation),
                report => unexpected(&report),
            });
        }
        let file = self.server.file(of_top);
        let (config, places) = match configuration::load_explained(&file) {
            Ok(loaded) => loaded,
            Err(code) => return code,
        };
        let Some(config) = config else { return ExitCode::from(EXIT_CONFIG) };
        match explain(&ExplainedConfig { config: &config, places: &places, bans: Arc::default() }, &question) {
            Ok(explanation) => self.show(&explanation),
            Err(reason) => fail(reason),
        }
    }

    fn show(&self, explanation: &Explanation) -> ExitCode {
        if self.json {
            return match serde_json::to_string_pretty(explanation) {
                Ok(text) => print(&(text + "\n")),
                Err(error) => fail(error),
            };
        }
        print(&text(explanation, self.all))
    }
}

/// Explanation for people. `is_whole` also shows rules that do not apply, and defaults.
fn text(explanation: &Explanation, is_whole: bool) -> String {
    let shown = |text: &str| config::printable(text);
    let at = |line: &Option<String>| line.as_ref().map_or_else(String::new, |line| format!("  ({})", shown(line)));
    let mut out = format!("{}\n", shown(&explanation.request));
    let mut add = |name: &str, value: &str| out.push_str(&format!("  {name:<10}{value}\n"));
    add("listener", &shown(&explanation.listener));
    if !explanation.client.is_empty() {
        add("client", &explanation.client);
    }
    if let Some(site) = &explanation.site {
        add("site", &format!("{}: {}{}", shown(&site.name), site.reason, at(&site.line)));
    }
    if !explanation.path.is_empty() {
        add("path", &shown(&explanation.path));
    }
    add("result", &shown(&explanation.outcome));
    if let Some(handler) = &explanation.handler {
        add("handler", &format!("{}{}", shown(&handler.rule), at(&handler.line)));
    }
    for server in &explanation.servers {
        let health = server.health.as_ref().map_or_else(String::new, |health| format!(" ({health})"));
        add("server", &format!("{}{health}", shown(&server.server)));
    }
    for note in &explanation.notes {
        add("note", &shown(note));
    }
    let steps: Vec<&ExplainedRule> = explanation.steps.iter().filter(|step| is_whole || step.applies).collect();
    out.push_str(if is_whole {
        "\nRules and handlers, in order\n"
    } else {
        "\nRules and handlers that apply, in order\n"
    });
    for ExplainedRule { rule, line, applies, reason } in steps {
        let mark = if *applies { '+' } else { '-' };
        let reason = if reason.is_empty() { String::new() } else { format!(": {}", shown(reason)) };
        out.push_str(&format!("  {mark} {}{reason}{}\n", shown(rule), at(line)));
    }
    let skipped = explanation.steps.iter().filter(|step| !step.applies).count();
    if !is_whole && skipped > 0 {
        out.push_str(&format!("  {skipped} more do not apply; --all shows them with the reasons\n"));
    }
    out.push_str("\nOptions, the innermost first\n");
    for option in explanation.options.iter().filter(|option| is_whole || option.line.is_some()) {
        let place = option.line.as_ref().map_or_else(|| "default".to_owned(), |line| shown(line));
        out.push_str(&format!("  {:<44} {} {}\n", shown(&option.option), place, option.block));
    }
    let defaults = explanation.options.iter().filter(|option| option.line.is_none()).count();
    if !is_whole && defaults > 0 {
        out.push_str(&format!("  {defaults} more have their defaults; --all shows them\n"));
    }
    out
}
