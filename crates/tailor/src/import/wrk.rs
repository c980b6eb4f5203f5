//! Lua scripts of wrk: constant requests, counters, and random choices from lists.

use std::collections::BTreeMap;

use super::script::{Expression, ScriptLanguage, Statement, StatementKind, parse};
use super::values::{Evaluator, ResponsePart, ScriptValue};
use super::{CHOICES_MAX, Imported, ImportedRequest, ImportedScenario, ImportedStep};
use crate::import::har::METHODS;

/// Imports a script.
pub(super) fn import(text: &str, name: &str) -> Result<Imported, String> {
    let statements = parse(text, ScriptLanguage::Lua)?;
    let mut script = WrkScript::default();
    let mut request = None;
    let mut delay = None;
    for statement in &statements {
        match &statement.kind {
            StatementKind::Function { name, body } => match name.as_str() {
                "request" => request = Some(body.as_slice()),
                "delay" => delay = Some((statement.line, body.as_slice())),
                name => script.skip(statement.line, format!("function {name}()")),
            },
            StatementKind::Assign { target, value: Expression::Function(_, body) } => match target.path().as_slice() {
                ["request"] => request = Some(body),
                ["delay"] => delay = Some((statement.line, body)),
                path => script.skip(statement.line, format!("function {}()", path.join("."))),
            },
            _ => script.execute(statement),
        }
    }
    let think = delay.and_then(|(line, body)| script.delay(line, body));
    // A random choice from a list becomes a scenario for each element.
    let globals = script.values.clone();
    let mut scenarios = Vec::new();
    for choice in 0..CHOICES_MAX {
        (script.values, script.choice) = (globals.clone(), choice);
        let mut steps = Vec::new();
        steps.extend(script.request(request.unwrap_or_default()).map(ImportedStep::Request));
        steps.extend(think.map(|seconds| ImportedStep::Think(seconds, seconds)));
        scenarios.push(steps);
        if choice + 1 >= script.choices {
            break;
        }
    }
    let count = scenarios.len();
    for (index, steps) in scenarios.into_iter().enumerate() {
        let name = if count == 1 { name.to_owned() } else { format!("{name} {}", index + 1) };
        script.imported.scenarios.push(ImportedScenario { name, steps });
    }
    Ok(script.imported)
}

#[derive(Default)]
struct WrkScript {
    imported: Imported,
    /// Values by name; members have dots in their names.
    values: BTreeMap<String, ScriptValue>,
    fields: Vec<(String, String)>,
    /// Number of this pass, which takes the element of this place from a list.
    choice: usize,
    /// Length of the list from which the script chooses.
    choices: usize,
}

impl WrkScript {
    fn skip(&mut self, line: usize, text: impl Into<String>) {
        self.imported.skip(Some(line), text);
    }

    /// Executes a statement outside of the functions, or one of `request`.
    fn execute(&mut self, statement: &Statement) {
        let result = match &statement.kind {
            StatementKind::Declare { name, value } => {
                let value = self.evaluate(value);
                value.map(|value| drop(self.values.insert(name.clone(), value)))
            }
            StatementKind::Assign { target, value } => self.assign(target, value),
            StatementKind::Evaluate(Expression::Call(function, arguments)) => match function.path().as_slice() {
                ["math", "randomseed"] => Ok(()),
                // Modules of the standard library do nothing by themselves.
                ["require"] if matches!(arguments.as_slice(), [Expression::Text(_)]) => Err("a module".to_owned()),
                path => Err(format!("{}()", path.join("."))),
            },
            StatementKind::Evaluate(_) => Ok(()),
            StatementKind::Return(_) | StatementKind::Function { .. } | StatementKind::Import => Ok(()),
            StatementKind::Other => Err("a statement that the import does not understand".to_owned()),
        };
        if let Err(reason) = result {
            self.skip(statement.line, reason);
        }
    }

    fn assign(&mut self, target: &Expression, value: &Expression) -> Result<(), String> {
        let path = target.path().join(".");
        if path.is_empty() {
            return Err("an assignment to an element".to_owned());
        }
        // `counter = counter + 1` is the number of the run.
        if let Expression::Binary("+", left, right) = value
            && left.path().join(".") == path
            && **right == Expression::Number(1.0)
        {
            self.values.insert(path, ScriptValue::Text("${run}".to_owned()));
            return Ok(());
        }
        let value = self.evaluate(value)?;
        match target.path().as_slice() {
            ["wrk", "headers"] => self.fields = self.entries(value)?,
            ["wrk", "headers", name] => {
                let name = (*name).to_owned();
                let text = self.text_of(value)?;
                self.fields.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
                self.fields.push((name, text));
            }
            _ => drop(self.values.insert(path, value)),
        }
        Ok(())
    }

    /// Translates the function `request`, or the constants of `wrk` without one.
    fn request(&mut self, body: &[Statement]) -> Option<ImportedRequest> {
        let own_fields = self.fields.clone();
        let (mut arguments, mut line) = (&[][..], 1);
        // A counter that grows after its use has the number of the run already before.
        for statement in body {
            if let StatementKind::Assign { target, value } = &statement.kind
                && matches!(value, Expression::Binary("+", left, _) if left.path() == target.path())
            {
                self.execute(statement);
            }
        }
        for statement in body {
            match &statement.kind {
                StatementKind::Return(Expression::Call(function, given)) if function.path() == ["wrk", "format"] => {
                    (arguments, line) = (given.as_slice(), statement.line);
                }
                StatementKind::Return(_) => {
                    self.skip(statement.line, "a request that wrk.format does not make");
                    return None;
                }
                _ => self.execute(statement),
            }
        }
        let request = self.format(arguments);
        self.fields = own_fields;
        request.map_err(|reason| self.skip(line, reason)).ok()
    }

    /// Request of `wrk.format`. Missing arguments are the constants of `wrk`.
    fn format(&mut self, arguments: &[Expression]) -> Result<ImportedRequest, String> {
        let mut values = Vec::new();
        for argument in arguments {
            values.push(self.evaluate(argument)?);
        }
        let take = |index: usize, name: &str| match values.get(index).cloned() {
            None | Some(ScriptValue::Nothing) => self.values.get(&format!("wrk.{name}")).cloned(),
            value => value,
        };
        let (method, path, fields, body) = (take(0, "method"), take(1, "path"), take(2, ""), take(3, "body"));
        let method = method.map_or(Ok("GET".to_owned()), |method| self.text_of(method))?;
        if !METHODS.contains(&method.as_str()) {
            return Err(format!("the method {method}"));
        }
        let path = path.map_or(Ok("/".to_owned()), |path| self.text_of(path))?;
        let fields = match fields {
            Some(fields) => self.entries(fields)?,
            None => self.fields.clone(),
        };
        let body = match body {
            None | Some(ScriptValue::Nothing) => None,
            Some(body) => Some(self.text_of(body)?),
        };
        let target = self.imported.target(&path)?;
        let fields = fields.into_iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-length")).collect();
        Ok(ImportedRequest { method, target, fields, body, ..ImportedRequest::default() })
    }

    /// Pause in seconds that the function `delay` returns in milliseconds.
    fn delay(&mut self, line: usize, body: &[Statement]) -> Option<f64> {
        let returned = body.iter().find_map(|statement| match &statement.kind {
            StatementKind::Return(value) => Some(value),
            _ => None,
        });
        let millis = returned.and_then(|value| self.evaluate(value).ok()).and_then(|value| value.number());
        if millis.is_none() {
            self.skip(line, "function delay() without a constant");
        }
        millis.map(|millis| millis / 1e3)
    }
}

impl Evaluator for WrkScript {
    fn name(&self, name: &str) -> Option<ScriptValue> {
        match name {
            // Its members are values of their own.
            "wrk" => {
                let member = |(path, value): (&String, &ScriptValue)| {
                    Some((path.strip_prefix("wrk.")?.to_owned(), value.clone()))
                };
                Some(ScriptValue::Table(self.values.iter().filter_map(member).collect()))
            }
            name => self.values.get(name).cloned(),
        }
    }

    fn call(&mut self, function: &Expression, arguments: &[Expression]) -> Result<ScriptValue, String> {
        match function.path().as_slice() {
            ["math", "random"] => {
                let is_length = |it: &Expression| matches!(it, Expression::Unary("#", _));
                match arguments {
                    [length] | [_, length] if is_length(length) => Ok(ScriptValue::RandomIndex),
                    [] => Ok(ScriptValue::Random(0.0, 1.0)),
                    _ => Ok(ScriptValue::Text("${random}".to_owned())),
                }
            }
            ["tostring"] => match arguments {
                [value] => self.text(value).map(ScriptValue::Text),
                _ => Err("tostring()".to_owned()),
            },
            path => Err(format!("{}()", path.join("."))),
        }
    }

    fn member(&mut self, _: ScriptValue, name: &str) -> Result<ScriptValue, String> {
        Err(format!("the member `{name}`"))
    }

    fn capture(&mut self, _: usize, _: &ResponsePart) -> Result<String, String> {
        Err("a part of a response".to_owned())
    }

    fn choose(&mut self, length: usize) -> Result<usize, String> {
        if length > CHOICES_MAX {
            return Err(format!("a choice from {length} values; at most {CHOICES_MAX}"));
        }
        if self.choices > 1 && self.choices != length {
            return Err("more than one random choice".to_owned());
        }
        self.choices = length;
        Ok(self.choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::write::to_kdl;

    /// Checks the scenario of a script, without its comments, and what is not translated.
    fn check(script: &str, expect: &str, untranslated: &[(usize, &str)]) {
        let imported = import(script, "s").unwrap();
        let text = to_kdl(&imported, "x");
        let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("//")).map(str::trim).collect();
        assert_eq!(text.join(" "), expect, "{script}");
        let skipped: Vec<_> = imported.untranslated.iter().map(|it| (it.line.unwrap_or(0), it.text.as_str())).collect();
        assert_eq!(skipped, untranslated, "{script}");
    }

    #[test]
    fn scripts() {
        check(
            "-- post.lua\nwrk.method = \"POST\"\nwrk.body   = \"foo=bar&baz=quux\"\nwrk.headers[\"Content-Type\"] = \"application/x-www-form-urlencoded\"",
            "scenario \"s\" { post \"/\" { header \"Content-Type\" \"application/x-www-form-urlencoded\" body \"foo=bar&baz=quux\" } }",
            &[],
        );
        check(
            "counter = 0\nrequest = function()\n   path = \"/\" .. counter\n   wrk.headers[\"X-Counter\"] = counter\n   counter = counter + 1\n   return wrk.format(nil, path)\nend",
            "scenario \"s\" { get \"/${run}\" { header \"X-Counter\" \"${run}\" } }",
            &[],
        );
        check(
            "local paths = { \"/a\", \"/b c\" }\nfunction request()\n  return wrk.format(\"GET\", paths[math.random(#paths)])\nend\nfunction delay()\n  return 500\nend",
            "scenario \"s 1\" { get \"/a\" think \"0.5s\" } scenario \"s 2\" { get \"/b%20c\" think \"0.5s\" }",
            &[],
        );
        check(
            "function response(status, headers, body)\n  print(status)\nend\ndone = function(summary)\n  io.write('x')\nend\nlocal json = require \"json\"\nrequest = function()\n  local id = math.random(1, 100)\n  if id > 5 then id = 1 end\n  return wrk.format('PUT', '/x?id=' .. id, { A = 'b' }, '{\"a\": \"${x}\"}')\nend",
            "scenario \"s\" { put \"/x?id=${random}\" { header \"A\" \"b\" body \"{\\\"a\\\": \\\"$${x}\\\"}\" } }",
            &[
                (1, "function response()"),
                (4, "function done()"),
                (7, "a statement that the import does not understand"),
                (10, "a statement that the import does not understand"),
            ],
        );
        check("wrk.path = '/x'\nwrk.method = 'PURGE'", "scenario \"s\" { }", &[(1, "the method PURGE")]);
    }
}
