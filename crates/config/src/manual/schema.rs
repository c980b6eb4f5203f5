//! A JSON schema of the configuration as data.

use serde_json::{Map, Value as Json, json};

use crate::options::{OptionContext, OptionDefinition, OptionSetter, ParameterShape, renamed};
use crate::value::{LOG_FORMATS, ValueKind};

/// Mapping of nodes to JSON: the schema's description.
const MAPPING: &str = "The configuration of Tailcoat as data. A file and a block are objects; an option is a member of \
    that name. An option with one value is that value, or a boolean if it is on or off. An option with several values of \
    one kind is an array. Any other option is an object. It has a member for each value, named as in the reference, and \
    for each option in its block. An option that may be repeated is an array of these, in order.";

/// The schema (JSON Schema, draft 2020-12) of the configuration as data; its `description` tells how KDL maps to it.
pub fn schema() -> String {
    let mut schema = block(OptionContext::Top);
    schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("title".into(), "Configuration of Tailcoat".into());
    schema.insert("description".into(), MAPPING.into());
    format!("{:#}\n", Json::Object(schema))
}

fn block(place: OptionContext) -> Map<String, Json> {
    let options: Map<String, Json> =
        place.options().map(|option| (option.name.to_owned(), Json::Object(option_schema(option)))).collect();
    let mut options = options;
    for old in renamed::OPTIONS {
        if let Some(Json::Object(mut schema)) = options.get(old.new).cloned() {
            deprecate(&mut schema, old.new);
            options.insert(old.old.into(), schema.into());
        }
    }
    let mut schema = Map::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), options.into());
    schema.insert("additionalProperties".into(), false.into());
    schema
}

/// Marks the schema of an old name.
fn deprecate(schema: &mut Map<String, Json>, new: &str) {
    schema.insert("deprecated".into(), true.into());
    schema.insert("description".into(), format!("Old name of `{new}`, until version 1.0.").into());
    schema.remove("examples");
}

fn option_schema(option: &OptionDefinition) -> Map<String, Json> {
    let one = node(option);
    let mut schema = if option.repeatable {
        json!({ "type": "array", "items": one }).as_object().cloned().unwrap_or_default()
    } else {
        one
    };
    schema.insert("description".into(), option.doc.into());
    schema.insert("examples".into(), json!([option.example]));
    schema
}

/// One node of this option.
fn node(option: &OptionDefinition) -> Map<String, Json> {
    match (option.set, option.parameters) {
        (OptionSetter::Block(_), _) | (_, [] | [_, _, ..]) => {}
        (_, [only]) if matches!(only.shape, ParameterShape::Many | ParameterShape::Any) => {
            return list(only.kind, only.shape);
        }
        (_, [only]) => return value(only.kind),
    }
    let mut schema = match option.set {
        OptionSetter::Block(place) => block(place),
        _ => json!({ "type": "object", "properties": {}, "additionalProperties": false })
            .as_object()
            .cloned()
            .unwrap_or_default(),
    };
    let mut required = Vec::new();
    if let Some(Json::Object(properties)) = schema.get_mut("properties") {
        for parameter in option.parameters {
            let parameter_schema = match parameter.shape {
                ParameterShape::Many | ParameterShape::Any => list(parameter.kind, parameter.shape),
                ParameterShape::One | ParameterShape::Optional | ParameterShape::Property => value(parameter.kind),
            };
            if matches!(parameter.shape, ParameterShape::One | ParameterShape::Many) {
                required.push(parameter.name);
            }
            // The root of `files` may be a property or an option in the block.
            let old = renamed::PROPERTIES.iter().find(|old| (old.option, old.new) == (option.name, parameter.name));
            if let Some(old) = old {
                let mut schema = parameter_schema.clone();
                deprecate(&mut schema, parameter.name);
                properties.insert(old.old.into(), schema.into());
            }
            properties.entry(parameter.name).or_insert(parameter_schema.into());
        }
    }
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    schema
}

fn list(kind: ValueKind, shape: ParameterShape) -> Map<String, Json> {
    let least = u8::from(shape == ParameterShape::Many);
    let mut schema = Map::new();
    schema.insert("type".into(), "array".into());
    schema.insert("items".into(), value(kind).into());
    schema.insert("minItems".into(), least.into());
    schema
}

fn value(kind: ValueKind) -> Map<String, Json> {
    let schema = match kind {
        ValueKind::Flag => json!({ "type": "boolean" }),
        ValueKind::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueKind::CountOrAuto { min, max } => {
            json!({ "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": min, "maximum": max }] })
        }
        ValueKind::Ratio => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        ValueKind::Ipv4Address => json!({ "type": "string", "format": "ipv4" }),
        ValueKind::Store => json!({ "type": "string" }),
        ValueKind::DiscoverySource => {
            json!({ "type": "string", "pattern": "^(srv:|consuls?://|docker:/|kubernetes://)" })
        }
        ValueKind::DiscoveredPort => json!({ "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": u16::MAX },
            { "type": "string" },
        ] }),
        ValueKind::Resolver => json!({ "type": "string" }),
        ValueKind::StoreEndpoint => json!({ "type": "string", "pattern": "^https?://" }),
        ValueKind::CollectorUrl => json!({ "type": "string", "pattern": "^https?://" }),
        ValueKind::Size { min, max } => json!({ "anyOf": [
            { "type": "integer", "minimum": min, "maximum": max },
            { "type": "string", "pattern": "^[0-9]+ ?(B|KiB|MiB|GiB|TiB)$" },
        ] }),
        ValueKind::SizeOrAuto { min, max } => json!({ "anyOf": [
            { "const": "auto" },
            { "type": "integer", "minimum": min, "maximum": max },
            { "type": "string", "pattern": "^[0-9]+ ?(B|KiB|MiB|GiB|TiB)$" },
        ] }),
        ValueKind::Duration { .. } => json!({ "type": "string", "pattern": "^[0-9]+ ?(ms|s|m|h|d)$" }),
        ValueKind::DurationOrAuto { .. } => json!({ "anyOf": [
            { "const": "auto" },
            { "type": "string", "pattern": "^[0-9]+ ?(ms|s|m|h|d)$" },
        ] }),
        ValueKind::Choice(words) => json!({ "enum": words }),
        ValueKind::Status { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueKind::RedirectStatus => json!({ "enum": [301, 302, 303, 307, 308] }),
        ValueKind::StatusRange => json!({ "anyOf": [
            { "type": "integer", "minimum": 400, "maximum": 599 },
            { "type": "string", "pattern": "^([45]xx|[45][0-9][0-9](-[45][0-9][0-9])?)$" },
        ] }),
        ValueKind::Listen => json!({ "anyOf": [
            { "type": "integer", "minimum": 0, "maximum": u16::MAX },
            { "type": "string" },
        ] }),
        ValueKind::Mode => json!({ "type": "string", "pattern": "^0?[0-7]{1,3}$" }),
        ValueKind::LogFormat => json!({ "anyOf": [{ "enum": LOG_FORMATS }, { "type": "string", "pattern": "\\{" }] }),
        ValueKind::SitePath => json!({ "type": "string", "pattern": "^(/|off$)" }),
        ValueKind::PathPrefix | ValueKind::RequestTarget => json!({ "type": "string", "pattern": "^/" }),
        ValueKind::HostSuffix => json!({ "type": "string", "pattern": "^\\." }),
        ValueKind::PathPattern => json!({ "type": "string", "pattern": "^[/*~]" }),
        ValueKind::ServerAddress => json!({ "type": "string", "pattern": "^(http://|tcp://|unix:)" }),
        ValueKind::HashKey => json!({ "type": "string", "pattern": "^(address|field:.+|cookie:.+)$" }),
        ValueKind::Rate => json!({ "type": "string", "pattern": "^[0-9]+/[smhd]$" }),
        ValueKind::LimitKey => {
            json!({ "type": "string", "pattern": "^(address|network|host|ja4|http2-fingerprint|asn|country|field:.+|cookie:.+)$" })
        }
        ValueKind::VariableName => json!({ "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" }),
        ValueKind::Text
        | ValueKind::GatewayTarget
        | ValueKind::ProgramUser
        | ValueKind::ServerUser
        | ValueKind::ProgramGroup
        | ValueKind::ForwardTarget
        | ValueKind::ForwardHost
        | ValueKind::UpgradeProtocol
        | ValueKind::ProxyName
        | ValueKind::OutgoingHost
        | ValueKind::EnvironmentName
        | ValueKind::CompiledDirectory
        | ValueKind::Host
        | ValueKind::FieldMatch
        | ValueKind::FieldName
        | ValueKind::FieldValue
        | ValueKind::Root
        | ValueKind::ErrorPageFile
        | ValueKind::FileName
        | ValueKind::File
        | ValueKind::FileGlob
        | ValueKind::Extension
        | ValueKind::MediaType
        | ValueKind::RedirectTarget
        | ValueKind::RewriteTarget
        | ValueKind::Methods
        | ValueKind::QueryTest
        | ValueKind::FieldTest
        | ValueKind::CookieName
        | ValueKind::CookieTest
        | ValueKind::SearchText
        | ValueKind::RequestFieldName
        | ValueKind::FieldTemplate(_)
        | ValueKind::Condition(_)
        | ValueKind::Expression(_)
        | ValueKind::MapPattern
        | ValueKind::Name
        | ValueKind::Client
        | ValueKind::PasswordFile
        | ValueKind::Origin
        | ValueKind::FieldCopies
        | ValueKind::LogTarget => json!({ "type": "string" }),
    };
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    schema.insert("description".into(), kind.describe().into());
    schema
}
