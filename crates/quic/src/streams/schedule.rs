//! Order in which streams send.

use std::collections::VecDeque;

use crate::id::QuicStreamId;

/// Empty levels that are kept at most, because their priorities are likely to return. HTTP has eight (RFC 9218,
/// section 4.1).
const LEVELS_MAX: usize = 8;

/// Streams that have something to send: higher priorities first, and in turns within a priority.
#[derive(Default)]
pub(super) struct Schedule {
    /// Levels, with the highest priority first.
    levels: Vec<Level>,
    /// Number of streams in all levels.
    streams: usize,
}

/// Streams with the same priority.
struct Level {
    priority: i16,
    streams: VecDeque<QuicStreamId>,
}

impl Schedule {
    /// Adds a stream after those with its priority. It must not be there.
    pub(super) fn push(&mut self, priority: i16, id: QuicStreamId) {
        self.level(priority).push_back(id);
        self.streams += 1;
    }

    /// Adds a stream before those with its priority. It must not be there.
    pub(super) fn push_front(&mut self, priority: i16, id: QuicStreamId) {
        self.level(priority).push_front(id);
        self.streams += 1;
    }

    fn level(&mut self, priority: i16) -> &mut VecDeque<QuicStreamId> {
        let mut index = self.levels.partition_point(|level| level.priority > priority);
        if self.levels.get(index).is_none_or(|level| level.priority != priority) {
            if self.levels.len() >= LEVELS_MAX {
                self.remove_empty();
                index = self.levels.partition_point(|level| level.priority > priority);
            }
            self.levels.insert(index, Level { priority, streams: VecDeque::new() });
        }
        &mut self.levels[index].streams
    }

    /// Stream that sends next.
    pub(super) fn front(&self) -> Option<QuicStreamId> {
        self.levels.iter().find_map(|level| level.streams.front()).copied()
    }

    fn first_level(&mut self) -> Option<&mut Level> {
        self.levels.iter_mut().find(|level| !level.streams.is_empty())
    }

    /// Removes the stream that sends next.
    pub(super) fn pop(&mut self) {
        if let Some(level) = self.first_level() {
            level.streams.pop_front();
            self.streams -= 1;
        }
    }

    /// Lets the others with the same priority send before the stream that would send next.
    pub(super) fn rotate(&mut self) {
        if let Some(level) = self.first_level() {
            level.streams.rotate_left(1);
        }
    }

    /// Removes a stream.
    pub(super) fn remove(&mut self, priority: i16, id: QuicStreamId) {
        if let Some(level) = self.levels.iter_mut().find(|level| level.priority == priority)
            && let Some(index) = level.streams.iter().position(|&other| other == id)
        {
            level.streams.remove(index);
            self.streams -= 1;
        }
    }

    /// True if no stream has anything to send.
    pub(super) fn is_empty(&self) -> bool {
        self.streams == 0
    }

    fn remove_empty(&mut self) {
        self.levels.retain(|level| !level.streams.is_empty());
    }

    /// Frees memory that no stream needs now.
    pub(super) fn shrink(&mut self) {
        self.remove_empty();
        self.levels.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_priorities_are_first_and_equal_ones_take_turns() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.front(), None);
        for (priority, id) in [(0, 0), (0, 4), (-3, 8), (7, 12), (0, 16)] {
            schedule.push(priority, QuicStreamId(id));
        }
        assert_eq!(schedule.front(), Some(QuicStreamId(12)));
        schedule.rotate();
        schedule.pop();
        assert_eq!(schedule.front(), Some(QuicStreamId(0)));
        schedule.rotate();
        assert_eq!(schedule.front(), Some(QuicStreamId(4)));
        schedule.remove(0, QuicStreamId(16));
        schedule.remove(0, QuicStreamId(16));
        schedule.remove(5, QuicStreamId(4));
        let mut rest = Vec::new();
        while let Some(id) = schedule.front() {
            rest.push(id.0);
            schedule.pop();
        }
        assert_eq!(rest, [4, 0, 8]);
        schedule.push(0, QuicStreamId(0));
        schedule.push_front(0, QuicStreamId(4));
        assert_eq!(schedule.front(), Some(QuicStreamId(4)));
        schedule.pop();
        schedule.pop();
        assert!(schedule.is_empty());
    }

    #[test]
    fn levels_are_bounded() {
        let mut schedule = Schedule::default();
        for priority in 0..1000 {
            schedule.push(priority, QuicStreamId(0));
            schedule.pop();
        }
        assert!(schedule.levels.len() <= LEVELS_MAX);
        schedule.shrink();
        assert_eq!(schedule.levels.capacity(), 0);
    }
}
