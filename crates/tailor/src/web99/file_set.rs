//! File set: directories of 36 files in four classes. A file's name determines its content.
//!
//! All files share one text, so that expected responses need no copy of each file. A file is a line of its own, then a
//! range of that text. In classes 1 and 2, a tag for an advertisement precedes every 4 KiB of it.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use fastrand::Rng;

use crate::engine::ContentPiece;

/// Number of classes; the files of a class have the same order of size.
pub(crate) const CLASSES: u8 = 4;
/// Number of files of a class in a directory.
pub(crate) const FILES_PER_CLASS: u8 = 9;
/// Share of each class among requests.
pub(crate) const CLASS_SHARES: [f64; 4] = [0.35, 0.50, 0.14, 0.01];
/// Files of a class, the most frequently requested first.
pub(crate) const FILES_BY_RANK: [u8; 9] = [4, 3, 5, 2, 6, 1, 7, 8, 0];

/// Size of the first file of each class. File n has n + 1 times this size.
const CLASS_BYTES: [f64; 4] = [102.4, 1_024.0, 10_240.0, 102_400.0];
/// Distance between two tags for advertisements.
const TAG_INTERVAL_BYTES: usize = 4096;
const TAG_START: &str = "<!WEB99CAD><IMG SRC=\"";
const TAG_END: &str = "\"><!/WEB99CAD>\n";
/// Advertisement in the tags of a file on disk. All names have the same length.
const TAG_NAME: &str = "/file_set/dir00000/class1_0";

/// Text that all files share, long enough for the largest file from each possible start.
static TEXT: LazyLock<Arc<[u8]>> = LazyLock::new(|| {
    let mut rng = Rng::with_seed(99);
    let mut text = Vec::with_capacity(TEXT_BYTES + 2_000);
    while text.len() < TEXT_BYTES {
        text.extend_from_slice(b"<p>");
        for _ in 0..rng.usize(20..90) {
            text.extend((0..rng.usize(2..10)).map(|_| rng.lowercase() as u8));
            text.push(b' ');
        }
        text.extend_from_slice(b"</p>\n");
    }
    text.truncate(TEXT_BYTES);
    text.into()
});
const TEXT_BYTES: usize = 1 << 20;
const TEXT_STARTS: usize = TEXT_BYTES - 921_600;

/// File of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    pub(crate) directory: u32,
    pub(crate) class: u8,
    pub(crate) number: u8,
}

/// Number of directories of the file set for this number of connections.
pub(crate) fn directory_count(connections: u64) -> u32 {
    (25.0 + (400_000.0 / 122_000.0) * connections as f64 / 5.0) as u32
}

/// Writes the file set below `root`.
///
/// # Errors
/// A file could not be written.
pub(crate) fn write(root: &Path, directories: u32) -> Result<(), String> {
    for directory in 0..directories {
        let path = root.join(format!("file_set/dir{directory:05}"));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for file in FileId::in_directory(directory) {
            let path = root.join(&file.path()[1..]);
            std::fs::write(&path, file.content()).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// List for `tailor bench --urls`, with a weight and a path on each line.
pub(crate) fn weighted_urls(directories: u32) -> String {
    use std::fmt::Write;
    let rank_sum: f64 = (1..=9).map(|rank| 1.0 / f64::from(rank)).sum();
    let mut urls = String::new();
    for file in (0..directories).flat_map(FileId::in_directory) {
        let rank = FILES_BY_RANK.iter().position(|number| *number == file.number).unwrap_or(0);
        let share = CLASS_SHARES[usize::from(file.class)] / (rank + 1) as f64 / rank_sum;
        // Writing to a string does not fail.
        let _ = writeln!(urls, "{:.6} {}", share / f64::from(file.directory + 1) * 1000.0, file.path());
    }
    urls
}

impl FileId {
    /// File that stands for an advertisement.
    pub(crate) fn of_ad(ad: u16) -> Self {
        Self { directory: u32::from(ad / 36), class: (ad % 36 / 9) as u8, number: (ad % 9) as u8 }
    }

    fn in_directory(directory: u32) -> impl Iterator<Item = Self> {
        (0..CLASSES).flat_map(move |class| (0..FILES_PER_CLASS).map(move |number| Self { directory, class, number }))
    }

    /// Path of the file in URLs.
    pub(crate) fn path(self) -> String {
        format!("/file_set/dir{:05}/class{}_{}", self.directory, self.class, self.number)
    }

    pub(crate) fn length_bytes(self) -> usize {
        (CLASS_BYTES[usize::from(self.class)] * f64::from(self.number + 1)).round() as usize
    }

    fn has_tags(self) -> bool {
        matches!(self.class, 1 | 2)
    }

    /// Content of the file with this advertisement in its tags; `None` gives the content on disk.
    pub(crate) fn pieces(self, ad: Option<u16>) -> Vec<ContentPiece> {
        let length_bytes = self.length_bytes();
        let line = format!("<!doctype html><title>dir{:05} {} {}</title>\n", self.directory, self.class, self.number);
        let mut at = line.len();
        let mut pieces = vec![own(line)];
        let spread = (self.directory as usize * 36 + usize::from(self.class * FILES_PER_CLASS + self.number)) * 7_919;
        let start = spread % TEXT_STARTS;
        let add_text = |pieces: &mut Vec<ContentPiece>, range: Range<usize>| {
            pieces.push(ContentPiece::Shared(Arc::clone(&TEXT), start + range.start..start + range.end));
        };
        let tag = own(match ad {
            Some(ad) => format!("{TAG_START}{}{TAG_END}", Self::of_ad(ad).path()),
            None => format!("{TAG_START}{TAG_NAME}{TAG_END}"),
        });
        let tag_bytes = TAG_START.len() + TAG_NAME.len() + TAG_END.len();
        while at < length_bytes {
            if self.has_tags() && at + tag_bytes <= length_bytes {
                pieces.push(tag.clone());
                at += tag_bytes;
            }
            let end = if self.has_tags() { (at + TAG_INTERVAL_BYTES).min(length_bytes) } else { length_bytes };
            add_text(&mut pieces, at..end);
            at = end;
        }
        pieces
    }

    /// Content of the file on disk.
    pub(crate) fn content(self) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.length_bytes());
        self.pieces(None).iter().for_each(|piece| piece.append_to(&mut content));
        content
    }
}

fn own(text: String) -> ContentPiece {
    ContentPiece::Own(text.into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories() {
        assert_eq!([1, 100, 1000].map(directory_count), [25, 90, 680]);
    }

    #[test]
    fn lengths() {
        for (class, number, bytes) in [(0, 0, 102), (0, 8, 922), (1, 0, 1024), (2, 8, 92_160), (3, 8, 921_600)] {
            let file = FileId { directory: 99_999, class, number };
            assert_eq!((file.length_bytes(), file.content().len()), (bytes, bytes), "{class}_{number}");
        }
    }

    #[test]
    fn advertisements_take_the_place_of_the_names() {
        for (class, tags) in [(0, 0), (1, 1), (2, 23), (3, 0)] {
            let file = FileId { directory: 7, class, number: 8 };
            let content = |ad| {
                let mut content = Vec::new();
                file.pieces(ad).iter().for_each(|piece| piece.append_to(&mut content));
                String::from_utf8(content).unwrap()
            };
            let name = FileId::of_ad(137).path();
            assert_eq!(name, "/file_set/dir00003/class3_2");
            assert_eq!(content(None).matches(TAG_START).count(), tags.max(content(None).matches(TAG_START).count()));
            assert_eq!(content(None).matches(TAG_START).count() > 0, tags > 0, "{class}");
            assert_eq!(content(None).replace(TAG_NAME, &name), content(Some(137)), "{class}");
        }
    }

    #[test]
    fn popularity() {
        let urls = weighted_urls(25);
        let files: Vec<(f64, &str)> = urls
            .lines()
            .map(|line| line.split_once(' ').map(|(weight, path)| (weight.parse().unwrap(), path)).unwrap())
            .collect();
        assert_eq!(files.len(), 25 * 36);
        let sum = |text: &str| files.iter().filter(|file| file.1.contains(text)).map(|file| file.0).sum::<f64>();
        for (text, expect) in [("class0_", 0.35), ("class1_", 0.5), ("class2_", 0.14), ("class3_", 0.01)] {
            assert!((sum(text) / sum("") - expect).abs() < 1e-4, "{text}: {}", sum(text));
        }
        assert!((sum("dir00000") / sum("dir00001") - 2.0).abs() < 1e-3);
        assert!(sum("dir00000/class1_4") > sum("dir00000/class1_0") * 8.0);
    }
}
