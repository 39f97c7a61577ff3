//! The loop of a replicated run: meetings, calls, signals and ends.
//!
//! Each system call of each replica stops at the tracer. When all replicas are stopped, their registers and the inputs of
//! the call are compared. Then the leader or all replicas execute the call. The kernel executes the registers that were
//! compared: between the comparison and the call, no code of a replica runs.
//!
//! Owns: the order of these steps, and the time limit for a replica that does not come to a meeting.
//! Invariants: a call that only the leader executes is executed once. All replicas leave a call with the same registers.
//! Does not: know calls (`calls`) or compare (`compare`, `parts`).

mod call;
mod delivery;
mod injection;
mod wait;

use std::collections::VecDeque;
use std::process::Command;
use std::time::Duration;

use model::Signal;
use sys::Errno;
use sys::clock::{Deadline, Stopwatch};
use sys::ptrace::{self, Registers, SiginfoBytes, WaitStatus};
use sys::wait_timer::Ticks;

use self::wait::{Missed, OWN_SIGNALS, TICK};
use crate::calls::{self, RefusedCall};
use crate::compare::{self, Difference};
use crate::error::{ReplicaError, Result};
use crate::fault::Fault;
use crate::replicas::{Arrival, Mode, Replica};
use crate::report::{Detection, Kind, Statistics};
use crate::split;

/// The end of a replicated run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// All replicas have exited with this status.
    Exited(i32),
    /// All replicas were killed by this signal.
    Killed(Signal),
    /// The replicas differed. They were killed.
    Diverged(Detection),
    /// The program made a call that is not supported. The call was not executed, and the replicas were killed.
    Refused(RefusedCall),
    /// The time limit has expired. The replicas were killed.
    TimedOut,
}

/// Limits and faults of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The time limit of the whole run.
    pub time: Option<Duration>,
    /// A fault to inject.
    pub fault: Option<Fault>,
}

/// Runs a program as `count` replicas, and returns when it has ended.
///
/// # Errors
///
/// The replicas could not be started or controlled. They were killed.
pub fn replicate(
    mut command: Command,
    count: usize,
    limits: Limits,
) -> Result<(End, Statistics, Option<String>)> {
    let blocked = Blocked::new()?;
    sys::signal::start_with(&mut command, blocked.0, 0);
    let replicas = split::start(command, count)?;
    let mut group = Group {
        replicas,
        held: VecDeque::new(),
        delivering: None,
        since: Stopwatch::start(),
        deadline: limits.time.map(Deadline::after),
        fault: limits.fault,
        injected: None,
        early: None,
        statistics: Statistics::default(),
    };
    let outcome = match group.run() {
        // The kernel knows no stopped thread with this tid.
        Err(ReplicaError::Kernel(error)) if error.errno == Errno::ESRCH => {
            Ok(group.diverged((Kind::Stop, "a replica was killed".to_owned())))
        }
        outcome => outcome,
    };
    if !matches!(outcome, Ok(End::Exited(_))) {
        group.kill();
    }
    Ok((outcome?, group.statistics, group.injected))
}

/// Blocks signals of this thread until the drop. Contains the mask before.
struct Blocked(u64);

impl Blocked {
    fn new() -> Result<Self> {
        Ok(Self(sys::signal::block(OWN_SIGNALS)?))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // An error would leave signals blocked in a process that ends soon.
        let _ = sys::signal::unblock(OWN_SIGNALS & !self.0);
    }
}

/// What follows a meeting.
enum Next {
    /// The replicas run.
    Running,
    /// The replicas are stopped at the return of the call.
    Returned,
    End(End),
}

struct Group {
    /// The leader is the first.
    replicas: Vec<Replica>,
    /// Signals for the leader that wait for the next return of a call.
    held: VecDeque<SiginfoBytes>,
    /// The signal that is being delivered to all replicas.
    delivering: Option<Signal>,
    /// The time since the last meeting.
    since: Stopwatch,
    deadline: Option<Deadline>,
    fault: Option<Fault>,
    /// The place of the fault that was injected.
    injected: Option<String>,
    /// A replica that reached its next stop before the fault.
    early: Option<(usize, Arrival)>,
    statistics: Statistics,
}

impl Group {
    fn run(&mut self) -> Result<End> {
        let _ticks = Ticks::start(TICK)?;
        self.inject_after_call()?;
        self.resume_all(None)?;
        loop {
            let arrivals = match self.gather(0..self.replicas.len())? {
                Ok(arrivals) => arrivals,
                Err(missed) => return Ok(self.missed(missed)),
            };
            self.statistics.checks += 1;
            let interval = self.since.elapsed();
            self.statistics.gap_max = self.statistics.gap_max.max(interval);
            if let Some(difference) = self.difference(&arrivals)? {
                return Ok(self.diverged(difference));
            }
            match self.meet(arrivals.into_iter().next())? {
                Next::End(end) => return Ok(end),
                Next::Running => {}
                Next::Returned => {
                    if let Some(end) = self.leave()? {
                        return Ok(end);
                    }
                }
            }
            self.since = Stopwatch::start();
        }
    }

    /// Handles a meeting at which all replicas are equal.
    fn meet(&mut self, arrival: Option<Arrival>) -> Result<Next> {
        match arrival {
            Some(Arrival::Call { foreign: true, .. }) => Ok(refused(RefusedCall {
                name: "a call of the 32-bit architecture".to_owned(),
                why: "replicated execution does not support it",
            })),
            Some(Arrival::Call { registers, .. }) => self.call(&registers),
            Some(Arrival::Signal { signal, registers, .. }) => self.fault(signal, &registers),
            Some(Arrival::Exited(status)) => Ok(Next::End(End::Exited(status))),
            Some(Arrival::Killed(signal)) => Ok(Next::End(End::Killed(signal))),
            Some(Arrival::Return(_)) | None => {
                Err(ReplicaError::Unexpected("a return without a call".to_owned()))
            }
        }
    }

    /// Returns the first difference between the arrivals.
    fn difference(&self, arrivals: &[Arrival]) -> Result<Option<Difference>> {
        let Some((first, others)) = arrivals.split_first() else { return Ok(None) };
        for other in others {
            let differ = |one: &Registers, other: &Registers| compare::registers(one, other);
            let found = match (first, other) {
                (
                    Arrival::Call { registers: one, foreign: a },
                    Arrival::Call { registers: two, foreign: b },
                ) if a == b => differ(one, two),
                (
                    Arrival::Signal { signal: a, registers: one, .. },
                    Arrival::Signal { signal: b, registers: two, .. },
                ) if a == b => differ(one, two),
                (Arrival::Return(one), Arrival::Return(two)) => differ(one, two),
                (Arrival::Exited(one), Arrival::Exited(two)) if one == two => None,
                (Arrival::Killed(one), Arrival::Killed(two)) if one == two => None,
                _ => Some((Kind::Stop, format!("one {}, the other {}", first.shown(), other.shown()))),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        if matches!(first, Arrival::Exited(_) | Arrival::Killed(_)) {
            Ok(None)
        } else {
            compare::extended(&self.replicas)
        }
    }

    fn resume_all(&mut self, signal: Option<Signal>) -> Result<()> {
        let early = self.early.as_ref().map(|(place, _)| *place);
        for (place, replica) in self.replicas.iter_mut().enumerate() {
            if early != Some(place) {
                replica.resume(Mode::ToMeeting, signal)?;
            }
        }
        Ok(())
    }

    fn missed(&self, missed: Missed) -> End {
        match missed {
            Missed::Deadline => End::TimedOut,
            Missed::Fatal(signal) => End::Killed(signal),
            Missed::Late(what) => self.diverged((Kind::Late, what)),
            Missed::Lost(what) => self.diverged((Kind::Stop, what)),
        }
    }

    fn diverged(&self, (kind, first_difference): Difference) -> End {
        End::Diverged(Detection {
            at_check: self.statistics.calls,
            kind,
            first_difference,
            latency_us: self.since.elapsed().as_micros() as u64,
            action: "stopped",
        })
    }

    fn in_call(&self, registers: &Registers, what: &str) -> String {
        format!("{} ({})", what, calls::name(registers.orig_rax as i64))
    }

    /// Kills and reaps all replicas, the leader last: it holds the pid of the program.
    fn kill(&mut self) {
        for replica in self.replicas.iter().rev().filter(|replica| !replica.has_ended) {
            // An error means that the replica has ended.
            let _ = sys::signal::send(replica.pid(), Signal(9));
            while let Ok(WaitStatus::Stopped(_)) = ptrace::wait(replica.tid()) {
                let _ = ptrace::resume(replica.tid(), None);
            }
        }
    }
}

fn refused(call: RefusedCall) -> Next {
    Next::End(End::Refused(call))
}
