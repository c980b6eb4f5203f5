//! Builds the manual as a book and serves it by Tailcoat as its README says. Follows each link of each page, with its
//! heading. Asks the book's own search the questions of newcomers.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::process::Command;

use super::{CheckOutcome, is_installed, output};
use crate::process::{ChildProcess, free_port, get};
use crate::questions;
use crate::skips;

/// The configuration that the book comes with. Paths in it are relative to `docs`; from `target` they are the same.
const CONFIGURATION: &str = "docs/tailcoat.kdl";
const CONFIGURATION_TRIED: &str = "target/manual.kdl";

/// The book, and a program for node that asks its search.
const BOOK: &str = "target/manual";
const SEARCH: &str = "xtask/src/packaging/search.js";

/// The page that answers a question must be among so many results of its search.
const RESULTS_MAX: usize = 5;

/// Address in the configuration.
const ADDRESS: &str = "127.0.0.1:8080";

pub(super) fn check(program: &Path) -> Result<CheckOutcome, Box<dyn Error>> {
    if !is_installed("mdbook") {
        return Ok(CheckOutcome::Missing("mdbook"));
    }
    output(Command::new("mdbook").args(["build", "docs"]))?;
    let port = free_port()?;
    let configuration = std::fs::read_to_string(CONFIGURATION)?.replace(ADDRESS, &format!("127.0.0.1:{port}"));
    std::fs::write(CONFIGURATION_TRIED, configuration)?;
    let mut command = Command::new(program);
    command.args(["run", "-c", CONFIGURATION_TRIED]);
    let _server = ChildProcess::start(command, port)?;
    let mut crawl = Crawl { port, pages: BTreeMap::new(), broken: BTreeSet::new() };
    let mut wanted = vec![("/".to_owned(), Link { path: "/".into(), heading: None })];
    while let Some((from, link)) = wanted.pop() {
        wanted.extend(crawl.follow(&from, &link)?);
    }
    println!("manual: {} pages and files", crawl.pages.len());
    let mut problems: Vec<String> = crawl.broken.into_iter().collect();
    problems.extend(search()?);
    if problems.is_empty() { Ok(CheckOutcome::Passed) } else { Err(problems.join("\n").into()) }
}

/// Searches that do not find the page that answers their question, a line each.
fn search() -> Result<Vec<String>, Box<dyn Error>> {
    if !is_installed("node") {
        let is_well = skips::passes_without("manual: search", "node");
        return Ok(if is_well { Vec::new() } else { vec!["search was not tested".into()] });
    }
    let questions = questions::load(Path::new("."))?;
    let asked: Vec<_> = questions
        .iter()
        .map(|question| {
            let page = question.answer.split('#').next().unwrap_or_default().replace(".md", ".html");
            serde_json::json!({ "text": question.text, "page": page, "search": question.search })
        })
        .collect();
    let asked = serde_json::Value::from(asked).to_string();
    let found = output(Command::new("node").args([SEARCH, BOOK, &RESULTS_MAX.to_string(), &asked]))?;
    println!("manual: {} searches", questions.len());
    Ok(found.lines().map(str::to_owned).collect())
}

/// Target of a link on this server.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    path: String,
    heading: Option<String>,
}

struct Crawl {
    port: u16,
    /// The names that links can lead to in what has been asked for; of what is no page, none are known.
    pages: BTreeMap<String, Option<BTreeSet<String>>>,
    broken: BTreeSet<String>,
}

impl Crawl {
    /// Fetches the target of a link once, and returns the links in it.
    fn follow(&mut self, from: &str, link: &Link) -> Result<Vec<(String, Link)>, Box<dyn Error>> {
        let Link { path, heading } = link;
        let mut links = Vec::new();
        if !self.pages.contains_key(path) {
            let response = get(self.port, path)?;
            let mut names = None;
            match (response.status, response.field("location")) {
                (200, _) if response.field("content-type").is_some_and(|it| it.starts_with("text/html")) => {
                    let page = String::from_utf8(response.content)?;
                    names = Some(attributes(&page, "id").map(str::to_owned).collect());
                    let targets = attributes(&page, "href").chain(attributes(&page, "src"));
                    links.extend(targets.filter_map(|it| resolve(path, it)).map(|it| (path.clone(), it)));
                }
                (200, _) => {}
                (301 | 302, Some(target)) => {
                    links.extend(resolve(path, target).map(|link| (format!("{from} by {path}"), link)));
                }
                (status, _) => drop(self.broken.insert(format!("{from}: {path}: {status}"))),
            }
            self.pages.insert(path.clone(), names);
        }
        if let (Some(heading), Some(Some(names))) = (heading, self.pages.get(path))
            && !names.contains(heading)
        {
            self.broken.insert(format!("{from}: {path}: there is no {heading:?}"));
        }
        Ok(links)
    }
}

/// The values of an attribute in a page.
fn attributes<'a>(page: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    page.split(&format!(" {name}=\"")).skip(1).filter_map(|rest| rest.split('"').next()).collect::<Vec<_>>().into_iter()
}

/// A link of a page at this path, if it stays on the server.
fn resolve(page: &str, target: &str) -> Option<Link> {
    let (target, heading) = target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
    let target = target.split('?').next().unwrap_or_default();
    if target.contains(':') || target.starts_with("//") {
        return None;
    }
    let base = page.rsplit_once('/').map_or("", |(base, _)| base);
    let whole = match target {
        "" => page.to_owned(),
        _ if target.starts_with('/') => target.to_owned(),
        _ => format!("{base}/{target}"),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    let heading = heading.filter(|heading| !heading.is_empty()).map(str::to_owned);
    Some(Link { path: format!("/{}", parts.join("/")), heading })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved() {
        for (page, target, expect) in [
            ("/", "a.html", Some(("/a.html", None))),
            ("/a.html", "#b", Some(("/a.html", Some("b")))),
            ("/d/a.html", "../b.html#c", Some(("/b.html", Some("c")))),
            ("/a.html", "../../b/", Some(("/b/", None))),
            ("/d/", "?sort=name", Some(("/d/", None))),
            ("/a.html", "/b#", Some(("/b", None))),
            ("/a.html", "https://example.org/", None),
            ("/a.html", "mailto:a@example.org", None),
        ] {
            let expect = expect.map(|(path, heading): (&str, Option<&str>)| Link {
                path: path.into(),
                heading: heading.map(Into::into),
            });
            assert_eq!(resolve(page, target), expect, "{page} {target}");
        }
    }
}
