//! Header blocks: any bytes are decoded within their limits, and what was decoded is the same when it is encoded again.
//! The input is a row of blocks of one connection, each after its length in a byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::h2::hpack::{Decoder, Encoder, FIELD_OVERHEAD_BYTES, InvalidBlock};

const LIST_BYTES_MAX: usize = 2000;

type FieldList = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|input: &[u8]| {
    let (mut theirs, mut ours, mut encoder) = (Decoder::default(), Decoder::default(), Encoder::new(300));
    let mut rest = input;
    while let [length, bytes @ ..] = rest {
        let (block, following) = bytes.split_at(usize::from(*length).min(bytes.len()));
        rest = following;
        let Ok(fields) = decode(&mut theirs, block) else { return };
        let mut encoded = Vec::new();
        encoder.begin_block(&mut encoded);
        for (name, value) in &fields {
            encoder.write_field(name, value, None, &mut encoded);
        }
        let fields: FieldList = fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
        assert_eq!(decode(&mut ours, &encoded), Ok(fields));
    }
});

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<FieldList, InvalidBlock> {
    let (mut text, mut fields) = (Vec::new(), FieldList::new());
    let decoded = decoder.decode(block, LIST_BYTES_MAX, &mut text, |text, field| {
        fields.push((field.name.of(text).to_vec(), field.value.of(text).to_vec()));
    })?;
    let size = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + FIELD_OVERHEAD_BYTES;
    let given_bytes: usize = fields.iter().map(size).sum();
    assert!(given_bytes <= LIST_BYTES_MAX && text.len() <= given_bytes);
    assert_eq!(decoded.is_too_large, decoded.list_bytes > LIST_BYTES_MAX);
    Ok(fields)
}
