//! Fault injection: flips one bit in each of many runs of a program, and judges each run.
//!
//! The *reference run* is a run without a fault. Its output and its end are the standard for all other runs (the oracle).
//! Each fault is injected twice: into one replica of a replicated run, and into the same program without replication.
//!
//! Owns: planning the faults from a seed, running the program, and the outcomes.
//! Invariants: with the same seed, the same faults are planned. Each planned fault has one outcome for each of both runs.
//! Does not: compare files that the program writes, only its standard output, its standard error and its end.

mod outcome;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use fastrand::Rng;
use sys::clock::Stopwatch;

use crate::error::{ReplicaError, Result};
pub use crate::fault::{Fault, Target};
use crate::group::{End, Limits, replicate};
use crate::report::Detection;

pub use self::outcome::{Outcome, Tally, confidence};

/// A run with a fault may take this many times as long as the reference run ...
const TIME_FACTOR: u32 = 10;
/// ... and this time in addition. Otherwise, the program hangs.
const TIME_SLACK: Duration = Duration::from_secs(3);
/// A fault is injected at most 2 to the power of this number of instructions after a call. Each takes about 3 µs.
const STEPS_MAX_LOG2: u32 = 13;
/// The number of reference runs. All must be equal.
const REFERENCES: usize = 3;

/// A fault-injection campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The program and its arguments.
    pub command: Vec<std::ffi::OsString>,
    /// The number of replicas.
    pub replicas: usize,
    /// The number of faults for each target.
    pub faults: usize,
    /// The targets.
    pub targets: Vec<Target>,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// The result of one fault.
#[derive(Clone, Debug)]
pub struct Injected {
    /// The number of the fault, from 0.
    pub id: usize,
    /// The planned fault.
    pub fault: Fault,
    /// The place of the bit, for people; `None` if the fault was not injected.
    pub location: Option<String>,
    /// What became of the replicated run.
    pub outcome: Outcome,
    /// What became of the run without replication.
    pub unprotected: Outcome,
    /// The difference that was found.
    pub detection: Option<Detection>,
}

/// What a run has written, and how it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Observed {
    output: Vec<u8>,
    errors: Vec<u8>,
    end: End,
}

/// A run, with its calls, its time and the place of its fault.
struct Run {
    observed: Observed,
    calls: u64,
    took: Duration,
    location: Option<String>,
}

/// Runs a campaign. `input` is the standard input of each run. `each` is called after each fault.
///
/// # Errors
///
/// Reference runs differ or do not end, or a run could not be controlled.
pub fn run(campaign: &Campaign, input: &[u8], each: &mut dyn FnMut(&Injected)) -> Result<Vec<Injected>> {
    let stage = Stage::new(campaign, input)?;
    let reference = stage.reference(campaign.replicas)?;
    let limit = reference.took * TIME_FACTOR + TIME_SLACK;
    let mut random = Rng::with_seed(campaign.seed);
    let mut found = Vec::new();
    for target in &campaign.targets {
        for _ in 0..campaign.faults {
            let fault = Fault {
                replica: random.usize(..campaign.replicas),
                call: random.u64(..reference.calls.max(1)),
                steps: steps(&mut random),
                target: *target,
                choice: random.u64(..),
            };
            let protected = stage.run(campaign.replicas, Limits { time: Some(limit), fault: Some(fault) })?;
            let alone = Fault { replica: 0, ..fault };
            let unprotected = stage.run(1, Limits { time: Some(limit), fault: Some(alone) })?;
            let detection = match &protected.observed.end {
                End::Diverged(detection) => Some(detection.clone()),
                _ => None,
            };
            let injected = Injected {
                id: found.len(),
                fault,
                outcome: outcome::judge(
                    &reference.observed,
                    &protected.observed,
                    protected.location.is_some(),
                ),
                unprotected: outcome::judge(
                    &reference.observed,
                    &unprotected.observed,
                    unprotected.location.is_some(),
                ),
                location: protected.location,
                detection,
            };
            each(&injected);
            found.push(injected);
        }
    }
    Ok(found)
}

/// Returns a number of instructions. All magnitudes are equally frequent: most calls of a program follow each other soon.
fn steps(random: &mut Rng) -> u32 {
    let magnitude = random.u32(..=STEPS_MAX_LOG2);
    random.u32(..1 << magnitude)
}

/// The files of a campaign.
struct Stage {
    command: Vec<std::ffi::OsString>,
    folder: tempfile::TempDir,
}

impl Stage {
    fn new(campaign: &Campaign, input: &[u8]) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|source| failed("create a folder", source))?;
        let stage = Self { command: campaign.command.clone(), folder };
        std::fs::write(stage.path("input"), input).map_err(|source| failed("write the input", source))?;
        Ok(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program without a fault, alone and as replicas. All runs must be equal.
    fn reference(&self, replicas: usize) -> Result<Run> {
        let first = self.run(1, Limits::default())?;
        let not_comparable = |why: &str| ReplicaError::NotComparable(why.to_owned());
        match &first.observed.end {
            End::Exited(_) | End::Killed(_) => {}
            End::Refused(call) => {
                return Err(ReplicaError::NotComparable(format!(
                    "the program calls {}: {}",
                    call.name, call.why
                )));
            }
            End::Diverged(_) | End::TimedOut => return Err(not_comparable("the program does not end")),
        }
        let mut longest = first;
        for _ in 1..REFERENCES {
            let next = self.run(replicas, Limits::default())?;
            if next.observed != longest.observed {
                return Err(not_comparable(
                    "the output or the end of the program differs between runs without a fault",
                ));
            }
            longest.took = longest.took.max(next.took);
        }
        Ok(longest)
    }

    fn run(&self, replicas: usize, limits: Limits) -> Result<Run> {
        let open = |name: &str| {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(name != "input")
                .open(self.path(name));
            file.map_err(|source| failed("open a file of the campaign", source))
        };
        let (input, output, errors) = (open("input")?, open("output")?, open("errors")?);
        let copy = |file: &File| file.try_clone().map_err(|source| failed("duplicate a file", source));
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::from(input));
        command.stdout(Stdio::from(copy(&output)?)).stderr(Stdio::from(copy(&errors)?));
        let watch = Stopwatch::start();
        let (end, statistics, location) = replicate(command, replicas, limits)?;
        let observed = Observed { output: content(output)?, errors: content(errors)?, end };
        Ok(Run { observed, calls: statistics.calls, took: watch.elapsed(), location })
    }
}

fn content(mut file: File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.read_to_end(&mut bytes))
        .map_err(|source| failed("read the output", source))?;
    Ok(bytes)
}

fn failed(operation: &'static str, source: std::io::Error) -> ReplicaError {
    ReplicaError::Campaign { operation, source }
}
