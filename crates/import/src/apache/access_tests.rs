//! Translations of access rules that sections and modules of Apache share.

use std::path::Path;

use super::tests::translated;

/// Lines of access rules of a site whose root is `/srv`, and the remarks.
fn rules(body: &str) -> (Vec<String>, Vec<String>) {
    let (lines, remarks) = translated(&format!("DocumentRoot /srv\n{body}"), None);
    let is_rule =
        |line: &&String| ["allow", "deny", "basic-auth"].iter().any(|name| line.starts_with(&format!("{name} ")));
    (lines.iter().filter(is_rule).cloned().collect(), remarks)
}

#[track_caller]
fn check(body: &str, expect: &[&str]) {
    let (lines, remarks) = rules(body);
    assert_eq!(lines, expect, "{body}\n{remarks:#?}");
    assert!(remarks.is_empty(), "{body}\n{remarks:#?}");
}

const CLOSED: &str = "Order allow,deny\nDeny from all";
const OPEN: &str = "Order allow,deny\nAllow from all";

/// Issue 23: rules of one module lifted those of the other one, which was more open.
#[test]
fn both_modules_must_allow() {
    let shut = ["deny all path=\"/p/*\""];
    check(
        &format!("<Directory /srv/p>\n{CLOSED}\n</Directory>\n<Location /p>\nRequire all granted\n</Location>"),
        &shut,
    );
    check(&format!("<Directory /srv/p>\nRequire all denied\n</Directory>\n<Location /p>\n{OPEN}\n</Location>"), &shut);
    check(
        &format!("<Directory /srv/p>\n{CLOSED}\n</Directory>\n<Files index.html>\nRequire all granted\n</Files>"),
        &shut,
    );
    check(
        &format!(
            "<Directory /srv/p>\nRequire all denied\n</Directory>\n<FilesMatch \"\\.png$\">\n{OPEN}\n</FilesMatch>"
        ),
        &shut,
    );
    // A later section of the same module lifts the rule.
    let files = "deny all path=#\"~\\.png(?:/.*)?$\"#";
    check(
        &format!(
            "<Directory /srv>\nRequire all granted\n</Directory>\n<FilesMatch \"\\.png$\">\n{CLOSED}\n</FilesMatch>\n\
             <Location /p/>\n{OPEN}\n</Location>"
        ),
        &["allow all path=\"/p/*\"", files],
    );
    // Sections that overlap in part, of which one is not for all clients.
    let (lines, remarks) = rules(&format!(
        "<Directory /srv>\n{CLOSED}\n</Directory>\n<Directory /srv/p>\nRequire ip 192.0.2.1\n</Directory>\n\
         <FilesMatch \"\\.png$\">\n{OPEN}\n</FilesMatch>"
    ));
    assert_eq!(lines[0], files, "{lines:#?}");
    assert!(remarks.iter().any(|remark| remark.contains("old and new access rules are mixed")), "{remarks:#?}");
}

/// Issue 23: a password lifted what no rule of Apache lifts.
#[test]
fn passwords_lift_no_other_rejection() {
    let any = "<Directory /srv/p>\nAuthType Basic\nAuthUserFile /u\n<RequireAny>\nRequire ip 192.0.2.1\n\
               Require valid-user\n</RequireAny>\n</Directory>";
    let own = [
        "allow \"192.0.2.1\" path=\"/p/*\"",
        "deny all path=\"/p/*\"",
        "basic-auth \"/p/*\" \"/u\" realm=\"Restricted\" satisfy=\"any\"",
    ];
    for (body, expect) in [
        ("RewriteEngine on\nRewriteRule ^/p/db - [F]", "deny all path=\"~^/p/db\" satisfy=\"all\""),
        ("Redirect 403 /p/x/", "deny all path=\"/p/x/*\" satisfy=\"all\""),
        ("<If \"%{HTTP_HOST} == 'a'\">\nRequire all denied\n</If>", "deny all when=\"host == 'a'\" satisfy=\"all\""),
        ("<Location /p/x/>\nRequire user bob\n</Location>", "deny all path=\"/p/x/*\" satisfy=\"all\""),
        (
            "<Location /p/x/>\nAllowMethods GET\n</Location>",
            "deny all path=\"/p/x/*\" method=\"!GET HEAD\" status=405 satisfy=\"all\"",
        ),
        (
            "<Location /p/x/>\n<Limit POST>\nRequire all denied\n</Limit>\n</Location>",
            "deny all path=\"/p/x/*\" method=\"POST\" satisfy=\"all\"",
        ),
        ("<Location /p/x/>\nOrder allow,deny\nDeny from all\n</Location>", "deny all path=\"/p/x/*\" satisfy=\"all\""),
    ] {
        let (lines, _) = rules(&format!("{any}\n{body}"));
        let expect: Vec<&str> = std::iter::once(expect).chain(own).collect();
        assert_eq!(lines, expect, "{body}");
    }
    // A section of the same kind needs no password, so that none lifts its rule.
    let (lines, _) = rules(&format!("{any}\n<Location /p/x/>\nRequire all denied\n</Location>"));
    assert_eq!(lines[..2], ["deny all path=\"/p/x/*\"", "basic-auth \"/p/x/*\" off"]);
}

/// Issue 23: redirects below a password told their target to all clients.
#[test]
fn redirects_of_directories_wait_for_passwords() {
    let password = "AuthType Basic\nAuthUserFile /u\nRequire valid-user";
    let redirects = |text: &str, of_directory: Option<&Path>| -> Vec<String> {
        let (lines, remarks) = translated(text, of_directory);
        assert!(remarks.is_empty(), "{text}\n{remarks:#?}");
        lines.into_iter().filter(|line| line.starts_with("redirect")).collect()
    };
    let rule = "RewriteEngine on\nRewriteRule ^go$ https://x.example/secret [R]";
    let waiting = ["redirect \"~^/go$\" \"https://x.example/secret{query}\" status=302 after-auth=on"];
    let directory = format!("DocumentRoot /srv\n<Directory /srv>\n{password}\n{rule}\n</Directory>");
    assert_eq!(redirects(&directory, None), waiting);
    assert_eq!(redirects(&format!("{password}\n{rule}"), Some(Path::new("/srv/.htaccess"))), waiting);
    let location =
        format!("DocumentRoot /srv\n<Location /a/>\n{password}\nRedirect /a/b/ https://x.example/\n</Location>");
    let waiting = ["redirect \"/a/b/*\" \"https://x.example/{rest}{query}\" status=302 after-auth=on"];
    assert_eq!(redirects(&location, None), waiting);
    // Redirects of a host come before the password.
    let host = format!("DocumentRoot /srv\nRedirect /b/ https://x.example/\n<Location /a/>\n{password}\n</Location>");
    assert_eq!(redirects(&host, None), ["redirect \"/b/*\" \"https://x.example/{rest}{query}\" status=302"]);
    let open = "DocumentRoot /srv\n<Location /a/>\nRedirect /a/b/ https://x.example/\n</Location>";
    assert_eq!(redirects(open, None), ["redirect \"/a/b/*\" \"https://x.example/{rest}{query}\" status=302"]);
}

/// Issue 23: rules after one that ends the processing rejected its paths, too.
#[test]
fn ended_rules_reject_nothing() {
    let check = |body: &str, expect: &[&str]| {
        let (lines, remarks) = rules(&format!("RewriteEngine on\n{body}"));
        assert_eq!(lines, expect, "{body}\n{remarks:#?}");
    };
    check(
        "RewriteRule ^/a/public/ - [END]\nRewriteRule ^/a/ - [F]",
        &["deny all path=\"~^/a/\" when=\"not path matches '^/a/public/'\""],
    );
    // The first rule may not be reached, or is for other paths.
    check("RewriteRule ^/x - [C]\nRewriteRule ^/a/public/ - [L]\nRewriteRule ^/a/ - [F]", &["deny all path=\"~^/a/\""]);
    check(
        "RewriteCond %{REQUEST_METHOD} GET\nRewriteRule ^/a/public/ - [L]\nRewriteRule ^/a/ - [F]",
        &["deny all path=\"~^/a/\""],
    );
    check(
        "<Directory /srv>\nRewriteEngine on\nRewriteRule /public - [L]\nRewriteRule ^a/ - [F]\n</Directory>",
        &["deny all path=\"~^/a/\""],
    );
    let inner = "<Directory /srv>\nRewriteEngine on\nRewriteRule secret - [F]\n</Directory>\n\
                 <Directory /srv/a>\nRewriteEngine on\n</Directory>";
    check(inner, &["deny all path=\"~secret\" when=\"not path starts-with '/a/'\""]);
    check(
        &format!("{inner}\n<Directory /srv/a>\nRewriteOptions Inherit\n</Directory>"),
        &["deny all path=\"~secret\""],
    );
}

/// Issue 23: `..` in a place on the disk led to a pattern that does not exist.
#[test]
fn places_on_the_disk_are_normalised() {
    check("<Directory /srv/a/..>\nRequire all denied\n</Directory>", &["deny all"]);
    check("<Directory \"/srv//a/./b/\">\nRequire all denied\n</Directory>", &["deny all path=\"/a/b/*\""]);
    let (lines, _) = translated("DocumentRoot /srv/www/../web/\nAlias /a /srv/../opt/a", None);
    assert!(lines.iter().any(|line| line == "root \"/srv/web/\""), "{lines:#?}");
    assert!(lines.iter().any(|line| line == "files \"/a/*\" root=\"/opt/a\" {"), "{lines:#?}");
}

/// Issue 23: a directory of the root had paths below an alias of one file.
#[test]
fn files_have_no_paths_below() {
    let lines = |alias: &str| translated(&format!("DocumentRoot /srv\n{alias} /srv/a.txt"), None).0;
    let of_file = lines("Alias /data");
    let expect = ["rewrite \"/data\" \"/a.txt\"", "respond \"/data/*\" 404"];
    assert!(of_file.windows(2).any(|some| some == expect), "{of_file:#?}");
    let with_slash = lines("Alias /data/");
    assert!(with_slash.contains(&"rewrite \"/data/\" \"/a.txt\"".to_owned()), "{with_slash:#?}");
}

/// Issue 23: the note on PHP named a rule that was translated.
#[test]
fn notes_on_php_name_what_they_are_about() {
    let text = "<VirtualHost *:80>\nServerName a.de\nDocumentRoot /srv\nRewriteEngine on\n\
                RewriteRule ^/x/.*\\.php$ - [F]\n</VirtualHost>";
    let (_, remarks) = translated(text, None);
    assert!(remarks.iter().any(|remark| remark.starts_with("httpd.conf:1:")), "{remarks:#?}");
    assert!(!remarks.iter().any(|remark| remark.contains("RewriteRule")), "{remarks:#?}");
}

/// Issue 23: rules of a directory were lost where an alias leads to one of its paths, or `RewriteBase` names others.
#[test]
fn rules_of_directories_hold_below_aliases() {
    let check = |body: &str, expect: &[&str]| {
        let (lines, remarks) = rules(body);
        assert_eq!(lines, expect, "{body}\n{remarks:#?}");
    };
    let with = |alias: &str, rule: &str| {
        format!("Alias {alias}\n<Directory /srv>\nRewriteEngine on\nRewriteRule {rule} - [F]\n</Directory>")
    };
    check(&with("/data /srv/private", "^admin/"), &["deny all path=\"~^/admin/\""]);
    check(
        &with("/data /srv/private", "^private/x"),
        &["deny all path=\"~^/private/x\"", "deny all path=\"~^/data/x\""],
    );
    check(
        &with("/data /srv/private", "\\.bak$"),
        &["deny all path=#\"~\\.bak$\"#", "deny all path=#\"~^/data/.*\\.bak$\"#"],
    );
    // Paths on the disk may match where those of the alias do not.
    check(&with("/data /srv/private", "^p.*x"), &["deny all path=\"/data/*\"", "deny all path=\"~^/p.*x\""]);
    check(&with("/data /srv/private", "priv"), &["deny all path=\"/data/*\"", "deny all path=\"~priv\""]);
    check(&with("/data /srv/a.txt", "^x"), &["deny all path=\"~^/x\""]);
    check(
        "Alias /pub /srv/a\n<Directory /srv/a>\nRewriteEngine on\nRewriteRule ^d - [F]\n</Directory>",
        &["deny all path=\"~^/pub/d\"", "deny all path=\"~^/a/d\""],
    );
    // The start of the path is that of the directory.
    let names = |directory: &str, rule: &str| {
        format!("<Directory {directory}>\nRewriteEngine on\nRewriteRule {rule} - [F]\n</Directory>")
    };
    check(&names("/srv/a", "(^|/)d"), &["deny all path=\"~^/a(?:/.*)?(/)d\""]);
    check(&names("/srv", "(^|/)d"), &["deny all path=\"~^(?:/.*)?(/)d\""]);
    check(&names("/srv/a", "(^|x)d"), &["deny all"]);
    check(
        "<DirectoryMatch \"^/srv/a\">\nRewriteEngine on\nRewriteCond %{REQUEST_FILENAME} -f\n\
         RewriteRule \\.bak$ - [F]\n</DirectoryMatch>",
        &["deny all path=\"~^/a\""],
    );
    check(
        "<Directory /srv>\nRewriteEngine on\nRewriteBase /other\nRewriteRule ^d - [F]\n</Directory>",
        &["deny all path=\"~^/d\""],
    );
}

/// Issue 23: a section for directories below the root rejected the root itself; `Satisfy Any` had no note.
#[test]
fn stars_are_names_of_directories() {
    let (lines, remarks) = rules("<Directory /srv/*>\nRequire all denied\n</Directory>");
    assert_eq!(lines, ["deny all path=\"~^/[^/]+(?:/|$)\""]);
    assert!(remarks[0].contains("so is the directory"), "{remarks:?}");
    check("<Location /a*>\nRequire all denied\n</Location>", &["deny all path=\"~^/a[^/]*$\""]);
    check("<Directory /srv/a*>\nRequire all denied\n</Directory>", &["deny all path=\"~^/a[^/]*(?:/|$)\""]);
    let (lines, remarks) = rules("<Directory /srv/a>\nRequire all denied\nSatisfy Any\n</Directory>");
    assert_eq!(lines, ["deny all path=\"/a/*\""]);
    assert!(remarks[0].contains("all rules must let a client in"), "{remarks:?}");
}

/// Issue 23: a redirect without a path, which is for those of its section, was no pattern.
#[test]
fn redirects_of_locations_need_no_path() {
    let lines = |rule: &str| translated(&format!("DocumentRoot /srv\n<Location /a/>\n{rule}\n</Location>"), None).0;
    let check = |rule: &str, expect: &str| {
        let found = lines(rule);
        assert!(found.iter().any(|line| line == expect), "{rule}\n{found:#?}");
    };
    check("Redirect https://x.example/b", "redirect \"/a/*\" \"https://x.example/b\" status=302");
    check("Redirect 410", "deny all path=\"/a/*\" status=410");
}

/// Issue 23: `Satisfy All` of a section without rules did not take `Satisfy Any` of another one back.
#[test]
fn sections_inherit_satisfy() {
    let any = "<Directory /srv>\nOrder allow,deny\nDeny from all\nAuthType Basic\nAuthUserFile /u\nRequire valid-user\n\
               Satisfy Any\n</Directory>\n";
    let (lines, remarks) = rules(&format!("{any}<Files a.txt>\nSatisfy All\n</Files>"));
    assert!(lines[0].starts_with("deny all path=#\"~/a\\.txt"), "{lines:#?}");
    assert!(remarks[0].contains("write all rules of its paths here"), "{remarks:?}");
    let (_, remarks) = rules(&format!("{any}<Files a.txt>\nRequire valid-user\n</Files>"));
    assert!(remarks.iter().any(|remark| remark.contains("does not inherit `Satisfy Any`")), "{remarks:?}");
    // Without rules of a module, its check succeeds.
    check(
        "<Directory /srv>\nRequire all granted\n</Directory>\n<Directory /srv/a>\nDeny from all\nSatisfy Any\n</Directory>",
        &[],
    );
    check("<Location /a>\nAllowMethods reset\n</Location>", &[]);
}

/// Issue 23: rules under a condition in a section whose paths are unknown let all clients in.
#[test]
fn conditions_of_unknown_paths_are_closed() {
    let (lines, remarks) = rules("<Directory /srv/../*/a>\n<Else>\nRequire all denied\n</Else>\n</Directory>");
    let (text, _) = rules("<DirectoryMatch a(?=b)>\n<If \"true\">\nRequire all denied\n</If>\n</DirectoryMatch>");
    assert!(lines.is_empty() || lines == ["deny all"], "{lines:?} {remarks:?}");
    assert_eq!(text, ["deny all"]);
    let (text, _) = rules("<Location /a/>\n<Else>\n<Limit POST>\nRequire all denied\n</Limit>\n</Else>\n</Location>");
    assert_eq!(text, ["deny all path=\"/a/*\""]);
}

/// Issue 23: a fixed variable, which Apache sets after it has checked access, let clients in.
#[test]
fn fixed_variables_let_no_client_in() {
    let (lines, remarks) = rules("SetEnv a 1\n<Location /x/>\nRequire env a\n</Location>");
    assert_eq!(lines, ["deny all path=\"/x/*\""]);
    assert!(remarks.iter().any(|remark| remark.contains("no directive here sets its variable")), "{remarks:?}");
}

/// Apache finds `Location` sections by the requested path: that of a rule's target lifts nothing.
#[test]
fn targets_of_rules_lift_no_rejection() {
    let denied = |location: &str, rule: &str, around: &str| {
        let (lines, remarks) = rules(&format!(
            "<Directory /srv>\nRequire all {around}\n</Directory>\n<Directory /srv/p>\nRequire all denied\n</Directory>\n\
             <FilesMatch \"^\\.ht\">\nRequire all denied\n</FilesMatch>\n\
             <Location {location}>\nRequire all granted\n</Location>\nRewriteEngine on\nRewriteRule {rule}"
        ));
        let is_noted = remarks.iter().any(|remark| remark.contains("in a `Location` that lifts"));
        assert_eq!(
            is_noted,
            lines.iter().any(|line| line.starts_with("deny all path=\"~^/x")),
            "{lines:#?}\n{remarks:#?}"
        );
        is_noted
    };
    for rule in ["^/x /p/a", "^/x(.*) /p$1", "^/x /p/a?b", "^/x(.*) /$1"] {
        assert!(denied("/p", rule, "granted"), "{rule}");
    }
    // Apache finds the section by the new path, or by both.
    assert!(!denied("/p", "^/x /p/a [PT]", "granted"));
    assert!(!denied("/", "^/x /p/a", "granted"));
    // Other paths, and those that all clients get anyway.
    assert!(!denied("/p", "^/x /q", "granted"));
    assert!(!denied("/q", "^/x /q/a", "granted"));
    assert!(denied("/q", "^/x /q/a", "denied"));
}
