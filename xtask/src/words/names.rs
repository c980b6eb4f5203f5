//! Names of types: each that other files can use means one thing in the workspace.

use std::collections::BTreeMap;

use super::rust_source;

/// A type that other files can name, since it is declared with `pub` of any reach at the level of a module.
#[derive(Debug, PartialEq)]
pub(super) struct Declaration {
    pub(super) name: String,
    pub(super) line: usize,
}

/// Declarations of a Rust source, those of tests left out.
pub(super) fn declarations(text: &str) -> Vec<Declaration> {
    let source = rust_source::scan(text, false);
    let mut declarations = Vec::new();
    // For each open brace: does a module begin there?
    let mut braces: Vec<bool> = Vec::new();
    for (index, line) in source.code.iter().enumerate() {
        if braces.iter().all(|is_module| *is_module)
            && let Some(name) = declared_type(line)
        {
            declarations.push(Declaration { name: name.to_owned(), line: index + 1 });
        }
        for (at, character) in line.char_indices() {
            match character {
                '{' => braces.push(words(&line[..at]).any(|word| word == "mod")),
                '}' => drop(braces.pop()),
                _ => {}
            }
        }
    }
    declarations
}

/// The type that a line declares for other files.
fn declared_type(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub")?;
    let line = line.strip_prefix('(').and_then(|reach| Some(reach.split_once(')')?.1)).unwrap_or(line);
    let mut words = words(line).skip_while(|word| *word == "unsafe");
    let is_type = matches!(words.next()?, "struct" | "enum" | "union" | "trait" | "type");
    words.next().filter(|_| is_type && line.starts_with(' '))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_').filter(|word| !word.is_empty())
}

/// Names that occur more than once, with the places of all that have them: paths with lines.
pub(super) fn repeated<'a>(
    declared: impl Iterator<Item = (&'a str, &'a Declaration)>,
) -> BTreeMap<&'a str, Vec<(&'a str, usize)>> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, declaration) in declared {
        places.entry(&declaration.name).or_default().push((path, declaration.line));
    }
    places.retain(|_, places| places.len() > 1);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_other_files_can_name() {
        let text = "pub struct A<'a> {\n    pub type_name: u8,\n}\npub(crate) enum B { C }\nstruct Private;\n\
                    pub(in crate::a) unsafe trait D {\n    type Output;\n}\nmod inner {\n    pub(super) type E = u8;\n}\n\
                    impl Iterator for A {\n    pub type F = u8;\n}\n// pub struct G;\npub fn type_of() {}\n\
                    #[cfg(test)]\nmod tests {\n    pub struct H;\n}\n";
        let names: Vec<_> = declarations(text).into_iter().map(|each| (each.name, each.line)).collect();
        let expect = [("A", 1), ("B", 4), ("D", 6), ("E", 10)];
        assert_eq!(names, expect.map(|(name, line)| (name.to_owned(), line)));
    }

    #[test]
    fn names_that_repeat() {
        let declare = |name: &str, line| Declaration { name: name.to_owned(), line };
        let all = [("a.rs", declare("A", 1)), ("b.rs", declare("B", 2)), ("c.rs", declare("A", 3))];
        let repeated = repeated(all.iter().map(|(path, declaration)| (*path, declaration)));
        assert_eq!(repeated, BTreeMap::from([("A", vec![("a.rs", 1), ("c.rs", 3)])]));
    }
}
