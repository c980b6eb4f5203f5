//! Maps and secrets, and the references to them.

use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use expression::{ExpressionReference, Map, MapBuilder, MapFault, Secret, bind};

use super::{ConfigReader, Setting};
use crate::diagnostic::{ConfigFinding, ConfigSource, Diagnostics};
use crate::options::expressions::MapDraft;
use crate::options::{OptionContext, OptionSetter};
use crate::regular_file::{is_denied, open_regular};
use crate::suggest::nearest;

/// Most bytes of a secret.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Maps and secrets that are being put together, and where they stand.
#[derive(Default)]
pub(crate) struct ExpressionsDraft {
    maps: Vec<(Arc<Map>, Arc<ConfigSource>, Range<usize>)>,
    secrets: Vec<(String, PathBuf, Arc<ConfigSource>, Range<usize>)>,
}

impl ExpressionsDraft {
    /// The maps.
    pub(crate) fn maps(&self) -> Vec<Arc<Map>> {
        self.maps.iter().map(|(map, ..)| Arc::clone(map)).collect()
    }

    /// Files of secrets, by name.
    pub(crate) fn secrets(&self) -> Vec<(String, PathBuf)> {
        self.secrets.iter().map(|(name, file, ..)| (name.clone(), file.clone())).collect()
    }

    /// Reads a `map` block.
    pub(crate) fn read_map(
        &mut self,
        source: &Arc<ConfigSource>,
        setting: &Setting<'_>,
        diagnostics: &mut Diagnostics,
    ) {
        let name = setting.values.text("name").unwrap_or_default();
        let mut builder = MapBuilder::new(&name, setting.values.expression("value").unwrap_or_default());
        let mut reader = ConfigReader { source: source.clone(), diagnostics };
        let settings = setting.children.map(|document| reader.read(document, OptionContext::Map)).unwrap_or_default();
        let read = |inner: &Setting<'_>| {
            let mut draft = MapDraft::default();
            if let OptionSetter::Map(set) = inner.option.set {
                set(&mut draft, &inner.values);
            }
            draft
        };
        // The cases depend on it, whatever the order.
        if settings.iter().any(|inner| read(inner).ignores_case) {
            builder.ignore_case();
        }
        for inner in settings {
            let draft = read(&inner);
            for (pattern, value) in draft.cases {
                if !builder.case(pattern, value) {
                    let message = "this case is there already, or the map has more than 1,000 regular expressions";
                    let finding = ConfigFinding::new(inner.span.clone(), message, "this");
                    reader.error(finding.help("remove the case".to_owned()));
                }
            }
            if inner.option.name == "default" {
                builder.default(draft.default);
            }
        }
        if let Some((_, other, first)) = self.maps.iter().find(|(map, ..)| map.name() == name) {
            let finding =
                ConfigFinding::new(setting.span.clone(), format!("the map `{name}` is given twice"), "again here")
                    .related(other.clone(), first.clone(), "first here");
            return reader.error(finding);
        }
        self.maps.push((builder.build(), source.clone(), setting.span.clone()));
    }

    /// Reads a `secret`.
    pub(crate) fn read_secret(
        &mut self,
        source: &Arc<ConfigSource>,
        setting: &Setting<'_>,
        diagnostics: &mut Diagnostics,
    ) {
        let name = setting.values.text("name").unwrap_or_default();
        let file = setting.values.file("file").unwrap_or_default();
        if let Some((.., other, first)) = self.secrets.iter().find(|(known, ..)| *known == name) {
            let message = format!("the secret `{name}` is given twice");
            let finding = ConfigFinding::new(setting.span.clone(), message, "again here");
            let finding = finding.related(other.clone(), first.clone(), "first here");
            return diagnostics.error(source, finding);
        }
        self.secrets.push((name, file, source.clone(), setting.span.clone()));
    }

    /// Binds all references to maps and secrets by their names. Notes unknown names, maps that need each other, and files
    /// of secrets that cannot be read.
    pub(crate) fn bind(&self, diagnostics: &mut Diagnostics) {
        let references = std::mem::take(&mut diagnostics.references);
        let maps = self.maps();
        let secrets = self.read_secrets(&references, diagnostics);
        for (source, span, reference) in &references {
            let (kind, name, known): (_, _, Vec<&str>) = match reference {
                ExpressionReference::Map(map) => ("map", map.name(), maps.iter().map(|map| map.name()).collect()),
                ExpressionReference::Secret(secret) => {
                    if let Some((_, content)) = secrets.iter().find(|(name, _)| *name == secret.name()) {
                        secret.bind(content);
                    }
                    ("secret", secret.name(), self.secrets.iter().map(|(name, ..)| name.as_str()).collect())
                }
            };
            if !known.contains(&name) {
                let help = match nearest(name, &known) {
                    Some(near) => format!("did you mean `{kind}.{near}`?"),
                    None if kind == "map" => format!("add `map \"{name}\" \"{{host}}\" {{ … }}` at the top level"),
                    None => format!("add `secret \"{name}\" \"/etc/tailcoat/{name}\"` at the top level"),
                };
                let finding = ConfigFinding::new(span.clone(), format!("there is no {kind} `{name}`"), "in here");
                diagnostics.error(source, finding.help(help));
            }
        }
        for (index, fault) in bind(&maps, references.iter().map(|(.., reference)| reference)) {
            let (map, source, span) = &self.maps[index];
            let finding = match fault {
                MapFault::Cycle(names) => {
                    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
                    let message = format!("maps need each other: {}", names.join(", "));
                    ConfigFinding::new(span.clone(), message, "this map").help("break the circle".to_owned())
                }
                MapFault::Steps => {
                    let message = format!("a value of `{}` needs more than 256 steps through other maps", map.name());
                    ConfigFinding::new(span.clone(), message, "this map")
                        .help("use fewer maps in each other".to_owned())
                }
            };
            diagnostics.error(source, finding);
        }
    }

    /// The content of each secret's file.
    fn read_secrets(
        &self,
        references: &[(Arc<ConfigSource>, Range<usize>, ExpressionReference)],
        diagnostics: &mut Diagnostics,
    ) -> Vec<(&str, Secret)> {
        let is_used = |name: &str| {
            references.iter().any(
                |(.., reference)| matches!(reference, ExpressionReference::Secret(secret) if secret.name() == name),
            )
        };
        let mut secrets = Vec::new();
        for (name, file, source, span) in self.secrets.iter().filter(|(name, ..)| is_used(name)) {
            let (message, is_denied) = match read_secret(file) {
                Ok(content) => {
                    let secret = Secret::new(&content);
                    if !secret.is_empty() {
                        secrets.push((name.as_str(), secret));
                        continue;
                    }
                    ("the file is empty".to_owned(), false)
                }
                Err(error) => (error.to_string(), is_denied(&error)),
            };
            let finding = ConfigFinding::new(span.clone(), format!("{}: {message}", file.display()), "in this file");
            let help = "write the secret into the file, readable for the server's user alone".to_owned();
            diagnostics.error(source, finding.help(help).denied(is_denied));
        }
        secrets
    }
}

fn read_secret(file: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_regular(file)?.take(SECRET_BYTES_MAX + 1).read_to_end(&mut content)?;
    match content.len() as u64 > SECRET_BYTES_MAX {
        true => Err(io::Error::other("it has more than 64 KiB")),
        false => Ok(content),
    }
}
