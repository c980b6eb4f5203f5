/// Appends text, escaped for content and for quoted attributes of HTML.
pub fn escape_html(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            character => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut out = String::from("<p>");
        escape_html("<a href=\"x\">&'", &mut out);
        assert_eq!(out, "<p>&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }
}
