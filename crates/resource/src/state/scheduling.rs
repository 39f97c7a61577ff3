//! The state kind of the scheduling of a thread: policy, nice value, processors, I/O priority, timer slack.
//!
//! Owns: reading and setting these values from outside the thread, by tid.
//! Invariants: a thread that may run on all processors may run on all processors of the new machine. If no processor
//! of a thread exists on the new machine, the thread may run on all processors; its other settings do not change.
//! Does not: restore the default timer slack, which no interface shows.

use std::fs;

use model::{Pid, Tid};
use prost::Message;
use rustix::process as own;
use sys::Errno;
use sys::scheduling::{self, Attributes};
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/scheduling";

/// The file with the timer slack. Reading the file needs kernel support and CAP_SYS_NICE.
pub(super) const SLACK_FILE: &str = "timerslack_ns";
const PR_SET_TIMERSLACK: u64 = 29;
const PR_GET_TIMERSLACK: u64 = 30;
/// SCHED_FIFO, SCHED_RR, SCHED_DEADLINE. With these policies, the kernel stores the nice value apart from the policy.
const REAL_TIME: [u32; 3] = [1, 2, SCHED_DEADLINE];
const SCHED_DEADLINE: u32 = 6;
/// SCHED_OTHER and SCHED_BATCH. Only the attributes of these policies contain the nice value.
const SHOWS_NICE: [u32; 2] = [0, 3];
/// SCHED_FLAG_UTIL_CLAMP_MIN and _MAX.
const FLAG_CLAMPS: u64 = 0x60;
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The state kind of scheduling.
pub(super) struct Scheduling;

#[derive(Clone, PartialEq, Message)]
struct SchedulingMessage {
    #[prost(uint32, tag = "1")]
    policy: u32,
    #[prost(uint64, tag = "2")]
    flags: u64,
    #[prost(sint32, tag = "3")]
    nice: i32,
    #[prost(uint32, tag = "4")]
    priority: u32,
    #[prost(uint64, tag = "5")]
    runtime: u64,
    #[prost(uint64, tag = "6")]
    deadline: u64,
    #[prost(uint64, tag = "7")]
    period: u64,
    #[prost(uint32, tag = "8")]
    utilisation_min: u32,
    #[prost(uint32, tag = "9")]
    utilisation_max: u32,
    #[prost(uint32, tag = "10")]
    io_priority: u32,
    /// The timer slack in nanoseconds.
    #[prost(uint64, tag = "11")]
    timer_slack: u64,
    /// The processors on which the thread may run, one bit for each processor; empty if the thread may run on all
    /// processors.
    #[prost(fixed64, repeated, tag = "12")]
    affinity: Vec<u64>,
}

impl StateKind for Scheduling {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Sealing }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let tid = capture.tid;
        let attributes = scheduling::attributes(tid)?;
        let timer_slack = match capture.file(SLACK_FILE) {
            Ok(text) => parse_slack(tid, text)?,
            Err(ResourceError::Kernel(error)) if is_out_of_reach(&error) => {
                capture.remote()?.call(nr::PRCTL, [PR_GET_TIMERSLACK, 0, 0, 0, 0, 0])?
            }
            Err(error) => return Err(error),
        };
        let message = SchedulingMessage {
            policy: attributes.policy,
            flags: attributes.flags,
            nice: if SHOWS_NICE.contains(&attributes.policy) { attributes.nice } else { nice(tid)? },
            priority: attributes.priority,
            runtime: attributes.runtime,
            deadline: attributes.deadline,
            period: attributes.period,
            utilisation_min: attributes.utilisation_min,
            utilisation_max: attributes.utilisation_max,
            io_priority: scheduling::io_priority(tid)?,
            timer_slack,
            affinity: scheduling::affinity(tid)?,
        };
        raw.extend(message.encode_to_vec());
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut message: SchedulingMessage = crate::error::decode(NAME, raw)?;
        if covers(&message.affinity, &online()?) {
            message.affinity.clear();
        }
        Ok(Some(message.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<SchedulingMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let wanted: SchedulingMessage = crate::error::decode(NAME, payload)?;
        let (pid, tid) = (restore.stub.pid(), restore.stub.tid());
        set_affinity(tid, &wanted.affinity)?;
        set_attributes(pid, tid, &wanted)?;
        if scheduling::io_priority(tid)? != wanted.io_priority {
            let outcome = scheduling::set_io_priority(tid, wanted.io_priority);
            named(outcome, pid, || format!("I/O priority {:#x}", wanted.io_priority))?;
        }
        set_timer_slack(restore, wanted.timer_slack)
    }
}

fn set_attributes(pid: Pid, tid: Tid, wanted: &SchedulingMessage) -> Result<()> {
    let now = scheduling::attributes(tid)?;
    let real_time = REAL_TIME.contains(&wanted.policy);
    if real_time && nice(tid)? != wanted.nice {
        let outcome = own::setpriority_process(own::Pid::from_raw(tid.get()), wanted.nice);
        let outcome = outcome.map_err(|errno| sys::Error::thread("set the nice value", tid, errno));
        named(outcome, pid, || format!("nice value {}", wanted.nice))?;
    }
    let mut attributes = Attributes {
        size: now.size,
        policy: wanted.policy,
        flags: wanted.flags,
        nice: if real_time { 0 } else { wanted.nice },
        priority: wanted.priority,
        runtime: wanted.runtime,
        deadline: wanted.deadline,
        period: wanted.period,
        utilisation_min: wanted.utilisation_min,
        utilisation_max: wanted.utilisation_max,
    };
    if attributes == now {
        return Ok(());
    }
    if wanted.policy != SCHED_DEADLINE && attributes.runtime == now.runtime {
        // An explicit slice would stay in force when the default of the kernel changes.
        attributes.runtime = 0;
    }
    let clamps = (now.utilisation_min, now.utilisation_max);
    if clamps != (wanted.utilisation_min, wanted.utilisation_max) {
        attributes.flags |= FLAG_CLAMPS;
    }
    named(scheduling::set_attributes(tid, &attributes), pid, || {
        let SchedulingMessage { policy, nice, priority, .. } = wanted;
        format!("scheduling policy {policy} with priority {priority} and nice value {nice}")
    })
}

/// Sets the affinity. If no wanted processor exists, the thread may run on all processors.
fn set_affinity(tid: Tid, wanted: &[u64]) -> Result<()> {
    let now = scheduling::affinity(tid)?;
    let online = online()?;
    let exists = wanted.iter().zip(&online).any(|(wanted, online)| wanted & online != 0);
    if !exists {
        if covers(&now, &online) {
            return Ok(());
        }
        return Ok(scheduling::set_affinity(tid, &online)?);
    }
    if now == wanted {
        return Ok(());
    }
    match scheduling::set_affinity(tid, wanted) {
        // The cpuset of the thread contains no wanted processor.
        Err(error) if error.errno == Errno::EINVAL => Ok(()),
        outcome => Ok(outcome?),
    }
}

fn set_timer_slack(restore: &mut StateRestore<'_>, wanted: u64) -> Result<()> {
    let tid = restore.stub.tid();
    let now = timer_slack(tid)?;
    // Only real-time threads have a timer slack of zero.
    if now == Some(wanted) || wanted == 0 {
        return Ok(());
    }
    if now.is_some() && fs::write(slack_file(tid), wanted.to_string()).is_ok() {
        return Ok(());
    }
    restore.stub.call(nr::PRCTL, [PR_SET_TIMERSLACK, wanted, 0, 0, 0, 0])?;
    Ok(())
}

/// Returns the timer slack of a thread in nanoseconds. Returns `None` if only the thread itself may read its timer
/// slack.
fn timer_slack(tid: Tid) -> Result<Option<u64>> {
    let path = slack_file(tid);
    match procfs::read(&path) {
        Ok(text) => parse_slack(tid, &text).map(Some),
        Err(error) if is_out_of_reach(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reports whether the error means that only the thread itself may read its timer slack, or that the kernel does not
/// show the timer slack.
fn is_out_of_reach(error: &sys::Error) -> bool {
    matches!(error.errno, Errno::EPERM | Errno::EACCES | Errno::ENOENT)
}

fn parse_slack(tid: Tid, text: &[u8]) -> Result<u64> {
    let slack = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    slack.ok_or_else(|| sys::Error::path("parse", slack_file(tid), Errno::EINVAL).into())
}

/// Returns the path of the timer slack file. Only process directories contain this file, and `/proc/TID` exists for
/// each tid.
fn slack_file(tid: Tid) -> String {
    format!("/proc/{tid}/timerslack_ns")
}

fn nice(tid: Tid) -> Result<i32> {
    let number = own::Pid::from_raw(tid.get());
    let nice = own::getpriority_process(number);
    Ok(nice.map_err(|errno| sys::Error::thread("read the nice value", tid, errno))?)
}

/// Returns the processors that are online, one bit for each processor.
fn online() -> Result<Vec<u64>> {
    let text = procfs::read_text(ONLINE)?;
    processors(text.trim()).ok_or_else(|| sys::Error::path("parse", ONLINE, Errno::EINVAL).into())
}

/// Parses a list of processors, such as `0-3,8`.
fn processors(list: &str) -> Option<Vec<u64>> {
    let mut words: Vec<u64> = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for number in first.parse::<usize>().ok()?..=last.parse::<usize>().ok()? {
            let word = number / u64::BITS as usize;
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << (number % u64::BITS as usize);
        }
    }
    Some(words)
}

fn covers(affinity: &[u64], online: &[u64]) -> bool {
    let missing = |(index, online): (usize, &u64)| online & !affinity.get(index).unwrap_or(&0) != 0;
    !online.iter().enumerate().any(missing)
}

/// Turns EPERM into an error that names the setting.
fn named(outcome: sys::Result<()>, pid: Pid, what: impl FnOnce() -> String) -> Result<()> {
    match outcome {
        Err(error) if error.errno == Errno::EPERM => Err(ResourceError::Unsupported {
            pid,
            what: what(),
            why: "the restorer lacks the privilege to set it".to_owned(),
            fix: "restore as root or with CAP_SYS_NICE".to_owned(),
        }),
        outcome => Ok(outcome?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_become_bits() {
        assert_eq!(processors("0-3,8"), Some(vec![0x10f]));
        assert_eq!(processors("63-64"), Some(vec![1 << 63, 1]));
        assert_eq!(processors(""), None);
    }

    #[test]
    fn affinity_to_all_processors_is_recognized() {
        assert!(covers(&[0xff, 0], &[0x3]));
        assert!(!covers(&[0x1], &[0x3]));
        assert!(!covers(&[0x3], &[0x3, 0x1]));
    }
}
