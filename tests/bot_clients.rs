//! Bots, with programs of others: a browser with JavaScript, one without, fail2ban and CrowdSec.

use std::process::Command;

use crate::bots::{get_from, status};
use crate::support::TestServer;
use crate::support::real_server::{RealServer, Recipe};
use crate::support::skips::skip_without;
use crate::support::waiting::{eventually, eventually_some};

/// All clients get a challenge.
fn site(options: &str) -> String {
    format!(
        "server {{ workers 1 }}\nsite {{\n listen \"127.0.0.1:0\"\n respond \"/*\" 200 \"hello\"\n{options}\n \
         bots \"forum\" {{ score 40; challenge-wait \"1s\"; work-bits 10; }}\n}}\n"
    )
}

/// Output of a program; `None` if it is not installed, which is a skip.
#[track_caller]
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip_without(program);
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

#[test]
fn chromium_solves_the_challenge() {
    let server = TestServer::run(&site(""));
    let profile = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", profile.path().display());
    let url = format!("http://{}/thread?a=b", server.address);
    let arguments =
        ["--headless", "--no-sandbox", "--disable-gpu", &profile, "--virtual-time-budget=20000", "--dump-dom", &url];
    let Some(page) = output("chromium", &arguments) else { return };
    assert!(page.contains("hello") && !page.contains("Checking your browser"), "{page}");
}

#[test]
fn curl_gets_a_challenge_and_passes_by_waiting() {
    let server = TestServer::run(&site(""));
    let directory = tempfile::tempdir().unwrap();
    let cookies = directory.path().join("cookies").display().to_string();
    let url = |target: &str| format!("http://{}{target}", server.address);
    let curl = |arguments: &[&str]| output("curl", &[&["--silent", "--noproxy", "*"], arguments].concat());
    let Some(json) = curl(&["--header", "Accept: application/json", "--write-out", " %{http_code}", &url("/thread")])
    else {
        return;
    };
    assert!(json.starts_with("{\"status\":403,") && json.ends_with(" 403"), "{json}");
    assert_eq!(curl(&[&url("/feed")]).as_deref(), Some("hello"), "feeds need no challenge");
    let page = curl(&[&url("/thread?a=b")]).unwrap();
    let (_, link) = page.split_once("url=").unwrap();
    let link = url(&link.split_once('"').unwrap().0.replace("&amp;", "&"));
    // The client waits: time is what is tested.
    eventually_some("the wait is over", || {
        let page = curl(&["--location", "--cookie-jar", &cookies, "--cookie", &cookies, &link])?;
        (page == "hello").then_some(())
    });
    assert_eq!(curl(&["--cookie", &cookies, &url("/thread")]).as_deref(), Some("hello"));
}

#[test]
fn lynx_waits_and_passes() {
    let server = TestServer::run(&site(""));
    let url = format!("http://{}/thread?a=b", server.address);
    let Some(page) = output("lynx", &["-dump", &url]) else { return };
    assert!(page.contains("Checking your browser") && page.contains("wait 1 seconds"), "{page}");
    let link = page.lines().find_map(|line| line.trim_start().strip_prefix("1. "));
    let link = link.unwrap_or_else(|| panic!("a link in {page}"));
    // The client waits: time is what is tested.
    eventually_some("the wait is over", || {
        let page = output("lynx", &["-dump", "-accept_all_cookies", link])?;
        page.contains("hello").then_some(())
    });
}

#[test]
fn fail2ban_finds_rejections() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let options = format!(" access-log \"{}\" format=\"combined\"\n deny all path=\"/closed\"", log.display());
    let server = TestServer::run(&site(&options));
    for (path, user_agent) in
        [("/feed", "reader"), ("/closed", "x"), ("/a", "127.0.0.1 - - [] \"GET / x\" 403 "), ("/a", "")]
    {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nUser-Agent: {user_agent}\r\n\r\n");
        crate::support::ask(&server, &request);
    }
    eventually_some("the requests are logged", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        (text.lines().count() == 4).then_some(())
    });
    let filter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/fail2ban/tailcoat.conf");
    let Some(report) = output("fail2ban-regex", &[&log.display().to_string(), filter]) else { return };
    assert!(report.contains("Lines: 4 lines, 0 ignored, 3 matched, 1 missed"), "{report}");
}

/// CrowdSec's local API alone: it reads no logs, and asks no other server.
const CROWDSEC: &str = r#"
common: {daemonize: false, log_media: stdout, log_level: info, working_dir: "."}
config_paths:
  config_dir: "@DIR@/"
  data_dir: "@DIR@/"
  simulation_path: "@DIR@/simulation.yaml"
  hub_dir: "@DIR@/"
  index_path: "@DIR@/index.json"
  notification_dir: "@DIR@/none"
  plugin_dir: "@DIR@/none"
crowdsec_service: {enable: false}
db_config: {type: sqlite, db_path: "@DIR@/crowdsec.db", use_wal: true, flush: {max_items: 100, max_age: 1d}}
api:
  client: {credentials_path: "@DIR@/credentials.yaml"}
  server: {listen_uri: "127.0.0.1:@PORT@", profiles_path: "@DIR@/profiles.yaml"}
prometheus: {enabled: false}
"#;

/// Output of CrowdSec's command-line tool.
fn cscli(crowdsec: &RealServer, arguments: &[&str]) -> String {
    let config = crowdsec.directory().join("config.yaml");
    let output = Command::new("cscli").arg("-c").arg(config).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn decisions_of_a_real_crowdsec_are_bans() {
    let profiles = "name: none\nfilters: [\"false\"]\ndecisions: []\n";
    let Some(mut crowdsec) = RealServer::start(&Recipe {
        needs: &["crowdsec", "cscli"],
        files: &[
            ("config.yaml", CROWDSEC),
            ("profiles.yaml", profiles),
            ("simulation.yaml", "simulation: false\n"),
            ("credentials.yaml", ""),
            ("index.json", "{}"),
        ],
        command: &["crowdsec", "-c", "@DIR@/config.yaml", "-no-cs", "-no-capi"],
        ..Recipe::default()
    }) else {
        return;
    };
    let credentials = crowdsec.directory().join("credentials.yaml").display().to_string();
    cscli(&crowdsec, &["machines", "add", "test", "--password", "for-a-test", "--force", "--file", &credentials]);
    let key = crowdsec.directory().join("key");
    std::fs::write(&key, cscli(&crowdsec, &["bouncers", "add", "tailcoat", "--output", "raw"])).unwrap();
    let ban = |what: [&str; 2]| cscli(&crowdsec, &[&["decisions", "add", "--duration", "1h"][..], &what].concat());
    ban(["--ip", "127.0.0.20"]);
    ban(["--range", "127.0.7.0/24"]);
    let follows = format!("crowdsec \"{}\" key-file=\"{}\" interval=\"1s\"", crowdsec.address, key.display());
    let server = TestServer::run(&site("").replace("workers 1", &format!("workers 1; {follows}")));
    server.await_log("decisions of CrowdSec applied: banned=2 ended=0 in_force=2");
    let is_banned =
        |[high, low]: [u8; 2]| status(&get_from(&server, [127, 0, high, low], "/feed", "reader", "")) != "200";
    assert_eq!([[0, 20], [7, 9], [0, 21]].map(is_banned), [true, true, false]);
    cscli(&crowdsec, &["decisions", "delete", "--ip", "127.0.0.20"]);
    ban(["--ip", "127.0.0.22"]);
    eventually("the decisions are followed", || !is_banned([0, 20]) && is_banned([0, 22]));
    // Without CrowdSec, its decisions stay.
    crowdsec.kill();
    server.await_log("asking CrowdSec failed");
    assert!(is_banned([7, 9]) && is_banned([0, 22]));
}
