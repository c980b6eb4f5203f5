//! Translations of access rules that sections and modules of Apache share.

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
