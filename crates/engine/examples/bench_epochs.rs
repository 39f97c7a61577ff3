//! Takes continuous checkpoints of a running process at a rate, and prints what each one did, a line of JSON each.
//!
//! Usage: bench_epochs PID STORE NAME HZ [TRACKER]. With HZ 0, one for each line of standard input. Ends when its
//! standard input ends.
//! Owns: the lines. Invariants: memory does not grow with the number of checkpoints.
//! Does not: judge; benches/ does.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use model::{Pid, Sequence};
use store::{LogCommitted, LogOptions, LogWriter, Store, SubjectName};
use undying_engine::{CheckpointOptions, Continuous, Preference, Taken, Tuning};

type Failure = Box<dyn Error>;

/// So many in a row, and it is no accident.
const FAILURES_MAX: u32 = 5;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [pid, place, name, hz, rest @ ..] = words.as_slice() else {
        return Err("usage: bench_epochs PID STORE NAME HZ [TRACKER [PREFERENCE]]".into());
    };
    let tracker = track::choose(rest.first().map_or("auto", String::as_str))?;
    let store = Store::open(Path::new(place))?;
    let name: SubjectName = name.parse()?;
    let log = store.open_log(&name, LogOptions::default())?;
    let wanted = rest.get(1).map_or(Preference::default().name(), String::as_str);
    let prefer = Preference::ALL.into_iter().find(|one| one.name() == wanted).ok_or("no such preference")?;
    let tuning = Tuning { prefer, ..Tuning::default() };
    let subject = Continuous::new(Pid(pid.parse()?), tracker.kind).tuned(tuning);
    let hz: f64 = hz.parse()?;
    let every = (hz > 0.0).then(|| Duration::from_secs_f64(1.0 / hz));
    let first = store.next_sequence(&name)?;
    Bench { subject, log: &log, next: first, every, waiting: VecDeque::new(), failures: 0 }
        .take(&lines_of_input())?;
    log.close()?;
    Ok(())
}

/// One for each line; no more senders once the input has ended.
fn lines_of_input() -> Receiver<()> {
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || send.send(()).is_err() {
                break;
            }
        }
    });
    lines
}

/// In the log and perhaps not durable yet.
struct Waiting {
    at: SystemTime,
    began: Instant,
    took: Duration,
    taken: Taken,
}

struct Bench<'log> {
    subject: Continuous,
    log: &'log LogWriter,
    next: Sequence,
    /// `None`: when a line of input says so.
    every: Option<Duration>,
    waiting: VecDeque<Waiting>,
    /// In a row.
    failures: u32,
}

impl Bench<'_> {
    fn take(&mut self, lines: &Receiver<()>) -> Result<(), Failure> {
        let mut due = Instant::now();
        while self.is_due(lines, &mut due) {
            self.checkpoint()?;
            self.report_durable()?;
        }
        while let Some(one) = self.waiting.pop_front() {
            report(&one, &one.taken.ticket.wait()?)?;
        }
        Ok(())
    }

    /// Waits until the next one is due; false when there is to be none.
    fn is_due(&self, lines: &Receiver<()>, due: &mut Instant) -> bool {
        let Some(every) = self.every else { return lines.recv().is_ok() };
        let heard = lines.recv_timeout(due.saturating_duration_since(Instant::now()));
        // What was missed is not caught up with.
        *due = (*due + every).max(Instant::now());
        heard != Err(RecvTimeoutError::Disconnected)
    }

    fn checkpoint(&mut self) -> Result<(), Failure> {
        let options =
            CheckpointOptions { sequence: self.next, name: "job".to_owned(), ..CheckpointOptions::default() };
        let began = Instant::now();
        let taken = match self.subject.checkpoint(self.log, &options) {
            Ok(Some(taken)) => taken,
            Ok(None) => return say("{\"behind\":1}"),
            // The disk was too slow, or the subject changed too much meanwhile: the next one starts from nothing.
            Err(failure) if self.failures < FAILURES_MAX => {
                self.failures += 1;
                // The log may have begun it, and takes no number twice.
                self.next = Sequence(self.next.get() + 1);
                return say(&format!("{{\"failed\":{:?}}}", failure.to_string()));
            }
            Err(failure) => return Err(failure.into()),
        };
        self.failures = 0;
        self.next = Sequence(self.next.get() + 1);
        self.waiting.push_back(Waiting { at: SystemTime::now(), began, took: began.elapsed(), taken });
        Ok(())
    }

    fn report_durable(&mut self) -> Result<(), Failure> {
        while let Some(one) = self.waiting.front() {
            let ticket = &one.taken.ticket;
            let committed = if self.every.is_some() { ticket.poll()? } else { Some(ticket.wait()?) };
            let Some(committed) = committed else { break };
            report(one, &committed)?;
            self.waiting.pop_front();
        }
        Ok(())
    }
}

/// Times in nanoseconds; `total` ends when this knows that it is durable, which at a rate is at the next checkpoint.
fn report(one: &Waiting, committed: &LogCommitted) -> Result<(), Failure> {
    let (taken, written) = (&one.taken, &committed.timings);
    let figures = [
        ("at", unix_ns(one.at)),
        ("took", one.took.as_nanos()),
        ("total", one.began.elapsed().as_nanos()),
        ("arming", taken.arming.as_nanos()),
        ("pause", taken.timings.pause.as_nanos()),
        ("slices", taken.slices.count.into()),
        ("slice_max", taken.slices.longest.as_nanos()),
        ("sliced", taken.slices.total.as_nanos()),
        ("rounds", taken.rounds as u128),
        ("precopied", taken.precopied.get().into()),
        ("residual", taken.residual.get().into()),
        ("hash", written.hash.as_nanos()),
        ("write", written.write.as_nanos()),
        ("commit", written.commit.as_nanos()),
        ("written", committed.written.get().into()),
        ("moved", committed.moved.get().into()),
    ];
    let phases = taken.phases.iter().map(|(phase, took)| (phase.name(), took.as_nanos()));
    let figures = figures.into_iter().chain(phases);
    let line: Vec<String> = figures.map(|(name, figure)| format!("\"{name}\":{figure}")).collect();
    say(&format!("{{{}}}", line.join(",")))
}

fn say(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn unix_ns(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
