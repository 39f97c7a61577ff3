//! Takes continuous checkpoints of a running process and tells what they cost.
//!
//! Usage: epochs PID STORE HZ COUNT [TRACKER [FILE]]; FILE gets the times of the pauses; the subject is called `job`
//! in the store.
//! Does not: write the figures anywhere but to the terminal.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use model::{Pid, Sequence};
use store::{LogOptions, LogWriter, Store, SubjectName};
use undying_engine::{CheckpointOptions, Continuous, Phase, Taken};

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
    if let Some(file) = rest.get(1) {
        put_pauses(file, &taken)?;
    }
    Ok(())
}

/// Writes when each pause began and how long it took, in nanoseconds of CLOCK_MONOTONIC.
fn put_pauses(file: &str, taken: &[Taken]) -> Result<(), Box<dyn Error>> {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (now, clock) = (Instant::now(), Duration::new(clock.tv_sec as u64, clock.tv_nsec as u32));
    let mut text = String::new();
    for one in taken.iter().skip(1) {
        let began = clock - now.duration_since(one.phases.began);
        writeln!(text, "{} {}", began.as_nanos(), one.phases.pause().as_nanos())?;
    }
    Ok(std::fs::write(file, text)?)
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
    let spread = |what: &str, of: &dyn Fn(&Taken) -> Duration| {
        let mut all: Vec<Duration> = others.iter().map(of).collect();
        all.sort_unstable();
        if let (Some(middle), Some(longest)) = (all.get(all.len() / 2), all.last()) {
            println!("{what}: p50 {middle:?} p99 {:?} max {longest:?}", all[(all.len() - 1) * 99 / 100]);
        }
    };
    spread("pause", &|one| one.timings.pause);
    for phase in Phase::ALL {
        spread(phase.name(), &|one| one.phases[*phase]);
    }
    let mut residuals: Vec<u64> = others.iter().map(|one| one.residual.get()).collect();
    residuals.sort_unstable();
    if let (Some(middle), Some(most)) = (residuals.get(residuals.len() / 2), residuals.last()) {
        println!(
            "pages in the pause: p50 {middle} p99 {} max {most}",
            residuals[(residuals.len() - 1) * 99 / 100]
        );
    }
    let pages: u64 = others.iter().map(|one| one.precopied.get() + one.residual.get()).sum();
    println!("{} pages a checkpoint", pages / others.len().max(1) as u64);
}
