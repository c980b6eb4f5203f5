//! Conditions of statuses.

use serde_json::{Value, json};

/// A condition before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusCondition {
    pub(crate) kind: &'static str,
    pub(crate) status: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl StatusCondition {
    /// Condition that holds.
    pub(crate) fn yes(kind: &'static str, reason: &'static str) -> Self {
        Self { kind, status: true, reason, message: String::new() }
    }

    /// Condition that does not hold, with the cause.
    pub(crate) fn no(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, status: false, reason, message: message.into() }
    }

    /// Condition that holds, with a remark.
    pub(crate) fn noted(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { kind, status: true, reason, message: message.into() }
    }
}

/// Conditions in the form of the API. The time of a condition's last change stays while its status does.
pub(crate) fn conditions(new: &[StatusCondition], old: &Value, generation: i64, now: &str) -> Value {
    let one = |condition: &StatusCondition| {
        let status = if condition.status { "True" } else { "False" };
        let before = old.as_array().into_iter().flatten().find(|before| before["type"] == condition.kind);
        let since = before.filter(|before| before["status"] == status).and_then(|it| it["lastTransitionTime"].as_str());
        json!({
            "type": condition.kind,
            "status": status,
            "reason": condition.reason,
            "message": condition.message,
            "observedGeneration": generation,
            "lastTransitionTime": since.unwrap_or(now),
        })
    };
    new.iter().map(one).collect()
}

/// Entry of a list of a status by a field of it.
pub(crate) fn find(list: &Value, is: impl Fn(&Value) -> bool) -> &Value {
    list.as_array().into_iter().flatten().find(|entry| is(entry)).unwrap_or(&Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_change_stays_while_the_status_does() {
        let first = conditions(&[StatusCondition::yes("Accepted", "Accepted")], &Value::Null, 1, "t1");
        assert_eq!(first[0]["lastTransitionTime"], "t1");
        let again = conditions(&[StatusCondition::noted("Accepted", "Other", "text")], &first, 2, "t2");
        assert_eq!((&again[0]["lastTransitionTime"], &again[0]["observedGeneration"]), (&json!("t1"), &json!(2)));
        let changed = conditions(&[StatusCondition::no("Accepted", "Other", "text")], &again, 2, "t3");
        assert_eq!(changed[0]["lastTransitionTime"], "t3");
    }
}
