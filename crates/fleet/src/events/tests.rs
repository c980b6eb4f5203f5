//! Tests of ordered events.

use super::*;
use crate::simulation::network::SimulatedStore;

const POLL: Duration = Duration::from_millis(250);

/// Lets an instance act until nothing is due; returns what it applies.
fn drive(log: &mut EventLog, store: &mut SimulatedStore, now: InstanceTime) -> Vec<Heard> {
    let mut all = Vec::new();
    while let Some(mut request) = log.poll(now, 0, false) {
        loop {
            let reply = Ok(store.carry_out(request, 0));
            all.extend(log.handle_reply(now, false, &mut || format!("epoch at {now:?}"), reply));
            match log.creation() {
                Some(creation) => request = creation,
                None => break,
            }
        }
    }
    all
}

/// After the store was wiped, another instance learns of a purge within a second, however many came before.
#[test]
fn a_wiped_store_is_noticed_within_a_second() {
    let mut store = SimulatedStore::default();
    let mut logs = ["one", "other"].map(|name| EventLog::new(name, POLL, None));
    let mut now = InstanceTime::ZERO;
    for number in 0..500_u32 {
        let topic = number.is_multiple_of(100).then(|| format!("ban {number}"));
        logs[0].publish(0, topic, None, number.to_string()).unwrap();
        now += POLL;
        logs.iter_mut().for_each(|log| _ = drive(log, &mut store, now));
    }
    store.wipe();
    logs[0].publish(0, None, None, "after".to_owned()).unwrap();
    assert!(matches!(drive(&mut logs[0], &mut store, now)[..], [Heard::Resync]));
    let (begun, mut heard) = (now, Vec::new());
    let is_last = |heard: &Heard| matches!(heard, Heard::Event(event) if event.payload == "after");
    while !heard.iter().any(is_last) {
        now += Duration::from_millis(10);
        assert!(now - begun < Duration::from_secs(1), "{heard:?}");
        heard.extend(drive(&mut logs[1], &mut store, now));
    }
    // Purges before it went by the resync; bans are published again.
    let payloads = heard.iter().filter_map(|heard| match heard {
        Heard::Event(event) => Some(event.payload.as_str()),
        Heard::Resync => None,
    });
    assert_eq!(payloads.collect::<Vec<_>>(), ["0", "100", "200", "300", "400", "after"]);
    assert_eq!(heard[0], Heard::Resync);
}

/// Values of another program: each costs two reads, and no event after them is lost.
#[test]
fn values_of_another_program_are_skipped() {
    let mut store = SimulatedStore::default();
    let mut logs = ["one", "other"].map(|name| EventLog::new(name, POLL, None));
    let mut now = InstanceTime::ZERO;
    logs.iter_mut().for_each(|log| _ = drive(log, &mut store, now));
    let long = |name: &str| format!(r#"{{"{name}":"{}"}}"#, "x".repeat(10_000));
    let foreign = [
        Vec::new(),
        b"{".to_vec(),
        b"[]".to_vec(),
        vec![0xff; 100],
        long("origin").into_bytes(),
        serde_json::to_vec(&FleetEvent {
            origin: "x".repeat(ORIGIN_BYTES_MAX + 1),
            number: 1,
            unix_ms: 0,
            topic: None,
            until_unix_ms: None,
            payload: String::new(),
        })
        .unwrap(),
    ];
    for (round, value) in foreign.iter().enumerate() {
        // Several in a row, and each before an event.
        for _ in 0..=round {
            store.put_next_event(value.clone());
        }
        logs[0].publish(0, None, None, format!("purge {round}")).unwrap();
        now += POLL;
        logs.iter_mut().for_each(|log| _ = drive(log, &mut store, now));
    }
    logs[0].publish(0, None, None, "last".to_owned()).unwrap();
    now += POLL;
    drive(&mut logs[0], &mut store, now);
    let heard = drive(&mut logs[1], &mut store, now + POLL);
    assert!(matches!(&heard[..], [Heard::Event(event)] if event.payload == "last"), "{heard:?}");
    let skipped = (1..=foreign.len() as u64).sum::<u64>();
    assert_eq!(logs.each_ref().map(EventLog::skipped), [skipped; 2]);
    assert_eq!(logs[0].waiting(), 0);
}

/// A read that was wrong once loses no event.
#[test]
fn a_wrong_read_is_repeated() {
    let mut store = SimulatedStore::default();
    let mut logs = ["one", "other"].map(|name| EventLog::new(name, POLL, None));
    logs.iter_mut().for_each(|log| _ = drive(log, &mut store, InstanceTime::ZERO));
    logs[0].publish(0, None, None, "purge".to_owned()).unwrap();
    drive(&mut logs[0], &mut store, POLL);
    let request = logs[1].poll(POLL, 0, false).unwrap();
    let StoreReply::Entry(Some((_, version))) = store.carry_out(request, 0) else { panic!("the event") };
    let wrong = Ok(StoreReply::Entry(Some((b"<html>".to_vec(), version))));
    assert_eq!(logs[1].handle_reply(POLL, false, &mut String::new, wrong), []);
    assert_eq!(drive(&mut logs[1], &mut store, POLL).len(), 1);
    assert_eq!(logs[1].skipped(), 0);
}

/// A `meta` of another program is replaced, at once by an instance that knows the events.
#[test]
fn a_meta_of_another_program_is_replaced() {
    let number = |number: u64| format!(r#"{{"epoch":"a","oldest":{number},"removed":1}}"#).into_bytes();
    for value in [Vec::new(), b"{".to_vec(), number(u64::MAX), number(0), number(NUMBER_MAX + 1)] {
        let mut store = SimulatedStore::default();
        let mut logs = ["one", "other"].map(|name| EventLog::new(name, POLL, None));
        let mut now = InstanceTime::ZERO;
        logs.iter_mut().for_each(|log| _ = drive(log, &mut store, now));
        logs[0].publish(0, Some("ban".to_owned()), None, "ban".to_owned()).unwrap();
        drive(&mut logs[0], &mut store, now);
        store.put_foreign("meta", value.clone());
        // The other has not heard of the ban.
        logs[1].publish(0, None, None, "purge".to_owned()).unwrap();
        let mut heard = Vec::new();
        while logs[1].waiting() > 0 {
            now += RETRY;
            assert!(now < Duration::from_secs(10), "{value:?}");
            logs.iter_mut().for_each(|log| heard.extend(drive(log, &mut store, now)));
        }
        let is =
            |payload: &str| heard.iter().any(|heard| matches!(heard, Heard::Event(event) if event.payload == payload));
        assert!(is("ban"), "{value:?}: {heard:?}");
        // All instances have started again.
        let mut store = SimulatedStore::default();
        store.put_foreign("meta", value.clone());
        let mut log = EventLog::new("new", POLL, None);
        log.publish(0, None, None, "purge".to_owned()).unwrap();
        for step in 0..=STRANGER_READS {
            drive(&mut log, &mut store, RETRY * step);
        }
        assert_eq!(log.waiting(), 0, "{value:?}");
    }
}

/// Events of a store that lies fill no more memory than the limit.
#[test]
fn topics_are_bounded_by_bytes() {
    let mut store = SimulatedStore::default();
    let mut log = EventLog::new("one", POLL, None);
    drive(&mut log, &mut store, InstanceTime::ZERO);
    for number in 0..100 {
        let event = FleetEvent {
            origin: "x".to_owned(),
            number: number + 1,
            unix_ms: 0,
            topic: Some(format!("topic {number}")),
            until_unix_ms: None,
            payload: "x".repeat(200_000),
        };
        store.put_next_event(serde_json::to_vec(&event).unwrap());
    }
    assert_eq!(drive(&mut log, &mut store, POLL).len(), 100);
    let held: usize = log.topics.values().map(|(_, event)| event.payload.len()).sum();
    assert!(held <= TOPICS_BYTES_MAX && log.topics.len() > 50, "{held}");
}

#[test]
fn reads_of_meta() {
    for (poll_ms, expect) in [(1, 20), (50, 15), (250, 3), (400, 2), (800, 2), (60_000, 2)] {
        let log = EventLog::new("one", Duration::from_millis(poll_ms), None);
        assert_eq!(log.polls_per_meta(), expect, "{poll_ms}");
    }
}
