/// Appends the variable name of a request field: `HTTP_` and the name in upper case with `_` for `-` (RFC 3875, section
/// 4.1.18). Returns `false` and appends nothing if the name has a byte other than letters, digits and `-`. Otherwise a
/// client could send `A_B` and have the application read it as `A-B`; and shells and languages do not allow other bytes
/// in names.
pub fn push_variable_name(field_name: &[u8], out: &mut Vec<u8>) -> bool {
    if !field_name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
        return false;
    }
    out.extend_from_slice(b"HTTP_");
    out.extend(field_name.iter().map(|&byte| if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() }));
    true
}

#[cfg(test)]
mod tests {
    use super::push_variable_name;

    #[test]
    fn names() {
        for (field_name, expect) in [
            ("Accept", Some("HTTP_ACCEPT")),
            ("x-Forwarded-for", Some("HTTP_X_FORWARDED_FOR")),
            ("X-1", Some("HTTP_X_1")),
            ("X_Forwarded_For", None),
            ("A_B", None),
            ("A.B", None),
            ("A!", None),
            ("()", None),
        ] {
            let mut name = Vec::new();
            let is_passed_on = push_variable_name(field_name.as_bytes(), &mut name);
            assert_eq!(is_passed_on.then_some(name.as_slice()), expect.map(str::as_bytes), "{field_name}");
            assert!(is_passed_on || name.is_empty());
        }
    }
}
