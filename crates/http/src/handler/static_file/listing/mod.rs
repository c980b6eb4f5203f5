//! Rendering of a directory listing: HTML for people, JSON for programs. The parent module reads the directory.

mod html;
mod sort;

use std::borrow::Cow;

use serde::Serialize;
use wire::http::{date, path};

pub use self::sort::{SortKey, SortOrder};
use crate::handler::page::{Page, PageFormat};

/// Entries of a directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// In any order.
    pub entries: Vec<ListingEntry>,
    /// True if entries beyond `browse-entries-max` were left out.
    pub is_cut_off: bool,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingEntry {
    /// Name of the file: any bytes except NUL and `/`.
    pub name: Vec<u8>,
    /// True for a directory, or a link to one.
    pub is_directory: bool,
    /// Size in bytes; ignored for directories.
    pub size: u64,
    /// Time of the last change of its content, in seconds since 1970.
    pub modified: u64,
}

/// Renders the listing of the directory at this path, which is decoded and ends with `/`.
pub fn render(path: &[u8], mut listing: Listing, sort: SortOrder, format: PageFormat) -> Page {
    listing.entries.sort_by(|entry, other| sort.compare(entry, other));
    match format {
        PageFormat::Html => {
            Page { content_type: "text/html; charset=utf-8", body: html::render(path, &listing, sort).into() }
        }
        PageFormat::Json => Page { content_type: "application/json", body: render_json(&listing.entries).into() },
    }
}

/// Renders an array of objects. `name` is lossy for names that are not UTF-8; `href` is exact.
fn render_json(entries: &[ListingEntry]) -> Vec<u8> {
    #[derive(Serialize)]
    struct Item<'a> {
        name: Cow<'a, str>,
        r#type: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        modified: String,
        href: String,
    }
    let items: Vec<Item<'_>> = entries
        .iter()
        .map(|entry| Item {
            name: String::from_utf8_lossy(&entry.name),
            r#type: if entry.is_directory { "directory" } else { "file" },
            size: (!entry.is_directory).then_some(entry.size),
            modified: rfc3339(entry.modified),
            href: href(entry),
        })
        .collect();
    let mut out = serde_json::to_vec(&items).expect("numbers and strings can be written as JSON");
    out.push(b'\n');
    out
}

/// Link to an entry. It begins with `./`, so that a colon in the name does not make it a URL scheme (RFC 3986,
/// section 4.2).
fn href(entry: &ListingEntry) -> String {
    let mut href = b"./".to_vec();
    path::encode(&entry.name, &mut href);
    if entry.is_directory {
        href.push(b'/');
    }
    String::from_utf8(href).expect("what is percent-encoded is ASCII")
}

fn rfc3339(unix_seconds: u64) -> String {
    date::format_rfc3339(unix_seconds).iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use wire::http::path;

    use super::{Listing, ListingEntry, PageFormat, SortOrder, render};

    fn entry(name: &[u8], is_directory: bool, size: u64) -> ListingEntry {
        ListingEntry { name: name.to_vec(), is_directory, size, modified: 784_111_777 }
    }

    #[test]
    fn json() {
        let check = |entries: Vec<ListingEntry>, expect: &str| {
            let listing = Listing { entries, is_cut_off: false };
            let page = render(b"/a/", listing, SortOrder::from_query(None), PageFormat::Json);
            assert_eq!(page.content_type, "application/json");
            assert_eq!(str::from_utf8(&page.body).unwrap().trim_end(), expect);
        };
        check(vec![], "[]");
        check(
            vec![entry(b"a \"b\".txt", false, 5), entry(b"d", true, 4096)],
            concat!(
                r#"[{"name":"d","type":"directory","modified":"1994-11-06T08:49:37Z","href":"./d/"},"#,
                r#"{"name":"a \"b\".txt","type":"file","size":5,"modified":"1994-11-06T08:49:37Z","#,
                r#""href":"./a%20%22b%22.txt"}]"#
            ),
        );
        check(
            vec![entry(b"\xff:\n", false, 0)],
            "[{\"name\":\"\u{fffd}:\\n\",\"type\":\"file\",\"size\":0,\"modified\":\"1994-11-06T08:49:37Z\",\"href\":\"./%FF:%0A\"}]",
        );
    }

    #[test]
    fn links_lead_to_the_very_name() {
        // All bytes that a name can have.
        let name: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
        let href = super::href(&entry(&name, false, 0));
        let mut buffer = Vec::new();
        let path = path::normalise(format!("/{href}").as_bytes(), &mut buffer).unwrap().to_vec();
        assert_eq!(path[1..], name);
    }
}
