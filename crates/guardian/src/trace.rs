//! Events as a trace for viewers of the Chrome format.
//!
//! Owns: the rows of a trace, where each phase of a checkpoint is drawn.
//! Does not: read events; `history` does.

use std::path::Path;
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use sys::Error;

use crate::error::Result;
use crate::event::{CheckpointEvent, RunEvent};
use crate::journal::EventRow;
use crate::time;

/// Writes events to a file as `trace` gives them.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_trace(path: &Path, rows: &[EventRow]) -> Result<()> {
    let text = trace(rows).to_string();
    Ok(std::fs::write(path, text).map_err(|error| Error::path("write", path, error))?)
}

/// The rows of a trace: where a phase is drawn.
const SUBJECT: u32 = 1;
const CAPTURE: u32 = 2;
const LOG: u32 = 3;

/// Events as a trace in the JSON format of Chrome's trace viewer, which Perfetto reads as well: a process for each
/// subject, with a row for its pauses, one for what happens inside them, and one for the log.
fn trace(rows: &[EventRow]) -> Value {
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut events = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let process = number + 1;
        events.push(
            json!({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}),
        );
        for (row, what) in [(SUBJECT, "subject"), (CAPTURE, "capture"), (LOG, "log")] {
            let args = json!({"name": what});
            events.push(json!({"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": args}));
        }
        for row in rows.iter().filter(|row| row.name == **name) {
            let Some(at) = since_epoch(&row.time) else { continue };
            match &row.what {
                RunEvent::Checkpoint(checkpoint) => draw(checkpoint, process, at, &mut events),
                what => events.push(json!({
                    "ph": "i", "s": "p", "name": what.to_string(), "pid": process, "tid": SUBJECT, "ts": at,
                })),
            }
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

fn draw(checkpoint: &CheckpointEvent, process: usize, at: u64, events: &mut Vec<Value>) {
    let mut add = |row: u32, name: &str, from: u64, length: u64| {
        events.push(json!({
            "ph": "X", "name": name, "pid": process, "tid": row, "ts": from, "dur": length,
            "args": {"seq": checkpoint.seq},
        }));
    };
    let CheckpointEvent { phases, pause_us, .. } = checkpoint;
    add(SUBJECT, "pause", at, *pause_us);
    let ahead = phases.iter().filter(|(phase, _)| phase.precedes_pause()).map(|(_, us)| us).sum();
    let mut from = at.saturating_sub(ahead);
    for (phase, length) in phases.iter() {
        add(CAPTURE, phase.name(), from, length);
        from += length;
    }
    add(LOG, "commit", at + *pause_us, checkpoint.commit_us);
}

fn since_epoch(text: &str) -> Option<u64> {
    let since = time::parse(text)?.duration_since(UNIX_EPOCH).ok()?;
    Some(time::microseconds(since))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::Phase;

    use super::*;
    use crate::event::PhaseTimes;

    fn row(second: u64, what: RunEvent) -> EventRow {
        let time = time::rfc3339(UNIX_EPOCH + Duration::from_secs(second));
        EventRow { time, name: "job".to_owned(), what }
    }

    #[test]
    fn a_trace_draws_the_phases_in_the_order_of_the_tracker() {
        let order = |memory_first| {
            let phases = [(Phase::Scan, 10), (Phase::Descriptors, 10), (Phase::Resume, 10)];
            let phases = PhaseTimes::with(memory_first, &phases);
            let checkpoint = CheckpointEvent { phases, pause_us: 30, ..CheckpointEvent::default() };
            let trace = trace(&[row(2, RunEvent::Checkpoint(checkpoint))]);
            let events = trace["traceEvents"].as_array().unwrap();
            let is_phase =
                |event: &&Value| event["ph"] == "X" && event["dur"] != 0 && event["tid"] == CAPTURE;
            let mut found: Vec<&Value> = events.iter().filter(is_phase).collect();
            found.sort_by_key(|event| event["ts"].as_u64());
            found.iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(order(false), ["descriptors", "scan", "resume"]);
        assert_eq!(order(true), ["scan", "descriptors", "resume"]);
    }

    #[test]
    fn a_trace_draws_the_phases_inside_the_pause() {
        let phases = [
            (Phase::Precopy, 70),
            (Phase::Stop, 20),
            (Phase::Scan, 30),
            (Phase::Threads, 50),
            (Phase::Finish, 5),
        ];
        let checkpoint = CheckpointEvent {
            seq: 7,
            pause_us: 100,
            phases: PhaseTimes::with(false, &phases),
            commit_us: 500,
            ..CheckpointEvent::default()
        };
        let trace = trace(&[
            row(2, RunEvent::Checkpoint(checkpoint)),
            row(3, RunEvent::Started { pid: 5, why: None }),
        ]);
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<(i64, i64)> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["dur"] != 0)
            .map(|event| (event["ts"].as_i64().unwrap() - 2_000_000, event["dur"].as_i64().unwrap()))
            .collect();
        assert_eq!(spans, [(0, 100), (-70, 70), (0, 20), (20, 50), (70, 30), (100, 5), (100, 500)]);
        assert!(events.iter().any(|event| event["ph"] == "i" && event["ts"] == 3_000_000));
    }
}
