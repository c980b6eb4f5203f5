//! Scenario files: the parser from KDL to the engine's scenarios.

mod data;
mod step;

use std::collections::BTreeSet;
use std::path::Path;

use kdl::KdlNode;

use crate::engine::{DataSet, Scenario, ScenarioSet, ThinkTime, WorkloadRequest};
use crate::nodes;
use crate::units::parse_duration;

/// Scenarios of a file, and their requests in the order of the steps.
pub(super) struct ScenarioFile {
    pub(super) set: ScenarioSet,
    pub(super) requests: Vec<WorkloadRequest>,
}

/// Header fields that each request of a scenario has, unless a step sets them.
pub(super) type CommonFields = Vec<(String, String)>;

/// Reads a scenario file.
pub(super) fn read(path: &Path, common: &CommonFields) -> Result<ScenarioFile, String> {
    let text = crate::input::read_text(path)?;
    let directory = path.parent().unwrap_or(Path::new(""));
    parse(&text, directory, common).map_err(|error| format!("{}: {error}", path.display()))
}

/// Names of the variables of a file; the place of a name is the variable's number.
#[derive(Debug, Default)]
struct Variables(Vec<String>);

impl Variables {
    /// Number of a variable, which may be new.
    fn number(&mut self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }
}

/// State of the parser.
struct Parser<'a> {
    text: &'a str,
    common: &'a CommonFields,
    variables: Variables,
    data: Vec<DataSet>,
    requests: Vec<WorkloadRequest>,
}

fn parse(text: &str, directory: &Path, common: &CommonFields) -> Result<ScenarioFile, String> {
    let document = nodes::parse(text)?;
    let mut parser = Parser { text, common, variables: Variables::default(), data: Vec::new(), requests: Vec::new() };
    let (mut scenarios, mut weights, mut sum) = (Vec::new(), Vec::new(), 0.0);
    // Data first, because scenarios use its columns.
    let is_data = |node: &&KdlNode| node.name().value() == "data";
    for node in document.nodes().iter().filter(is_data) {
        parser.at(node, |parser| parser.data(node, directory))?;
    }
    for node in document.nodes().iter().filter(|node| !is_data(node)) {
        let (scenario, weight) = parser.at(node, |parser| parser.scenario(node))?;
        sum += weight;
        weights.push(sum);
        scenarios.push(scenario);
    }
    if scenarios.is_empty() {
        return Err("a scenario file needs at least one scenario: scenario \"name\" { get \"/\" }".to_owned());
    }
    if sum <= 0.0 {
        return Err("the weights add up to 0".to_owned());
    }
    let set = ScenarioSet { scenarios, weights, data: parser.data, variables: parser.variables.0.len() };
    Ok(ScenarioFile { set, requests: parser.requests })
}

impl Parser<'_> {
    /// Runs a part of the parser. An error gets the line of the node, unless it has one.
    fn at<T>(&mut self, node: &KdlNode, parse: impl FnOnce(&mut Self) -> Result<T, String>) -> Result<T, String> {
        parse(self).map_err(|error| match error.starts_with("line ") {
            true => error,
            false => format!("line {}: {error}", nodes::line(self.text, node)),
        })
    }

    fn data(&mut self, node: &KdlNode, directory: &Path) -> Result<(), String> {
        let path = directory.join(nodes::argument(node)?);
        let text = crate::input::read_text(&path)?;
        let is_random = match nodes::property(node, "order").as_deref() {
            None | Some("in-turn") => false,
            Some("random") => true,
            Some(other) => return Err(format!("order=`{other}` is not in-turn or random")),
        };
        let table = data::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let columns = table.columns.iter().map(|name| {
            check_name(name)?;
            match self.variables.0.contains(name) {
                true => Err(format!("column `{name}` stands in two data files")),
                false => Ok(self.variables.number(name)),
            }
        });
        let columns = columns.collect::<Result<_, _>>()?;
        self.data.push(DataSet { columns, rows: table.rows, is_random });
        Ok(())
    }

    /// Parses a scenario with its weight.
    fn scenario(&mut self, node: &KdlNode) -> Result<(Scenario, f64), String> {
        match node.name().value() {
            "scenario" => {}
            other => return Err(format!("expected `data` or `scenario`, found `{other}`")),
        }
        let weight = match nodes::property(node, "weight") {
            None => 1.0,
            Some(text) => text
                .parse()
                .ok()
                .filter(|weight: &f64| *weight >= 0.0 && weight.is_finite())
                .ok_or_else(|| format!("weight={text} is not a number from 0"))?,
        };
        let mut scenario = Scenario {
            name: nodes::argument(node)?,
            steps: Vec::new(),
            think_after: ThinkTime::default(),
            has_cookies: true,
        };
        // Columns of data are known from the start, captured values from their step on.
        let mut known: BTreeSet<usize> = self.data.iter().flat_map(|data| data.columns.iter().copied()).collect();
        let mut think = ThinkTime::default();
        for child in nodes::children(node) {
            self.at(child, |parser| {
                match child.name().value() {
                    "think" => think = parse_think(child)?,
                    "cookies" => {
                        scenario.has_cookies = match nodes::argument(child)?.trim_start_matches('#') {
                            "true" | "on" => true,
                            "false" | "off" => false,
                            other => return Err(format!("cookies `{other}` is not on or off")),
                        };
                    }
                    method @ ("get" | "head" | "post" | "put" | "patch" | "delete" | "options") => {
                        let think = std::mem::take(&mut think);
                        scenario.steps.push(parser.step(child, &method.to_ascii_uppercase(), think, &mut known)?);
                    }
                    other => {
                        return Err(format!(
                            "unknown node `{other}`; use get, head, post, put, patch, delete, options, think or cookies"
                        ));
                    }
                }
                Ok(())
            })?;
        }
        if scenario.steps.is_empty() {
            return Err(format!("scenario `{}` has no request", scenario.name));
        }
        for step in &scenario.steps {
            self.requests[step.request as usize]
                .keep(scenario.has_cookies || !step.captures.is_empty(), step.keeps_content());
        }
        scenario.think_after = think;
        Ok((scenario, weight))
    }
}

/// Parses `think "1s"`, or `think "1s" "3s"` for a random time between two.
fn parse_think(node: &KdlNode) -> Result<ThinkTime, String> {
    let times = nodes::arguments(node);
    let times =
        times.iter().map(|text| Ok(parse_duration(text)?.as_nanos() as u64)).collect::<Result<Vec<_>, String>>()?;
    match times.as_slice() {
        [time] => Ok(ThinkTime { min: *time, max: *time }),
        [min, max] if min <= max => Ok(ThinkTime { min: *min, max: *max }),
        _ => Err("`think` needs a time, or a shortest and a longest one: think \"1s\" \"3s\"".to_owned()),
    }
}

/// Checks the name of a variable.
fn check_name(name: &str) -> Result<(), String> {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    match name {
        "run" | "random" => Err(format!("`{name}` has a fixed meaning; choose another name")),
        _ if !is_name => Err(format!("`{name}` is not a name of letters, digits, `_` and `-`")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_here(text: &str) -> Result<ScenarioFile, String> {
        parse(text, Path::new("/nonexistent"), &vec![("Host".to_owned(), "h".to_owned())])
    }

    #[test]
    fn a_file() {
        let file = parse_here(
            r#"
            scenario "a" weight=3 {
                get "/" { capture "id" json="/id" }
                think "1s" "2s"
                post "/x?id=${id:url}" { name "buy"; header "X" "${run}"; body "{\"n\": ${random}}"; expect status=201 contains="ok" }
                think "5s"
            }
            scenario "b" { cookies off; get "/" }
            "#,
        );
        let ScenarioFile { set, requests } = file.unwrap();
        assert_eq!((set.weights.as_slice(), set.variables, requests.len()), (&[3.0, 4.0][..], 1, 3));
        let buy = &set.scenarios[0].steps[1];
        assert_eq!((buy.name.as_str(), buy.think.min, buy.think.max), ("buy", 1_000_000_000, 2_000_000_000));
        assert_eq!((buy.contains.as_slice(), buy.request), (&["ok".to_owned()][..], 1));
        assert_eq!(set.scenarios[0].think_after.max, 5_000_000_000);
        assert_eq!((set.scenarios[0].has_cookies, set.scenarios[1].has_cookies), (true, false));
    }

    #[test]
    fn mistakes() {
        for (text, expect) in [
            ("scenario \"a\" {", "line 1"),
            ("", "needs at least one scenario"),
            ("get \"/\"", "line 1: expected `data` or `scenario`"),
            ("\nscenario \"a\" {\n}", "line 2: scenario `a` has no request"),
            ("scenario \"a\" weight=-1 { get \"/\" }", "is not a number from 0"),
            ("scenario \"a\" weight=0 { get \"/\" }", "add up to 0"),
            ("scenario \"a\" {\n  fetch \"/\"\n}", "line 2: unknown node `fetch`"),
            ("scenario \"a\" {\n  get \"x\"\n}", "line 2: the path `x` must begin with `/`"),
            ("scenario \"a\" { get \"/\" { speed 1 } }", "unknown node `speed`"),
            ("scenario \"a\" { get \"/${id}\"; get \"/\" { capture \"id\" json=\"/id\" } }", "`id` has no value here"),
            ("scenario \"a\" { get \"/${id\" }", "`${` has no `}`"),
            ("scenario \"a\" { get \"/${run:hex}\" }", "unknown form `hex`"),
            ("scenario \"a\" { get \"/\" { capture \"run\" json=\"/id\" } }", "`run` has a fixed meaning"),
            ("scenario \"a\" { get \"/\" { capture \"x\" json=\"id\" } }", "a JSON pointer begins with `/`"),
            ("scenario \"a\" { get \"/\" { capture \"x\" regex=\"(\" } }", "regex"),
            ("scenario \"a\" { get \"/\" { capture \"x\" } }", "needs json=, regex= or header="),
            ("scenario \"a\" { get \"/\" { expect status=\"x\" } }", "`x` is not a status"),
            ("scenario \"a\" { get \"/\" { expect colour=1 } }", "unknown property `colour`"),
            ("scenario \"a\" { get \"/\" { expect } }", "`expect` needs"),
            ("scenario \"a\" { get \"/\" { header \"a b\" \"x\" } }", "is not a field"),
            ("scenario \"a\" { think \"2s\" \"1s\"; get \"/\" }", "`think` needs"),
            ("scenario \"a\" { think \"soon\"; get \"/\" }", "not a time"),
            ("data \"users.csv\"\nscenario \"a\" { get \"/\" }", "line 1: /nonexistent/users.csv"),
        ] {
            let error = parse_here(text).err().unwrap_or_default();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
