//! Options of k6 as arguments of `tailor bench`.

use super::K6Script;
use crate::import::script::Expression;
use crate::import::values::{Evaluator, ScriptValue};

/// Translates the options.
pub(super) fn import(script: &mut K6Script, line: usize, options: &Expression) {
    let Expression::Table(options) = options else { return script.skip(line, "options that are no table") };
    for (name, value) in options {
        let value = match script.evaluate(value) {
            Ok(value) => value,
            Err(reason) => {
                script.skip(line, format!("the option {name}: {reason}"));
                continue;
            }
        };
        let text = script.text_of(value.clone()).unwrap_or_default();
        match (name.as_str(), &value) {
            ("vus", ScriptValue::Number(_)) => script.argument("-c", &text),
            ("duration", ScriptValue::Text(_)) => script.argument("-d", &text),
            ("iterations", ScriptValue::Number(_)) => script.argument("-n", &text),
            ("insecureSkipTLSVerify", ScriptValue::Bool(true)) => script.imported.arguments.push("-k".to_owned()),
            ("userAgent", ScriptValue::Text(_)) => script.argument("-H", &format!("'User-Agent: {text}'")),
            ("thresholds", ScriptValue::Table(thresholds)) => {
                for (name, conditions) in thresholds {
                    threshold(script, line, name, conditions);
                }
            }
            ("scenarios", ScriptValue::Table(scenarios)) => match scenarios.as_slice() {
                [(name, scenario)] => executor(script, line, name, scenario),
                _ => script.skip(line, "more than one scenario in the options"),
            },
            (name, _) => script.skip(line, format!("the option {name}")),
        }
    }
}

impl K6Script {
    fn argument(&mut self, option: &str, value: &str) {
        self.imported.arguments.extend([option.to_owned(), value.to_owned()]);
    }
}

/// Translates a scenario of the options: how many users or requests there are, and which function they execute.
fn executor(script: &mut K6Script, line: usize, name: &str, scenario: &ScriptValue) {
    let text = |name: &str| match scenario.member(name) {
        Some(ScriptValue::Text(text)) => Some(text.clone()),
        Some(ScriptValue::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let mut add = |option: &str, value: Option<String>| {
        if let Some(value) = value {
            script.argument(option, &value);
        }
    };
    match text("executor").as_deref() {
        Some("constant-vus") => {
            add("-c", text("vus"));
            add("-d", text("duration"));
        }
        Some("shared-iterations") => {
            add("-c", text("vus"));
            add("-n", text("iterations"));
        }
        Some("constant-arrival-rate") => {
            let unit = text("timeUnit").and_then(|unit| crate::units::parse_duration(&unit).ok());
            let unit = unit.map_or(1.0, |unit| unit.as_secs_f64());
            let rate = scenario.member("rate").and_then(ScriptValue::number).map(|rate| (rate / unit).to_string());
            add("-R", rate);
            add("-d", text("duration"));
            add("-c", text("maxVUs").or(text("preAllocatedVUs")));
        }
        executor => {
            let executor = executor.unwrap_or("without a name").to_owned();
            script.skip(line, format!("the scenario {name} with the executor {executor}"));
        }
    }
    if let Some(function) = text("exec") {
        script.executed.push(function);
    }
}

/// Translates the conditions of a metric.
fn threshold(script: &mut K6Script, line: usize, metric: &str, conditions: &ScriptValue) {
    let ScriptValue::Table(conditions) = conditions else {
        return script.skip(line, format!("the threshold {metric}"));
    };
    for (_, condition) in conditions {
        // A condition may be a table with more settings.
        let condition = match condition.member("threshold").unwrap_or(condition) {
            ScriptValue::Text(text) => text.replace(' ', ""),
            _ => String::new(),
        };
        match requirement(metric, &condition) {
            Some(requirement) => script.argument("--require", &requirement),
            None => script.skip(line, format!("the threshold {metric}: {condition}")),
        }
    }
}

/// Condition of `--require` for one of k6.
fn requirement(metric: &str, condition: &str) -> Option<String> {
    let at = condition.find(['<', '>'])?;
    let (quantity, bound) = condition.split_at(at);
    let relation_length = 1 + usize::from(bound[1..].starts_with('='));
    let (relation, bound) = bound.split_at(relation_length);
    let bound: f64 = bound.parse().ok()?;
    match (metric, quantity) {
        ("http_req_duration", "avg") => Some(format!("mean{relation}{bound}ms")),
        ("http_req_duration", "med") => Some(format!("p50{relation}{bound}ms")),
        ("http_req_duration", "max") => Some(format!("max{relation}{bound}ms")),
        ("http_req_duration", percentile) => {
            let percentile: f64 = percentile.strip_prefix("p(")?.strip_suffix(')')?.parse().ok()?;
            Some(format!("p{percentile}{relation}{bound}ms"))
        }
        ("http_req_failed", "rate") => Some(format!("failures{relation}{}%", bound * 100.0)),
        ("http_reqs", "rate") => Some(format!("rate{relation}{bound}")),
        ("http_reqs", "count") => Some(format!("served{relation}{bound}")),
        _ => None,
    }
}
