//! Maps: from a value to another, by a table.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::value::{Groups, Unknown};
use crate::{ExpressionReference, FactSource, Regex, Value};

/// Most steps that the value of a map may take, with those of the maps that it uses. Maps that use each other several
/// times could else take exponential time.
const STEPS_MAX: u64 = 256;

/// Most cases of a map that are compared one after another: regular expressions.
const REGEXES_MAX: usize = 1_000;

/// A table from values to values.
#[derive(Default)]
pub struct Map {
    name: String,
    input: Value,
    /// True if texts, starts and ends fit in any letter case of ASCII. Then the tables have them in lower case.
    ignores_case: bool,
    cases: Vec<(MapPattern, Value)>,
    default: Value,
    exact: HashMap<Box<[u8]>, usize>,
    prefixes: Affixes,
    suffixes: Affixes,
    regexes: Vec<(Regex, usize)>,
    /// Facts that depend on other maps, set when the map is bound.
    bound: OnceLock<Bound>,
}

/// Facts of a map that depend on the maps it uses.
#[derive(Clone, Copy, Debug, Default)]
struct Bound {
    /// Equal for maps of the same content, with that of the maps and secrets they use.
    fingerprint: u64,
    /// True if the operator has written all that the map gives.
    is_of_operator: bool,
}

/// Cases by lengths, longest first, and by text.
#[derive(Default)]
struct Affixes {
    lengths: Vec<usize>,
    values: HashMap<Box<[u8]>, usize>,
}

/// Pattern of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapPattern {
    /// This value.
    Exact(Vec<u8>),
    /// Values that begin so.
    Prefix(Vec<u8>),
    /// Values that end so.
    Suffix(Vec<u8>),
    /// Values that match.
    Regex(Regex),
}

/// A map that is being put together.
#[derive(Debug, Default)]
pub struct MapBuilder(Map);

/// Fault of a map among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapFault {
    /// The map needs its own value, by way of these maps.
    Cycle(Vec<String>),
    /// The value takes too many steps.
    Steps,
}

impl MapBuilder {
    /// A map of this name, for this value.
    pub fn new(name: &str, input: Value) -> Self {
        Self(Map { name: name.into(), input, ..Map::default() })
    }

    /// Lets exact texts, starts and ends fit in any letter case of ASCII. Must be called before the first case.
    pub fn ignore_case(&mut self) {
        self.0.ignores_case = true;
    }

    /// Adds a case; `false` if the map has it already, or has too many.
    pub fn case(&mut self, pattern: MapPattern, value: Value) -> bool {
        let map = &mut self.0;
        let index = map.cases.len();
        let ignores_case = map.ignores_case;
        let key = |text: &[u8]| if ignores_case { text.to_ascii_lowercase() } else { text.to_vec() };
        let is_new = match &pattern {
            MapPattern::Exact(text) => map.exact.insert(key(text).into(), index).is_none(),
            MapPattern::Prefix(text) => map.prefixes.add(key(text), index),
            MapPattern::Suffix(text) => map.suffixes.add(key(text), index),
            MapPattern::Regex(regex) => {
                let is_new = map.regexes.iter().all(|(other, _)| other != regex);
                map.regexes.push((regex.clone(), index));
                is_new && map.regexes.len() <= REGEXES_MAX
            }
        };
        map.cases.push((pattern, value));
        is_new
    }

    /// Sets the value for all other texts, which else is empty.
    pub fn default(&mut self, value: Value) {
        self.0.default = value;
    }

    /// The map.
    pub fn build(self) -> Arc<Map> {
        Arc::new(self.0)
    }
}

impl Affixes {
    fn add(&mut self, text: Vec<u8>, index: usize) -> bool {
        if let Err(at) = self.lengths.binary_search_by(|length| text.len().cmp(length)) {
            self.lengths.insert(at, text.len());
        }
        self.values.insert(text.into(), index).is_none()
    }

    fn find<'t>(&self, text: &'t [u8], part: impl Fn(&'t [u8], usize) -> &'t [u8]) -> Option<usize> {
        let mut lengths = self.lengths.iter().filter(|length| **length <= text.len());
        lengths.find_map(|length| self.values.get(part(text, *length)).copied())
    }
}

impl Map {
    /// Name of the map.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All values that the map can give.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.cases.iter().map(|(_, value)| value).chain([&self.default])
    }

    /// Returns `true` if the operator has written all that the map gives.
    pub(crate) fn is_of_operator(&self) -> bool {
        self.bound.get().is_some_and(|bound| bound.is_of_operator)
    }

    /// Equal for maps of the same content, with that of the maps and secrets they use.
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        self.bound.get().map(|bound| bound.fingerprint)
    }

    /// References of its values.
    pub fn references(&self) -> impl Iterator<Item = ExpressionReference> {
        self.input.references().chain(self.values().flat_map(Value::references))
    }

    /// The value for a request: the exact case first, then the longest start, the longest end, and the first regular
    /// expression that matches.
    pub(crate) fn read<'a>(&'a self, fields: &'a dyn FactSource) -> Result<Cow<'a, [u8]>, Unknown> {
        let input = self.input.read(fields, None)?;
        let has_other_case = self.ignores_case && input.iter().any(u8::is_ascii_uppercase);
        let lower = has_other_case.then(|| input.to_ascii_lowercase());
        let text = lower.as_deref().unwrap_or(&input);
        let found = self.exact.get(text).copied();
        let found = found.or_else(|| self.prefixes.find(text, |text, length| &text[..length]));
        let found = found.or_else(|| self.suffixes.find(text, |text, length| &text[text.len() - length..]));
        if let Some(index) = found {
            return self.cases[index].1.read(fields, None);
        }
        let Some((regex, index)) = self.regexes.iter().find(|(regex, _)| regex.get().is_match(&input)) else {
            return self.default.read(fields, None);
        };
        let value = &self.cases[*index].1;
        if !value.has_groups() {
            return value.read(fields, None);
        }
        let groups = Groups::of(regex.get(), &input);
        Ok(Cow::Owned(value.read(fields, groups.as_ref())?.into_owned()))
    }

    /// Content apart from that of other maps.
    fn content(&self) -> (&str, &Value, bool, &[(MapPattern, Value)], &Value) {
        (&self.name, &self.input, self.ignores_case, &self.cases, &self.default)
    }
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.content() == other.content()
    }
}

impl Eq for Map {}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.content().fmt(f)
    }
}

/// Binds references to these maps by name. Returns the faults, by the index of the map; nothing is bound then.
pub fn bind<'r>(
    maps: &[Arc<Map>],
    references: impl Iterator<Item = &'r ExpressionReference>,
) -> Vec<(usize, MapFault)> {
    let indices: HashMap<&str, usize> = maps.iter().enumerate().map(|(index, map)| (map.name(), index)).collect();
    let uses: Vec<Uses> = maps.iter().map(|map| Uses::of(map, &indices)).collect();
    let mut steps: Vec<Option<u64>> = vec![None; maps.len()];
    let mut faults = Vec::new();
    for index in 0..maps.len() {
        match count_steps(index, &uses, &mut steps, &mut Vec::new()) {
            Ok(count) if count > STEPS_MAX => faults.push((index, MapFault::Steps)),
            Ok(_) => {}
            // One fault for each cycle.
            Err(cycle) if cycle.iter().min() == Some(&index) => {
                let names = cycle.iter().map(|index| maps[*index].name().to_owned());
                faults.push((index, MapFault::Cycle(names.collect())));
            }
            Err(_) => {}
        }
    }
    if !faults.is_empty() {
        return faults;
    }
    // A map comes after those that it uses.
    let mut order: Vec<usize> = (0..maps.len()).collect();
    order.sort_by_key(|index| steps[*index]);
    for index in order {
        for reference in maps[index].references() {
            bind_one(&reference, maps, &indices);
        }
        let _ = maps[index].bound.set(Bound {
            fingerprint: fingerprint_of(&maps[index]),
            is_of_operator: maps[index].values().all(Value::is_of_operator),
        });
    }
    references.for_each(|reference| bind_one(reference, maps, &indices));
    faults
}

fn bind_one(reference: &ExpressionReference, maps: &[Arc<Map>], indices: &HashMap<&str, usize>) {
    if let ExpressionReference::Map(reference) = reference
        && let Some(index) = indices.get(reference.name())
    {
        reference.bind(&maps[*index]);
    }
}

fn fingerprint_of(map: &Map) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{map:?}").hash(&mut hasher);
    for reference in map.references() {
        match reference {
            ExpressionReference::Map(used) => used.get().and_then(|used| used.fingerprint()).hash(&mut hasher),
            ExpressionReference::Secret(secret) => secret.get().hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Indices of the maps that a map uses: for its input, and for each of its values.
struct Uses {
    input: Vec<usize>,
    values: Vec<Vec<usize>>,
}

impl Uses {
    fn of(map: &Map, indices: &HashMap<&str, usize>) -> Self {
        let of_value = |value: &Value| -> Vec<usize> {
            let maps = value.references().filter_map(|reference| match reference {
                ExpressionReference::Map(map) => indices.get(map.name()).copied(),
                ExpressionReference::Secret(_) => None,
            });
            maps.collect()
        };
        let values = map.values().map(of_value).filter(|uses| !uses.is_empty()).collect();
        Self { input: of_value(&map.input), values }
    }
}

/// Most steps for the value of a map, or the cycle that it leads into.
fn count_steps(
    index: usize,
    uses: &[Uses],
    steps: &mut [Option<u64>],
    path: &mut Vec<usize>,
) -> Result<u64, Vec<usize>> {
    if let Some(count) = steps[index] {
        return Ok(count);
    }
    if let Some(at) = path.iter().position(|on_path| *on_path == index) {
        return Err(path[at..].to_vec());
    }
    // Deeper chains take more steps than there may be.
    if path.len() as u64 > STEPS_MAX {
        return Ok(STEPS_MAX + 1);
    }
    path.push(index);
    let mut sum = |indices: &[usize], steps: &mut [Option<u64>]| {
        let mut sum = 0_u64;
        for next in indices {
            sum = sum.saturating_add(count_steps(*next, uses, steps, path)?);
        }
        Ok::<_, Vec<usize>>(sum)
    };
    let input = sum(&uses[index].input, steps)?;
    let mut longest = 0;
    for value in &uses[index].values {
        longest = longest.max(sum(value, steps)?);
    }
    path.pop();
    let count = 1_u64.saturating_add(input).saturating_add(longest);
    steps[index] = Some(count);
    Ok(count)
}
