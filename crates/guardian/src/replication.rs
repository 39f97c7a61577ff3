//! The commands `replicate` and `inject`: replicated execution of one program, and fault injection.
//!
//! Owns: the reports of both commands, and the exit code of a replicated run.
//! Does not: control replicas; the crate `replica` does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use replica::inject::{Campaign, Injected, Outcome, Tally, confidence};
pub use replica::inject::{Outcome as InjectOutcome, Target as InjectTarget};
use replica::{Detection, End, Limits, ReplicaError};
use serde::Serialize;
use sys::clock::Stopwatch;

use crate::error::{GuardianError, Result};
use crate::exit::ExitCode;

/// The number of replicas with which a difference can be found.
pub const REPLICAS_DEFAULT: usize = 2;
/// The numbers of replicas that this version supports.
pub const REPLICAS: [usize; 1] = [REPLICAS_DEFAULT];

/// The report of a replicated run. Durations are in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicateReport {
    /// The number of replicas.
    pub replicas: usize,
    /// What divides the time into checks. `calls`: only system calls, faults and signals.
    pub clock: &'static str,
    /// The longest time between two checks that is guaranteed; `None` if there is none.
    pub bound_us: Option<u64>,
    /// System calls of the program.
    pub syscalls: u64,
    /// Comparisons of all replicas.
    pub checks: u64,
    /// The longest time between two comparisons.
    pub gap_us: Gap,
    /// Differences between the replicas.
    pub detections: Vec<Detection>,
    /// Differences after which the program has continued.
    pub recovered: u64,
    /// Differences after which the program was stopped.
    pub uncorrectable: u64,
    /// The duration of the run.
    pub wall_us: u64,
    /// The exit status of the program, or 128 plus the number of the signal that killed it; `None` if it was stopped.
    pub program_exit: Option<i32>,
    /// The reason why the run was stopped, and what to do.
    #[serde(skip)]
    pub stopped: Option<String>,
    /// The exit code of the command.
    #[serde(skip)]
    pub code: u8,
}

/// The time between two comparisons.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Gap {
    /// The longest time.
    pub max: u64,
}

/// Runs a program as several replicas.
///
/// # Errors
///
/// The program could not be started, or a replica could not be controlled.
pub fn replicate(command: &[OsString], replicas: usize) -> Result<ReplicateReport> {
    let watch = Stopwatch::start();
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    let run = replica::replicate(program, replicas, Limits::default());
    let (end, statistics, _) = run.map_err(|error| of_start(command, error))?;
    let (code, program_exit, stopped, detection) = match end {
        End::Exited(status) => (status as u8, Some(status), None, None),
        End::Killed(signal) => {
            (128_u8.wrapping_add(signal.get() as u8), Some(128 + signal.get()), None, None)
        }
        End::Diverged(detection) => {
            let text = stop_text(&detection);
            (ExitCode::Diverged.number(), None, Some(text), Some(detection))
        }
        End::Refused(call) => {
            let text = format!(
                "the program was stopped before the call {}: {}\nhelp: `undying run` protects programs that `replicate` does not support",
                call.name, call.why
            );
            (ExitCode::Refused.number(), None, Some(text), None)
        }
        End::TimedOut => {
            (ExitCode::Failure.number(), None, Some("the time limit has expired".to_owned()), None)
        }
    };
    Ok(ReplicateReport {
        replicas,
        clock: "calls",
        bound_us: None,
        syscalls: statistics.calls,
        checks: statistics.checks,
        gap_us: Gap { max: statistics.gap_max.as_micros() as u64 },
        recovered: 0,
        uncorrectable: u64::from(detection.is_some()),
        detections: detection.into_iter().collect(),
        wall_us: watch.elapsed().as_micros() as u64,
        program_exit,
        stopped,
        code,
    })
}

/// Names the program in the error of its start.
fn of_start(command: &[OsString], error: ReplicaError) -> GuardianError {
    match error {
        ReplicaError::Start(error) => GuardianError::Command {
            command: command[0].clone(),
            source: sys::Error::new("execute the program", error),
        },
        error => error.into(),
    }
}

fn stop_text(detection: &Detection) -> String {
    let what = match detection.kind {
        replica::Kind::Escaped => "the replicas differ, and wrong output may have been written",
        _ => "the replicas differ; the program was stopped before it wrote anything wrong",
    };
    let Detection { first_difference, at_check, latency_us, .. } = detection;
    let age = Duration::from_micros(*latency_us);
    format!(
        "{what}: {first_difference}, after {at_check} calls, at most {age:?} after the fault\nhelp: start the program again; \
         if it happens again, the machine computes wrong results, or the program depends on something that replicas do not \
         share"
    )
}

/// What `inject` is asked for.
#[derive(Clone, Debug)]
pub struct InjectRequest {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The number of replicas.
    pub replicas: usize,
    /// The number of faults for each target.
    pub faults: usize,
    /// The targets.
    pub targets: Vec<InjectTarget>,
    /// The seed.
    pub seed: u64,
    /// The standard input of each run.
    pub input: Vec<u8>,
}

/// The report of a campaign.
#[derive(Clone, Debug, Serialize)]
pub struct InjectReport {
    /// The seed.
    pub seed: u64,
    /// Each fault.
    pub faults: Vec<FaultRow>,
    /// The counts of the replicated runs, for each target.
    pub outcomes: BTreeMap<&'static str, BTreeMap<&'static str, usize>>,
    /// The counts of the runs without replication, for each target.
    pub unprotected: BTreeMap<&'static str, BTreeMap<&'static str, usize>>,
    /// The 95 % intervals of the rate of wrong output that left undetected, for each target.
    pub confidence: BTreeMap<&'static str, (f64, f64)>,
}

/// One fault of a campaign.
#[derive(Clone, Debug, Serialize)]
pub struct FaultRow {
    /// The number of the fault.
    pub id: usize,
    /// The name of the target.
    pub target: &'static str,
    /// The replica.
    pub replica: usize,
    /// The changed place; `None` if the fault was not injected.
    pub location: Option<String>,
    /// The number that chose the place.
    pub choice: u64,
    /// The number of calls and of instructions before the fault.
    pub when: (u64, u32),
    /// What became of the replicated run.
    pub outcome: &'static str,
    /// What became of the run without replication.
    pub unprotected: &'static str,
    /// The time from the last comparison before the fault to the detection.
    pub latency_us: Option<u64>,
}

impl From<&Injected> for FaultRow {
    fn from(injected: &Injected) -> Self {
        Self {
            id: injected.id,
            target: injected.fault.target.name(),
            replica: injected.fault.replica,
            location: injected.location.clone(),
            choice: injected.fault.choice,
            when: (injected.fault.call, injected.fault.steps),
            outcome: injected.outcome.name(),
            unprotected: injected.unprotected.name(),
            latency_us: injected.detection.as_ref().map(|detection| detection.latency_us),
        }
    }
}

/// Runs a fault-injection campaign. `each` is called after each fault.
///
/// # Errors
///
/// The program does not end in the same way in runs without a fault, or a run could not be controlled.
pub fn inject(request: &InjectRequest, each: &mut dyn FnMut(&FaultRow)) -> Result<InjectReport> {
    let campaign = Campaign {
        command: request.command.clone(),
        replicas: request.replicas,
        faults: request.faults,
        targets: request.targets.clone(),
        seed: request.seed,
    };
    let found = replica::inject::run(&campaign, &request.input, &mut |injected| each(&injected.into()));
    let found = found.map_err(|error| of_start(&request.command, error))?;
    let mut report = InjectReport {
        seed: request.seed,
        faults: found.iter().map(FaultRow::from).collect(),
        outcomes: BTreeMap::new(),
        unprotected: BTreeMap::new(),
        confidence: BTreeMap::new(),
    };
    for target in &request.targets {
        let of_target = || found.iter().filter(|injected| injected.fault.target == *target);
        let replicated = Tally::of(of_target().map(|injected| injected.outcome));
        let wrong = replicated.count(Outcome::Sdc) + replicated.count(Outcome::Escaped);
        report.outcomes.insert(target.name(), counts(&replicated));
        report
            .unprotected
            .insert(target.name(), counts(&Tally::of(of_target().map(|injected| injected.unprotected))));
        report.confidence.insert(target.name(), confidence(wrong, replicated.total()));
    }
    Ok(report)
}

fn counts(tally: &Tally) -> BTreeMap<&'static str, usize> {
    Outcome::ALL.iter().map(|(name, outcome)| (*name, tally.count(*outcome))).collect()
}

/// Returns a seed for a campaign.
#[must_use]
pub fn random_seed() -> u64 {
    fastrand::u64(..)
}
