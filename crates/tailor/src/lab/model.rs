//! What a lab is: a KDL file taken apart.

use std::time::Duration;

use kdl::{KdlDocument, KdlNode};

use crate::units::parse_duration;

/// A lab: servers that are compared under the same load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lab {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) rounds: usize,
    /// Processors of the servers and of the load, as in `0` or `0,1`; empty leaves them to the kernel.
    pub(crate) server_cpus: String,
    pub(crate) client_cpus: String,
    /// The kind of site that is made to be served, as for `tailor site`.
    pub(crate) site: String,
    /// The load is run with each of these in place of `@VALUE@`.
    pub(crate) sweep: Vec<String>,
    /// Loads that run at the same time.
    pub(crate) loads: Vec<Load>,
    pub(crate) servers: Vec<Server>,
    /// How long a server may take to become ready.
    pub(crate) ready_max: Duration,
}

/// A load: arguments of `tailor bench`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
}

/// A server: how it is started, and with which files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// Programs that must be installed.
    pub(crate) needs: Vec<String>,
    pub(crate) command: Vec<String>,
    /// Prints the version.
    pub(crate) version: Vec<String>,
    /// Files written into the run's directory before the start: name and text.
    pub(crate) files: Vec<(String, String)>,
    /// Commands that run at the same time as the server, before it (php-fpm, say).
    pub(crate) helpers: Vec<Vec<String>>,
}

/// Reads a lab. `peers` are servers that it may name without describing them.
pub(crate) fn parse(text: &str, peers: &[Server]) -> Result<Lab, String> {
    let document: KdlDocument = text.parse().map_err(|error: kdl::KdlError| describe(&error))?;
    let [root] = document.nodes() else { return Err("a lab file has one node: lab \"name\" { … }".into()) };
    if root.name().value() != "lab" {
        return Err(format!("`{}` where `lab` is expected", root.name().value()));
    }
    let mut lab = Lab {
        name: argument(root)?,
        about: String::new(),
        rounds: 5,
        server_cpus: String::new(),
        client_cpus: String::new(),
        site: "realistic".into(),
        sweep: Vec::new(),
        loads: Vec::new(),
        servers: Vec::new(),
        ready_max: Duration::from_secs(10),
    };
    for node in root.children().map_or(&[][..], KdlDocument::nodes) {
        match node.name().value() {
            "about" => lab.about = argument(node)?,
            "rounds" => lab.rounds = argument(node)?.parse().map_err(|_| "`rounds` is not a number")?,
            "server-cpus" => lab.server_cpus = argument(node)?,
            "client-cpus" => lab.client_cpus = argument(node)?,
            "site" => lab.site = argument(node)?,
            "sweep" => lab.sweep = arguments(node),
            "load" => lab.loads.push(load(node)?),
            "ready-max" => lab.ready_max = parse_duration(&argument(node)?)?,
            "server" => lab.servers.push(server(node)?),
            "servers" => {
                for name in arguments(node) {
                    let peer = peers.iter().find(|peer| peer.name == name);
                    lab.servers.push(peer.cloned().ok_or_else(|| format!("no server `{name}` is known"))?);
                }
            }
            other => return Err(format!("lab: `{other}` is not known")),
        }
    }
    match lab {
        _ if lab.rounds == 0 => Err("a lab has at least one round".into()),
        _ if lab.loads.is_empty() => Err("a lab has at least one load".into()),
        _ if lab.servers.is_empty() => Err("a lab has at least one server".into()),
        _ => Ok(lab),
    }
}

/// Reads a file of servers only.
pub(crate) fn parse_peers(text: &str) -> Result<Vec<Server>, String> {
    let document: KdlDocument = text.parse().map_err(|error: kdl::KdlError| describe(&error))?;
    document.nodes().iter().map(server).collect()
}

fn load(node: &KdlNode) -> Result<Load, String> {
    let mut values = arguments(node);
    if values.len() < 2 {
        return Err("`load` has a name and the arguments of `tailor bench`".into());
    }
    let name = values.remove(0);
    Ok(Load { name, arguments: values.iter().flat_map(|text| split_words(text)).collect() })
}

fn server(node: &KdlNode) -> Result<Server, String> {
    let mut server = Server {
        name: argument(node)?,
        needs: Vec::new(),
        command: Vec::new(),
        version: Vec::new(),
        files: Vec::new(),
        helpers: Vec::new(),
    };
    for child in node.children().map_or(&[][..], KdlDocument::nodes) {
        match (child.name().value(), arguments(child)) {
            ("needs", programs) => server.needs = programs,
            ("command", words) => server.command = words,
            ("version", words) => server.version = words,
            ("helper", words) => server.helpers.push(words),
            ("file", values) => match <[String; 2]>::try_from(values) {
                Ok([name, text]) => server.files.push((name, text)),
                Err(_) => return Err(format!("server {}: `file` has a name and a text", server.name)),
            },
            (other, _) => return Err(format!("server {}: `{other}` is not known", server.name)),
        }
    }
    if server.command.is_empty() {
        return Err(format!("server {}: no `command`", server.name));
    }
    Ok(server)
}

fn argument(node: &KdlNode) -> Result<String, String> {
    arguments(node).into_iter().next().ok_or_else(|| format!("`{}` has no value", node.name().value()))
}

/// A node's arguments as text.
fn arguments(node: &KdlNode) -> Vec<String> {
    let text = |value: &kdl::KdlValue| match value.as_string() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    };
    node.entries().iter().filter(|entry| entry.name().is_none()).map(|entry| text(entry.value())).collect()
}

fn describe(error: &kdl::KdlError) -> String {
    let first = error.diagnostics.first().map(|diagnostic| {
        let line = diagnostic.input[..diagnostic.span.offset().min(diagnostic.input.len())].lines().count().max(1);
        format!("line {line}: {diagnostic}")
    });
    first.unwrap_or_else(|| error.to_string())
}

/// Splits at blanks; quotes hold words together.
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
    fn mistakes() {
        for (text, expect) in [
            ("lab \"x\" {", "line 1"),
            ("x 1", "where `lab`"),
            ("lab \"x\" { speed 1 }", "`speed` is not known"),
            ("lab \"x\" { servers \"z\" }", "no server `z`"),
            ("lab \"x\" { load \"a\" \"b\" }", "at least one server"),
            ("lab \"x\" { server \"a\" }", "no `command`"),
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
