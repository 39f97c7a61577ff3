//! Takes continuous checkpoints of a running process and tells what they cost.
//!
//! Usage: epochs PID STORE HZ COUNT [TRACKER]; the subject is called `job` in the store.
//! Does not: write the figures anywhere but to the terminal.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use image::Timings;
use model::{Pid, Sequence};
use store::{LogOptions, LogWriter, Store, SubjectName};
use undying_engine::{CheckpointOptions, Continuous, Taken};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [pid, place, hz, count, rest @ ..] = words.as_slice() else {
        return Err("usage: epochs PID STORE HZ COUNT [TRACKER]".into());
    };
    let tracker = track::choose(rest.first().map_or("auto", String::as_str))?;
    let store = Store::open(Path::new(place))?;
    let name: SubjectName = "job".parse()?;
    let log = store.open_log(&name, LogOptions::default())?;
    let subject = Continuous::new(Pid(pid.parse()?), tracker.kind);
    let every = Duration::from_secs_f64(1.0 / hz.parse::<f64>()?);
    let first = store.next_sequence(&name)?;
    let taken = take(subject, &log, first, every, count.parse()?)?;
    log.close()?;
    report(&taken);
    Ok(())
}

fn take(
    mut subject: Continuous,
    log: &LogWriter,
    first: Sequence,
    every: Duration,
    count: u64,
) -> Result<Vec<Taken>, Box<dyn Error>> {
    let mut all = Vec::new();
    let mut due = Instant::now();
    for number in 0..count {
        let sequence = Sequence(first.get() + number);
        let options = CheckpointOptions { sequence, name: "job".to_owned(), ..CheckpointOptions::default() };
        all.extend(subject.checkpoint(log, &options)?);
        due += every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    println!("{} of {count} taken; at the others the log was too far behind", all.len());
    Ok(all)
}

/// The first one is full, and told apart.
fn report(taken: &[Taken]) {
    let Some((first, others)) = taken.split_first() else { return };
    println!(
        "first: {:?}, {} pages before the pause, {} in it",
        first.timings, first.precopied, first.residual
    );
    println!("trackers attached in a pause of {:?}", first.arming);
    let spread = |what: &str, of: fn(&Timings) -> Duration| {
        let mut all: Vec<Duration> = others.iter().map(|one| of(&one.timings)).collect();
        all.sort_unstable();
        if let (Some(middle), Some(longest)) = (all.get(all.len() / 2), all.last()) {
            println!("{what}: p50 {middle:?} p99 {:?} max {longest:?}", all[(all.len() - 1) * 99 / 100]);
        }
    };
    spread("pause", |timings| timings.pause);
    spread("  stop", |timings| timings.stop);
    spread("  scan", |timings| timings.scan);
    spread("  copy", |timings| timings.copy);
    let pages: u64 = others.iter().map(|one| one.precopied.get() + one.residual.get()).sum();
    println!("{} pages a checkpoint", pages / others.len().max(1) as u64);
}
