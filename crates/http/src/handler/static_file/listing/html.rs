use std::borrow::Cow;

use wire::http::escape_html;

use super::{Listing, ListingEntry, SortKey, SortOrder, href, rfc3339};
use crate::handler::page::{begin_html, end_html, write_text};

/// Renders the page.
pub(super) fn render(path: &[u8], listing: &Listing, sort: SortOrder) -> String {
    let mut out = String::with_capacity(4096 + 320 * listing.entries.len());
    let segments: Vec<Cow<'_, str>> =
        path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()).map(readable).collect();
    begin_html(&format!("Index of {}", readable(path)), include_str!("listing.css"), &mut out);
    out.push_str(ICONS);
    out.push_str("<main>\n");
    write_breadcrumb(&segments, &mut out);
    out.push_str("<h1>");
    escape_html(segments.last().map_or("/", |name| name), &mut out);
    out.push_str("</h1>\n");
    write_summary(listing, &mut out);
    out.push_str("<table>\n<thead><tr>");
    write_column(SortKey::Name, sort, &mut out);
    write_column(SortKey::Size, sort, &mut out);
    write_column(SortKey::Modified, sort, &mut out);
    out.push_str("</tr></thead>\n<tbody>\n");
    if !segments.is_empty() {
        out.push_str("<tr class=\"folder\"><td><a href=\"../\"><svg aria-hidden=\"true\"><use href=\"#up\"/></svg>");
        out.push_str("<span>Parent folder</span></a></td><td></td><td></td></tr>\n");
    }
    for entry in &listing.entries {
        write_entry(entry, &mut out);
    }
    out.push_str("</tbody>\n</table>\n</main>\n");
    end_html(&mut out);
    out
}

/// Icons beside the names, defined once a page.
const ICONS: &str = concat!(
    "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">",
    "<symbol id=\"folder\" viewBox=\"0 0 18 24\">",
    // words: allow the string is an SVG path
    "<path d=\"M1.5 6.5a1 1 0 0 1 1-1h4l2 2h7a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1h-13a1 1 0 0 1-1-1z\"/></symbol>",
    "<symbol id=\"file\" viewBox=\"0 0 18 24\">",
    // words: allow the string is an SVG path
    "<path d=\"M3.5 5.5a1 1 0 0 1 1-1h6l4 4v10a1 1 0 0 1-1 1h-9a1 1 0 0 1-1-1zM10.5 4.5v4h4\"/></symbol>",
    "<symbol id=\"up\" viewBox=\"0 0 18 24\"><path d=\"M9 18.5v-12M4 11.5l5-5 5 5\" fill=\"none\"/></symbol>",
    "</svg>\n",
);

/// Writes links to the parent directories. They are relative, so that they work through a proxy that changes the
/// path.
fn write_breadcrumb(segments: &[Cow<'_, str>], out: &mut String) {
    let Some((_, above)) = segments.split_last() else { return };
    out.push_str("<nav aria-label=\"Breadcrumb\"><ol>");
    let names = std::iter::once("Home").chain(above.iter().map(Cow::as_ref));
    for (depth, name) in names.enumerate() {
        out.push_str("<li><a href=\"");
        for _ in depth..segments.len() {
            out.push_str("../");
        }
        out.push_str("\">");
        escape_html(name, out);
        out.push_str("</a></li>");
    }
    out.push_str("</ol></nav>\n");
}

fn write_summary(listing: &Listing, out: &mut String) {
    let folders = listing.entries.iter().filter(|entry| entry.is_directory).count();
    let files = listing.entries.len() - folders;
    let bytes = listing.entries.iter().filter(|entry| !entry.is_directory).map(|entry| entry.size);
    let bytes = bytes.fold(0, u64::saturating_add);
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let mut parts = Vec::new();
    if folders > 0 {
        parts.push(format!("{} folder{}", with_separators(folders as u64), plural(folders)));
    }
    if files > 0 {
        parts.push(format!("{} file{}", with_separators(files as u64), plural(files)));
        parts.push(human_size(bytes));
    }
    let text = if parts.is_empty() { "Empty folder".to_owned() } else { parts.join(" · ") };
    write_text(out, format_args!("<p>{text}</p>\n"));
    if listing.is_cut_off {
        let count = with_separators(listing.entries.len() as u64);
        write_text(out, format_args!("<p>This list ends after {count} entries; the folder has more.</p>\n"));
    }
}

/// Writes a column's head: a link that sorts by it, or reverses the order if it is sorted by already.
fn write_column(key: SortKey, sort: SortOrder, out: &mut String) {
    // The first click puts the most wanted entries on top: the largest, the newest.
    let (title, value, descending_first) = match key {
        SortKey::Name => ("Name", "name", false),
        SortKey::Size => ("Size", "size", true),
        SortKey::Modified => ("Modified<span class=\"clock\"> (UTC)</span>", "modified", true),
    };
    let is_current = sort.key == key;
    let becomes_descending = if is_current { !sort.is_descending } else { descending_first };
    let order = if becomes_descending { "desc" } else { "asc" };
    let (state, arrow) = match (is_current, sort.is_descending) {
        (false, _) => ("", ""),
        (true, false) => (" aria-sort=\"ascending\"", " <span aria-hidden=\"true\">↑</span>"),
        (true, true) => (" aria-sort=\"descending\"", " <span aria-hidden=\"true\">↓</span>"),
    };
    write_text(
        out,
        format_args!(
            "<th scope=\"col\"{state}><a href=\"?sort={value}&amp;order={order}\" rel=\"nofollow\">{title}{arrow}</a></th>"
        ),
    );
}

fn write_entry(entry: &ListingEntry, out: &mut String) {
    let (class, icon) = if entry.is_directory { (" class=\"folder\"", "folder") } else { ("", "file") };
    // Output of `path::encode` is safe in an attribute.
    let href = href(entry);
    write_text(
        out,
        format_args!("<tr{class}><td><a href=\"{href}\"><svg aria-hidden=\"true\"><use href=\"#{icon}\"/>"),
    );
    out.push_str("</svg><span>");
    escape_html(&readable(&entry.name), out);
    out.push_str(if entry.is_directory { "/</span></a></td><td>" } else { "</span></a></td><td" });
    if !entry.is_directory {
        let (exact, human) = (with_separators(entry.size), human_size(entry.size));
        let unit = if entry.size == 1 { "byte" } else { "bytes" };
        write_text(out, format_args!(" title=\"{exact} {unit}\">{human}"));
    }
    let modified = rfc3339(entry.modified);
    let (day, clock) = (&modified[..10], &modified[11..16]);
    write_text(
        out,
        format_args!(
            "</td><td><time datetime=\"{modified}\">{day}<span class=\"clock\"> {clock}</span></time></td></tr>\n"
        ),
    );
}

/// Converts a name to text. Invalid UTF-8, control characters and direction marks are replaced, so that no name looks
/// like another (a reversed `gpj.exe`).
fn readable(name: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(name);
    if text.contains(is_deceptive) { text.replace(is_deceptive, "\u{fffd}").into() } else { text }
}

fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Formats a size as `1.4 MiB`, with two to four digits.
fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Calculated in tenths, so that a size that rounds up to 1024 moves to the next unit.
    let (mut unit, mut divisor) = (0, 1024_u128);
    let tenths = |divisor: u128| (u128::from(bytes) * 10 + divisor / 2) / divisor;
    while tenths(divisor) >= 10_235 {
        divisor *= 1024;
        unit += 1;
    }
    let tenths = tenths(divisor);
    if tenths < 100 {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    } else {
        format!("{} {}", (tenths + 5) / 10, UNITS[unit])
    }
}

/// Formats a number as `1,234,567`.
fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{human_size, readable, render, with_separators};
    use crate::handler::static_file::listing::{Listing, ListingEntry, SortOrder};

    fn page(path: &[u8], entries: Vec<ListingEntry>, query: &str) -> String {
        let listing = Listing { entries, is_cut_off: false };
        render(path, &listing, SortOrder::from_query(Some(query.as_bytes())))
    }

    fn file(name: &[u8], size: u64) -> ListingEntry {
        ListingEntry { name: name.to_vec(), is_directory: false, size, modified: 784_111_777 }
    }

    #[test]
    fn rows() {
        let check = |entry: ListingEntry, expect: &str| {
            let html = page(b"/", vec![entry], "");
            let row = html.lines().find(|line| line.starts_with("<tr") && !line.contains("Parent")).unwrap();
            assert_eq!(row, expect);
        };
        check(
            file(b"a.txt", 1_234_567),
            concat!(
                r##"<tr><td><a href="./a.txt"><svg aria-hidden="true"><use href="#file"/></svg><span>a.txt</span></a></td>"##,
                r##"<td title="1,234,567 bytes">1.2 MiB</td><td><time datetime="1994-11-06T08:49:37Z">1994-11-06"##,
                r##"<span class="clock"> 08:49</span></time></td></tr>"##
            ),
        );
        check(
            ListingEntry { is_directory: true, ..file(b"<b>&'\"\xff?#%", 0) },
            concat!(
                r##"<tr class="folder"><td><a href="./%3Cb%3E%26%27%22%FF%3F%23%25/"><svg aria-hidden="true">"##,
                r##"<use href="#folder"/></svg><span>&lt;b&gt;&amp;&#39;&quot;"##,
                "\u{fffd}",
                r##"?#%/</span></a></td><td></td><td><time datetime="1994-11-06T08:49:37Z">1994-11-06"##,
                r##"<span class="clock"> 08:49</span></time></td></tr>"##
            ),
        );
        check(
            file(b"javascript:alert(1)", 0),
            concat!(
                r##"<tr><td><a href="./javascript:alert(1)"><svg aria-hidden="true"><use href="#file"/></svg>"##,
                r##"<span>javascript:alert(1)</span></a></td><td title="0 bytes">0 B</td>"##,
                r##"<td><time datetime="1994-11-06T08:49:37Z">1994-11-06<span class="clock"> 08:49</span></time></td></tr>"##
            ),
        );
    }

    #[test]
    fn whole_pages() {
        let check = |html: &str, expect: &[&str], expect_not: &[&str]| {
            assert!(html.starts_with("<!doctype html>\n") && html.ends_with("</html>\n"), "{html}");
            for part in expect {
                assert!(html.contains(part), "{part:?} isn't in {html}");
            }
            for part in expect_not {
                assert!(!html.contains(part), "{part:?} is in {html}");
            }
        };
        check(
            &page(b"/", vec![], ""),
            &["<title>Index of /</title>", "<h1>/</h1>", "<p>Empty folder</p>"],
            &["<nav", "Parent folder"],
        );
        check(
            &page(b"/a b/<c>/d/", vec![file(b"1", 1024), file(b"2", 1024)], ""),
            &[
                "<title>Index of /a b/&lt;c&gt;/d/</title>",
                "<li><a href=\"../../../\">Home</a></li><li><a href=\"../../\">a b</a></li>\
                 <li><a href=\"../\">&lt;c&gt;</a></li></ol>",
                "<h1>d</h1>",
                "<p>2 files · 2.0 KiB</p>",
                "Parent folder",
                "<th scope=\"col\" aria-sort=\"ascending\"><a href=\"?sort=name&amp;order=desc\" rel=\"nofollow\">Name ",
                "<th scope=\"col\"><a href=\"?sort=size&amp;order=desc\" rel=\"nofollow\">Size</a>",
            ],
            &["<c>", "<script", "http:"],
        );
        check(
            &page(b"/", vec![file(b"1", 1)], "sort=size&order=desc"),
            &["aria-sort=\"descending\"><a href=\"?sort=size&amp;order=asc\"", "<p>1 file · 1 B</p>"],
            &["aria-sort=\"ascending\""],
        );
        let cut_off = Listing { entries: vec![file(b"1", 1)], is_cut_off: true };
        check(&render(b"/", &cut_off, SortOrder::from_query(None)), &["This list ends after 1 entries"], &[]);
    }

    #[test]
    fn sizes() {
        let check = |bytes: u64, expect: &str| assert_eq!(human_size(bytes), expect, "{bytes}");
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1.0 KiB");
        check(1536, "1.5 KiB");
        check(10_188, "9.9 KiB");
        check(10_240, "10 KiB");
        check(1_047_552, "1023 KiB");
        check(1_048_575, "1.0 MiB");
        check(5 << 30, "5.0 GiB");
        check(u64::MAX, "16 EiB");
    }

    #[test]
    fn separators() {
        for (number, expect) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(with_separators(number), expect);
        }
    }

    #[test]
    fn deceptive_names() {
        let check = |name: &[u8], expect: &str| assert_eq!(readable(name), expect, "{name:?}");
        check("grün.txt".as_bytes(), "grün.txt");
        check(b"a\nb\x1b[2J\x7f", "a\u{fffd}b\u{fffd}[2J\u{fffd}");
        check("photo\u{202e}gpj.exe".as_bytes(), "photo\u{fffd}gpj.exe");
        check(b"\xff\xfe", "\u{fffd}\u{fffd}");
    }
}
