//! Data of scenarios: CSV (RFC 4180) whose first row has the names of the columns.

/// Table of values.
#[derive(Debug, PartialEq)]
pub(super) struct DataTable {
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Vec<u8>>>,
}

/// Parses a table.
pub(super) fn parse(text: &str) -> Result<DataTable, String> {
    let mut rows = split_rows(text.trim_start_matches('\u{feff}'))?.into_iter();
    let columns: Vec<String> =
        rows.next().ok_or("the file is empty")?.1.iter().map(|name| name.trim().to_owned()).collect();
    let mut values = Vec::new();
    for (line, row) in rows {
        if row.len() != columns.len() {
            return Err(format!("line {line} has {} values for {} columns", row.len(), columns.len()));
        }
        values.push(row.into_iter().map(String::into_bytes).collect());
    }
    match values.is_empty() {
        true => Err("there is no row after the names of the columns".to_owned()),
        false => Ok(DataTable { columns, rows: values }),
    }
}

/// Rows with the numbers of their lines. Empty lines are left out.
fn split_rows(text: &str) -> Result<Vec<(usize, Vec<String>)>, String> {
    let (mut rows, mut row, mut value) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut row_line) = (1, 1);
    let mut is_quoted = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        line += usize::from(character == '\n');
        match character {
            '"' if is_quoted && characters.peek() == Some(&'"') => {
                characters.next();
                value.push('"');
            }
            '"' if is_quoted => is_quoted = false,
            '"' if value.is_empty() => is_quoted = true,
            ',' if !is_quoted => row.push(std::mem::take(&mut value)),
            '\r' if !is_quoted && characters.peek() == Some(&'\n') => {}
            '\n' if !is_quoted => {
                end_row(&mut rows, row_line, &mut row, &mut value);
                row_line = line;
            }
            character => value.push(character),
        }
    }
    if is_quoted {
        return Err(format!("line {row_line}: a quote has no end"));
    }
    end_row(&mut rows, row_line, &mut row, &mut value);
    Ok(rows)
}

fn end_row(rows: &mut Vec<(usize, Vec<String>)>, line: usize, row: &mut Vec<String>, value: &mut String) {
    if !row.is_empty() || !value.is_empty() {
        row.push(std::mem::take(value));
        rows.push((line, std::mem::take(row)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let table = parse("user,name\r\na,\"B, \"\"C\"\"\"\n\nd,\"e\nf\"\n,x").unwrap();
        assert_eq!(table.columns, ["user", "name"]);
        let rows = [[&b"a"[..], b"B, \"C\""], [b"d", b"e\nf"], [b"", b"x"]];
        assert_eq!(table.rows, rows.map(|row| row.map(<[u8]>::to_vec).to_vec()));
        for (text, expect) in [
            ("", "is empty"),
            ("a,b\n", "no row"),
            ("a,b\n1,2\n3", "line 3 has 1 values for 2 columns"),
            ("a\n\"b", "line 2: a quote"),
        ] {
            assert!(parse(text).unwrap_err().contains(expect), "{text}");
        }
    }
}
