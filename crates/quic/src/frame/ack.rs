//! ACK frames (RFC 9000, section 19.3).

use std::ops::RangeInclusive;

use super::kind;
use super::read::MalformedFrame;
use crate::codec::{Reader, write_varint};

/// Numbers of packets that were received with each mark of ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EcnCounts {
    /// Packets with the mark ECT(0).
    pub ect0: u64,
    /// Packets with the mark ECT(1).
    pub ect1: u64,
    /// Packets with the mark ECN-CE.
    pub ce: u64,
}

/// ACK frame. Its ranges are valid: they descend, do not touch, and end at 0 or above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckFrame<'a> {
    /// Largest packet number that is acknowledged.
    pub largest: u64,
    /// Time from the arrival of the largest packet to the frame, before its exponent.
    pub delay: u64,
    /// Counts of ECN, if the frame has them.
    pub ecn: Option<EcnCounts>,
    /// Smallest packet number of the first range.
    first_smallest: u64,
    /// Gaps and lengths of further ranges.
    further: &'a [u8],
}

impl<'a> AckFrame<'a> {
    /// Ranges of packet numbers that are acknowledged, in descending order. All are validated.
    #[inline]
    pub(crate) fn ranges(&self) -> AckRanges<'a> {
        AckRanges { next: Some((self.first_smallest, self.largest)), further: Reader::new(self.further) }
    }

    /// Reads the frame after its type.
    #[inline]
    pub(super) fn read(reader: &mut Reader<'a>, has_ecn: bool) -> Result<Self, MalformedFrame> {
        let mut varint = || reader.varint().ok_or(MalformedFrame::TRUNCATED);
        let (largest, delay, count, first) = (varint()?, varint()?, varint()?, varint()?);
        let first_smallest = largest.checked_sub(first).ok_or(MalformedFrame::RANGE)?;
        let begin = reader.rest();
        let mut smallest = first_smallest;
        for _ in 0..count {
            // Each turn takes two bytes or more, so the packet bounds their number.
            let (gap, length) = read_pair(reader).ok_or(MalformedFrame::TRUNCATED)?;
            smallest = lower_range(smallest, gap, length).ok_or(MalformedFrame::RANGE)?.0;
        }
        let further = &begin[..begin.len() - reader.left()];
        let ecn = if has_ecn {
            let mut varint = || reader.varint().ok_or(MalformedFrame::TRUNCATED);
            Some(EcnCounts { ect0: varint()?, ect1: varint()?, ce: varint()? })
        } else {
            None
        };
        Ok(Self { largest, delay, ecn, first_smallest, further })
    }
}

/// Iterator over the ranges of an ACK frame.
#[derive(Clone, Debug)]
pub(crate) struct AckRanges<'a> {
    /// Smallest and largest number of the next range.
    next: Option<(u64, u64)>,
    /// Gaps and lengths of the ranges after it.
    further: Reader<'a>,
}

impl Iterator for AckRanges<'_> {
    type Item = RangeInclusive<u64>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (smallest, largest) = self.next?;
        self.next = read_pair(&mut self.further).and_then(|(gap, length)| lower_range(smallest, gap, length));
        Some(smallest..=largest)
    }
}

/// Reads the gap and the length of a range.
#[inline]
fn read_pair(reader: &mut Reader<'_>) -> Option<(u64, u64)> {
    Some((reader.varint()?, reader.varint()?))
}

/// Smallest and largest number of the range below one that begins at `smallest`. Fields hold one less than their meaning.
#[inline]
fn lower_range(smallest: u64, gap: u64, length: u64) -> Option<(u64, u64)> {
    let largest = smallest.checked_sub(gap + 2)?;
    Some((largest.checked_sub(length)?, largest))
}

/// Writes an ACK frame. Ranges descend and do not touch. Without ranges, nothing is written.
#[inline]
pub(crate) fn write_ack(
    out: &mut Vec<u8>,
    ranges_descending: impl Iterator<Item = RangeInclusive<u64>> + Clone,
    delay: u64,
    ecn: Option<&EcnCounts>,
) {
    let mut ranges = ranges_descending.clone();
    let Some(first) = ranges.next() else { return };
    out.push(if ecn.is_some() { kind::ACK_ECN } else { kind::ACK });
    write_varint(out, *first.end());
    write_varint(out, delay);
    write_varint(out, ranges.clone().count() as u64);
    write_varint(out, first.end() - first.start());
    let mut smallest = *first.start();
    for range in ranges {
        debug_assert!(range.end() + 2 <= smallest, "ranges must descend and must not touch");
        write_varint(out, smallest - range.end() - 2);
        write_varint(out, range.end() - range.start());
        smallest = *range.start();
    }
    if let Some(ecn) = ecn {
        write_varint(out, ecn.ect0);
        write_varint(out, ecn.ect1);
        write_varint(out, ecn.ce);
    }
}
