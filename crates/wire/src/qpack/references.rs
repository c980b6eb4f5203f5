//! The encoder's knowledge of what the peer's decoder has (RFC 9204, section 2.1).

use std::collections::VecDeque;

/// Sections with references that may wait for an acknowledgement. Beyond it the encoder uses no dynamic table.
const SECTIONS_MAX: usize = 256;

/// Section that refers to the dynamic table and is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct SentSection {
    stream: u64,
    /// Entries that the section needs.
    required: u64,
    /// Smallest absolute index of its references.
    oldest: u64,
}

/// Sections in flight, in the order they were sent.
#[derive(Debug, Default)]
pub(super) struct References {
    sections: VecDeque<SentSection>,
    /// Inserted entries that have arrived at the decoder (section 2.1.4).
    pub known_received: u64,
}

impl References {
    /// Returns whether another section with references may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.sections.len() < SECTIONS_MAX
    }

    /// Returns whether a section of this stream may refer to entries that may not have arrived. Section 2.1.2: so many
    /// streams may be blocked.
    pub(super) fn may_block(&self, stream: u64, blocked_streams_max: u64) -> bool {
        let is_at_risk = |section: &&SentSection| section.required > self.known_received;
        let at_risk = || self.sections.iter().filter(is_at_risk);
        if blocked_streams_max == 0 || at_risk().any(|section| section.stream == stream) {
            return blocked_streams_max > 0;
        }
        // A stream with several sections counts several times, which only makes the encoder more careful.
        (at_risk().count() as u64) < blocked_streams_max
    }

    /// Returns the first entry that must not be evicted: it has references, or has not arrived (section 2.1.1).
    pub(super) fn evictable_end(&self) -> u64 {
        let oldest = self.sections.iter().map(|section| section.oldest).min();
        oldest.map_or(self.known_received, |oldest| oldest.min(self.known_received))
    }

    pub(super) fn on_sent(&mut self, stream: u64, required: u64, oldest: u64) {
        self.sections.push_back(SentSection { stream, required, oldest });
    }

    /// Removes the oldest section of a stream. Returns whether there is one.
    pub(super) fn on_acknowledged(&mut self, stream: u64) -> bool {
        let Some(index) = self.sections.iter().position(|section| section.stream == stream) else { return false };
        if let Some(section) = self.sections.remove(index) {
            self.known_received = self.known_received.max(section.required);
        }
        true
    }

    /// Removes all sections of a stream, because the decoder will not read them.
    pub(super) fn on_cancelled(&mut self, stream: u64) {
        self.sections.retain(|section| section.stream != stream);
    }
}
