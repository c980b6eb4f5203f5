//! Field sections and instructions of QPACK: any bytes are decoded within their limits, and what was decoded is the same when
//! our encoder, with its dynamic table, encodes it again. The input is a row of commands of one connection: a byte for the
//! command, the length of its argument, the argument.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::qpack::{DecoderLimits, FIELD_OVERHEAD_BYTES, QpackDecoder, QpackEncoder};

const LIST_BYTES_MAX: usize = 2000;
const LIMITS: DecoderLimits = DecoderLimits { table_bytes_max: 300, blocked_streams_max: 2 };

type FieldList = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|input: &[u8]| {
    let (mut theirs, mut ours, mut encoder) =
        (QpackDecoder::new(LIMITS), QpackDecoder::new(LIMITS), QpackEncoder::new(300));
    let (mut pending, mut back, mut instructions, mut rest) = (Vec::new(), Vec::new(), Vec::new(), input);
    encoder.set_peer_limits(300, 2, &mut instructions);
    while let [command, length, bytes @ ..] = rest {
        let (argument, following) = bytes.split_at(usize::from(*length).min(bytes.len()));
        rest = following;
        let stream = u64::from(command >> 4);
        match command & 3 {
            0 => {
                pending.extend_from_slice(argument);
                let Ok(consumed_bytes) = theirs.handle_instructions(&pending, &mut back) else { return };
                pending.drain(..consumed_bytes);
                // The rest is one incomplete instruction, which has two strings at most.
                assert!(pending.len() < 3000);
            }
            1 => theirs.cancel(stream, &mut back),
            // Our encoder must survive any decoder.
            2 => drop(QpackEncoder::new(300).handle_instructions(argument)),
            _ => {
                let Ok(decoded) = decode(&mut theirs, stream, argument, &mut back) else { return };
                assert!(theirs.blocked_streams() <= 2);
                let Some(fields) = decoded else { continue };
                check_encoded(&mut encoder, &mut ours, stream, fields, &mut instructions);
            }
        }
        back.clear();
    }
});

fn check_encoded(
    encoder: &mut QpackEncoder,
    decoder: &mut QpackDecoder,
    stream: u64,
    fields: FieldList,
    instructions: &mut Vec<u8>,
) {
    let (mut section, mut back) = (Vec::new(), Vec::new());
    let pairs = fields.iter().map(|(name, value)| (&name[..], &value[..]));
    encoder.encode(stream, pairs, &mut section, instructions);
    assert_eq!(decoder.handle_instructions(instructions, &mut back), Ok(instructions.len()));
    instructions.clear();
    let fields: FieldList = fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    assert_eq!(decode(decoder, stream, &section, &mut back), Ok(Some(fields)));
    assert_eq!(encoder.handle_instructions(&back), Ok(back.len()));
}

fn decode(
    decoder: &mut QpackDecoder,
    stream: u64,
    section: &[u8],
    back: &mut Vec<u8>,
) -> Result<Option<FieldList>, wire::qpack::InvalidBlock> {
    let (mut text, mut fields) = (Vec::new(), FieldList::new());
    let decoded = decoder.decode(stream, section, LIST_BYTES_MAX, &mut text, back, |text, field| {
        fields.push((field.name.of(text).to_vec(), field.value.of(text).to_vec()));
    })?;
    let Some(decoded) = decoded else { return Ok(None) };
    let size = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + FIELD_OVERHEAD_BYTES;
    let given_bytes: usize = fields.iter().map(size).sum();
    assert!(given_bytes <= LIST_BYTES_MAX && text.len() <= given_bytes);
    assert_eq!(decoded.is_too_large, decoded.list_bytes > LIST_BYTES_MAX);
    Ok(Some(fields))
}
