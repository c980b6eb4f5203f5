//! Any configuration is accepted or rejected, with a reason.

use proptest::prelude::*;

use super::*;

/// Words of configurations, and pieces that break them.
fn pieces() -> Vec<String> {
    let options = OptionContext::ALL.into_iter().flat_map(OptionContext::options);
    let mut pieces: Vec<String> = options.flat_map(|one| [one.name.to_owned(), one.example.to_owned()]).collect();
    let others = [
        " ",
        "\n",
        ";",
        "{",
        "}",
        "\"",
        "\\",
        "/-",
        "//",
        "/*",
        "*/",
        "=",
        "#true",
        "#null",
        "-1",
        "1e999",
        "\"16KiB\"",
        "\"{host}\"",
        "\"{\"",
        "\"*\"",
        "é",
        "\"\u{1f980}\"",
        "\u{2028}",
        "0x",
        "(t)",
        "\"\"\"",
        "#\"",
        "\u{feff}",
        "\r",
    ];
    pieces.extend(others.map(str::to_owned));
    pieces
}

fn check(bytes: Vec<u8>) {
    let checked = check_bytes("test.kdl", bytes.clone(), Path::new("/base"));
    assert_eq!(checked.config.is_none(), checked.diagnostics.has_error());
    let _ = (checked.diagnostics.to_text(true), checked.diagnostics.to_json());
    let _ = format_bytes("test.kdl", bytes);
}

proptest! {
    #[test]
    fn on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(bytes);
    }

    #[test]
    fn on_any_text(text in any::<String>()) {
        check(text.into_bytes());
    }

    #[test]
    fn on_pieces_of_configurations(words in prop::collection::vec(prop::sample::select(pieces()), 0..40)) {
        check(words.join(" ").into_bytes());
        check(words.concat().into_bytes());
    }
}
