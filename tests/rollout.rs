//! Configurations that are rolled out to several instances.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::ask;
use crate::support::operated::Operated;
use crate::support::waiting::{eventually, stays};

/// Three instances with a store, whose files say `old`.
struct Fleet {
    all: Vec<Operated>,
    directory: TempDir,
}

impl Fleet {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), "k".repeat(40)).unwrap();
        let all: Vec<Operated> = (0..3).map(|number| start(directory.path(), number)).collect();
        for operated in &all {
            eventually("it sees all instances", || {
                run(operated, &["status"]).matches("instance    edge-").count() == 3
            });
        }
        Self { all, directory }
    }

    /// Starts a rollout of this site.
    fn roll_out(&self, site: &str, arguments: &[&str]) -> String {
        let file = self.directory.path().join("new.kdl");
        std::fs::write(&file, format!("site {{\n listen \"127.0.0.1:0\"\n {site}\n}}\n")).unwrap();
        run(&self.all[1], &[&["rollout", "start", file.to_str().unwrap()], arguments].concat())
    }

    fn status(&self) -> String {
        run(&self.all[2], &["rollout", "status"])
    }

    fn contents(&self) -> Vec<String> {
        self.all.iter().map(content).collect()
    }
}

fn start(directory: &Path, number: usize) -> Operated {
    let path = directory.display();
    let state = directory.join(format!("state-{number}"));
    let config = format!(
        "store {{\n url \"{path}/shared\"\n key-file \"{path}/key\"\n share \"orders\" \"rollouts\"\n instance \"edge-{number}\"\n \
         lease-time \"9s\"\n timeout \"3s\"\n}}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"old\"\n}}\n"
    );
    let new = tempfile::tempdir().unwrap();
    Operated::start_with(new, &config, |command: &mut Command| _ = command.env("STATE_DIRECTORY", state))
}

fn run(operated: &Operated, arguments: &[&str]) -> String {
    let output = operated.order(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn content(operated: &Operated) -> String {
    let response = ask(&operated.server, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    response.split_once("\r\n\r\n").map(|(_, content)| content.to_owned()).unwrap_or_default()
}

#[test]
fn a_configuration_reaches_the_first_and_then_all() {
    let fleet = Fleet::start();
    assert_eq!(fleet.status(), "no rollout yet\n");
    let said = fleet.roll_out("respond \"/\" 200 \"new\"", &["--first", "10%", "--watch", "10s"]);
    assert!(said.starts_with("rollout 1 has started; first instances: edge-"), "{said}");
    let news = || fleet.contents().iter().filter(|content| *content == "new").count();
    eventually("the first has it", || news() > 0);
    // Watched for ten seconds: the others do not have it before.
    stays("one has it", Duration::from_secs(1), || news() == 1);
    let second = fleet.all[0].order(&["rollout", "files"]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("rollout 1 is in progress"));
    eventually("all have it", || news() == 3);
    eventually("it is done", || fleet.status().starts_with("rollout 1 of a configuration: done\n"));
    eventually("all report it", || fleet.status().matches("has it").count() == 3);

    // A reload keeps it, and says so; an instance that starts later gets it.
    let reloaded = fleet.all[0].order(&["reload"]);
    let note = String::from_utf8_lossy(&reloaded.stderr).into_owned();
    assert!(note.contains("the configuration of rollout 1 is in use, not the file"), "{note}");
    assert_eq!(content(&fleet.all[0]), "new");
    let late = start(fleet.directory.path(), 3);
    eventually("the late one has it", || content(&late) == "new");

    // Back to the files, at all at once.
    run(&fleet.all[0], &["rollout", "files", "--first", "100%", "--watch", "10s"]);
    eventually("all have their files", || fleet.contents() == ["old"; 3] && content(&late) == "old");
    eventually("it is done", || fleet.status().starts_with("rollout 2 of each instance's file: done\n"));
}

#[test]
fn a_configuration_that_one_rejects_returns() {
    let fleet = Fleet::start();
    // Errors that `check` finds do not get as far.
    let file = fleet.directory.path().join("wrong.kdl");
    std::fs::write(&file, "site {\n listen \"127.0.0.1:0\"\n wrong\n}\n").unwrap();
    let output = fleet.all[0].order(&["rollout", "start", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    let site = "respond \"/\" 200 \"new\"\n access-log \"/proc/none/access.log\"";
    fleet.roll_out(site, &["--first", "1%", "--watch", "30s"]);
    eventually("it is returned", || fleet.status().contains("returned: edge-"));
    let status = fleet.status();
    assert!(status.contains("rejects it: ") && status.contains("/proc/none/access.log"), "{status}");
    assert_eq!(fleet.contents(), ["old"; 3]);
    let rejected = |operated: &Operated| operated.file("errors.log").contains("configuration of a rollout rejected");
    eventually("it is logged", || fleet.all.iter().any(rejected));
}

#[test]
fn a_configuration_that_fails_requests_returns() {
    let fleet = Fleet::start();
    fleet.roll_out("respond \"/\" 500 \"broken\"", &["--first", "1%", "--watch", "60s"]);
    let mut broken = [0; 3];
    eventually("it is returned", || {
        for (index, content) in fleet.contents().into_iter().enumerate() {
            broken[index] += usize::from(content == "broken");
        }
        fleet.status().contains("returned: ")
    });
    let status = fleet.status();
    assert!(status.contains("of 1,000 responses have a status of 500 or more"), "{status}");
    eventually("all have the configuration before", || fleet.contents() == ["old"; 3]);
    assert_eq!(broken.iter().filter(|count| **count > 0).count(), 1, "{broken:?}");
}

#[test]
fn an_operator_stops_a_rollout() {
    let fleet = Fleet::start();
    fleet.roll_out("respond \"/\" 200 \"new\"", &["--first", "50%", "--watch", "10m"]);
    eventually("the first have it", || fleet.contents().iter().filter(|content| *content == "new").count() == 2);
    let said = run(&fleet.all[0], &["rollout", "stop"]);
    assert!(said.starts_with("rollout 1 is stopped"), "{said}");
    eventually("all have the configuration before", || fleet.contents() == ["old"; 3]);
    assert!(fleet.status().contains("returned: stopped by an operator"), "{}", fleet.status());
    let again = fleet.all[0].order(&["rollout", "stop"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("no rollout is in progress"));
}

/// A store that was wiped does not send instances back to their files with the next rollout.
#[test]
fn a_rollout_after_the_store_was_wiped_returns_to_the_one_before() {
    let fleet = Fleet::start();
    fleet.roll_out("respond \"/\" 200 \"new\"", &["--first", "100%", "--watch", "10s"]);
    eventually("it is done", || fleet.status().starts_with("rollout 1 of a configuration: done\n"));
    std::fs::remove_dir_all(fleet.directory.path().join("shared/rollout")).unwrap();
    eventually("it is gone", || fleet.status() == "no rollout yet\n");
    fleet.roll_out("respond \"/\" 200 \"newer\"", &["--first", "1%", "--watch", "10m"]);
    eventually("the first has it", || fleet.contents().contains(&"newer".to_owned()));
    let others = || fleet.contents().iter().filter(|content| *content == "new").count();
    stays("the others keep theirs", Duration::from_secs(2), || others() == 2);
    run(&fleet.all[0], &["rollout", "stop"]);
    eventually("all have the configuration before", || others() == 3);
}

/// A process that starts while the store is away has the configuration of the last rollout that has ended, unless another
/// program has written it.
#[test]
fn a_rollout_outlives_a_restart_without_a_store() {
    let fleet = Fleet::start();
    run(&fleet.all[0], &["rollout", "files", "--first", "100%", "--watch", "10s"]);
    eventually("it is done", || fleet.status().contains(": done\n"));
    fleet.roll_out("respond \"/\" 200 \"new\"", &["--first", "100%", "--watch", "10s"]);
    eventually("it is done", || fleet.status().starts_with("rollout 2 of a configuration: done\n"));
    let Fleet { all, directory } = fleet;
    // Versions of the value.
    let kept = |number: usize| files_below(&directory.path().join(format!("state-{number}")));
    eventually("it is kept", || (0..3).all(|number| !kept(number).is_empty()));
    let is_readable = |path: &PathBuf| std::fs::read(path).unwrap().windows(7).any(|part| part == b"respond");
    assert!(!kept(0).iter().any(is_readable), "the values are encrypted");
    drop(all);
    // The store fails: a file is in the place of a folder.
    let folder = directory.path().join("shared/rollout");
    let away = folder.with_extension("away");
    std::fs::rename(&folder, &away).unwrap();
    std::fs::write(&folder, "").unwrap();
    let first = start(directory.path(), 0);
    eventually("it has the configuration of the rollout", || content(&first) == "new");
    // Another program's value.
    for path in kept(1) {
        std::fs::write(path, "x".repeat(100)).unwrap();
    }
    let second = start(directory.path(), 1);
    eventually("the log says it", || second.file("errors.log").contains("configuration of a rollout not restored"));
    assert_eq!(content(&second), "old");
    // The store is back.
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&away, &folder).unwrap();
    eventually("the store says it", || content(&second) == "new");
    let applied = || first.file("errors.log").matches("configuration of a rollout applied").count();
    stays("it is applied once", Duration::from_secs(3), || applied() == 1 && content(&first) == "new");
}

/// Files below a state directory, except those that are still written.
fn files_below(state: &Path) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![state.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if path.extension().is_some_and(|extension| extension == "new") => {}
                path => files.push(path),
            }
        }
    }
    files
}

#[test]
fn an_instance_without_rollouts() {
    let operated = Operated::start("site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"old\"\n}\n");
    let output = operated.order(&["rollout", "status"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("takes no part in rollouts"), "{output:?}");
}
