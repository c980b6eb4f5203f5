//! Configurations of nginx, translated.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::config::{Severity, format_bytes};
use tailcoat_fuzz::import::from_nginx;

/// The file is in a directory of its own, so that `include` finds it by a relative name, and nothing else.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("tailcoat-fuzz-import-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for temporary files");
    directory.join("a")
});

/// Errors that no value in nginx's configuration explains. Other values than nginx's own may be wrong in the translation, too.
const OURS: [&str; 5] = ["unknown option", "is given twice", "needs a block", "has no block", "has no property"];

fuzz_target!(|text: &[u8]| {
    std::fs::write(&*FILE, text).expect("a temporary file");
    let Ok(imported) = from_nginx(&FILE) else { return };
    let lines = text.iter().filter(|byte| **byte == b'\n').count() + 1;
    for remark in &imported.remarks {
        assert!((1..=lines).contains(&remark.place.line) || *remark.place.file != **FILE, "{remark}");
    }
    let formatted = format_bytes("fuzz.kdl", imported.text.clone().into_bytes());
    assert_eq!(formatted.as_ref(), Ok(&imported.text), "the translation is formatted");
    for diagnostic in imported.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error) {
        let is_ours = OURS.iter().any(|message| diagnostic.message.contains(message));
        assert!(!is_ours, "{}\n{}", imported.diagnostics.to_text(false), imported.text);
    }
});
