//! Scripts of k6: requests, checks, pauses and values of responses in a fixed order.

mod options;

use std::collections::BTreeMap;

use super::har::METHODS;
use super::script::{Expression, ScriptLanguage, Statement, StatementKind, parse};
use super::values::{Evaluator, ResponsePart, ScriptValue};
use super::write::{encode_form, json_text};
use super::{CHOICES_MAX, Imported, ImportedCapture, ImportedRequest, ImportedScenario, ImportedStep};

/// Imports a script.
pub(super) fn import(text: &str) -> Result<Imported, String> {
    let statements = parse(text, ScriptLanguage::JavaScript)?;
    let mut script = K6Script::default();
    let mut functions = Vec::new();
    for statement in &statements {
        match &statement.kind {
            StatementKind::Import => {}
            StatementKind::Function { name, body } => functions.push((statement.line, name.as_str(), body.as_slice())),
            StatementKind::Declare { name, value: Expression::Function(_, body) } => {
                functions.push((statement.line, name, body));
            }
            StatementKind::Declare { name, value } if name == "options" => {
                options::import(&mut script, statement.line, value);
            }
            _ => script.execute(statement),
        }
    }
    for (line, name, _) in &functions {
        if *name != "default" && !script.executed.iter().any(|it| it == name) {
            script.skip(*line, format!("function {name}()"));
        }
    }
    let globals = script.values.clone();
    for (_, name, body) in functions {
        if name != "default" && !script.executed.iter().any(|it| it == name) {
            continue;
        }
        let mut scenarios = Vec::new();
        script.choices = 0;
        // A random choice from a list becomes a scenario for each element.
        for choice in 0..CHOICES_MAX {
            (script.values, script.choice) = (globals.clone(), choice);
            script.block(body);
            scenarios.push(std::mem::take(&mut script.steps));
            if choice + 1 >= script.choices {
                break;
            }
        }
        let count = scenarios.len();
        for (index, steps) in scenarios.into_iter().enumerate() {
            let name = if count == 1 { name.to_owned() } else { format!("{name} {}", index + 1) };
            script.imported.scenarios.push(ImportedScenario { name, steps });
        }
    }
    Ok(script.imported)
}

#[derive(Default)]
pub(super) struct K6Script {
    pub(super) imported: Imported,
    values: BTreeMap<String, ScriptValue>,
    steps: Vec<ImportedStep>,
    /// Functions other than the default that scenarios of the options execute.
    executed: Vec<String>,
    /// Number of this pass, which takes the element of this place from a list.
    choice: usize,
    /// Length of the list from which the script chooses.
    choices: usize,
}

impl K6Script {
    fn skip(&mut self, line: usize, text: impl Into<String>) {
        self.imported.skip(Some(line), text);
    }

    fn block(&mut self, statements: &[Statement]) {
        statements.iter().for_each(|statement| self.execute(statement));
    }

    fn execute(&mut self, statement: &Statement) {
        let result = match &statement.kind {
            StatementKind::Declare { name, value } => self.declare(name, value),
            StatementKind::Assign { target, value } => match target.path().as_slice() {
                [name] => self.declare(name, value),
                _ => Err("an assignment to a member".to_owned()),
            },
            StatementKind::Evaluate(expression) => self.effect(expression),
            StatementKind::Return(_) => Err("return".to_owned()),
            StatementKind::Function { name, .. } => Err(format!("function {name}()")),
            StatementKind::Import => Ok(()),
            StatementKind::Other => Err("a statement that the import does not understand".to_owned()),
        };
        if let Err(reason) = result {
            self.skip(statement.line, reason);
        }
    }

    fn declare(&mut self, name: &str, value: &Expression) -> Result<(), String> {
        let mut value = self.evaluate(value)?;
        if let ScriptValue::Response(request, part @ (ResponsePart::Json(_) | ResponsePart::Header(_))) = &value {
            value = ScriptValue::Text(format!("${{{}}}", self.capture_as(*request, part, name)?));
        }
        self.values.insert(name.to_owned(), value);
        Ok(())
    }

    /// Executes an expression whose value is not used.
    fn effect(&mut self, expression: &Expression) -> Result<(), String> {
        let Expression::Call(function, arguments) = expression else {
            return Err("an expression without an effect".to_owned());
        };
        match (function.path().as_slice(), arguments.as_slice()) {
            (["sleep"], [time]) => self.sleep(time),
            (["check"], [response, checks, ..]) => self.check(response, checks),
            (["group"], [_, Expression::Function(_, body)]) => {
                self.block(body);
                Ok(())
            }
            (["http", "batch"], [requests]) => self.batch(requests),
            (["console", ..], _) => Ok(()),
            (["http", ..], _) => self.evaluate(expression).map(drop),
            (path, _) => Err(format!("{}()", path.join("."))),
        }
    }

    fn sleep(&mut self, time: &Expression) -> Result<(), String> {
        let (min, max) = match self.evaluate(time)? {
            ScriptValue::Random(min, max) => (min, max),
            value => {
                let seconds = value.number().ok_or("a pause that is not known before the run")?;
                (seconds, seconds)
            }
        };
        self.steps.push(ImportedStep::Think(min.max(0.0), max.max(0.0)));
        Ok(())
    }

    /// Sends a request: `http.post(url, body, params)`.
    fn request(&mut self, method: &str, arguments: &[Expression]) -> Result<ScriptValue, String> {
        let has_body = !matches!(method, "GET" | "HEAD");
        let mut arguments = arguments.iter();
        let url = arguments.next().ok_or("a request without a URL")?;
        let url = self.text(url)?;
        // A GET has its parameters in the place of the body.
        let body = match if has_body { arguments.next() } else { None } {
            Some(body) => self.evaluate(body)?,
            None => ScriptValue::Nothing,
        };
        let parameters = match arguments.next() {
            Some(parameters) => self.evaluate(parameters)?,
            None => ScriptValue::Nothing,
        };
        self.send(method, &url, body, &parameters)
    }

    fn send(
        &mut self,
        method: &str,
        url: &str,
        body: ScriptValue,
        parameters: &ScriptValue,
    ) -> Result<ScriptValue, String> {
        if !METHODS.contains(&method) {
            return Err(format!("the method {method}"));
        }
        let target = self.imported.target(url)?;
        let fields = parameters.member("headers").cloned().unwrap_or(ScriptValue::Nothing);
        let mut fields = self.entries(fields)?;
        fields.retain(|(name, _)| !name.eq_ignore_ascii_case("content-length"));
        let body = match body {
            ScriptValue::Nothing => None,
            ScriptValue::Table(_) => {
                let pairs = self.entries(body)?;
                let pairs: Vec<String> =
                    pairs.iter().map(|(name, value)| format!("{}={}", encode_form(name), encode_form(value))).collect();
                if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
                    fields.push(("Content-Type".into(), "application/x-www-form-urlencoded".into()));
                }
                Some(pairs.join("&"))
            }
            body => Some(self.text_of(body)?),
        };
        let request = ImportedRequest { method: method.to_owned(), target, fields, body, ..Default::default() };
        self.steps.push(ImportedStep::Request(request));
        Ok(ScriptValue::Response(self.steps.len() - 1, ResponsePart::Whole))
    }

    /// Sends requests that k6 would send at the same time.
    fn batch(&mut self, requests: &Expression) -> Result<(), String> {
        let ScriptValue::Table(requests) = self.evaluate(requests)? else {
            return Err("http.batch()".to_owned());
        };
        for (_, request) in requests {
            let text = |value: Option<&ScriptValue>| match value {
                Some(ScriptValue::Text(text)) => Some(text.clone()),
                _ => None,
            };
            let nothing = ScriptValue::Nothing;
            let (method, url, body, parameters) = match &request {
                ScriptValue::Text(url) => (Some("GET".to_owned()), Some(url.clone()), None, None),
                table if table.member("url").is_some() => (
                    text(table.member("method")),
                    text(table.member("url")),
                    table.member("body"),
                    table.member("params"),
                ),
                table => (text(table.member("0")), text(table.member("1")), table.member("2"), table.member("3")),
            };
            let (Some(method), Some(url)) = (method, url) else { return Err("a request of http.batch()".to_owned()) };
            self.send(&method, &url, body.unwrap_or(&nothing).clone(), parameters.unwrap_or(&nothing))?;
        }
        Err("the requests of http.batch() follow one after the other".to_owned())
    }

    /// Translates the conditions of a `check`. The error names those that have no translation.
    fn check(&mut self, response: &Expression, checks: &Expression) -> Result<(), String> {
        let ScriptValue::Response(request, ResponsePart::Whole) = self.evaluate(response)? else {
            return Err("a check of something other than a response".to_owned());
        };
        let Expression::Table(checks) = checks else { return Err("a check that is no table".to_owned()) };
        let mut skipped = Vec::new();
        for (name, check) in checks {
            let returned = match check {
                Expression::Function(parameters, body) => match (parameters.as_slice(), body.as_slice()) {
                    ([parameter], [Statement { kind: StatementKind::Return(value), .. }]) => Some((parameter, value)),
                    _ => None,
                },
                _ => None,
            };
            let is_translated = returned.is_some_and(|(parameter, value)| {
                let Some(ImportedStep::Request(request)) = self.steps.get_mut(request) else { return false };
                let mut changed = request.clone();
                let is_translated = add_condition(&mut changed, parameter, value);
                if is_translated {
                    *request = changed;
                }
                is_translated
            });
            if !is_translated {
                skipped.push(format!("`{name}`"));
            }
        }
        if skipped.is_empty() { Ok(()) } else { Err(format!("the check {}", skipped.join(", "))) }
    }

    /// Adds a capture to a request. Returns the name of its variable.
    fn capture_as(&mut self, request: usize, part: &ResponsePart, name: &str) -> Result<String, String> {
        let capture = match part {
            ResponsePart::Json(pointer) => ImportedCapture::Json(pointer.clone()),
            ResponsePart::Header(field) => ImportedCapture::Header(field.clone()),
            ResponsePart::Whole | ResponsePart::Fields => return Err("a whole response as a value".to_owned()),
        };
        let Some(ImportedStep::Request(request)) = self.steps.get_mut(request) else {
            return Err("a value of an earlier pass".to_owned());
        };
        if !request.captures.iter().any(|(known, _)| known == name) {
            request.captures.push((name.to_owned(), capture));
        }
        Ok(name.to_owned())
    }
}

/// Adds a condition such as `r.status === 200` to a request. Returns false if it has no translation.
fn add_condition(request: &mut ImportedRequest, parameter: &str, condition: &Expression) -> bool {
    match condition {
        Expression::Binary("&&", left, right) => {
            add_condition(request, parameter, left) && add_condition(request, parameter, right)
        }
        // A text that is not empty counts as true.
        Expression::Call(function, arguments) => match (function.path().as_slice(), arguments.as_slice()) {
            ([name, "body", "includes"], [Expression::Text(text)]) if *name == parameter && !text.is_empty() => {
                request.contains.push(text.clone());
                true
            }
            _ => false,
        },
        Expression::Binary("===" | "==", left, right) => match (left.path().as_slice(), &**right) {
            ([name, "status"], Expression::Number(status)) if *name == parameter && (100.0..600.0).contains(status) => {
                request.statuses = vec![*status as u16];
                true
            }
            ([name, "body", "length"], Expression::Number(length)) if *name == parameter && *length >= 0.0 => {
                request.length = Some(*length as u64);
                true
            }
            ([name, "headers", field], Expression::Text(value)) if *name == parameter => {
                request.header = Some(format!("{field}: {value}"));
                true
            }
            _ => false,
        },
        Expression::Binary("!==" | "!=" | ">" | ">=", left, right) => match &**left {
            Expression::Call(function, arguments) => match (function.path().as_slice(), arguments.as_slice()) {
                // `indexOf(text) !== -1`
                ([name, "body", "indexOf"], [Expression::Text(text)]) if *name == parameter && !text.is_empty() => {
                    let is_absent = matches!(&**right, Expression::Unary("-", one) if **one == Expression::Number(1.0));
                    if is_absent {
                        request.contains.push(text.clone());
                    }
                    is_absent
                }
                _ => false,
            },
            _ => false,
        },
        _ => false,
    }
}

impl Evaluator for K6Script {
    fn name(&self, name: &str) -> Option<ScriptValue> {
        match name {
            "__ITER" => Some(ScriptValue::Text("${run}".to_owned())),
            // Variables of the environment have the defaults that the script gives them.
            "__ENV" => Some(ScriptValue::Table(Vec::new())),
            name => self.values.get(name).cloned(),
        }
    }

    fn call(&mut self, function: &Expression, arguments: &[Expression]) -> Result<ScriptValue, String> {
        if let Expression::Member(base, member) = function
            && let Expression::Text(method) = &**member
            && (method == "json" || method == "toString")
        {
            return match (self.evaluate(base)?, method.as_str(), arguments) {
                (ScriptValue::Response(request, ResponsePart::Whole), "json", []) => {
                    Ok(ScriptValue::Response(request, ResponsePart::Json(String::new())))
                }
                (ScriptValue::Response(request, ResponsePart::Whole), "json", [Expression::Text(path)]) => {
                    let pointer = format!("/{}", path.replace(".#.", ".0.").replace('.', "/"));
                    Ok(ScriptValue::Response(request, ResponsePart::Json(pointer)))
                }
                (value, "toString", []) => Ok(value),
                _ => Err(format!("{method}()")),
            };
        }
        match (function.path().as_slice(), arguments) {
            (["http", "request"], [method, rest @ ..]) => {
                let method = self.text(method)?;
                self.request(&method.to_ascii_uppercase(), rest)
            }
            (["http", "del"], rest) => self.request("DELETE", rest),
            (["http", method @ ("get" | "head" | "post" | "put" | "patch" | "options")], rest) => {
                self.request(&method.to_ascii_uppercase(), rest)
            }
            (["JSON", "stringify"], [value, ..]) => {
                let value = self.evaluate(value)?;
                self.json(&value).map(ScriptValue::Text)
            }
            (["JSON", "parse"], [body]) => match self.evaluate(body)? {
                ScriptValue::Response(request, ResponsePart::Json(pointer)) if pointer.is_empty() => {
                    Ok(ScriptValue::Response(request, ResponsePart::Json(pointer)))
                }
                _ => Err("JSON.parse()".to_owned()),
            },
            (["encodeURIComponent"], [value]) => self.text(value).map(|text| ScriptValue::Text(encode_form(&text))),
            (["Math", "random"], []) => Ok(ScriptValue::Random(0.0, 1.0)),
            (["Math", "floor" | "round" | "ceil"], [value]) => match value {
                // `Math.floor(Math.random() * list.length)` is the index of an element.
                Expression::Binary("*", random, length)
                    if matches!(&**random, Expression::Call(function, _) if function.path() == ["Math", "random"])
                        && matches!(length.path().as_slice(), [.., "length"]) =>
                {
                    Ok(ScriptValue::RandomIndex)
                }
                value => self.evaluate(value),
            },
            (["randomIntBetween"], [low, high]) => match (self.evaluate(low)?, self.evaluate(high)?) {
                (ScriptValue::Number(low), ScriptValue::Number(high)) => Ok(ScriptValue::Random(low, high)),
                _ => Err("randomIntBetween()".to_owned()),
            },
            (["randomItem"], [list]) => match self.evaluate(list)? {
                ScriptValue::Table(entries) => {
                    let chosen = self.choose(entries.len())?;
                    Ok(entries.get(chosen).map_or(ScriptValue::Nothing, |(_, value)| value.clone()))
                }
                _ => Err("randomItem()".to_owned()),
            },
            (path, _) => Err(format!("{}()", path.join("."))),
        }
    }

    fn member(&mut self, base: ScriptValue, name: &str) -> Result<ScriptValue, String> {
        match (base, name) {
            (ScriptValue::Response(request, ResponsePart::Whole), "headers") => {
                Ok(ScriptValue::Response(request, ResponsePart::Fields))
            }
            // Only JSON.parse() uses the body.
            (ScriptValue::Response(request, ResponsePart::Whole), "body") => {
                Ok(ScriptValue::Response(request, ResponsePart::Json(String::new())))
            }
            (ScriptValue::Response(request, ResponsePart::Fields), name) => {
                Ok(ScriptValue::Response(request, ResponsePart::Header(name.to_owned())))
            }
            (ScriptValue::Response(request, ResponsePart::Json(pointer)), name) => {
                Ok(ScriptValue::Response(request, ResponsePart::Json(format!("{pointer}/{name}"))))
            }
            (_, name) => Err(format!("the member `{name}`")),
        }
    }

    fn capture(&mut self, request: usize, part: &ResponsePart) -> Result<String, String> {
        let last = match part {
            ResponsePart::Json(pointer) => pointer.rsplit('/').next().unwrap_or_default(),
            ResponsePart::Header(field) => field,
            ResponsePart::Whole | ResponsePart::Fields => "",
        };
        let name: String = last.chars().filter(char::is_ascii_alphanumeric).collect();
        self.capture_as(request, part, &format!("value-{request}-{name}"))
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

impl K6Script {
    /// Formats a value as JSON.
    fn json(&mut self, value: &ScriptValue) -> Result<String, String> {
        Ok(match value {
            ScriptValue::Text(text) => json_text(text),
            ScriptValue::Number(number) => number.to_string(),
            ScriptValue::Bool(is_true) => is_true.to_string(),
            ScriptValue::Nothing => "null".to_owned(),
            // Digits need no quotes.
            ScriptValue::Random(..) | ScriptValue::RandomIndex => "${random}".to_owned(),
            ScriptValue::Response(..) => json_text(&self.text_of(value.clone())?),
            ScriptValue::Table(entries) => {
                let is_list =
                    !entries.is_empty() && entries.iter().enumerate().all(|(at, (key, _))| *key == at.to_string());
                let mut parts = Vec::new();
                for (key, value) in entries {
                    let value = self.json(value)?;
                    parts.push(if is_list {
                        value
                    } else {
                        format!("{}:{value}", json_text(&super::write::literal(key)))
                    });
                }
                let parts = parts.join(",");
                if is_list { format!("[{parts}]") } else { format!("{{{parts}}}") }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::write::to_kdl;

    /// Checks the scenario of a script with the line of its command, and what is not translated.
    fn check(script: &str, expect: &str, untranslated: &[(usize, &str)]) {
        let imported = import(script).unwrap();
        let text = to_kdl(&imported, "x");
        let is_wanted = |line: &&str| !line.starts_with("// Imported") && !line.starts_with("// not");
        let text: Vec<&str> = text.lines().filter(is_wanted).map(str::trim).collect();
        assert_eq!(text.join(" ").replace("// tailor bench --scenario FILE ", ""), expect, "{script}");
        let skipped: Vec<_> = imported.untranslated.iter().map(|it| (it.line.unwrap_or(0), it.text.as_str())).collect();
        assert_eq!(skipped, untranslated, "{script}");
    }

    #[test]
    fn requests_checks_and_pauses() {
        check(
            "import http from 'k6/http';\nimport { check, sleep } from 'k6';\nexport const options = { vus: 10, duration: '30s' };\n\
             const base = __ENV.BASE || 'http://a.example:8080';\n\
             export default function () {\n  const res = http.get(`${base}/x?q=a b`, { headers: { 'X-A': 'b' } });\n\
               check(res, {\n    'status was 200': (r) => r.status == 200,\n    'text': (r) => r.body.includes('hello'),\n    'fast': (r) => r.timings.duration < 200,\n  });\n\
               sleep(Math.random() * 2 + 1);\n  group('more', () => {\n    http.post(base + '/form', { a: 'b c', n: 1 });\n  });\n  console.log('x');\n  sleep(1);\n}",
            "-c 10 -d 30s http://a.example:8080 scenario \"default\" { get \"/x?q=a%20b\" { header \"X-A\" \"b\" expect status=\"200\" expect contains=\"hello\" } \
             think \"1s\" \"3s\" post \"/form\" { header \"Content-Type\" \"application/x-www-form-urlencoded\" body \"a=b%20c&n=1\" } think \"1s\" }",
            &[(7, "the check `fast`")],
        );
    }

    #[test]
    fn values_of_responses() {
        check(
            "export default function () {\n  const login = http.post('https://b/login', JSON.stringify({ user: 'a\"b', n: [1, true] }), { headers: { 'Content-Type': 'application/json' } });\n\
               const token = login.json('data.token');\n  const etag = login.headers['Etag'];\n  const id = JSON.parse(login.body).id;\n\
               http.get(`https://b/me/${login.json().user}`, { headers: { Authorization: `Bearer ${token}`, 'If-Match': etag } });\n  http.del('https://b/' + id);\n  http.get('https://c/');\n}",
            "https://b scenario \"default\" { post \"/login\" { header \"Content-Type\" \"application/json\" body \"{\\\"user\\\":\\\"a\\\\\\\"b\\\",\\\"n\\\":[1,true]}\" \
             capture \"token\" json=\"/data/token\" capture \"etag\" header=\"Etag\" capture \"id\" json=\"/id\" capture \"value-0-user\" json=\"/user\" } \
             get \"/me/${value-0-user}\" { header \"Authorization\" \"Bearer ${token}\" header \"If-Match\" \"${etag}\" } delete \"/${id}\" }",
            &[(8, "its server is not https://b")],
        );
    }

    #[test]
    fn choices_options_and_the_rest() {
        check(
            "export let options = {\n  stages: [{ duration: '1m', target: 10 }],\n  thresholds: { http_req_duration: ['p(95)<500', 'avg<100'], http_req_failed: ['rate<0.01'], checks: ['rate>0.9'] },\n\
               insecureSkipTLSVerify: true,\n};\nconst paths = ['/a', '/b'];\nexport function setup() { return 1 }\n\
             export default () => {\n  http.get('http://h' + paths[Math.floor(Math.random() * paths.length)]);\n  for (let i = 0; i < 3; i++) {\n    http.get('http://h/loop');\n  }\n}",
            "--require 'p95<500ms' --require 'mean<100ms' --require 'failures<1%' -k http://h scenario \"default 1\" { get \"/a\" } scenario \"default 2\" { get \"/b\" }",
            &[
                (1, "the option stages"),
                (1, "the threshold checks: rate>0.9"),
                (7, "function setup()"),
                (10, "a statement that the import does not understand"),
            ],
        );
        check(
            "export const options = { scenarios: { open: { executor: 'constant-arrival-rate', rate: 50, timeUnit: '1s', duration: '30s', preAllocatedVUs: 20, exec: 'visit' },\n\
             } };\nexport function visit() { http.get('http://h/'); }",
            "-R 50 -d 30s -c 20 http://h scenario \"visit\" { get \"/\" }",
            &[],
        );
    }
}
