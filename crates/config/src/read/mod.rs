//! KDL nodes against the table of options: names, places, numbers and kinds of values.

mod bots;
mod caching;
pub(crate) mod draft;
mod environment;
pub(crate) mod expressions;
pub(crate) mod reuse;
pub(crate) mod rules;
pub(crate) mod text_map;

use std::ops::Range;
use std::sync::Arc;

use crate::diagnostic::{ConfigFinding, ConfigSource, Diagnostics};
use crate::manual::lookup::one_of_places;
use crate::options::{
    OptionContext, OptionDefinition, OptionSetter, Parameter, ParameterShape, foreign, places_of, renamed, spellings,
};
use crate::parts::OptionalPart;
use crate::suggest::nearest;
use crate::text::kdl::{KdlDocument, KdlEntry, KdlValue, ParsedNode};
use crate::value::{self, Values};

/// Reads the nodes of one text, and notes all that is wrong.
pub(crate) struct ConfigReader<'a> {
    /// The text.
    pub(crate) source: Arc<ConfigSource>,
    pub(crate) diagnostics: &'a mut Diagnostics,
}

/// A node that is an option, with its values.
pub(crate) struct Setting<'d> {
    pub(crate) option: &'static OptionDefinition,
    pub(crate) values: Values,
    /// Span of its name.
    pub(crate) span: Range<usize>,
    /// True if its values are valid.
    pub(crate) is_whole: bool,
    pub(crate) children: Option<&'d KdlDocument>,
}

impl ConfigReader<'_> {
    /// The options of a block. What is wrong is noted and left out, so that one run finds all.
    pub(crate) fn read<'d>(&mut self, document: &'d KdlDocument, place: OptionContext) -> Vec<Setting<'d>> {
        let mut settings: Vec<Setting<'d>> = Vec::new();
        for node in &document.nodes {
            let mut setting = match &node.origin {
                None => self.setting(node, place),
                Some(origin) => {
                    ConfigReader { source: origin.source.clone(), diagnostics: self.diagnostics }.setting(node, place)
                }
            };
            // Places of later findings are in the text of the block.
            let elsewhere = node.origin.as_ref().filter(|origin| !Arc::ptr_eq(&origin.source, &self.source));
            if let (Some(setting), Some(origin)) = (&mut setting, elsewhere) {
                setting.span = origin.used_at.clone();
                setting.values.list.iter_mut().for_each(|(.., span)| *span = origin.used_at.clone());
            }
            let Some(setting) = setting else { continue };
            let option = setting.option;
            if !option.repeatable
                && let Some(first) = settings.iter().find(|first| first.option.name == option.name)
            {
                let finding =
                    ConfigFinding::new(setting.span, format!("`{}` is given twice", option.name), "again here")
                        .related(self.source.clone(), first.span.clone(), "first here")
                        .help("keep one of them".to_owned());
                self.error(finding);
                continue;
            }
            if let Some(places) = &mut self.diagnostics.places {
                places.add(&self.source, place, node, (option, setting.span.clone()));
            }
            settings.push(setting);
        }
        settings
    }

    fn setting<'d>(&mut self, node: &'d ParsedNode, place: OptionContext) -> Option<Setting<'d>> {
        let option = self.option(&node.name, node.span.clone(), place)?;
        let values = self.read_values(node, option);
        self.check_block(node, option);
        let is_whole = values.is_some();
        // A block whose own values are wrong is read all the same, to find what is wrong inside.
        let values = values.or_else(|| matches!(option.set, OptionSetter::Block(_)).then(Values::default))?;
        Some(Setting { option, values, span: node.span.clone(), is_whole, children: node.children.as_ref() })
    }

    /// Notes an error.
    pub(crate) fn error(&mut self, finding: ConfigFinding) {
        self.diagnostics.error(&self.source, finding);
    }

    /// Notes a warning.
    pub(crate) fn warning(&mut self, finding: ConfigFinding) {
        self.diagnostics.warning(&self.source, finding);
    }

    /// The option of this name, or of the new name that it has got. Notes old and unknown names.
    fn option(&mut self, name: &str, span: Range<usize>, place: OptionContext) -> Option<&'static OptionDefinition> {
        let option = place.option(name).or_else(|| place.option(renamed::new_option(name)?));
        match option {
            Some(option) if option.name != name => self.old_name("option", name, option.name, span.clone()),
            Some(_) => {}
            None => self.unknown_option(name, span.clone(), place),
        }
        if let Some(part) = option.and_then(|option| part_of(option.name, place)).filter(|part| !part.is_built()) {
            self.error(ConfigFinding::new(span, part.absence_message(), "needs it").help(part.absence_help()));
        }
        option
    }

    fn old_name(&mut self, kind: &str, old: &str, new: &str, span: Range<usize>) {
        let help = format!("write `{new}`, or run `tailcoat fmt`; `{old}` stops working in version 1.0");
        self.warning(
            ConfigFinding::new(span, format!("the {kind} `{old}` is now called `{new}`"), "old name").help(help),
        );
    }

    fn unknown_option(&mut self, name: &str, span: Range<usize>, place: OptionContext) {
        let shown: String = name.chars().take(64).collect();
        // The nearest name takes time to find, and what is not shown needs none.
        let help = (!self.diagnostics.is_full()).then(|| help_for_unknown(name, place));
        self.error(
            ConfigFinding::new(span, format!("unknown option `{shown}` {}", place.describe()), "unknown").help(help),
        );
    }

    /// A block where none can be, or none where there must be one.
    fn check_block(&mut self, node: &ParsedNode, option: &OptionDefinition) {
        let takes_block = matches!(option.set, OptionSetter::Block(_));
        let name = node.span.clone();
        if takes_block && node.children.is_none() {
            // `files "/a/*" root="/b"` and `scgi "/a/*" "unix:/b"` need none.
            let has_property = option.parameters.iter().any(|parameter| parameter.shape == ParameterShape::Property);
            if !option.is_block_optional && !has_property && option.parameters.len() < 2 {
                let help = format!("write `{}`", option.example);
                self.error(
                    ConfigFinding::new(name, format!("`{}` needs a block", option.name), "no `{` follows").help(help),
                );
            }
        } else if !takes_block && node.children.is_some() {
            let help = format!("write, for example, `{}`", option.example);
            self.error(
                ConfigFinding::new(name, format!("`{}` has no block", option.name), "a block follows").help(help),
            );
        }
    }

    /// The values of a node; `None` if one was wrong.
    fn read_values(&mut self, node: &ParsedNode, option: &'static OptionDefinition) -> Option<Values> {
        let arguments: Vec<_> = node.entries.iter().filter(|entry| entry.name.is_none()).collect();
        let mut values = self.read_arguments(node, option, &arguments);
        let mut given: Vec<(&str, Range<usize>)> = Vec::new();
        for entry in &node.entries {
            let Some(name) = entry.name.as_ref().map(|name| name.text.as_str()) else { continue };
            let parameter = self.property(option, name, entry);
            let name = parameter.map_or(name, |parameter| parameter.name);
            let again = given.iter().find(|(known, _)| *known == name).map(|(_, first)| first.clone());
            if let Some(first) = again {
                let finding = ConfigFinding::new(entry.span.clone(), format!("`{name}` is given twice"), "again here")
                    .related(self.source.clone(), first, "first here");
                self.error(finding);
                values = None;
            }
            given.push((name, entry.span.clone()));
            let value = parameter.and_then(|parameter| self.read_value(option, parameter, entry));
            values = values.zip(value).map(|(mut values, value)| {
                values.list.push(value);
                values
            });
        }
        values
    }

    fn property(&mut self, option: &OptionDefinition, name: &str, entry: &KdlEntry) -> Option<&'static Parameter> {
        let property = |name: &str| {
            option
                .parameters
                .iter()
                .find(|parameter| parameter.shape == ParameterShape::Property && parameter.name == name)
        };
        let found = property(name).or_else(|| property(renamed::new_property(option.name, name)?));
        if let Some(found) = found.filter(|found| found.name != name) {
            let span = entry.name.as_ref().map_or(&entry.span, |name| &name.span).clone();
            self.old_name("property", name, found.name, span);
        }
        if found.is_none() {
            let message = format!("`{}` has no property `{name}`", option.name);
            let help = help_for_property(name, option);
            self.error(ConfigFinding::new(entry.span.clone(), message, "unknown").help(help));
        }
        found
    }

    /// The arguments, each given to a parameter.
    fn read_arguments(
        &mut self,
        node: &ParsedNode,
        option: &'static OptionDefinition,
        arguments: &[&KdlEntry],
    ) -> Option<Values> {
        let Some(parameters) = assign(option.parameters, arguments.len()) else {
            self.wrong_count(node, option, arguments);
            return None;
        };
        if let Some((entry, advice)) = self.foreign_last_word(option, &parameters, arguments) {
            let message = format!("`{}` has a word of another server", option.name);
            self.error(ConfigFinding::new(entry.span.clone(), message, "this").help(advice.to_owned()));
            return None;
        }
        // All are read before the first that is wrong counts, so that all errors are found.
        let read: Vec<_> = parameters
            .into_iter()
            .zip(arguments)
            .map(|(parameter, entry)| self.read_value(option, parameter, entry))
            .collect();
        read.into_iter().collect::<Option<Vec<_>>>().map(|list| Values { list })
    }

    /// The last argument, if it is a word of another server and makes the first one look like an optional path, as in
    /// `response-header "X-A" "b" always`.
    fn foreign_last_word<'e>(
        &self,
        option: &OptionDefinition,
        parameters: &[&'static Parameter],
        arguments: &[&'e KdlEntry],
    ) -> Option<(&'e KdlEntry, &'static str)> {
        let (parameter, first) = (parameters.first()?, arguments.first()?);
        let is_misread = parameter.shape == ParameterShape::Optional
            && value::parse(parameter.kind, &first.value, &self.source.directory).is_err();
        let last = arguments.last().filter(|_| is_misread && arguments.len() > 1)?;
        Some((*last, advice(option, last)?))
    }

    fn wrong_count(&mut self, node: &ParsedNode, option: &OptionDefinition, arguments: &[&KdlEntry]) {
        let positional: Vec<_> = option.parameters.iter().filter(|one| one.shape != ParameterShape::Property).collect();
        let example = format!("write, for example, `{}`", option.example);
        let foreign = arguments.iter().find_map(|entry| Some((*entry, advice(option, entry)?)));
        let required =
            positional.iter().filter(|one| matches!(one.shape, ParameterShape::One | ParameterShape::Many)).count();
        let finding = match arguments.get(positional.len()) {
            Some(surplus) if arguments.len() >= required => {
                let surplus = foreign.map_or(*surplus, |(entry, _)| entry);
                let message = match positional.len() {
                    0 => format!("`{}` takes no values", option.name),
                    1 => format!("`{}` takes one value", option.name),
                    count => format!("`{}` takes at most {count} values", option.name),
                };
                ConfigFinding::new(surplus.span.clone(), message, "one too many")
            }
            _ => {
                let names: Vec<_> = positional
                    .iter()
                    .filter(|one| matches!(one.shape, ParameterShape::One | ParameterShape::Many))
                    .map(|one| one.name)
                    .collect();
                let message = format!("`{}` needs {}", option.name, value::all_of(&names));
                ConfigFinding::new(node.span.clone(), message, "values are missing")
            }
        };
        self.error(finding.help(foreign.map_or(example, |(_, advice)| advice.to_owned())));
    }

    fn read_value(
        &mut self,
        option: &OptionDefinition,
        parameter: &'static Parameter,
        entry: &KdlEntry,
    ) -> Option<(&'static str, value::OptionValue, Range<usize>)> {
        let read = environment::replaced(parameter.kind, &entry.value).and_then(|replaced| {
            value::parse(parameter.kind, replaced.as_ref().unwrap_or(&entry.value), &self.source.directory)
        });
        match read {
            Ok(value) => {
                let place = |reference| (self.source.clone(), entry.span.clone(), reference);
                self.diagnostics.references.extend(value.references().into_iter().map(place));
                Some((parameter.name, value, entry.span.clone()))
            }
            Err(wrong) => {
                let foreign = advice(option, entry).filter(|_| parameter.shape != ParameterShape::Property);
                // `on` tells nothing about the kind of value.
                let is_word = matches!(entry.value.as_string(), Some("on" | "off"));
                let example = is_word.then(|| format!("write, for example, `{}`", option.example));
                let help = foreign.map(str::to_owned).or(example).or(wrong.help);
                let span = wrong.at.and_then(|at| self.within(entry, at)).unwrap_or(entry.span.clone());
                let finding = ConfigFinding::new(span, wrong.message, "this");
                self.error(finding.help(help).denied(wrong.is_denied));
                None
            }
        }
    }
}

impl ConfigReader<'_> {
    /// Place of a part of a text value; `None` if the value has escapes, so that its bytes are elsewhere.
    fn within(&self, entry: &KdlEntry, at: Range<usize>) -> Option<Range<usize>> {
        let (text, written) = (entry.value.as_string()?, self.source.text.get(entry.span.clone())?);
        let start = entry.span.start + written.find(text)?;
        let at = start + at.start..start + at.end;
        self.source.text.get(at.clone()).map(|_| at)
    }
}

/// Part of the product that an option belongs to, if a build can leave it out.
fn part_of(option: &str, place: OptionContext) -> Option<OptionalPart> {
    match (option, place) {
        ("automatic-certificates", OptionContext::Top) => Some(OptionalPart::Acme),
        ("traces", OptionContext::Top) => Some(OptionalPart::Traces),
        ("modules", OptionContext::Top) | ("module", OptionContext::Site) => Some(OptionalPart::Modules),
        _ => None,
    }
}

/// Parameter of each argument; `None` if there are too few or too many. Optional parameters take the surplus, from the
/// left.
fn assign(parameters: &'static [Parameter], count: usize) -> Option<Vec<&'static Parameter>> {
    let required =
        parameters.iter().filter(|one| matches!(one.shape, ParameterShape::One | ParameterShape::Many)).count();
    let mut surplus = count.checked_sub(required)?;
    let mut assigned = Vec::new();
    for parameter in parameters {
        let (least, takes) = match parameter.shape {
            ParameterShape::One => (1, 0),
            ParameterShape::Optional => (0, surplus.min(1)),
            ParameterShape::Many => (1, surplus),
            ParameterShape::Any => (0, surplus),
            ParameterShape::Property => (0, 0),
        };
        surplus -= takes;
        assigned.extend(std::iter::repeat_n(parameter, least + takes));
    }
    (surplus == 0).then_some(assigned)
}

/// Advice for an argument that is written as in another server.
fn advice(option: &OptionDefinition, entry: &KdlEntry) -> Option<&'static str> {
    match &entry.value {
        KdlValue::String(text) => text.split_whitespace().find_map(|word| spellings::advice(option.name, word)),
        KdlValue::Integer(number) => spellings::advice(option.name, &number.to_string()),
        _ => None,
    }
}

/// Help for an unknown property: often it is an option of the block, or of a block around it.
fn help_for_property(name: &str, option: &OptionDefinition) -> String {
    if let Some(advice) = spellings::advice(option.name, name) {
        return advice.to_owned();
    }
    let is_meant = |other: &&OptionDefinition| other.name == name || renamed::new_option(name) == Some(other.name);
    let of = |place: OptionContext| place.options().find(is_meant).or_else(|| option_known_as(name, place.options()));
    if let OptionSetter::Block(inner) = option.set
        && let Some(meant) = of(inner)
    {
        return format!("use `{}` in the block of `{}`: `{}`", meant.name, option.name, meant.example);
    }
    // Many names of other servers have another meaning outside of a block.
    let is_narrow = |place: &OptionContext| !matches!(place, OptionContext::Top | OptionContext::Site);
    let around = places_of(option.name).into_iter().filter(is_narrow).find_map(|place| Some((of(place)?, place)));
    let elsewhere = || OptionContext::ALL.into_iter().find_map(|place| Some((place.options().find(is_meant)?, place)));
    if let Some((meant, place)) = around.or_else(elsewhere) {
        return format!("use `{}` {}: `{}`", meant.name, place.describe(), meant.example);
    }
    let names: Vec<_> =
        option.parameters.iter().filter(|one| one.shape == ParameterShape::Property).map(|one| one.name).collect();
    match (names.as_slice(), nearest(name, &names)) {
        ([], _) => format!("it has no properties; write, for example, `{}`", option.example),
        (_, Some(near)) => format!("did you mean `{near}`?"),
        _ => format!("it has {}", value::one_of(&names)),
    }
}

fn help_for_unknown(name: &str, place: OptionContext) -> String {
    let known: Vec<_> = place.options().map(|option| option.name).collect();
    let elsewhere: Vec<_> = OptionContext::ALL.into_iter().flat_map(OptionContext::options).collect();
    if place == OptionContext::Site && matches!(name, "location" | "Location") {
        return "a handler has a path: write `files \"/a/*\" root=\"/srv/a\"` or `forward \"http://127.0.0.1:3000\" \
                path=\"/a/*\"`"
            .to_owned();
    }
    if let Some(option) = option_known_as(name, place.options()) {
        return format!("`{name}` is `{}` here", option.name);
    }
    let belongs = |option: &str| {
        let places: Vec<_> = places_of(option).into_iter().map(OptionContext::describe).collect();
        format!("use `{option}` {}", one_of_places(&places))
    };
    if elsewhere.iter().any(|option| option.name == name) {
        return belongs(name);
    }
    if let Some(option) = option_known_as(name, elsewhere.iter().copied()) {
        return format!("`{name}` is `{}` here; {}", option.name, belongs(option.name));
    }
    if let Some(note) = foreign::note(name) {
        return format!("`{name}` of {}: {}", note.server, note.answer);
    }
    // In a Caddyfile, a block begins with the name of its site.
    if place == OptionContext::Top && name.contains(['.', ':']) {
        return format!("write `site \"{name}\" {{ … }}`");
    }
    if let Some(name) = nearest(name, &known) {
        return format!("did you mean `{name}`?");
    }
    let names: Vec<_> = elsewhere.iter().map(|option| option.name).collect();
    match nearest(name, &names) {
        Some(name) => belongs(name),
        None => format!("options {} are {}", place.describe(), value::all_of(&known)),
    }
}

/// The option that this name of another server means: of several, the one that lists it earliest.
fn option_known_as(
    name: &str,
    options: impl Iterator<Item = &'static OptionDefinition>,
) -> Option<&'static OptionDefinition> {
    let found = options.filter_map(|option| Some((option.known_as.position(name)?, option)));
    found.min_by_key(|(position, _)| *position).map(|(_, option)| option)
}
