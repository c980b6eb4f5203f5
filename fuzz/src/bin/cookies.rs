//! Cookie field lines.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::with_fields;
use wire::http::{KnownField, cookies};

type Cookies = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|lines: &[u8]| {
    let read = |lines: &[u8]| -> Option<(Cookies, Vec<Vec<u8>>)> {
        with_fields(lines, |request| {
            let list = cookies(request).map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            (list, request.field_lines(KnownField::Cookie).map(<[u8]>::to_vec).collect())
        })
    };
    let Some((list, values)) = read(lines) else { return };
    assert_eq!(list, by_states(&values));
    for (name, value) in &list {
        assert!(!name.contains(&b'=') && !name.contains(&b';') && !value.contains(&b';'));
        assert!(name.trim_ascii() == name && value.trim_ascii() == value);
    }
    // Lines are joined for upstreams that speak HTTP/1 (RFC 9113, section 8.2.3); written again, cookies are the same.
    let joined = [b"Cookie: ", values.join(b"; ".as_slice()).as_slice()].concat();
    let written: Vec<_> = list.iter().map(|(name, value)| [name.as_slice(), value].join(&b'=')).collect();
    let written = [b"Cookie: ", written.join(b"; ".as_slice()).as_slice()].concat();
    if !values.is_empty() {
        for line in [joined, written] {
            assert_eq!(read(&line).map(|(again, _)| again), Some(list.clone()));
        }
    }
});

/// A second reading, byte by byte.
fn by_states(values: &[Vec<u8>]) -> Cookies {
    let mut list = Cookies::new();
    for value in values {
        let (mut pair, mut is_value) = (<(Vec<u8>, Vec<u8>)>::default(), false);
        for &byte in value.iter().chain(b";") {
            match byte {
                b';' => {
                    let (name, value) = std::mem::take(&mut pair);
                    list.push((name.trim_ascii().to_vec(), value.trim_ascii().to_vec()));
                    is_value = false;
                }
                b'=' if !is_value => is_value = true,
                _ if is_value => pair.1.push(byte),
                _ => pair.0.push(byte),
            }
        }
    }
    list
}
