//! Content negotiation: chooses a representation by the client's preferences (RFC 9110, section 12).

use super::list::{elements, split_unquoted, trim};
use super::{KnownField, Request};

/// Content coding (RFC 9110, section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContentCoding {
    /// No coding.
    Identity,
    /// gzip
    Gzip,
    /// br (RFC 7932)
    Brotli,
    /// zstd (RFC 8878)
    Zstd,
}

impl ContentCoding {
    /// Returns the name for Content-Encoding. `identity` never occurs there.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the coding with this name, which is case-insensitive. `x-gzip` is gzip (RFC 9110, section 8.4.1.3).
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("gzip") || is("x-gzip") {
            Some(Self::Gzip)
        } else if is("br") {
            Some(Self::Brotli)
        } else if is("zstd") {
            Some(Self::Zstd)
        } else if is("identity") {
            Some(Self::Identity)
        } else {
            None
        }
    }
}

/// Weights of the codings in a client's Accept-Encoding (RFC 9110, section 12.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodingWeights {
    /// Weights in thousandths, by coding; 0 is not acceptable.
    weights: [u16; 4],
}

impl CodingWeights {
    /// Weights without Accept-Encoding. Formally any coding is then acceptable, but clients that support one say so.
    const IDENTITY_ONLY: Self = Self { weights: [WEIGHT_MAX, 0, 0, 0] };

    /// Parses all Accept-Encoding lines of a request. If there is none, or one is malformed, only identity is
    /// acceptable.
    pub fn of(request: &Request<'_>) -> Self {
        if !request.head.has(KnownField::AcceptEncoding) {
            return Self::IDENTITY_ONLY;
        }
        Self::parse(request.field_lines(KnownField::AcceptEncoding)).unwrap_or(Self::IDENTITY_ONLY)
    }

    /// Chooses the coding with the greatest weight; of equal ones the first, so list `available` in the order of the
    /// server's preference. Returns its index in `available`, or `None` if no coding is acceptable. The server may
    /// ignore this if only identity was missing (RFC 9110, section 12.5.3).
    pub fn choose(&self, available: impl IntoIterator<Item = ContentCoding>) -> Option<usize> {
        let mut best = (None, 0);
        for (place, coding) in available.into_iter().enumerate() {
            let weight = self.weight(coding);
            if weight > best.1 {
                best = (Some(place), weight);
            }
        }
        best.0
    }

    /// Returns the weight of a coding in thousandths; 0 is not acceptable.
    pub fn weight(&self, coding: ContentCoding) -> u16 {
        self.weights[coding as usize]
    }

    /// Parses the lines; `None` if one is malformed.
    fn parse<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut weights: [Option<u16>; 4] = [None; 4];
        let mut any_other = None;
        for element in lines.flat_map(elements) {
            let (name, weight) = parse_coding(element)?;
            if name == b"*" {
                any_other.get_or_insert(weight);
            } else if let Some(coding) = ContentCoding::from_name(name) {
                // If a coding occurs several times the first one counts.
                weights[coding as usize].get_or_insert(weight);
            }
        }
        let identity = ContentCoding::Identity as usize;
        let mut resolved = weights.map(|weight| weight.or(any_other).unwrap_or(0));
        // Identity is acceptable by default, with a lower weight than the codings in the list.
        if weights[identity].is_none() && any_other.is_none() {
            resolved[identity] = WEIGHT_MIN;
        }
        Some(Self { weights: resolved })
    }
}

/// Returns whether a client prefers `application/json` to `text/html` (RFC 9110, section 12.5.1): by a greater weight,
/// or by an equal weight and a more specific range, as in `application/json, */*`. `false` if Accept is absent or
/// malformed.
pub fn prefers_json(request: &Request<'_>) -> bool {
    // Most browsers: nothing can outweigh a first range without a weight.
    if request
        .field(KnownField::Accept)
        .is_none_or(|accept| accept == b"text/html" || accept.starts_with(b"text/html,"))
    {
        return false;
    }
    let (mut json, mut html) = (MediaWeight::NONE, MediaWeight::NONE);
    for element in request.field_lines(KnownField::Accept).flat_map(elements) {
        let Some(range) = MediaRange::parse(element) else { return false };
        json.apply(&range, "application", "json");
        html.apply(&range, "text", "html");
    }
    json.weight > 0 && (json.weight, json.specificity) > (html.weight, html.specificity)
}

const WEIGHT_MAX: u16 = 1000;
const WEIGHT_MIN: u16 = 1;

/// Weight of a media type, from the most specific matching range.
#[derive(Clone, Copy)]
struct MediaWeight {
    weight: u16,
    /// 0: no match; 1: `*/*`; 2: `type/*`; 3: the type itself.
    specificity: u8,
}

impl MediaWeight {
    const NONE: Self = Self { weight: 0, specificity: 0 };

    fn apply(&mut self, range: &MediaRange<'_>, kind: &str, subtype: &str) {
        let is_kind = range.kind.eq_ignore_ascii_case(kind.as_bytes());
        let specificity = match (range.kind, range.subtype) {
            (b"*", b"*") => 1,
            (_, b"*") if is_kind => 2,
            (_, other) if is_kind && other.eq_ignore_ascii_case(subtype.as_bytes()) => 3,
            _ => return,
        };
        if specificity > self.specificity {
            *self = Self { weight: range.weight, specificity };
        }
    }
}

/// Element of Accept.
struct MediaRange<'a> {
    kind: &'a [u8],
    subtype: &'a [u8],
    weight: u16,
}

impl<'a> MediaRange<'a> {
    /// Parses `media-range [ weight ]`. Ignores other parameters, because the server's types have none.
    fn parse(element: &'a [u8]) -> Option<Self> {
        let mut pieces = split_unquoted(element, b';').map(trim);
        let range = pieces.next()?;
        let slash = range.iter().position(|byte| *byte == b'/')?;
        let (kind, subtype) = (&range[..slash], &range[slash + 1..]);
        if !is_token(kind) || !is_token(subtype) || (kind == b"*" && subtype != b"*") {
            return None;
        }
        let mut weight = WEIGHT_MAX;
        for parameter in pieces {
            if let Some(parsed) = parse_weight(parameter) {
                weight = parsed?;
            }
        }
        Some(Self { kind, subtype, weight })
    }
}

/// `codings [ weight ]`.
fn parse_coding(element: &[u8]) -> Option<(&[u8], u16)> {
    let mut pieces = element.splitn(2, |byte| *byte == b';');
    let name = trim(pieces.next()?);
    let weight = match pieces.next() {
        Some(parameter) => parse_weight(trim(parameter))??,
        None => WEIGHT_MAX,
    };
    is_token(name).then_some((name, weight))
}

/// `"q=" qvalue` (RFC 9110, section 12.4.2) in thousandths. `None` for another parameter, `Some(None)` for an invalid
/// value.
fn parse_weight(parameter: &[u8]) -> Option<Option<u16>> {
    let (name, value) = parameter.split_at_checked(2)?;
    name.eq_ignore_ascii_case(b"q=").then(|| parse_qvalue(value))
}

/// `( "0" [ "." 0*3DIGIT ] ) / ( "1" [ "." 0*3("0") ] )`
fn parse_qvalue(value: &[u8]) -> Option<u16> {
    let (&whole @ (b'0' | b'1'), rest) = value.split_first()? else { return None };
    let decimals = match rest {
        [] => rest,
        [b'.', decimals @ ..] if decimals.len() <= 3 => decimals,
        _ => return None,
    };
    let mut weight = u16::from(whole - b'0') * WEIGHT_MAX;
    for (digit, unit) in decimals.iter().zip([100, 10, 1]) {
        if !digit.is_ascii_digit() {
            return None;
        }
        weight += u16::from(digit - b'0') * unit;
    }
    (weight <= WEIGHT_MAX).then_some(weight)
}

/// RFC 9110, section 5.6.2.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CodingWeights, ContentCoding, parse_qvalue, prefers_json};
    use crate::http::{KnownField, Request, RequestHead, Span};

    const AVAILABLE: [ContentCoding; 4] =
        [ContentCoding::Brotli, ContentCoding::Zstd, ContentCoding::Gzip, ContentCoding::Identity];

    fn with_request<T>(field: KnownField, lines: &[&[u8]], read: impl FnOnce(&Request<'_>) -> T) -> T {
        let (mut head, mut bytes) = (RequestHead::default(), Vec::new());
        for line in lines {
            let start = bytes.len();
            bytes.extend_from_slice(line);
            head.push_field(Span::default(), Span::new(start, bytes.len()), field);
        }
        read(&Request { head: &head, bytes: &bytes })
    }

    fn weights(lines: &[&[u8]]) -> CodingWeights {
        with_request(KnownField::AcceptEncoding, lines, CodingWeights::of)
    }

    #[test]
    fn codings() {
        let check = |lines: &[&str], expect: Option<ContentCoding>| {
            let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(weights(&bytes).choose(AVAILABLE).map(|place| AVAILABLE[place]), expect, "{lines:?}");
        };
        let (identity, gzip, brotli, zstd) = (
            Some(ContentCoding::Identity),
            Some(ContentCoding::Gzip),
            Some(ContentCoding::Brotli),
            Some(ContentCoding::Zstd),
        );
        check(&[], identity);
        check(&[""], identity);
        check(&["gzip, deflate, br, zstd"], brotli);
        check(&["gzip", "br"], brotli);
        check(&["gzip"], gzip);
        check(&["x-gzip"], gzip);
        check(&["GZip"], gzip);
        check(&["deflate"], identity);
        check(&["zstd, gzip"], zstd);
        check(&["gzip;q=1.0, br;q=0.9"], gzip);
        check(&["gzip;Q=0.5 , br ; q=0.4"], gzip);
        check(&["br;q=0.001"], brotli);
        check(&["br;q=0"], identity);
        check(&["br;q=0.000, gzip;q=0.5"], gzip);
        check(&["gzip;q=0.5, identity"], identity);
        check(&["gzip;q=0.5, identity;q=0.5"], gzip);
        check(&["*"], brotli);
        check(&["*;q=0.5, gzip"], gzip);
        check(&["*;q=0"], None);
        check(&["*;q=0, gzip"], gzip);
        check(&["*;q=0, identity"], identity);
        check(&["identity;q=0"], None);
        check(&["identity;q=0, gzip;q=0.1"], gzip);
        check(&["gzip, gzip;q=0"], gzip);
        check(&[",, gzip ,"], gzip);
        // A malformed field counts as absent.
        for line in [
            "gzip;",
            "gzip;q",
            "gzip;q=",
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.1234",
            "gzip;q=.5",
            "gzip;q=-1",
            "gzip;q=a",
            "gzip;q=1;a=b",
            "gzip;a=b",
            "gzip br",
            "gzip;q =1",
            "gz(ip",
            ";q=1",
            "br, gzip;q=\"1\"",
            "br, \u{e9}",
        ] {
            check(&[line], identity);
            check(&["br", line], identity);
        }
    }

    #[test]
    fn a_choice_among_what_there_is() {
        let accepts = weights(&[b"gzip, br;q=0.5"]);
        assert_eq!(accepts.choose([ContentCoding::Identity, ContentCoding::Brotli]), Some(1));
        assert_eq!(accepts.choose([ContentCoding::Identity]), Some(0));
        assert_eq!(accepts.choose([ContentCoding::Zstd]), None);
        assert_eq!(accepts.choose([]), None);
    }

    #[test]
    fn json_or_html() {
        let check = |lines: &[&str], expect: bool| {
            let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(with_request(KnownField::Accept, &bytes, prefers_json), expect, "{lines:?}");
        };
        check(&[], false);
        check(&["*/*"], false);
        check(&["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], false);
        check(&["application/json"], true);
        check(&["Application/JSON; charset=\"utf-8,\""], true);
        check(&["application/json, text/plain, */*"], true);
        check(&["application/*"], true);
        check(&["application/json, text/html"], false);
        check(&["application/json;q=0.9, text/html"], false);
        check(&["application/json, text/html;q=0.9"], true);
        check(&["application/json", "text/html;q=0.9"], true);
        check(&["application/json;q=0.5, text/*;q=0.4, text/html"], false);
        check(&["application/json;q=0, */*"], false);
        check(&["application/json;q=0"], false);
        check(&["application/json;level=1;q=0.3, text/html;q=0.2"], true);
        check(&["application/xml"], false);
        for line in [
            "application/json, text",
            "application/json;q=x",
            "*/json",
            "application/json, /",
            "application/json, a b/c",
        ] {
            check(&[line], false);
        }
    }

    fn qvalues() -> impl Strategy<Value = (String, u16)> {
        (0..=1000_u16).prop_map(|thousandths| {
            let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
            (text, thousandths)
        })
    }

    proptest! {
        #[test]
        fn qvalues_are_thousandths((text, thousandths) in qvalues()) {
            prop_assert_eq!(parse_qvalue(text.as_bytes()), Some(thousandths));
            // A qvalue may omit trailing zeros, and then the point.
            let short = text.trim_end_matches('0').trim_end_matches('.');
            prop_assert_eq!(parse_qvalue(if short.is_empty() { b"0" } else { short.as_bytes() }), Some(thousandths));
        }

        #[test]
        fn the_choice_is_the_greatest_weight(
            accepted in proptest::collection::vec((0..6_usize, qvalues()), 0..8),
            available in proptest::sample::subsequence(AVAILABLE.to_vec(), 0..=4).prop_shuffle(),
        ) {
            const NAMES: [&str; 6] = ["identity", "gzip", "br", "zstd", "*", "deflate"];
            let line: Vec<String> = accepted.iter().map(|(name, (q, _))| format!("{};q={q}", NAMES[*name])).collect();
            let found = weights(&[line.join(", ").as_bytes()]).choose(available.iter().copied());
            // Model: the first statement about the coding counts, otherwise the one about "*". Without either, only
            // identity is acceptable.
            let said = |name: &str| accepted.iter().find(|(said, _)| NAMES[*said] == name).map(|(_, (_, weight))| *weight);
            let weight = |coding: ContentCoding| {
                said(coding.name()).or(said("*")).unwrap_or(if coding == ContentCoding::Identity { 1 } else { 0 })
            };
            let best = available.iter().copied().map(weight).max().unwrap_or(0);
            let expect = available.iter().position(|coding| weight(*coding) == best).filter(|_| best > 0);
            prop_assert_eq!(found, expect);
        }

        #[test]
        fn any_bytes(value in proptest::collection::vec(any::<u8>(), 0..40), text in "[a-z*/;q=0-9., \"]{0,40}") {
            for value in [value.as_slice(), text.as_bytes()] {
                let found = weights(&[value]);
                prop_assert!(AVAILABLE.iter().all(|coding| found.weight(*coding) <= 1000));
                with_request(KnownField::Accept, &[value], prefers_json);
            }
        }
    }
}
