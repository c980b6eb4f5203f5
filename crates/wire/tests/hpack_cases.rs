//! Test vectors of <https://github.com/http2jp/hpack-test-case>: real header lists, encoded by a dozen encoders. They
//! are not part of this repository: the test reads them from the directory in HPACK_TEST_CASES, and passes without it.

use std::path::{Path, PathBuf};

use serde_json::Value;
use wire::h2::hpack::Decoder;

#[test]
fn stories_of_other_encoders() {
    let Some(root) = std::env::var_os("HPACK_TEST_CASES") else { return };
    let (mut stories, mut cases) = (0, 0);
    for encoder in directory(Path::new(&root)).into_iter().filter(|path| path.is_dir()) {
        for story in directory(&encoder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
            cases += check_story(&story);
            stories += 1;
        }
    }
    assert!(stories > 0 && cases > 0);
    println!("{cases} header blocks in {stories} stories");
}

fn directory(path: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
}

/// Decodes the blocks of one connection. Returns their number.
fn check_story(path: &Path) -> usize {
    let story: Value = serde_json::from_slice(&std::fs::read(path).expect("a story")).expect("JSON");
    let mut decoder = Decoder::default();
    let cases = story["cases"].as_array().expect("cases");
    for (number, case) in cases.iter().enumerate() {
        let Some(wire) = case["wire"].as_str() else { continue };
        if let Some(size_bytes) = case["header_table_size"].as_u64() {
            decoder.set_table_bytes_max(size_bytes as usize);
        }
        let hex = |at| u8::from_str_radix(&wire[at..at + 2], 16).expect("hexadecimal");
        let block: Vec<u8> = (0..wire.len()).step_by(2).map(hex).collect();
        let (mut text, mut fields) = (Vec::new(), Vec::new());
        let decoded = decoder.decode(&block, 1 << 24, &mut text, |text, field| {
            let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            fields.push((string(field.name.of(text)), string(field.value.of(text))));
        });
        assert!(decoded.is_ok(), "{}, case {number}: {decoded:?}", path.display());
        let expect = case["headers"].as_array().expect("headers").iter();
        let expect: Vec<(String, String)> = expect
            .flat_map(|field| field.as_object().expect("a field"))
            .map(|(name, value)| (name.clone(), value.as_str().expect("a string").to_owned()))
            .collect();
        assert_eq!(fields, expect, "{}, case {number}", path.display());
    }
    cases.len()
}
