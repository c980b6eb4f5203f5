//! Records of FastCGI applications: the same output in whatever pieces they come, and none from outside of the input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::fastcgi::{FastCgiEnd, FastCgiPiece, MalformedRecord, ResponseDecoder};

#[derive(Debug, Default, PartialEq)]
struct FuzzedOutput {
    output: Vec<u8>,
    error: Vec<u8>,
    ended: Option<FastCgiEnd>,
}

fuzz_target!(|input: &[u8]| {
    let whole = read(input, input.len().max(1));
    if let Ok(said) = &whole {
        assert!(said.output.len() + said.error.len() <= input.len());
    }
    for piece_bytes in [1, 2, 3, 7] {
        assert_eq!(read(input, piece_bytes), whole);
    }
});

fn read(input: &[u8], piece_bytes: usize) -> Result<FuzzedOutput, MalformedRecord> {
    let mut decoder = ResponseDecoder::default();
    let mut said = FuzzedOutput::default();
    let mut at = 0;
    while at < input.len() {
        let piece = &input[at..input.len().min(at + piece_bytes)];
        let decoded = decoder.decode(piece)?;
        assert!((1..=piece.len()).contains(&decoded.consumed_bytes));
        at += decoded.consumed_bytes;
        match decoded.piece {
            FastCgiPiece::Nothing => {}
            FastCgiPiece::Output(range) => said.output.extend_from_slice(&piece[range]),
            FastCgiPiece::Error(range) => said.error.extend_from_slice(&piece[range]),
            FastCgiPiece::Ended(ended) => {
                said.ended = Some(ended);
                break;
            }
        }
    }
    Ok(said)
}
