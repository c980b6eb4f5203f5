//! Words that other servers write after an option's values, as in nginx's `listen 443 ssl`, and what to write instead.

/// Words after one option, and the advice.
struct Spelling {
    option: &'static str,
    /// In lower case. None stand for any word.
    words: &'static [&'static str],
    /// Begins with a lowercase letter, and has no full stop.
    advice: &'static str,
}

const fn spelling(option: &'static str, words: &'static [&'static str], advice: &'static str) -> Spelling {
    Spelling { option, words, advice }
}

static SPELLINGS: &[Spelling] = &[
    spelling("listen", &["ssl", "tls", "https"], "write `tls=on`"),
    spelling("listen", &["http2", "h2", "spdy"], "remove it: connections with TLS may use HTTP/2 (`http-versions`)"),
    spelling("listen", &["quic", "http3", "h3"], "remove it: HTTP/3 is for all listeners with TLS (`http-versions`)"),
    spelling("listen", &["default_server", "default"], "write `default` as an option of the site"),
    spelling("listen", &["proxy_protocol"], "write `proxy-protocol=on`"),
    spelling("listen", &["reuseport", "bind"], "remove it: each worker has its own socket"),
    spelling("listen", &["deferred"], "use `defer-accept` in `server`"),
    spelling("redirect", &["permanent", "301"], "write `status=301` after the target"),
    spelling("redirect", &["temp", "temporary", "redirect", "302"], "write `status=302` after the target, or nothing"),
    spelling("redirect", &["seeother", "303"], "write `status=303` after the target"),
    spelling("redirect", &["307"], "write `status=307` after the target"),
    spelling("redirect", &["308"], "write `status=308` after the target"),
    spelling("redirect", &["gone", "410"], "use `respond` with status 410"),
    spelling("rewrite", &["permanent", "[r=301]", "[r=301,l]"], "use `redirect` with `status=301`"),
    spelling("rewrite", &["redirect", "[r]", "[r,l]", "[r=302]", "[r=302,l]"], "use `redirect`"),
    spelling("rewrite", &["last", "break", "[l]", "[end]", "[pt]"], "remove it: only the first match is applied"),
    spelling("rewrite", &["[f]"], "use `deny`"),
    spelling("access-log", &["binary"], "write `format=\"binary\"`"),
    spelling("access-log", &["combined", "main"], "write `format=\"combined\"`, or nothing"),
    spelling("access-log", &["common", "clf"], "write `format=\"common\"`"),
    spelling("access-log", &["json"], "write `format=\"json\"`"),
    spelling("access-log", &["buffer", "flush"], "set `access-log-flush-interval` in `server`"),
    spelling("access-log", &["gzip"], "compress logs when you rotate them, with logrotate"),
    spelling("server", &["backup"], "write `backup=on`"),
    spelling("server", &["down"], "remove the server, or run `tailcoat drain`"),
    spelling("server", &["resolve"], "remove it: names are resolved again (`resolve-interval`)"),
    spelling("rate-limit", &["nodelay"], "remove it: requests within `burst` never wait"),
    spelling("rate-limit", &["delay"], "use `burst`: requests within it do not wait, others are rejected"),
    spelling("rate-limit", &["zone"], "use `key`; Tailcoat manages the memory of limits itself (`keys-max`)"),
    spelling("certificate", &[], "write the file of the private key as `key=\"FILE\"`"),
    spelling("forward", &["timeout"], "use `first-byte-timeout` in the block of `forward`"),
    spelling("forward", &["connectiontimeout"], "use `connect-timeout` in `upstream`"),
    spelling("forward", &["retry"], "use `eject-time` in `upstream`"),
    spelling("response-header", &["always"], "remove it: all responses get the field"),
    spelling("header", &["always"], "use `response-header`, which sets fields of all responses"),
    spelling("confinement", &["off", "no", "false"], "write a block with `files` and `connections` off"),
];

/// Advice for a word that is no value of the option.
pub(crate) fn advice(option: &str, word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let of_option = || SPELLINGS.iter().filter(|spelling| spelling.option == option);
    let of_word = of_option().find(|spelling| spelling.words.contains(&word.as_str()));
    of_word.or_else(|| of_option().find(|spelling| spelling.words.is_empty())).map(|spelling| spelling.advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OptionContext;

    #[test]
    fn words_of_options_have_one_advice() {
        for (index, spelling) in SPELLINGS.iter().enumerate() {
            let is_option = |place: &OptionContext| place.option(spelling.option).is_some();
            assert!(OptionContext::ALL.iter().any(is_option), "no option `{}`", spelling.option);
            for word in spelling.words {
                assert_eq!(*word, word.to_ascii_lowercase());
                let mut before = SPELLINGS[..index].iter().filter(|other| other.option == spelling.option);
                assert!(!before.any(|other| other.words.contains(word)), "`{word}` of `{}` twice", spelling.option);
            }
        }
        assert_eq!(advice("listen", "SSL"), Some("write `tls=on`"));
        assert_eq!(advice("listen", "x"), None);
        assert!(advice("certificate", "a.key").is_some_and(|advice| advice.contains("key=")));
    }

    /// Each option that an advice names exists.
    #[test]
    fn advice_names_options() {
        const OTHERS: [&str; 1] = ["tailcoat drain"];
        for spelling in SPELLINGS {
            let names = spelling.advice.split('`').skip(1).step_by(2).filter(|name| !OTHERS.contains(name));
            for name in names.filter(|name| !name.contains('=')) {
                let is_known = OptionContext::ALL.into_iter().flat_map(OptionContext::options).any(|option| {
                    option.name == name || option.parameters.iter().any(|parameter| parameter.name == name)
                });
                assert!(is_known, "`{name}` in the advice for `{}`", spelling.option);
            }
        }
    }
}
