//! Conditions and values of the expression language, and their evaluation.

#![no_main]

use std::borrow::Cow;
use std::net::IpAddr;

use expression::{Fact, FactSource, Place, VALUE_BYTES_MAX, Verdict, parse_condition, parse_value};
use libfuzzer_sys::fuzz_target;

/// Facts that all have the same value.
struct Same<'f>(&'f [u8]);

impl FactSource for Same<'_> {
    fn fact(&self, fact: &Fact) -> Option<Cow<'_, [u8]>> {
        // Some facts cannot be told.
        (*fact != Fact::Scheme).then_some(Cow::Borrowed(self.0))
    }

    fn client(&self) -> Option<IpAddr> {
        std::str::from_utf8(self.0).ok()?.parse().ok()
    }
}

fuzz_target!(|input: &[u8]| {
    // The first line is the expression, the rest what the request has.
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (Ok(text), facts) = (std::str::from_utf8(&input[..end]), Same(input.get(end + 1..).unwrap_or_default())) else {
        return;
    };
    match parse_condition(text, Place::Response) {
        Ok(condition) => {
            let verdict = condition.evaluate(&facts);
            assert_eq!(condition.evaluate_with_groups(&facts).0, verdict);
            assert_eq!(parse_condition(&condition.to_string(), Place::Response).as_ref(), Ok(&condition));
            // The negation is the opposite, or unknown as well.
            if let Ok(negated) = parse_condition(&format!("not ({text})"), Place::Response) {
                let expect = match verdict {
                    Verdict::True => Verdict::False,
                    Verdict::False => Verdict::True,
                    Verdict::Unknown => Verdict::Unknown,
                };
                assert_eq!(negated.evaluate(&facts), expect, "{text}");
            }
        }
        Err(error) => assert!(text.get(error.span.clone()).is_some() && !error.message.is_empty(), "{text}: {error:?}"),
    }
    match parse_value(text, Place::Response) {
        Ok(value) => {
            assert!(value.read(&facts, None).is_ok_and(|read| read.len() <= VALUE_BYTES_MAX) || !text.is_empty())
        }
        Err(error) => assert!(text.get(error.span.clone()).is_some() && !error.message.is_empty(), "{text}: {error:?}"),
    }
});
