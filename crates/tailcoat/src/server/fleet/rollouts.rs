//! Orders of operators about rollouts: they read and write the record in the store.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tailcoat_fleet::{
    Expected, MemberRecord, ROLLOUT_KEY, Rollout, RolloutHealth, RolloutSettings, RolloutStage, StoreReply,
    StoreRequest,
};
use tailcoat_store::{Measured, StoreError};

use super::thread::carry_out;
use crate::status::StatusReport;

/// Age of a record above which its instance takes no part in a rollout that begins.
const AGE_MAX: Duration = Duration::from_secs(20);

/// Order about rollouts.
#[derive(Debug)]
pub(in crate::server) enum RolloutOrder {
    /// Begin a rollout of this configuration; `None` is that of each instance's file.
    Start(Option<String>, RolloutSettings),
    /// End the rollout in progress: instances return to the configuration before.
    Stop,
    /// Report the latest rollout.
    Status,
}

/// Carries an order out; returns text for the operator. `skew_ms` is the own clock less the engine's, `latest` the latest rollout
/// that this instance knows.
pub(super) async fn obey(
    store: &Measured,
    order: RolloutOrder,
    skew_ms: Option<i64>,
    latest: Option<Rollout>,
) -> Result<String, String> {
    let failed = |error: StoreError| format!("{error}; {}", error.advice());
    let known = read(store).await.map_err(failed)?;
    let (rollout, version) = known.map_or((None, None), |(rollout, version)| (Some(rollout), Some(version)));
    let next = match order {
        RolloutOrder::Status => {
            let members = members(store).await.map_err(failed)?;
            return Ok(rollout.map_or_else(|| "no rollout yet\n".to_owned(), |rollout| describe(&rollout, &members)));
        }
        RolloutOrder::Stop => {
            let stopped = rollout.as_ref().and_then(|rollout| rollout.stopped("stopped by an operator"));
            stopped.ok_or_else(|| "no rollout is in progress".to_owned())?
        }
        RolloutOrder::Start(text, settings) => {
            let now = unix_ms();
            let age = |record: &MemberRecord| {
                // The record may have any numbers.
                let own = (now as i64).saturating_sub(skew_ms.unwrap_or(0));
                let other = (record.unix_ms as i64).saturating_sub(record.skew_ms.unwrap_or(0));
                Duration::from_millis(own.saturating_sub(other).max(0).unsigned_abs())
            };
            let mut members = members(store).await.map_err(failed)?;
            members.retain(|record| age(record) <= AGE_MAX);
            let ids: Vec<String> = members.into_iter().map(|record| record.id).collect();
            // A store that was wiped does not know to which configuration instances return.
            let lost = latest.filter(|_| rollout.is_none()).map(Rollout::ended);
            Rollout::begin(rollout.or(lost).as_ref(), text, &ids, settings, now / 1_000)?
        }
    };
    let expect = version.map_or(Expected::Absent, Expected::Version);
    let value = serde_json::to_vec(&next).map_err(|error| error.to_string())?;
    match carry_out(store, StoreRequest::Put { key: ROLLOUT_KEY.to_owned(), value, expect }).await {
        Ok(StoreReply::Done(_)) if next.stage == RolloutStage::Returned => {
            Ok(format!("rollout {} is stopped: all instances return to the configuration before\n", next.number))
        }
        Ok(StoreReply::Done(_)) => {
            Ok(format!("rollout {} has started; first instances: {}\n", next.number, next.first.join(", ")))
        }
        Ok(_) => Err("another instance has changed the rollout meanwhile; see `tailcoat rollout status`".to_owned()),
        Err(error) => Err(failed(error)),
    }
}

async fn read(store: &Measured) -> Result<Option<(Rollout, String)>, StoreError> {
    match carry_out(store, StoreRequest::Get(ROLLOUT_KEY.to_owned())).await? {
        StoreReply::Entry(Some((value, version))) => {
            let rollout = serde_json::from_slice(&value).map_err(|error| StoreError::Wrong(error.to_string()))?;
            Ok(Some((rollout, version)))
        }
        _ => Ok(None),
    }
}

async fn members(store: &Measured) -> Result<Vec<MemberRecord>, StoreError> {
    let reply = carry_out(store, StoreRequest::List("members".to_owned())).await?;
    let StoreReply::Entries(entries) = reply else { return Ok(Vec::new()) };
    let records = entries.iter().filter_map(|(_, value)| serde_json::from_slice::<MemberRecord>(value).ok());
    let mut records: Vec<MemberRecord> = records.collect();
    records.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    Ok(records)
}

/// State of a rollout and its instances, for people.
fn describe(rollout: &Rollout, members: &[MemberRecord]) -> String {
    let Rollout { number, first, watch_seconds, .. } = rollout;
    let what = if rollout.text.is_some() { "a configuration" } else { "each instance's file" };
    let state = match (rollout.stage, &rollout.reason) {
        (RolloutStage::First, _) => format!("the first {} instances, for at least {watch_seconds} s", first.len()),
        (RolloutStage::All, _) => format!("all instances, for at least {watch_seconds} s"),
        (RolloutStage::Done, _) => "done".to_owned(),
        (RolloutStage::Returned, reason) => format!("returned: {}", reason.as_deref().unwrap_or("no reason")),
    };
    let mut text = format!("rollout {number} of {what}: {state}\n");
    for record in members {
        let report = record.report.rollout.as_ref();
        let report = report.filter(|report| (report.number, report.stage) == (*number, rollout.stage));
        let result = match report.map(|report| &report.result) {
            Some(Some(Ok(()))) => match rollout.text_for(&record.id) == rollout.text.as_ref() {
                true => "has it".to_owned(),
                false => "has the configuration before".to_owned(),
            },
            Some(Some(Err(reason))) => format!("rejects it: {reason}"),
            Some(None) | None => "no report yet".to_owned(),
        };
        let health = report.map_or_else(RolloutHealth::default, |report| report.health);
        let role = if first.contains(&record.id) { " (first)" } else { "" };
        text += &format!(
            "{}{role}   {result}   {} of {} responses with 5xx   {} of {} servers of upstreams failed\n",
            record.name, health.server_errors, health.requests, health.failed_servers, health.servers
        );
    }
    text
}

/// Health of this instance since its start.
pub(super) fn health_of(status: &StatusReport) -> RolloutHealth {
    let servers = || status.upstreams.iter().flat_map(|upstream| &upstream.servers);
    RolloutHealth {
        requests: status.requests_answered(),
        server_errors: status.requests_of_class("5xx"),
        servers: servers().count() as u64,
        failed_servers: servers().filter(|server| ["failing", "down"].contains(&server.health.as_str())).count() as u64,
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}
