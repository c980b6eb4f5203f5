//! Configuration files, checked and formatted.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::config::{CheckedConfig, Diagnostics, Severity, check_bytes, format_bytes};

fn check(bytes: &[u8]) -> CheckedConfig {
    check_bytes("fuzz.kdl", bytes.to_vec(), Path::new("/nonexistent"))
}

fn check_diagnostics(diagnostics: &Diagnostics) {
    for diagnostic in diagnostics.iter() {
        let related = diagnostic.related.iter().map(|(source, span, _)| (source, span));
        for (source, span) in related.chain([(&diagnostic.source, &diagnostic.span)]) {
            assert!(source.text.get(span.clone()).is_some(), "{span:?} of {diagnostic:?}");
        }
        assert!(!diagnostic.message.is_empty());
    }
    let has_error = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error);
    assert_eq!(has_error, diagnostics.has_error());
    let text = diagnostics.to_text(true) + &diagnostics.to_text(false);
    assert!(!has_error || !text.is_empty());
    // Bytes of the file reach a terminal.
    let plain = diagnostics.to_text(false).replace("\r\n", "\n");
    assert!(!plain.contains(|c: char| c.is_control() && c != '\n'), "{plain:?}");
    serde_json::from_str::<serde_json::Value>(&diagnostics.to_json()).expect("diagnostics as JSON");
}

fuzz_target!(|bytes: &[u8]| {
    let checked = check(bytes);
    check_diagnostics(&checked.diagnostics);
    assert_eq!(checked.config.is_none(), checked.diagnostics.has_error());
    match format_bytes("fuzz.kdl", bytes.to_vec()) {
        Ok(formatted) => {
            assert_eq!(format_bytes("fuzz.kdl", formatted.clone().into_bytes()).as_ref(), Ok(&formatted));
            let again = check(formatted.as_bytes());
            assert_eq!(again.config, checked.config, "{}", again.diagnostics.to_text(false));
        }
        Err(diagnostics) => {
            check_diagnostics(&diagnostics);
            assert!(diagnostics.has_error() && checked.config.is_none(), "{}", diagnostics.to_text(false));
        }
    }
});
