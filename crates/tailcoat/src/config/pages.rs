//! What the table of options says, as pages: the reference, the manual page, and the default configuration.

use std::fmt::Write;

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::DEFAULT_PATH;
use super::options::{OptionDefinition, Parameter, Place, SECTIONS, Set, Shape};
use super::value::LOG_FIELDS;

/// How the configuration is written: the beginning of the reference and of the manual page.
const INTRODUCTION: &[&str] = &[
    "The configuration is a text in [KDL](https://kdl.dev), version 2. An option is a line: its name, its values with \
     spaces between them, and for some a block in braces. Texts with anything but letters, digits and a few signs \
     stand in quotes, and so do paths, sizes (`\"16KiB\"`) and times (`\"30s\"`). `//` begins a comment, `/-` before an \
     option takes it away.",
    "Relative paths start from the directory of the file they are written in. What is not said has a default. \
     `tailcoat check` tells all that is wrong with a file, `tailcoat fmt` formats it, `tailcoat default-config` \
     prints one with all options at their defaults, and `tailcoat schema` a JSON schema of the options, for programs that \
     write configurations or help to.",
    "Path patterns are `\"/a\"` for this path, `\"/a/*\"` for all that begins with `/a/`, `\"*.css\"` for all that ends \
     with `.css`, `\"*\"` for all, and `\"~EXPRESSION\"` for all in which a regular expression is \
     found (its syntax is that of https://docs.rs/regex), best written between `#\"` and `\"#`, where a backslash is \
     itself. They are compared with paths that are percent-decoded and have no `.` and `..`.",
];

const EXAMPLE: &str = "\
site \"example.com\" \"www.example.com\" {
    root \"/srv/www\"
    cache-control \"/assets/*\" \"max-age=31536000, immutable\"
    redirect \"/old/*\" \"/new/{rest}{query}\" status=301
    error-page 404 \"/404.html\"
}
";

/// The reference, in Markdown.
pub fn reference() -> String {
    let mut page = String::from("# Configuration of Tailcoat\n\n");
    page.push_str("<!-- Written by `tailcoat reference`; edit the table of options instead. -->\n\n");
    page.push_str(&wrapped(&INTRODUCTION.join("\n\n"), "", 120));
    // Writing to a `String` never fails.
    let _ = write!(page, "\n\n```kdl\n{EXAMPLE}```\n\n");
    for title in SECTIONS.iter().map(|section| section.title).chain([LOG_FIELDS_TITLE]) {
        let _ = writeln!(page, "- [{title}](#{})", anchor(title));
        let section = SECTIONS.iter().find(|section| section.title == title);
        let names = section.into_iter().flat_map(|section| section.options).map(|option| option.name);
        let links: Vec<_> = names.map(|name| format!("[`{name}`](#{name})")).collect();
        if !links.is_empty() {
            let _ = writeln!(page, "{}", wrapped(&links.join(", "), "  ", 120));
        }
    }
    for section in &SECTIONS {
        let _ = write!(page, "\n## {}\n\n{}\n", section.title, wrapped(section.doc, "", 120));
        for option in section.options {
            page.push_str(&reference_entry(option));
        }
    }
    let _ = write!(page, "\n## {LOG_FIELDS_TITLE}\n\n");
    for (name, meaning) in log_fields() {
        let _ = writeln!(page, "- `{{{name}}}`: {meaning}");
    }
    page
}

const LOG_FIELDS_TITLE: &str = "Fields of access log templates";

/// What pages of Markdown call the place of a heading.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|character| character.is_alphanumeric() || matches!(character, ' ' | '-'));
    kept.flat_map(char::to_lowercase).map(|character| if character == ' ' { '-' } else { character }).collect()
}

/// What stands in braces in the format of an access log, and what it means.
fn log_fields() -> impl Iterator<Item = (&'static str, &'static str)> {
    let field_of_request = ("request.header.NAME", "The field NAME of the request's head");
    LOG_FIELDS.iter().copied().chain([field_of_request])
}

fn reference_entry(option: &OptionDefinition) -> String {
    let mut entry = format!("\n### `{}`\n\n```text\n{}\n```\n\n", option.name, syntax(option));
    let _ = writeln!(entry, "{}", wrapped(option.doc, "", 120));
    let values: Vec<_> = option.parameters.iter().filter(|one| one.name != "on").collect();
    if !values.is_empty() {
        entry.push('\n');
    }
    for parameter in values {
        let _ = writeln!(entry, "- *{}*: {}", parameter.name, parameter.kind.describe());
    }
    if !option.default.is_empty() {
        let _ = write!(entry, "\nDefault: `{}`\n", option.default);
    }
    let _ = write!(entry, "\nExample: `{}`\n", option.example);
    entry
}

/// How a node is written: `redirect PATH TARGET [status=STATUS]`.
fn syntax(option: &OptionDefinition) -> String {
    let mut syntax = option.name.to_owned();
    for parameter in option.parameters {
        let Parameter { name, shape, .. } = parameter;
        let word = if *name == "on" { "on|off".to_owned() } else { name.to_uppercase() };
        let _ = match shape {
            Shape::One => write!(syntax, " {word}"),
            Shape::Optional => write!(syntax, " [{word}]"),
            Shape::Many => write!(syntax, " {word}..."),
            Shape::Any => write!(syntax, " [{word}...]"),
            Shape::Property => write!(syntax, " [{name}={word}]"),
        };
    }
    if matches!(option.set, Set::Block(_)) {
        syntax.push_str(" { ... }");
    }
    syntax
}

/// The manual page `tailcoat.kdl(5)`, in roff.
pub fn manual() -> String {
    let mut roff = Roff::new();
    let version = concat!("tailcoat ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["tailcoat.kdl", "5", "", version]);
    roff.control("SH", ["NAME"]).text([roman("tailcoat.kdl - configuration of the web server tailcoat")]);
    roff.control("SH", ["SYNOPSIS"]).text([roman(DEFAULT_PATH)]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in INTRODUCTION {
        roff.control("PP", []).text(inlines(&paragraph.replace("[KDL](https://kdl.dev)", "KDL (https://kdl.dev)")));
    }
    for section in &SECTIONS {
        roff.control("SH", [section.title.to_uppercase().as_str()]).text(inlines(section.doc));
        for option in section.options {
            manual_entry(&mut roff, option);
        }
    }
    roff.control("SH", ["FIELDS OF ACCESS LOG TEMPLATES"]);
    for (name, meaning) in log_fields() {
        roff.control("TP", []).text([bold(format!("{{{name}}}"))]).text([roman(meaning)]);
    }
    roff.control("SH", ["EXAMPLE"]).control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]).text([bold("tailcoat"), roman("(1)")]);
    roff.to_roff()
}

fn manual_entry(roff: &mut Roff, option: &OptionDefinition) {
    let syntax = syntax(option);
    let values = syntax.strip_prefix(option.name).unwrap_or_default();
    roff.control("TP", []).text([bold(option.name), italic(values)]).text(inlines(option.doc));
    if !option.default.is_empty() {
        roff.control("br", []).text([roman("Default: "), bold(option.default)]);
    }
    roff.control("br", []).text([roman("Example: "), bold(option.example)]);
}

/// Markdown's code as bold text.
fn inlines(markdown: &str) -> Vec<Inline> {
    let piece = |(index, text)| if index % 2 == 0 { roman(text) } else { bold(text) };
    markdown.split('`').enumerate().map(piece).collect()
}

/// A configuration of all options at their defaults, with what each does; those that have none are comments.
pub fn default_config() -> String {
    let mut text = String::from(
        "// Configuration of Tailcoat: all options, at their defaults. Those that are comments have none: an example\n\
         // stands in their place. What is not needed can be deleted.\n",
    );
    for section in SECTIONS.iter().filter(|section| section.places[0] == Place::Top) {
        for option in section.options.iter().filter(|option| !is_inside_site(option)) {
            write_option(&mut text, option, "");
        }
    }
    text
}

/// Writes a block that begins with this, and all options in it but the servers it begins with.
fn write_block_as_comment(text: &mut String, beginning: &str, place: Place, indent: &str) {
    let mut block = String::from(beginning);
    for option in place.options().filter(|option| option.name != "server") {
        write_option(&mut block, option, "    ");
    }
    block.push_str("}\n");
    for line in block.lines() {
        let _ = writeln!(text, "{}", format!("{indent}// {line}").trim_end());
    }
}

/// Settings for all sites that stand in the one site of the default configuration.
fn is_inside_site(option: &OptionDefinition) -> bool {
    matches!(option.set, Set::Files(_) | Set::Rules(_)) || option.name == "error-page"
}

fn write_option(text: &mut String, option: &OptionDefinition, indent: &str) {
    let _ = write!(text, "\n{}\n", wrapped(option.doc, &format!("{indent}// "), 120));
    match option.set {
        // Requests are forwarded only where that is wanted: these stand there as comments.
        Set::Block(Place::Upstream) => {
            write_block_as_comment(
                text,
                "upstream \"app\" {\n    server \"http://127.0.0.1:8080\"\n",
                Place::Upstream,
                indent,
            );
        }
        // With the block, even an empty one, traces are kept.
        Set::Block(Place::Traces) => write_block_as_comment(text, "traces {\n", Place::Traces, indent),
        Set::Block(Place::Forward) => {
            write_block_as_comment(text, "forward \"http://127.0.0.1:8080\" {\n", Place::Forward, indent);
        }
        Set::Block(place @ (Place::FastCgi | Place::Cgi | Place::Scgi | Place::Uwsgi)) => {
            let beginning = option.example.split(" {").next().unwrap_or_default();
            write_block_as_comment(text, &format!("{beginning} {{\n"), place, indent);
        }
        Set::Block(Place::Module) => {
            write_block_as_comment(text, "module \"/shop/*\" \"/srv/shop.wasm\" {\n", Place::Module, indent);
        }
        Set::Block(place) if place != Place::Files => {
            let _ = writeln!(text, "{indent}{} {{", option.name);
            let inner = format!("{indent}    ");
            let start = text.len();
            for option in place.options().filter(|option| place != Place::Site || option.name != "access-log") {
                write_option(text, option, &inner);
            }
            // No empty line at the start of a block.
            text.remove(start);
            let _ = writeln!(text, "{indent}}}");
        }
        // A site must have one, and this is where Debian's others begin.
        _ if option.name == "root" => {
            let _ = writeln!(text, "{indent}root \"/var/www/html\"");
        }
        _ if option.default.is_empty() => {
            let _ = writeln!(text, "{indent}// {}", option.example);
        }
        _ => {
            let _ = writeln!(text, "{indent}{}", option.default);
        }
    }
}

/// Text in lines of at most so many characters, each with a prefix. Empty lines stay.
fn wrapped(text: &str, prefix: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = prefix.to_owned();
        for word in paragraph.split(' ') {
            if line.len() > prefix.len() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::replace(&mut line, prefix.to_owned()));
            }
            if line.len() > prefix.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}
