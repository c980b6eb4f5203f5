//! Old names of options work until 1.0, with a warning, and `fmt` replaces them.

use std::path::Path;

use crate::options::renamed;
use crate::{Severity, check_bytes, format_bytes, schema};

const OLD: &str = r#"server {
    server-field off
    grace-time "5s"
}

limits {
    fields-max 50
}

site "a.example" {
    listen 8080
    forward "http://127.0.0.1:1" {
        client-fields none
        underscore-fields on
        abort-with-client off
        response-fields-max 10
        cache {
            key-fields "Accept-Language"
        }
    }
}
"#;

#[test]
fn old_names_mean_the_same_as_new_ones() {
    let new = format_bytes("test.kdl", OLD.into()).unwrap();
    let check = |text: &str| check_bytes("test.kdl", text.into(), Path::new("/"));
    let (old, formatted) = (check(OLD), check(&new));
    assert_eq!(old.config, formatted.config);
    assert!(old.config.is_some());
    let warnings: Vec<_> = old.diagnostics.iter().map(|one| (one.severity, one.message.as_str())).collect();
    assert_eq!(warnings.len(), 8, "{warnings:?}");
    assert!(
        warnings.iter().all(|(severity, message)| *severity == Severity::Warning && message.contains("is now called"))
    );
    assert_eq!(formatted.diagnostics.iter().count(), 0, "{new}");
    for new_name in ["server-tokens off", "grace-period \"5s\"", "header-fields-max 50", "forwarded-headers none"] {
        assert!(new.contains(new_name), "{new}");
    }
}

#[test]
fn an_old_property_is_explained() {
    let text = "automatic-certificates { directory \"https://ca.example/\" authority=\"/nowhere\" }";
    let checked = check_bytes("test.kdl", text.into(), Path::new("/"));
    let warning = checked.diagnostics.iter().find(|one| one.severity == Severity::Warning).unwrap();
    assert_eq!(warning.message, "the property `authority` is now called `ca-file`");
    let help = "write `ca-file`, or run `tailcoat fmt`; `authority` stops working in version 1.0";
    assert_eq!(warning.help.as_deref(), Some(help));
}

#[test]
fn the_schema_knows_both_names() {
    let schema = schema();
    for renamed in renamed::OPTIONS {
        for name in [renamed.old, renamed.new] {
            assert!(schema.contains(&format!("\"{name}\": {{")), "{name}");
        }
        assert!(schema.contains(&format!("Old name of `{}`, until version 1.0.", renamed.new)), "{}", renamed.new);
    }
}
