//! Bytes that a QUIC endpoint reads before it knows the client: headers, frames and transport parameters.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quic::fuzzing::read_packets(input));
