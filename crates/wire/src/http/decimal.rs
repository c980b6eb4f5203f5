/// Digits of 00 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Appends a decimal number. Faster than `fmt`, because heads and log lines contain many numbers.
pub fn push_decimal(out: &mut Vec<u8>, number: u64) {
    if number >= 10_000 {
        push_decimal(out, number / 10_000);
        return out.extend_from_slice(&four_digits((number % 10_000) as u32));
    }
    let number = number as u32;
    let leading_zeros = usize::from(number < 1000) + usize::from(number < 100) + usize::from(number < 10);
    let digits = u32::from_be_bytes(four_digits(number)) << (8 * leading_zeros);
    // Appending four bytes is a single move; a variable length would call memcpy.
    out.extend_from_slice(&digits.to_be_bytes());
    out.truncate(out.len() - leading_zeros);
}

/// Returns the digits of a number below 10,000.
fn four_digits(number: u32) -> [u8; 4] {
    let ([a, b], [c, d]) = (PAIRS[(number / 100) as usize], PAIRS[(number % 100) as usize]);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::push_decimal;

    #[test]
    fn decimals() {
        for number in [
            0,
            1,
            9,
            10,
            99,
            100,
            101,
            999,
            1000,
            9999,
            10_000,
            10_001,
            123_456,
            100_000_000,
            u64::from(u32::MAX),
            u64::MAX,
        ] {
            let mut out = b"before ".to_vec();
            push_decimal(&mut out, number);
            assert_eq!(out, format!("before {number}").into_bytes());
        }
    }
    proptest! {
        /// Shifts produce numbers of all lengths.
        #[test]
        fn decimals_are_those_of_fmt(number: u64, shift in 0..64_u32) {
            let mut out = Vec::new();
            push_decimal(&mut out, number >> shift);
            prop_assert_eq!(out, (number >> shift).to_string().into_bytes());
        }
    }
}
