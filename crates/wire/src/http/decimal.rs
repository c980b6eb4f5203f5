/// 00 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// Appends a number in decimal, without the machinery of `fmt`: heads and log lines have many.
pub fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    while number >= 100 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    if number >= 10 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[number as usize]);
    } else {
        start -= 1;
        digits[start] = b'0' + number as u8;
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::push_decimal;

    #[test]
    fn decimals() {
        for number in [0, 1, 9, 10, 99, 100, 101, 999, 1000, 123_456, u64::from(u32::MAX), u64::MAX] {
            let mut out = b"before ".to_vec();
            push_decimal(&mut out, number);
            assert_eq!(out, format!("before {number}").into_bytes());
        }
    }
}
