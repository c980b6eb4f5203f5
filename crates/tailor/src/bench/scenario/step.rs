//! Requests of scenario files.

use std::collections::BTreeSet;

use kdl::KdlNode;
use regex::bytes::Regex;
use wire::http::Fields;

use super::{Parser, check_name};
use crate::bench::plan::parse_field;
use crate::engine::{
    CaptureSource, RequestTemplate, ResponseCapture, ResponseCheck, ScenarioStep, TemplatePart, ThinkTime,
    WorkloadRequest,
};
use crate::nodes;

impl Parser<'_> {
    /// Parses a request. `known` are the variables that have a value before it; those that it captures are added.
    pub(super) fn step(
        &mut self,
        node: &KdlNode,
        method: &str,
        think: ThinkTime,
        known: &mut BTreeSet<usize>,
    ) -> Result<ScenarioStep, String> {
        let target = nodes::argument(node)?;
        if !target.starts_with('/') {
            return Err(format!("the path `{target}` must begin with `/`; the server is that of the URL"));
        }
        if target.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) {
            return Err(format!("the path `{target}` has a byte that must be written as %XX"));
        }
        let mut step = ScenarioStep {
            name: format!("{method} {target}"),
            request: self.requests.len() as u32,
            think,
            method: method.to_owned(),
            target: self.template(&target, known)?,
            fields: Vec::new(),
            body: None,
            contains: Vec::new(),
            captures: Vec::new(),
        };
        let mut fields = self.common.clone();
        let mut check = ResponseCheck::default();
        for child in nodes::children(node) {
            self.at(child, |parser| {
                match (child.name().value(), nodes::arguments(child).as_slice()) {
                    ("name", [name]) => step.name.clone_from(name),
                    ("header", [name, value]) => {
                        let (name, value) = parse_field(&format!("{name}: {value}"))
                            .ok_or_else(|| format!("`{name}: {value}` is not a field"))?;
                        fields.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
                        fields.push((name, value));
                    }
                    ("body", [text]) => step.body = Some(parser.template(text, known)?),
                    ("expect", []) => expect(child, &mut check, &mut step.contains)?,
                    ("capture", [name]) => {
                        check_name(name)?;
                        let variable = parser.variables.number(name);
                        step.captures.push(ResponseCapture { name: name.clone(), variable, source: source(child)? });
                    }
                    (name @ ("name" | "header" | "body" | "expect" | "capture"), values) => {
                        return Err(format!("`{name}` does not take {} values", values.len()));
                    }
                    (other, _) => {
                        return Err(format!(
                            "unknown node `{other}`; use name, header, body, expect or capture within a request"
                        ));
                    }
                }
                Ok(())
            })?;
        }
        for (name, value) in fields {
            let value = self.template(&value, known)?;
            step.fields.push((name, value));
        }
        known.extend(step.captures.iter().map(|capture| capture.variable));
        self.requests.push(WorkloadRequest::new(method, "/", &Fields::new(), b"", check));
        Ok(step)
    }

    /// Parses a text with variables: `${name}`, or `${name:url}` with percent encoding. `$${` stands for `${`.
    fn template(&mut self, text: &str, known: &BTreeSet<usize>) -> Result<RequestTemplate, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(before) = before.strip_suffix('$') {
                parts.push(TemplatePart::Text(format!("{before}${{").into()));
                rest = after;
                continue;
            }
            let (place, after) = after.split_once('}').ok_or_else(|| format!("`{text}`: `${{` has no `}}`"))?;
            rest = after;
            if !before.is_empty() {
                parts.push(TemplatePart::Text(before.into()));
            }
            let (name, form) = place.split_once(':').map_or((place, None), |(name, form)| (name, Some(form)));
            if let Some(form) = form.filter(|form| *form != "url") {
                return Err(format!("`${{{place}}}`: unknown form `{form}`; there is `url`"));
            }
            parts.push(match name {
                "run" => TemplatePart::Run,
                "random" => TemplatePart::Random,
                name => {
                    let variable = self.variables.0.iter().position(|it| it == name).filter(|it| known.contains(it));
                    let variable = variable.ok_or_else(|| {
                        format!("`{name}` has no value here: no column of data has this name, and no earlier request captures it")
                    })?;
                    if form.is_some() { TemplatePart::Encoded(variable) } else { TemplatePart::Variable(variable) }
                }
            });
        }
        if !rest.is_empty() {
            parts.push(TemplatePart::Text(rest.into()));
        }
        Ok(RequestTemplate(parts))
    }
}

/// Parses the conditions of an `expect`, which stand in properties.
fn expect(node: &KdlNode, check: &mut ResponseCheck, contains: &mut Vec<String>) -> Result<(), String> {
    if node.entries().is_empty() {
        return Err("`expect` needs status=, length=, header= or contains=".to_owned());
    }
    for entry in node.entries() {
        let name = entry.name().map_or("", |name| name.value());
        let text = nodes::property(node, name).unwrap_or_default();
        match name {
            "status" => {
                for status in text.split(',') {
                    let status = status.trim();
                    let code = status.parse().ok().filter(|code| (100..600).contains(code));
                    check.statuses.push(code.ok_or_else(|| format!("`{status}` is not a status"))?);
                }
            }
            "length" => {
                let length = text.parse().map_err(|_| format!("`{text}` is not a number of bytes"))?;
                check.length_bytes = Some(length);
            }
            "header" => check.fields.push(match text.split_once(':') {
                Some((name, value)) => (name.trim().into(), Some(value.trim().into())),
                None => (text.trim().into(), None),
            }),
            "contains" if text.is_empty() => return Err("`contains` needs a text".to_owned()),
            "contains" => contains.push(text),
            other => return Err(format!("unknown property `{other}`; use status, length, header or contains")),
        }
    }
    Ok(())
}

/// Parses the place of a captured value.
fn source(node: &KdlNode) -> Result<CaptureSource, String> {
    let property = |name| nodes::property(node, name);
    match (property("json"), property("regex"), property("header")) {
        (Some(pointer), None, None) => match pointer.is_empty() || pointer.starts_with('/') {
            true => Ok(CaptureSource::Json(pointer)),
            false => Err(format!("json=`{pointer}`: a JSON pointer begins with `/`, such as /user/id or /items/0")),
        },
        (None, Some(regex), None) => Regex::new(&regex)
            .map(|regex| CaptureSource::Regex(Box::new(regex)))
            .map_err(|error| format!("regex=`{regex}`: {error}")),
        (None, None, Some(name)) => Ok(CaptureSource::Field(name)),
        _ => Err("`capture` needs json=, regex= or header=, and only one of them".to_owned()),
    }
}
