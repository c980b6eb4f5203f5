//! Huffman code of RFC 7541, section 5.2 and appendix B, which QPACK uses, too.
//!
//! The code is canonical, so the lengths define it: codes of one length, and from one length to the next, are numbered
//! in the order of the symbols. The compiler computes all tables from the lengths.

/// Length of each symbol's code in bits; the last is EOS.
const CODE_BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];

const EOS: usize = 256;
const CODE_BITS_MAX: usize = 30;

/// Bits of a table lookup. It decodes one or two codes, which are nearly all codes of real fields.
const LOOKUP_BITS: u32 = 12;

/// Error of an invalid encoding: EOS, or padding longer than 7 bits or with a zero bit (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidHuffman;

/// Appends the decoded bytes. After an error, nothing is appended.
pub(crate) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidHuffman> {
    let start = out.len();
    // A lookup writes two symbols, also if only the first one counts.
    out.resize(start + input.len() * 8 / 5 + 2, 0);
    let decoded = decode_into(input, &mut out[start..]);
    out.truncate(start + decoded.unwrap_or(0));
    decoded.map(|_| ())
}

/// Returns the number of decoded bytes.
fn decode_into(input: &[u8], target: &mut [u8]) -> Result<usize, InvalidHuffman> {
    // Bits that are not decoded yet, from the most significant one.
    let (mut bits, mut bits_count, mut at, mut length) = (0u64, 0u32, 0, 0);
    loop {
        // A word that fits only in part leaves its other bits in the low positions. The next read sets the same bits
        // again.
        if let Some(word) = input.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()) {
            bits |= u64::from_be_bytes(word) >> bits_count;
            at += (63 - bits_count as usize) / 8;
            bits_count |= 56;
        } else {
            while bits_count <= 56 && at < input.len() {
                bits |= u64::from(input[at]) << (56 - bits_count);
                at += 1;
                bits_count += 8;
            }
        }
        while bits_count >= LOOKUP_BITS {
            let codes = SHORT_CODES[(bits >> (64 - LOOKUP_BITS)) as usize];
            let (symbols, count, code_bits) = if codes.bits > 0 {
                (codes.symbols, codes.count, u32::from(codes.bits))
            } else if bits_count < CODE_BITS_MAX as u32 && at < input.len() {
                break;
            } else {
                let (symbol, code_bits) = long_code(bits)?;
                if code_bits > bits_count {
                    return check_padding(bits, bits_count).map(|()| length);
                }
                ([symbol, 0], 1, code_bits)
            };
            target[length..length + 2].copy_from_slice(&symbols);
            length += usize::from(count);
            bits <<= code_bits;
            bits_count -= code_bits;
        }
        if at == input.len() {
            break;
        }
    }
    // The last bits are fewer than those of a lookup, which may decode bits that are not there.
    loop {
        let codes = SHORT_CODES[(bits >> (64 - LOOKUP_BITS)) as usize];
        let symbol = codes.symbols[0];
        let code_bits = u32::from(CODE_BITS[usize::from(symbol)]);
        if codes.bits == 0 || code_bits > bits_count {
            return check_padding(bits, bits_count).map(|()| length);
        }
        target[length] = symbol;
        length += 1;
        bits <<= code_bits;
        bits_count -= code_bits;
    }
}

fn check_padding(bits: u64, bits_count: u32) -> Result<(), InvalidHuffman> {
    let is_ones = bits_count == 0 || bits >> (64 - bits_count) == (1 << bits_count) - 1;
    if bits_count < 8 && is_ones { Ok(()) } else { Err(InvalidHuffman) }
}

/// Returns symbol and length of a code longer than [`LOOKUP_BITS`].
fn long_code(bits: u64) -> Result<(u8, u32), InvalidHuffman> {
    if bits >> (64 - CODE_BITS_MAX) == EOS_CODE {
        return Err(InvalidHuffman);
    }
    let mut code_bits = LOOKUP_BITS as usize + 1;
    loop {
        let code = (bits >> (64 - code_bits)) as u32;
        let index = code.wrapping_sub(LENGTHS[code_bits].first_code);
        // The code is complete: bits that begin with no shorter code begin with one of the longest.
        if index < LENGTHS[code_bits].count || code_bits == CODE_BITS_MAX {
            return Ok((SYMBOLS[(LENGTHS[code_bits].first_index + index) as usize] as u8, code_bits as u32));
        }
        code_bits += 1;
    }
}

/// Returns the number of bytes that [`encode`] appends for `input`.
pub(crate) fn encoded_bytes(input: &[u8]) -> usize {
    input.iter().map(|byte| usize::from(CODE_BITS[usize::from(*byte)])).sum::<usize>().div_ceil(8)
}

/// Appends the encoded input, padded with ones.
pub(crate) fn encode(input: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut bits_count) = (0u64, 0u32);
    for &byte in input {
        let code_bits = u32::from(CODE_BITS[usize::from(byte)]);
        bits = bits << code_bits | u64::from(CODES[usize::from(byte)]);
        bits_count += code_bits;
        while bits_count >= 8 {
            bits_count -= 8;
            out.push((bits >> bits_count) as u8);
        }
    }
    if bits_count > 0 {
        out.push((bits << (8 - bits_count)) as u8 | 0xff >> bits_count);
    }
}

/// Codes of one length.
#[derive(Clone, Copy)]
struct Length {
    first_code: u32,
    count: u32,
    /// Index of the first symbol in [`SYMBOLS`].
    first_index: u32,
}

/// Table by length in bits.
static LENGTHS: [Length; CODE_BITS_MAX + 1] = lengths();
/// Symbols in the order of their codes.
static SYMBOLS: [u16; 257] = symbols();
static CODES: [u32; 257] = codes();
static SHORT_CODES: [ShortCodes; 1 << LOOKUP_BITS] = short_codes();
const EOS_CODE: u64 = codes()[EOS] as u64;

const fn lengths() -> [Length; CODE_BITS_MAX + 1] {
    let mut lengths = [Length { first_code: 0, count: 0, first_index: 0 }; CODE_BITS_MAX + 1];
    let mut symbol = 0;
    while symbol < CODE_BITS.len() {
        lengths[CODE_BITS[symbol] as usize].count += 1;
        symbol += 1;
    }
    let mut code_bits = 1;
    while code_bits <= CODE_BITS_MAX {
        let shorter = lengths[code_bits - 1];
        lengths[code_bits].first_code = (shorter.first_code + shorter.count) << 1;
        lengths[code_bits].first_index = shorter.first_index + shorter.count;
        code_bits += 1;
    }
    lengths
}

const fn codes() -> [u32; 257] {
    let (mut codes, mut lengths) = ([0; 257], lengths());
    let mut symbol = 0;
    while symbol < codes.len() {
        let length = &mut lengths[CODE_BITS[symbol] as usize];
        codes[symbol] = length.first_code;
        length.first_code += 1;
        symbol += 1;
    }
    codes
}

const fn symbols() -> [u16; 257] {
    let (mut symbols, mut lengths) = ([0; 257], lengths());
    let mut symbol = 0;
    while symbol < symbols.len() {
        let length = &mut lengths[CODE_BITS[symbol] as usize];
        symbols[length.first_index as usize] = symbol as u16;
        length.first_index += 1;
        symbol += 1;
    }
    symbols
}

/// Codes at the start of the next [`LOOKUP_BITS`] bits: the first, and the second if it fits, too.
#[derive(Clone, Copy)]
struct ShortCodes {
    symbols: [u8; 2],
    /// Number of symbols.
    count: u8,
    /// Length of all codes; 0 if the first is longer than [`LOOKUP_BITS`].
    bits: u8,
}

const fn short_codes() -> [ShortCodes; 1 << LOOKUP_BITS] {
    let none = ShortCodes { symbols: [0; 2], count: 0, bits: 0 };
    let (mut table, codes) = ([none; 1 << LOOKUP_BITS], codes());
    let mut symbol = 0;
    while symbol < EOS {
        let code_bits = CODE_BITS[symbol] as u32;
        if code_bits <= LOOKUP_BITS {
            let unused_bits = LOOKUP_BITS - code_bits;
            let mut rest = 0;
            while rest < 1 << unused_bits {
                let first = ShortCodes { symbols: [symbol as u8, 0], count: 1, bits: code_bits as u8 };
                table[(codes[symbol] << unused_bits | rest) as usize] = first;
                rest += 1;
            }
        }
        symbol += 1;
    }
    let firsts = table;
    let mut index = 0;
    while index < table.len() {
        let first = firsts[index];
        // The bits after the first code, as if zeros followed them.
        let second = firsts[index << first.bits & (table.len() - 1)];
        let bits = first.bits + second.bits;
        if first.bits > 0 && second.bits > 0 && bits as u32 <= LOOKUP_BITS {
            table[index] = ShortCodes { symbols: [first.symbols[0], second.symbols[0]], count: 2, bits };
        }
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_of_appendix_b() {
        for (symbol, code) in [
            (0usize, 0x1ff8),
            (1, 0x7f_ffd8),
            (usize::from(b' '), 0x14),
            (usize::from(b'0'), 0x0),
            (usize::from(b'a'), 0x3),
            (usize::from(b'z'), 0x7b),
            (usize::from(b'\\'), 0x7_fff0),
            (127, 0xfff_fffc),
            (128, 0xf_ffe6),
            (249, 0xfff_fffe),
            (255, 0x3ff_ffee),
            (EOS, 0x3fff_ffff),
        ] {
            assert_eq!(CODES[symbol], code, "{symbol}");
        }
    }

    #[test]
    fn rejected() {
        for (name, input) in [
            ("EOS", &[0xff, 0xff, 0xff, 0xff][..]),
            ("EOS after a byte", &[0b0001_1111, 0xff, 0xff, 0xff, 0xff]),
            ("8 bits of padding", &[0xff]),
            ("a byte and 11 bits of padding", &[0b0001_1111, 0xff]),
            ("padding of zeros", &[0b0001_1000]),
            ("padding with a zero", &[0b0001_1110]),
            ("half of a long code", &[0xff, 0xfe]),
        ] {
            assert_eq!(decode(input, &mut Vec::new()), Err(InvalidHuffman), "{name}");
        }
    }

    #[test]
    fn all_symbols_at_all_offsets() {
        for before in 0..9 {
            for byte in 0..=255 {
                let mut text = vec![b'0'; before];
                text.extend([byte, b'&', byte, b'a']);
                let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
                encode(&text, &mut encoded);
                assert_eq!(encoded.len(), encoded_bytes(&text));
                assert_eq!(decode(&encoded, &mut decoded), Ok(()));
                assert_eq!(decoded, text);
            }
        }
    }

    proptest! {
        #[test]
        fn there_and_back(text: Vec<u8>) {
            let (mut encoded, mut decoded) = (Vec::new(), b"before".to_vec());
            encode(&text, &mut encoded);
            prop_assert_eq!(decode(&encoded, &mut decoded), Ok(()));
            prop_assert_eq!(&decoded[6..], &text);
        }

        #[test]
        fn what_is_decoded_has_only_one_code(input: Vec<u8>) {
            let (mut decoded, mut encoded) = (Vec::new(), Vec::new());
            if decode(&input, &mut decoded).is_ok() {
                encode(&decoded, &mut encoded);
                prop_assert_eq!(encoded, input);
            }
        }
    }
}
