//! Streams and recovery of a QUIC connection, by commands: frames of a client, packets with any size, time, acknowledgments,
//! losses, and calls of the application.

#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| quic::fuzzing::run_streams(Instant::now(), input));
