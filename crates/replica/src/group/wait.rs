//! Waits until replicas arrive at a meeting.
//!
//! Owns: the interpretation of stops, the limit for a replica that is late, and signals from outside.
//! Does not: compare arrivals.

use std::ops::Range;
use std::time::Duration;

use model::Signal;
use sys::call_trap;
use sys::ptrace::{self, CallPhase, SiginfoBytes, Stop, WaitStatus};

use super::Group;
use crate::error::{ReplicaError, Result};
use crate::replicas::Arrival;
use crate::signals;

/// Poll interval of the checks that no stop reports: a replica that is late, and the deadline.
pub(super) const TICK: Duration = Duration::from_millis(10);
/// A replica is late if it uses this many times as much processor time after the first arrival as the others had time
/// until then ...
const LATE_FACTOR: u32 = 3;
/// ... and this time in addition. Page faults and caches make short intervals differ.
const LATE_SLACK: Duration = Duration::from_millis(300);
/// SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 of this process: they are for the program.
pub(super) const OWN_SIGNALS: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 9 | 1 << 11;

/// Number of polls before a wait. They take about 50 µs, during which a replica on the same processor does not run.
const SPINS_MAX: u32 = 60;

/// The times of one wait for replicas.
#[derive(Default)]
struct Wait {
    /// The time from the last meeting to the first arrival.
    interval: Option<Duration>,
    /// The processor times of the missing replicas were read.
    is_measured: bool,
    /// How often the replicas were polled without a wait.
    spins: u32,
}

/// The reason why a wait ended without an arrival of all replicas.
pub(super) enum Missed {
    Late(String),
    /// A replica that was stopped has ended or moved.
    Lost(String),
    Deadline,
    /// A signal ends the program.
    Fatal(Signal),
}

impl Group {
    /// Waits until each of these replicas has arrived.
    pub(super) fn gather(&mut self, who: Range<usize>) -> Result<std::result::Result<Vec<Arrival>, Missed>> {
        let mut arrived: Vec<Option<Arrival>> = vec![None; self.replicas.len()];
        let mut wait = Wait::default();
        if let Some((place, arrival)) = self.early.take_if(|(place, _)| who.contains(place)) {
            arrived[place] = Some(arrival);
        }
        loop {
            for (place, arrived) in arrived.iter_mut().enumerate() {
                while arrived.is_none() && !self.replicas[place].has_ended {
                    let Some(status) = ptrace::poll(self.replicas[place].tid())? else { break };
                    match self.arrival(place, status)? {
                        Ok(Some(arrival)) if !who.contains(&place) => {
                            return Ok(Err(Missed::Lost(format!("replica {place} {}", arrival.shown()))));
                        }
                        Ok(arrival) => *arrived = arrival,
                        Err(missed) => return Ok(Err(missed)),
                    }
                }
            }
            if who.clone().all(|place| arrived[place].is_some()) {
                return Ok(Ok(arrived.into_iter().flatten().collect()));
            }
            // Waking an idle processor takes longer than most calls.
            if wait.spins < SPINS_MAX {
                wait.spins += 1;
                continue;
            }
            if let Some(missed) = self.overdue(&arrived, who.clone(), &mut wait) {
                return Ok(Err(missed));
            }
            self.pass_own_signals()?;
            ptrace::await_any()?;
        }
    }

    /// Reports a replica that needs much more processor time than the first one that has arrived, or the end of the time
    /// limit. Reads no processor time before a wait has lasted for a tick.
    fn overdue(&mut self, arrived: &[Option<Arrival>], who: Range<usize>, wait: &mut Wait) -> Option<Missed> {
        if self.deadline.is_some_and(|deadline| deadline.has_passed()) {
            return Some(Missed::Deadline);
        }
        if !who.clone().any(|place| arrived[place].is_some()) {
            return None;
        }
        let since = self.since;
        let interval = *wait.interval.get_or_insert_with(|| since.elapsed());
        if since.elapsed() < interval + TICK {
            return None;
        }
        let missing = who.filter(|place| arrived[*place].is_none());
        if !std::mem::replace(&mut wait.is_measured, true) {
            missing.for_each(|place| self.replicas[place].begin_interval());
            return None;
        }
        let limit = interval * LATE_FACTOR + LATE_SLACK;
        let late = missing.into_iter().find(|place| self.replicas[*place].used() > limit)?;
        let used = self.replicas[late].used();
        Some(Missed::Late(format!(
            "replica {late} has used {used:?} more, the interval was {interval:?} long"
        )))
    }

    /// Passes signals that were sent to this process to the program. Signals from the terminal reach both.
    fn pass_own_signals(&self) -> Result<()> {
        while let Some(received) = sys::signal::take(OWN_SIGNALS)? {
            if received.sender.is_some() && !self.replicas[0].has_ended {
                sys::signal::send(self.replicas[0].pid(), received.signal)?;
            }
        }
        Ok(())
    }

    /// Interprets a stop. Returns `None` if the replica was resumed, because the stop is no meeting.
    pub(super) fn arrival(
        &mut self,
        place: usize,
        status: WaitStatus,
    ) -> Result<std::result::Result<Option<Arrival>, Missed>> {
        let replica = &self.replicas[place];
        let tid = replica.tid();
        let arrival = match status {
            WaitStatus::Exited(status) => {
                self.replicas[place].has_ended = true;
                Arrival::Exited(status)
            }
            WaitStatus::Killed(signal) => {
                self.replicas[place].has_ended = true;
                Arrival::Killed(signal)
            }
            WaitStatus::Stopped(Stop::Seccomp) => {
                let foreign = ptrace::event_message(tid)? == call_trap::FOREIGN;
                Arrival::Call { registers: ptrace::registers(tid)?, foreign }
            }
            WaitStatus::Stopped(Stop::Syscall) if matches!(ptrace::call_phase(tid)?, CallPhase::Exit(_)) => {
                Arrival::Return(ptrace::registers(tid)?)
            }
            WaitStatus::Stopped(Stop::Delivery(signal)) => {
                let information = Box::new(ptrace::signal_information(tid)?);
                if !signals::is_fault(&information) && self.delivering != Some(signal) {
                    return self.keep(place, signal, &information).map(|kept| kept.map(|()| None));
                }
                Arrival::Signal { signal, information, registers: ptrace::registers(tid)? }
            }
            WaitStatus::Stopped(Stop::Syscall | Stop::Event | Stop::Group(_)) => {
                replica.go_on(None)?;
                return Ok(Ok(None));
            }
            other => return Err(ReplicaError::Unexpected(format!("{other:?}"))),
        };
        Ok(Ok(Some(arrival)))
    }

    /// Keeps a signal from outside for the next return of a call. Signals for a follower are dropped: they are no part of
    /// the program.
    fn keep(
        &mut self,
        place: usize,
        signal: Signal,
        information: &SiginfoBytes,
    ) -> Result<std::result::Result<(), Missed>> {
        if place == 0 && !signals::is_stop(signal) {
            if signals::ends(self.replicas[0].pid(), signal) {
                return Ok(Err(Missed::Fatal(signal)));
            }
            self.held.push_back(*information);
        } else {
            self.statistics.dropped_signals += 1;
        }
        self.replicas[place].go_on(None)?;
        Ok(Ok(()))
    }
}
