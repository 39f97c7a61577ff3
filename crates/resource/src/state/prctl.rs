//! What programs set with prctl(2) and `/proc` or the getter shows.
//!
//! Owns: no_new_privs and the death signal of each thread; with the leader also the process's dumpable state,
//! child subreaper, denial of executable writes, transparent huge pages, and the leader's policies for the time
//! stamp counter and for machine checks.
//! Invariants: restored after credentials, whose change resets dumpable and death signals, and before filters of
//! system calls.
//! Does not: restore the death signal of a process whose parent is this program (its own parent is gone, and it
//! would be told so as soon as this program ends); ask other threads than the leader for the two policies; name
//! keep-caps and the other settings of credentials, or timer slack, which belongs to scheduling.

use model::ByteCount;
use prost::Message;
use tracee::arch::numbers as nr;
use tracee::{Stub, procfs};

use super::questions::Questions;
use super::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::Result;

const NAME: &str = "state/prctl";

const PR_SET_PDEATHSIG: u64 = 1;
const PR_GET_PDEATHSIG: u64 = 2;
const PR_GET_DUMPABLE: u64 = 3;
const PR_SET_DUMPABLE: u64 = 4;
const PR_GET_TSC: u64 = 25;
const PR_SET_TSC: u64 = 26;
const PR_MCE_KILL: u64 = 33;
const PR_MCE_KILL_SET: u64 = 1;
const PR_MCE_KILL_GET: u64 = 34;
const PR_SET_CHILD_SUBREAPER: u64 = 36;
const PR_GET_CHILD_SUBREAPER: u64 = 37;
const PR_SET_NO_NEW_PRIVS: u64 = 38;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_SET_MDWE: u64 = 65;
const PR_GET_MDWE: u64 = 66;

/// SUID_DUMP_USER: the program's owner may dump and trace it.
const DUMPABLE: u32 = 1;
/// SUID_DUMP_ROOT: only the kernel sets this, when credentials change and `fs.suid_dumpable` is 2.
const DUMPABLE_BY_ROOT: u32 = 2;
/// PR_TSC_ENABLE.
const TSC_ENABLED: u32 = 1;
/// PR_MCE_KILL_DEFAULT.
const MACHINE_CHECK_DEFAULT: u32 = 2;

const WORD_BYTES: usize = size_of::<u32>();
/// In front of a thread's raw status: its death signal.
const THREAD_WORDS: usize = 1;
/// In front of a leader's: that, and in this order: subreaper, time stamp counter, dumpable, denial, machine checks.
const LEADER_WORDS: usize = 6;

/// The kind.
pub(super) struct Prctl;

#[derive(Clone, PartialEq, Message)]
struct PrctlMessage {
    #[prost(bool, tag = "1")]
    no_new_privs: bool,
    /// The signal on the death of the parent; 0 for none.
    #[prost(uint32, tag = "2")]
    death_signal: u32,
    /// With the leader.
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessMessage {
    /// 0, 1 or 2, as PR_GET_DUMPABLE gives it.
    #[prost(uint32, tag = "1")]
    dumpable: u32,
    #[prost(bool, tag = "2")]
    child_subreaper: bool,
    /// PR_MDWE_* bits.
    #[prost(uint32, tag = "3")]
    deny_write_execute: u32,
    /// PR_TSC_ENABLE or PR_TSC_SIGSEGV.
    #[prost(uint32, tag = "4")]
    time_stamp_counter: u32,
    /// PR_MCE_KILL_*.
    #[prost(uint32, tag = "5")]
    machine_check: u32,
    #[prost(bool, tag = "6")]
    huge_pages_disabled: bool,
}

impl StateKind for Prctl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "prctl settings: death signal, no_new_privs, dumpable, subreaper, denial of executable writes and others"
    }

    fn level(&self) -> Level {
        Level::Thread
    }

    fn stage(&self) -> Stage {
        Stage::Sealing
    }

    fn ask(&self, capture: &mut StateCapture<'_>, questions: &mut Questions) -> Result<()> {
        let mut into = |option: u64| {
            questions.call_into(nr::PRCTL, [option, 0, 0, 0, 0, 0], 1, ByteCount(WORD_BYTES as u64));
        };
        into(PR_GET_PDEATHSIG);
        if capture.tid == capture.pid.leader() {
            into(PR_GET_CHILD_SUBREAPER);
            into(PR_GET_TSC);
            for option in [PR_GET_DUMPABLE, PR_GET_MDWE, PR_MCE_KILL_GET] {
                questions.call(nr::PRCTL, [option, 0, 0, 0, 0, 0]);
            }
        }
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let leader = capture.tid == capture.pid.leader();
        raw.push(u8::from(leader));
        // In the order of the questions.
        let defaults = [0, 0, TSC_ENABLED, DUMPABLE, 0, MACHINE_CHECK_DEFAULT];
        for (answer, default) in capture.answers(NAME).into_iter().zip(defaults) {
            raw.extend(answer.word_or(default)?.to_ne_bytes());
        }
        raw.extend_from_slice(capture.file("status")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some((leader, rest)) = raw.split_first() else { return Ok(None) };
        let leader = *leader != 0;
        let count = if leader { LEADER_WORDS } else { THREAD_WORDS };
        let (words, status) = rest.split_at(count * WORD_BYTES);
        let word = |index: usize| {
            let mut word = [0; WORD_BYTES];
            word.copy_from_slice(&words[index * WORD_BYTES..][..WORD_BYTES]);
            u32::from_ne_bytes(word)
        };
        let process = leader.then(|| ProcessMessage {
            child_subreaper: word(1) != 0,
            time_stamp_counter: word(2),
            dumpable: word(3),
            deny_write_execute: word(4),
            machine_check: word(5),
            huge_pages_disabled: procfs::status_line(status, "THP_enabled") == Some("0"),
        });
        let no_new_privs = procfs::status_line(status, "NoNewPrivs") == Some("1");
        let message = PrctlMessage { no_new_privs, death_signal: word(0), process };
        Ok((message != PrctlMessage::default()).then(|| message.encode_to_vec()))
    }

    /// A page that is filled would otherwise become a huge one where the system prefers them.
    fn before_pages(&self, _version: u32, payload: &[u8], stub: &mut Stub) -> Result<()> {
        let message: PrctlMessage = crate::decode(NAME, payload)?;
        if message.process.is_some_and(|process| process.huge_pages_disabled) {
            set(stub, PR_SET_THP_DISABLE, 1)?;
        }
        Ok(())
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: PrctlMessage = crate::decode(NAME, payload)?;
        if let Some(process) = &message.process {
            restore_process(process, restore.stub)?;
        }
        if message.no_new_privs {
            set(restore.stub, PR_SET_NO_NEW_PRIVS, 1)?;
        }
        if message.death_signal != 0 && !is_our_child(restore.stub)? {
            set(restore.stub, PR_SET_PDEATHSIG, u64::from(message.death_signal))?;
        }
        Ok(())
    }
}

fn restore_process(process: &ProcessMessage, stub: &mut Stub) -> Result<()> {
    if process.child_subreaper {
        set(stub, PR_SET_CHILD_SUBREAPER, 1)?;
    }
    if process.machine_check != MACHINE_CHECK_DEFAULT {
        let policy = u64::from(process.machine_check);
        stub.call(nr::PRCTL, [PR_MCE_KILL, PR_MCE_KILL_SET, policy, 0, 0, 0])?;
    }
    if process.time_stamp_counter != TSC_ENABLED {
        set(stub, PR_SET_TSC, u64::from(process.time_stamp_counter))?;
    }
    if process.deny_write_execute != 0 {
        set(stub, PR_SET_MDWE, u64::from(process.deny_write_execute))?;
    }
    // The restorer's own state, or what the change of credentials has left.
    let dumpable = stub.call(nr::PRCTL, [PR_GET_DUMPABLE, 0, 0, 0, 0, 0])? as u32;
    if dumpable != process.dumpable {
        // Nobody may ask for the kernel's own setting; the nearest is no dump at all.
        let wanted = if process.dumpable == DUMPABLE_BY_ROOT { 0 } else { process.dumpable };
        set(stub, PR_SET_DUMPABLE, u64::from(wanted))?;
    }
    Ok(())
}

fn set(stub: &mut Stub, option: u64, value: u64) -> Result<()> {
    stub.call(nr::PRCTL, [option, value, 0, 0, 0, 0])?;
    Ok(())
}

fn is_our_child(stub: &Stub) -> Result<bool> {
    Ok(procfs::stat(stub.pid())?.ppid.get() == std::process::id() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &[u8] = b"Name:\tx\nTHP_enabled:\t0\nNoNewPrivs:\t1\n";

    fn raw(leader: bool, words: &[u32], status: &[u8]) -> Vec<u8> {
        let words = words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        [&[u8::from(leader)][..], &words, status].concat()
    }

    fn decoded(raw: &[u8]) -> PrctlMessage {
        PrctlMessage::decode(Prctl.after(raw).unwrap().unwrap().as_slice()).unwrap()
    }

    #[test]
    fn a_leader_brings_the_settings_of_its_process() {
        let message = decoded(&raw(true, &[15, 1, 2, 0, 3, 1], STATUS));
        let process = ProcessMessage {
            dumpable: 0,
            child_subreaper: true,
            deny_write_execute: 3,
            time_stamp_counter: 2,
            machine_check: 1,
            huge_pages_disabled: true,
        };
        assert_eq!(message, PrctlMessage { no_new_privs: true, death_signal: 15, process: Some(process) });
    }

    #[test]
    fn another_thread_brings_its_own_only() {
        let message = decoded(&raw(false, &[9], STATUS));
        assert_eq!(message, PrctlMessage { no_new_privs: true, death_signal: 9, process: None });
        assert_eq!(Prctl.after(&raw(false, &[0], b"NoNewPrivs:\t0\n")).unwrap(), None);
    }
}
