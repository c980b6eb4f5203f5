//! Model of a lab, and its parser from KDL.

use std::time::Duration;

use kdl::KdlNode;

use super::group_limit::GroupLimit;
use super::guard::KernelParameter;
use super::namespace::QueueingDiscipline;
use crate::nodes::{self, argument, arguments, children, property};
use crate::units::{parse_count, parse_duration, parse_share};

/// Lab: servers to compare under the same load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lab {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) rounds: usize,
    /// Maximum distance of the A/A control's interval from 1, as a share.
    pub(crate) control_margin: f64,
    /// Number of times that each server is loaded in a round. If it is above 1, all servers run at once and take turns.
    /// Effects of the machine that last seconds then affect all servers equally.
    pub(crate) turns: usize,
    /// CPUs of the servers and of the load, such as `0` or `0,1`; empty leaves the choice to the kernel.
    pub(crate) server_cpus: String,
    pub(crate) client_cpus: String,
    /// Kind of the site to serve, in the notation of `tailor site`.
    pub(crate) site: String,
    /// Values of the sweep. The loads run with each of them in place of `@VALUE@`.
    pub(crate) sweep: Vec<String>,
    /// Range of a search, which replaces a sweep: the lab finds the highest `@VALUE@` at which all loads pass.
    pub(crate) search: Option<SearchRange>,
    /// Loads that run at the same time.
    pub(crate) loads: Vec<LabLoad>,
    /// Commands that must end before the loads begin.
    pub(crate) before: Vec<LabCommand>,
    /// Commands that run while the loads run.
    pub(crate) beside: Vec<LabCommand>,
    /// True if the report has the table and plots of an endurance test.
    pub(crate) is_endurance: bool,
    pub(crate) servers: Vec<LabServer>,
    /// Maximum time until a server is ready.
    pub(crate) ready_max: Duration,
}

/// Range and precision of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SearchRange {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Maximum error of the result, as a share of it.
    pub(crate) precision: f64,
}

/// Load: the program that makes it, and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabLoad {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// Values of the sweep at which the load runs; empty means all.
    pub(crate) only: Vec<String>,
    pub(crate) arguments: Vec<String>,
}

/// Program that makes a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// `tailor bench`
    Bench,
    /// `tailor web99 run`
    Web99,
}

/// Command of a lab.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabCommand {
    /// Values of the sweep at which the command runs; empty means all.
    pub(crate) only: Vec<String>,
    pub(crate) words: Vec<String>,
}

/// Server: its commands and its files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabServer {
    pub(crate) name: String,
    /// Programs that must be installed; alternatives are separated by `|`.
    pub(crate) needs: Vec<String>,
    pub(crate) command: Vec<String>,
    /// Command that prints the version.
    pub(crate) version: Vec<String>,
    /// Files written to the run's directory before the start: name and text.
    pub(crate) files: Vec<(String, String)>,
    /// Commands that are part of the server and start before it, such as php-fpm.
    pub(crate) helpers: Vec<Vec<String>>,
    /// Unix domain sockets of the helpers, which must accept connections before the server is ready.
    pub(crate) sockets: Vec<String>,
    /// Commands that run with the server but are not part of it, such as the upstream of a proxy. They run on the
    /// load's CPUs, and their CPU time and memory are not counted.
    pub(crate) backends: Vec<Vec<String>>,
    /// Kernel parameter that is set while the server runs.
    pub(crate) parameter: Option<KernelParameter>,
    /// Queueing discipline that the lab's network has while the server runs.
    pub(crate) discipline: Option<QueueingDiscipline>,
    /// Limit of the server's control group.
    pub(crate) limit: Option<GroupLimit>,
}

impl Lab {
    /// Makes the number of measurements even. The order of the servers alternates, so the effect of the place in a round
    /// cancels out. A single round cannot be even; the report says what it does not show.
    pub(crate) fn with_even_rounds(mut self) -> Self {
        if self.rounds > 1 && self.rounds * self.turns % 2 == 1 {
            self.rounds += 1;
        }
        self
    }

    /// The lab, reduced to the loads and commands that run at a value of the sweep.
    pub(crate) fn at(&self, value: Option<&str>) -> Self {
        let is_on = |only: &[String]| only.is_empty() || value.is_some_and(|value| only.iter().any(|it| it == value));
        let mut lab = self.clone();
        lab.loads.retain(|load| is_on(&load.only));
        lab.before.retain(|command| is_on(&command.only));
        lab.beside.retain(|command| is_on(&command.only));
        lab
    }
}

/// Parses a lab. It may name servers of `peers` without describing them.
pub(crate) fn parse(text: &str, peers: &[LabServer]) -> Result<Lab, String> {
    let document = nodes::parse(text)?;
    let [root] = document.nodes() else { return Err("a lab file needs exactly one node: lab \"name\" { … }".into()) };
    if root.name().value() != "lab" {
        return Err(format!("expected `lab`, found `{}`", root.name().value()));
    }
    let mut lab = Lab {
        name: argument(root)?,
        about: String::new(),
        rounds: 6,
        control_margin: super::report::CONTROL_MARGIN,
        turns: 1,
        server_cpus: String::new(),
        client_cpus: String::new(),
        site: "realistic".into(),
        sweep: Vec::new(),
        search: None,
        loads: Vec::new(),
        before: Vec::new(),
        beside: Vec::new(),
        is_endurance: false,
        servers: Vec::new(),
        ready_max: Duration::from_secs(30),
    };
    for node in children(root) {
        match node.name().value() {
            "about" => lab.about = argument(node)?,
            "rounds" => lab.rounds = argument(node)?.parse().map_err(|_| "`rounds` is not a number")?,
            "control-margin" => lab.control_margin = parse_share(&argument(node)?)?,
            "turns" => lab.turns = argument(node)?.parse().map_err(|_| "`turns` is not a number")?,
            "server-cpus" => lab.server_cpus = argument(node)?,
            "client-cpus" => lab.client_cpus = argument(node)?,
            "site" => lab.site = argument(node)?,
            "sweep" => lab.sweep = arguments(node),
            "search" => lab.search = Some(search_range(node)?),
            "load" => lab.loads.push(load(node)?),
            "before" => lab.before.push(command(node)?),
            "beside" => lab.beside.push(command(node)?),
            "endurance" => lab.is_endurance = true,
            "ready-max" => lab.ready_max = parse_duration(&argument(node)?)?,
            "server" => lab.servers.push(server(node)?),
            "servers" => {
                for name in arguments(node) {
                    let peer = peers.iter().find(|peer| peer.name == name);
                    lab.servers.push(peer.cloned().ok_or_else(|| format!("unknown server `{name}`"))?);
                }
            }
            other => return Err(format!("lab: unknown node `{other}`")),
        }
    }
    match lab {
        _ if lab.rounds == 0 || lab.turns == 0 => Err("a lab needs at least one round of one turn".into()),
        _ if lab.turns > 1 && lab.search.is_some() => Err("`turns` is for sweeps, not for searches".into()),
        _ if lab.loads.is_empty() => Err("a lab needs at least one load".into()),
        _ if lab.search.is_some() && !lab.sweep.is_empty() => {
            Err("a lab can have a sweep or a search, not both".into())
        }
        _ if lab.sweep.iter().any(|value| lab.at(Some(value)).loads.is_empty()) => {
            Err("each value of a sweep needs a load".into())
        }
        _ if lab.servers.is_empty() => Err("a lab needs at least one server".into()),
        _ => Ok(lab),
    }
}

/// Parses a file that contains only servers.
pub(crate) fn parse_peers(text: &str) -> Result<Vec<LabServer>, String> {
    let document = nodes::parse(text)?;
    document.nodes().iter().map(server).collect()
}

fn load(node: &KdlNode) -> Result<LabLoad, String> {
    let mut values = arguments(node);
    if values.len() < 2 {
        return Err("`load` needs a name and the arguments of `tailor bench`".into());
    }
    let name = values.remove(0);
    let program = match property(node, "program").as_deref() {
        None | Some("bench") => Program::Bench,
        Some("web99") => Program::Web99,
        Some(other) => return Err(format!("load {name}: `{other}` is not bench or web99")),
    };
    let arguments = values.iter().flat_map(|text| split_words(text)).collect();
    Ok(LabLoad { name, program, only: only(node), arguments })
}

fn command(node: &KdlNode) -> Result<LabCommand, String> {
    match arguments(node) {
        words if words.is_empty() => Err(format!("`{}` has no command", node.name().value())),
        words => Ok(LabCommand { only: only(node), words }),
    }
}

fn search_range(node: &KdlNode) -> Result<SearchRange, String> {
    let count = |name| property(node, name).map(|text| parse_count(&text)).transpose();
    let precision = property(node, "precision").map(|text| parse_share(&text)).transpose()?;
    match (count("from")?, count("to")?) {
        (Some(from), Some(to)) if 0 < from && from <= to => {
            Ok(SearchRange { from, to, precision: precision.unwrap_or(0.05) })
        }
        _ => Err("`search` needs from=N and to=N, and takes precision=\"5%\"".into()),
    }
}

/// Values of the sweep in the property `only`, which are separated by commas.
fn only(node: &KdlNode) -> Vec<String> {
    property(node, "only").map_or(Vec::new(), |text| text.split(',').map(|value| value.trim().to_owned()).collect())
}

fn server(node: &KdlNode) -> Result<LabServer, String> {
    let mut server = LabServer {
        name: argument(node)?,
        needs: Vec::new(),
        command: Vec::new(),
        version: Vec::new(),
        files: Vec::new(),
        helpers: Vec::new(),
        sockets: Vec::new(),
        backends: Vec::new(),
        parameter: None,
        discipline: None,
        limit: None,
    };
    for child in children(node) {
        match (child.name().value(), arguments(child)) {
            ("needs", programs) => server.needs = programs,
            ("command", words) => server.command = words,
            ("version", words) => server.version = words,
            ("helper", words) => server.helpers.push(words),
            ("sockets", paths) => server.sockets = paths,
            ("backend", words) => server.backends.push(words),
            ("file", values) => match <[String; 2]>::try_from(values) {
                Ok([name, text]) => server.files.push((name, text)),
                Err(_) => return Err(format!("server {}: `file` needs a name and a text", server.name)),
            },
            (other, _) => return Err(format!("server {}: unknown node `{other}`", server.name)),
        }
    }
    if server.command.is_empty() {
        return Err(format!("server {}: `command` is missing", server.name));
    }
    Ok(server)
}

/// Splits a command at spaces; quotes keep a word together.
pub(crate) fn split_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in text.chars() {
        match (quote, character) {
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), _) if character == open => quote = None,
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab() {
        let peers = parse_peers("server \"b\" { command \"b\" \"@PORT@\"; needs \"b\" }").unwrap();
        let text = r#"lab "x" {
            about "why"
            rounds 3
            server-cpus "0"
            sweep 1 10
            load "all" "-c @VALUE@ -H 'A: b c'" "@URL@/"
            servers "b"
            server "a" { command "a"; file "a.conf" "port @PORT@" }
        }"#;
        let lab = parse(text, &peers).unwrap();
        assert_eq!((lab.name.as_str(), lab.rounds, lab.sweep.len(), lab.servers.len()), ("x", 3, 2, 2));
        assert_eq!(lab.loads[0].arguments, ["-c", "@VALUE@", "-H", "A: b c", "@URL@/"]);
        assert_eq!(lab.servers[1].files, [("a.conf".to_owned(), "port @PORT@".to_owned())]);
    }

    #[test]
    fn rounds_are_even() {
        for (nodes, expect) in [
            ("about \"x\"", 6),
            ("rounds 1", 1),
            ("rounds 3", 4),
            ("rounds 4", 4),
            ("rounds 3; turns 8", 3),
            ("rounds 3; turns 3", 4),
        ] {
            let text = format!("lab \"x\" {{ {nodes}; load \"a\" \"b\"; server \"s\" {{ command \"c\" }} }}");
            assert_eq!(parse(&text, &[]).unwrap().with_even_rounds().rounds, expect, "{nodes}");
        }
    }

    #[test]
    fn what_runs_at_a_value() {
        let text = r#"lab "x" {
            sweep "calm" "disk"
            load "hot" "a"
            load "cold" only="disk" "b"
            beside only="disk,other" "dd" "if=x"
            before "sync"
            server "a" { command "a"; backend "b" }
        }"#;
        let lab = parse(text, &[]).unwrap();
        let counts = |value| {
            let lab = lab.at(Some(value));
            (lab.loads.len(), lab.before.len(), lab.beside.len())
        };
        assert_eq!((counts("calm"), counts("disk")), ((1, 1, 0), (2, 1, 1)));
        assert_eq!(lab.servers[0].backends, [["b"]]);
    }

    #[test]
    fn mistakes() {
        for (text, expect) in [
            ("lab \"x\" {", "line 1"),
            ("x 1", "expected `lab`"),
            ("lab \"x\" { speed 1 }", "unknown node `speed`"),
            ("lab \"x\" { servers \"z\" }", "unknown server `z`"),
            ("lab \"x\" { load \"a\" \"b\" }", "at least one server"),
            ("lab \"x\" { server \"a\" }", "`command` is missing"),
            ("lab \"x\" { search from=5 }", "`search` needs"),
            ("lab \"x\" { search from=5 to=4 }", "`search` needs"),
            ("lab \"x\" { beside }", "no command"),
            ("lab \"x\" { load \"a\" \"b\" program=\"c\" }", "`c` is not"),
            ("lab \"x\" { sweep 1; search from=1 to=2; load \"a\" \"b\"; server \"s\" { command \"c\" } }", "not both"),
            ("lab \"x\" { sweep 1 2; load \"a\" \"b\" only=\"1\"; server \"s\" { command \"c\" } }", "needs a load"),
        ] {
            let error = parse(text, &[]).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }

    #[test]
    fn words() {
        assert_eq!(split_words(" a 'b c'd  \"\" "), ["a", "b cd", ""]);
    }
}
