//! `tailcoat explain` and `tailcoat certificates`.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::support::operated::Operated;
use crate::support::tailcoat;
use crate::support::tls::TestCa;
use crate::support::waiting::eventually;

const CONFIG: &str = r#"deny all path="/hidden/*"
site "a.example" "www.a.example" {
    listen "127.0.0.1:0"
    root "@DIR@/root"
    canonical-host "a.example"
    deny "203.0.113.0/24" path="/admin/*"
    redirect "/old/*" "/new/{rest}" status=301
    rewrite "/short" "/page.html"
    rate-limit "/api/*" "20/s" burst=5
    forward "http://127.0.0.1:9" path="/api/*" method="POST" {
        first-byte-timeout "3s"
    }
    respond "/fixed" 200 "x"
    response-header "X-A" "b"
}
site "*.b.example" {
    listen "127.0.0.1:0"
    respond "*" 204
}
"#;

fn explain(directory: &Path, arguments: &[&str]) -> Value {
    let mut command = tailcoat();
    command.current_dir(directory).args(["explain", "-c", "tailcoat.kdl", "--json"]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("root")).unwrap();
    std::fs::write(directory.path().join("root/page.html"), "page").unwrap();
    let config = CONFIG.replace("@DIR@", &directory.path().display().to_string());
    std::fs::write(directory.path().join("tailcoat.kdl"), config).unwrap();
    directory
}

/// Rules that apply, each with its line.
fn applied(explanation: &Value) -> Vec<String> {
    let steps = explanation["steps"].as_array().unwrap().iter().filter(|step| step["applies"] == true);
    let name =
        |line: &Value| line.as_str().and_then(|line| line.rsplit_once(':')).map_or("-", |(_, line)| line).to_owned();
    steps.map(|step| format!("{} {}", name(&step["line"]), step["rule"].as_str().unwrap())).collect()
}

#[test]
fn a_file_is_explained() {
    let directory = directory();
    let check = |arguments: &[&str], outcome: &str, rules: &[&str]| {
        let explanation = explain(directory.path(), arguments);
        let found = explanation["outcome"].as_str().unwrap();
        assert!(found.contains(outcome), "{arguments:?}: {explanation:#}");
        let applied = applied(&explanation);
        for rule in rules {
            assert!(applied.iter().any(|found| found.starts_with(rule)), "{arguments:?} {rule}: {applied:?}");
        }
    };
    let file = directory.path().join("root/page.html").display().to_string();
    check(&["http://a.example/page.html"], &format!("status 200: sends {file}"), &["4 root", "14 response-header"]);
    check(&["http://a.example/missing"], "status 404: no such file", &[]);
    check(&["http://a.example/short"], &format!("sends {file}"), &["8 rewrite"]);
    check(&["http://a.example/old/x?y"], "status 301: redirects to /new/x", &["7 redirect"]);
    check(&["http://www.a.example/"], "redirects to http://a.example/", &["5 canonical-host"]);
    check(&["http://a.example/hidden/x"], "status 403", &["1 deny all path=\"/hidden/*\""]);
    check(&["http://a.example/admin/", "--client", "203.0.113.7"], "status 403", &["6 deny"]);
    check(&["http://a.example/admin/"], "status 404", &[]);
    check(
        &["http://a.example/api/x", "-X", "POST"],
        "forwards to http://127.0.0.1:9 as /api/x",
        &["9 rate-limit", "10 forward"],
    );
    // Another method: the route does not fit, and files have no such path.
    check(&["http://a.example/api/x"], "status 404", &["9 rate-limit"]);
    check(&["http://a.example/fixed"], "status 200: a fixed response", &["13 respond"]);
    check(&["/fixed"], "status 200: a fixed response", &[]);
    check(&["http://x.b.example/"], "status 204: a fixed response", &["18 respond"]);
    check(&["http://a.example/%zz"], "status 400", &[]);
    check(&["http://a.example/../x"], "status 400", &[]);
}

#[test]
fn scores_of_bots_are_explained() {
    let directory = directory();
    let step = |bots: &str, arguments: &[&str]| -> Value {
        let config = format!("site {{\n listen \"127.0.0.1:0\"\n respond \"*\" 204\n{bots}\n}}\n");
        std::fs::write(directory.path().join("tailcoat.kdl"), config).unwrap();
        let explanation = explain(directory.path(), &[&["http://a.example/page?x"], arguments].concat());
        let steps = explanation["steps"].as_array().unwrap();
        let mut found = steps.iter().find(|step| step["rule"].as_str().unwrap().starts_with("bots")).unwrap().clone();
        found["outcome"] = explanation["outcome"].clone();
        found
    };
    let bots = "bots \"forum\" { resolver \"127.0.0.1:9\"; score 7 when=\"path == '/page'\"; crawler \"Badbot\" ranges=\"none\"; }";
    let bots = bots.replace("none", &directory.path().join("ranges.json").display().to_string());
    std::fs::write(directory.path().join("ranges.json"), r#"{"prefixes": [{"ipv4Prefix": "192.0.2.0/24"}]}"#).unwrap();
    let found = step(&bots, &["-H", "User-Agent: curl/8.0", "-H", "Accept: */*"]);
    let expect = "class `challenged`, score 47, `library` 40, `score` 7, gets a challenge of 15 bits";
    assert_eq!((&found["reason"], &found["applies"]), (&expect.into(), &true.into()), "{found:#}");
    assert_eq!(found["line"], "tailcoat.kdl:4");
    let found = step(&bots, &["-H", "User-Agent: Badbot/1.0", "-H", "Accept: */*"]);
    let expect = "class `rejected`, score 107, name \"Badbot\", `false-crawler` 100, `score` 7, is rejected";
    assert_eq!((&found["reason"], &found["applies"]), (&expect.into(), &true.into()), "{found:#}");
    assert!(found["outcome"].as_str().unwrap().starts_with("status 403"), "{found:#}");
    let own = ["-H", "User-Agent: Badbot/1.0", "-H", "Accept: */*", "--client", "192.0.2.9"];
    assert_eq!(step(&bots, &own)["reason"], "class `crawler`, score 7, name \"Badbot\", `score` 7");
    let found = step("bots \"forum\" dry-run=on", &["-H", "User-Agent: curl/8.0", "-H", "Accept: */*"]);
    let expect = "class `challenged`, score 40, `library` 40, gets a challenge of 15 bits (not in this dry run)";
    assert_eq!((&found["reason"], &found["applies"]), (&expect.into(), &false.into()), "{found:#}");
}

#[test]
fn sites_and_options_are_explained() {
    let directory = directory();
    let explanation = explain(directory.path(), &["http://a.example/api/x", "-X", "POST"]);
    assert_eq!(explanation["site"]["name"], "a.example");
    assert_eq!(explanation["site"]["reason"], "it has this name");
    assert_eq!(explanation["servers"][0]["server"], "http://127.0.0.1:9");
    let options = explanation["options"].as_array().unwrap();
    let line = |option: &str| {
        let found = options.iter().find(|found| found["option"].as_str().unwrap().starts_with(option));
        found.unwrap_or_else(|| panic!("{option} in {options:#?}"))["line"].clone()
    };
    assert_eq!(line("first-byte-timeout \"3s\""), "tailcoat.kdl:11");
    assert_eq!(line("root"), "tailcoat.kdl:4");
    assert_eq!(line("idle-timeout"), Value::Null);
    let other = explain(directory.path(), &["http://y.b.example/"]);
    assert_eq!(other["site"]["reason"], "a pattern of its names matches");
    let unknown = explain(directory.path(), &["http://c.example/page.html"]);
    assert_eq!(unknown["site"]["reason"], "it is the default of this address");
    // Reasons of what does not apply.
    let steps = explanation["steps"].as_array().unwrap();
    let reason = |rule: &str| {
        let found = steps.iter().find(|step| step["rule"].as_str().unwrap().starts_with(rule));
        found.unwrap()["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(reason("redirect"), "the path differs");
    let get = explain(directory.path(), &["http://a.example/api/x"]);
    let forward =
        get["steps"].as_array().unwrap().iter().find(|step| step["rule"].as_str().unwrap().starts_with("forward"));
    assert_eq!(forward.unwrap()["reason"], "the method differs");
}

#[test]
fn wrong_questions_are_rejected() {
    let directory = directory();
    for (arguments, expect) in [
        (&["https://a.example/"][..], "no site listens on port 443 for https; sites listen on 127.0.0.1:0"),
        (&["http://a.example:81/"], "no site listens on port 81"),
        (&["ftp://a.example/"], "`ftp` is not http or https"),
        (&["http://a.example/", "-H", "no field"], "`no field` is not a header field"),
        (&["http://a.example/", "--client", "here"], "`here` is not an address"),
        (&["http://a.example/", "-H", "A: b\r\nC: d"], "no line breaks"),
    ] {
        let mut command = tailcoat();
        command.current_dir(directory.path()).args(["explain", "-c", "tailcoat.kdl"]).args(arguments);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expect), "{arguments:?}: {errors}");
    }
}

#[test]
fn the_running_server_is_explained() {
    let directory = directory();
    let at = directory.path().display().to_string();
    let config = CONFIG.replace("@DIR@", &at);
    let operated = Operated::start(&config);
    let ask = |arguments: &[&str]| -> Output { operated.order(&[&["explain", "--json"], arguments].concat()) };
    let port = operated.server.address.port();
    let listen = "127.0.0.1:0";
    let explained = |arguments: &[&str]| -> Value {
        let output = ask(arguments);
        assert!(output.status.success(), "{arguments:?} {port}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let explanation = explained(&["http://a.example/api/x", "-X", "POST", "--listen", listen]);
    assert!(explanation["outcome"].as_str().unwrap().starts_with("forwards to http://127.0.0.1:9"), "{explanation:#}");
    assert_eq!(explanation["servers"][0]["health"], "up");
    assert!(explanation["handler"]["line"].as_str().unwrap().contains("tailcoat.kdl:"), "{explanation:#}");
    // A file that has changed has other lines than the configuration in use.
    operated.write_config(&config.replace("respond \"/fixed\" 200 \"x\"", ""));
    let explanation = explained(&["http://a.example/fixed", "--listen", listen]);
    assert!(explanation["outcome"].as_str().unwrap().contains("a fixed response"), "{explanation:#}");
    assert_eq!(explanation["handler"]["line"], Value::Null);
    assert!(explanation["notes"].to_string().contains("has changed since the last reload"), "{explanation:#}");
    // A ban is a fact of the running server.
    assert!(operated.order(&["ban", "203.0.113.9"]).status.success());
    let explanation = explained(&["http://a.example/fixed", "--client", "203.0.113.9", "--listen", listen]);
    assert!(explanation["outcome"].as_str().unwrap().contains("banned"), "{explanation:#}");
}

#[test]
fn certificates_are_listed() {
    let authority = TestCa::new();
    let directory = tempfile::tempdir().unwrap();
    authority.sign(&["a.example", "b.example"]).write(directory.path(), "one");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let config = format!(
        "server {{\n certificate-check-interval \"1s\"\n}}\nsite \"a.example\" {{\n listen \"127.0.0.1:0\" tls=on\n \
         certificate \"{}\" key=\"{}\"\n respond \"/\" 200 \"x\"\n}}\n",
        at("one.pem"),
        at("one.key")
    );
    let operated = Operated::start(&config);
    let listed = || {
        let output = operated.order(&["certificates", "--json"]);
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), listed)
    };
    let (code, certificates) = listed();
    assert_eq!(code, Some(0), "{certificates}");
    assert_eq!(certificates[0]["site"], "a.example");
    assert_eq!(certificates[0]["names"], serde_json::json!(["a.example", "b.example"]));
    assert!(!certificates[0]["issuer"].as_str().unwrap().is_empty(), "{certificates}");
    assert!(certificates[0]["not_after_unix_s"].as_i64().unwrap() > 0);
    let text = String::from_utf8(operated.order(&["certificates"]).stdout).unwrap();
    assert!(text.contains("a.example, b.example") && text.contains("file: "), "{text}");
    let status = String::from_utf8(operated.order(&["status"]).stdout).unwrap();
    assert!(status.contains("certificates 1   the first expires in "), "{status}");
    // A file that cannot be used is an error, and the certificate in use stays.
    std::fs::write(directory.path().join("one.pem"), "nonsense").unwrap();
    eventually("the error is listed", || {
        listed().1[0]["error"].as_str().is_some_and(|error| error.contains("one.pem"))
    });
    assert_eq!(listed().0, Some(1));
    assert_eq!(listed().1[0]["names"], serde_json::json!(["a.example", "b.example"]));
    authority.sign(&["a.example"]).write(directory.path(), "one");
    eventually("the error is over", || listed().1[0]["error"] == "" && listed().0 == Some(0));
}
