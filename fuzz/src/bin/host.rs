//! Hosts: what is accepted is safe to put into a log, a Location field and, for mass hosting, a path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::http::{HOST_BYTES_MAX, Host};

fuzz_target!(|value: &[u8]| {
    let Ok(host) = Host::parse(value) else { return };
    assert!(host.name.len() <= HOST_BYTES_MAX);
    assert!(host.name.iter().all(|byte| byte.is_ascii_graphic() && !b"/\\\"<>?#@,".contains(byte)));
    assert!(
        !host.name.starts_with(b".") && !host.name.ends_with(b".") && !host.name.windows(2).any(|pair| pair == b"..")
    );
    assert_eq!(host.name.is_empty(), value.is_empty());
    assert_eq!(Host::parse(host.name), Ok(Host { port: None, ..host }));
    let mut buffer = Vec::new();
    let lower = host.lower_case(&mut buffer);
    assert!(lower.eq_ignore_ascii_case(host.name) && !lower.iter().any(u8::is_ascii_uppercase));
});
