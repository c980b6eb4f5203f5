use std::cmp::Ordering;

use super::ListingEntry;

/// Order of the entries; directories always come before files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SortOrder {
    /// Sort key.
    pub key: SortKey,
    /// True for descending order.
    pub is_descending: bool,
}

/// Property that entries are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SortKey {
    /// Name, in natural order: without case, and numbers in it by their value.
    Name,
    /// Size, and then name; directories by name alone.
    Size,
    /// Time of the last change, and then name.
    Modified,
}

impl SortOrder {
    /// Reads `sort=name|size|modified` and `order=asc|desc` from a query; the default is by name, ascending.
    pub fn from_query(query: Option<&[u8]>) -> Self {
        let mut sort = Self { key: SortKey::Name, is_descending: false };
        for parameter in query.unwrap_or_default().split(|byte| *byte == b'&') {
            match parameter {
                b"sort=name" => sort.key = SortKey::Name,
                b"sort=size" => sort.key = SortKey::Size,
                b"sort=modified" => sort.key = SortKey::Modified,
                b"order=asc" => sort.is_descending = false,
                b"order=desc" => sort.is_descending = true,
                _ => {}
            }
        }
        sort
    }

    /// Compares two entries.
    pub(super) fn compare(self, entry: &ListingEntry, other: &ListingEntry) -> Ordering {
        let by_key = match self.key {
            SortKey::Name => Ordering::Equal,
            SortKey::Size if entry.is_directory => Ordering::Equal,
            SortKey::Size => entry.size.cmp(&other.size),
            SortKey::Modified => entry.modified.cmp(&other.modified),
        };
        let ascending = by_key.then_with(|| compare_names(&entry.name, &other.name));
        let by_sort = if self.is_descending { ascending.reverse() } else { ascending };
        // Directories first: true is greater than false.
        other.is_directory.cmp(&entry.is_directory).then(by_sort)
    }
}

/// Compares names without case, and digits by their number: `a2`, `A10`, `b`. Ties are broken by bytes.
fn compare_names(name: &[u8], other: &[u8]) -> Ordering {
    let (mut left, mut right) = (name, other);
    while let ([left_byte, left_rest @ ..], [right_byte, right_rest @ ..]) = (left, right) {
        let ordering = if left_byte.is_ascii_digit() && right_byte.is_ascii_digit() {
            let (left_number, right_number) = (split_number(&mut left), split_number(&mut right));
            left_number.len().cmp(&right_number.len()).then_with(|| left_number.cmp(right_number))
        } else {
            (left, right) = (left_rest, right_rest);
            left_byte.to_ascii_lowercase().cmp(&right_byte.to_ascii_lowercase())
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
    left.len().cmp(&right.len()).then_with(|| name.cmp(other))
}

/// Splits the leading digits off the name; returns them without leading zeros.
fn split_number<'a>(name: &mut &'a [u8]) -> &'a [u8] {
    let end = name.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(name.len());
    let (digits, rest) = name.split_at(end);
    *name = rest;
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{SortKey, SortOrder, compare_names};
    use crate::handler::static_file::listing::ListingEntry;

    #[test]
    fn queries() {
        let check = |query: Option<&str>, key: SortKey, is_descending: bool| {
            let expect = SortOrder { key, is_descending };
            assert_eq!(SortOrder::from_query(query.map(str::as_bytes)), expect, "{query:?}");
        };
        check(None, SortKey::Name, false);
        check(Some(""), SortKey::Name, false);
        check(Some("sort=size"), SortKey::Size, false);
        check(Some("sort=modified&order=desc"), SortKey::Modified, true);
        check(Some("order=desc&x=y&sort=size"), SortKey::Size, true);
        check(Some("sort=size&order=desc&order=asc&sort=name"), SortKey::Name, false);
        check(Some("sort=colour&order=%00&&="), SortKey::Name, false);
    }

    #[test]
    fn orders() {
        let entry = |(name, is_directory, size, modified): (&str, bool, u64, u64)| ListingEntry {
            name: name.as_bytes().to_vec(),
            is_directory,
            size,
            modified,
        };
        let entries =
            [("b", false, 3, 1), ("a10", false, 1, 2), ("A2", false, 3, 3), ("z", true, 1, 0), ("y", true, 9, 5)];
        let check = |query: &str, expect: &str| {
            let sort = SortOrder::from_query(Some(query.as_bytes()));
            let mut entries = entries.map(entry);
            entries.sort_by(|entry, other| sort.compare(entry, other));
            let names: Vec<&str> = entries.iter().map(|entry| str::from_utf8(&entry.name).unwrap()).collect();
            assert_eq!(names.join(" "), expect, "{query:?}");
        };
        check("", "y z A2 a10 b");
        check("order=desc", "z y b a10 A2");
        check("sort=size", "y z a10 A2 b");
        check("sort=size&order=desc", "z y b A2 a10");
        check("sort=modified", "z y b a10 A2");
        check("sort=modified&order=desc", "y z A2 a10 b");
    }

    #[test]
    fn names() {
        let ordered = [
            "",
            "01",
            "1",
            "2",
            "10",
            "a",
            "A1",
            "a1b",
            "a1c",
            "a02",
            "a2",
            "a10",
            "a99999999999999999999999",
            "ab",
            "é",
        ];
        for pair in ordered.windows(2) {
            let found = compare_names(pair[0].as_bytes(), pair[1].as_bytes());
            assert!(found.is_lt(), "{pair:?}");
        }
    }

    proptest! {
        #[test]
        fn a_total_order(names in proptest::collection::vec("[aB0-2é]{0,6}", 3)) {
            let compare = |left: usize, right: usize| compare_names(names[left].as_bytes(), names[right].as_bytes());
            prop_assert_eq!(compare(0, 1), compare(1, 0).reverse());
            prop_assert_eq!(compare(0, 1).is_eq(), names[0] == names[1]);
            if compare(0, 1).is_le() && compare(1, 2).is_le() {
                prop_assert!(compare(0, 2).is_le());
            }
        }
    }
}
