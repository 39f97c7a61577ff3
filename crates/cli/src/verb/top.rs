//! `undying top [NAME] [--interval DUR] [--once]`
//!
//! Owns: the live view, and the rates between two looks.
//! Does not: ask a guardian; it reads what guardians write down.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command};
use guardian::{CheckpointEvent, Clock, History, RunEvent, SubjectReport};

use super::interface::Verb;
use crate::failure::{Failure, report_left_out};
use crate::{parse, print};

/// Default interval between two samples.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// What percentiles and rates are taken of: long enough for a 99th at a hundred checkpoints a second.
const WINDOW: Duration = Duration::from_secs(10);
/// To the upper left corner, and everything below it erased; each line erases what was behind it.
const REDRAW: &str = "\x1b[H\x1b[J";

pub(super) struct Top;

impl Verb for Top {
    fn name(&self) -> &'static str {
        "top"
    }

    fn about(&self) -> &'static str {
        "Watch guarded subjects: rates, pauses, dirty pages, the store"
    }

    fn arguments(&self, command: Command) -> Command {
        command
            .arg(Arg::new("NAME").help("The subject"))
            .arg(
                Arg::new("interval")
                    .long("interval")
                    .value_name("DUR")
                    .value_parser(parse::duration)
                    .help("Time between two looks [default: 1s]"),
            )
            .arg(Arg::new("once").long("once").action(ArgAction::SetTrue).help("Look once and end"))
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let name = matches.get_one::<String>("NAME").map(String::as_str);
        let store = parse::given_store(matches)?;
        let interval = matches.get_one("interval").copied().unwrap_or(INTERVAL_DEFAULT);
        let is_live = std::io::stdout().is_terminal() && !matches.get_flag("once");
        let mut history = History::open(&store, name)?;
        let mut recent = Recent::default();
        loop {
            recent.add(&mut history)?;
            let found = guardian::status(&store, name)?;
            if is_live {
                write!(std::io::stdout(), "{REDRAW}")?;
            }
            let rows: Vec<Vec<String>> = found.rows.iter().map(|subject| row(subject, &recent)).collect();
            print::table(&HEAD, &rows)?;
            super::status::tell_unprotected(&found.rows)?;
            let code = report_left_out(&found.failed);
            if !is_live {
                return Ok(code);
            }
            std::thread::sleep(interval);
        }
    }
}

const HEAD: [&str; 12] = [
    "NAME",
    "PID",
    "STATE",
    "RATE",
    "PAUSE P50",
    "P99",
    "MAX",
    "DIRTY/S",
    "WRITTEN/S",
    "STORE",
    "AGE",
    "DEATHS",
];

/// The checkpoints of the last seconds, by subject.
#[derive(Default)]
struct Recent {
    clock: Clock,
    heard: BTreeMap<String, Vec<(Instant, CheckpointEvent)>>,
    has_looked: bool,
}

impl Recent {
    fn add(&mut self, history: &mut History) -> Result<(), Failure> {
        let now = self.clock.now();
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        for event in history.read()? {
            // What was there before the first look is older than it says.
            if let (RunEvent::Checkpoint(checkpoint), Some(at)) =
                (event.what, seen(&event.time, is_first, now))
            {
                self.heard.entry(event.name).or_default().push((at, checkpoint));
            }
        }
        for list in self.heard.values_mut() {
            list.retain(|(at, _)| now.duration_since(*at) < WINDOW);
        }
        Ok(())
    }
}

/// When an event happened, on our own clock; `None` for one outside of the window.
fn seen(time: &str, is_first: bool, now: Instant) -> Option<Instant> {
    if !is_first {
        return Some(now);
    }
    let age = guardian::age(time)?;
    if age < WINDOW { now.checked_sub(age) } else { None }
}

fn row(subject: &SubjectReport, recent: &Recent) -> Vec<String> {
    let empty = Vec::new();
    let heard = recent.heard.get(&subject.facts.name).unwrap_or(&empty);
    let span = heard.first().map_or(WINDOW, |(at, _)| (recent.clock.now() - *at).max(Duration::from_secs(1)));
    let mut pauses: Vec<u64> = heard.iter().map(|(_, one)| one.pause_us).collect();
    pauses.sort_unstable();
    let at = |share: usize| pauses.get(pauses.len().saturating_sub(1) * share / 100);
    let time = |us: Option<&u64>| us.map_or("-".to_owned(), |us| print::duration(Duration::from_micros(*us)));
    let each_second = |total: u64| total as f64 / span.as_secs_f64();
    let dirty: u64 = heard.iter().map(|(_, one)| one.precopied_pages + one.residual_pages).sum();
    let written: u64 = heard.iter().map(|(_, one)| one.bytes).sum();
    vec![
        subject.facts.name.clone(),
        subject.pid.to_string(),
        super::status::state(subject),
        super::status::rate(subject),
        time(at(50)),
        time(at(99)),
        time(at(100)),
        format!("{:.0} pages", each_second(dirty)),
        print::bytes(each_second(written) as u64),
        print::bytes(subject.store_bytes),
        time(subject.checkpoint_age_us.as_ref()),
        subject.facts.restarts.to_string(),
    ]
}
