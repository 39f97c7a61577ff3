//! Saves and restores settings of prctl(2) and arch_prctl(2): the settings that `/proc` shows or a system call
//! returns.
//!
//! Owns: the settings of a thread: no_new_privs, the parent-death signal, the policies for the time stamp counter,
//! CPUID and machine checks, and the speculation controls. Owns the settings of a process: dumpable, child subreaper,
//! denial of executable writes, transparent huge pages, and merging of equal pages.
//! Invariants: these settings are restored after credentials, because a change of credentials resets dumpable and
//! parent-death signals. These settings are restored before seccomp filters take effect.
//! Does not: restore the parent-death signal of a process that is a child of the restorer. The original parent of this
//! process does not exist any more. The kernel would send the signal as soon as the restorer ends. Does not save
//! keep-caps and other settings of credentials (`credentials` does), or timer slack (`scheduling` does).

use model::ByteCount;
use prost::Message;
use sys::task_reader::Field;
use tracee::arch::numbers as nr;
use tracee::{Stub, procfs};

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use super::remote_calls::RemoteCalls;
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
const PR_SET_SPECULATION_CTRL: u64 = 53;
const PR_SET_MDWE: u64 = 65;
const PR_GET_MDWE: u64 = 66;
const PR_SET_MEMORY_MERGE: u64 = 67;
const PR_GET_MEMORY_MERGE: u64 = 68;
/// Requests of arch_prctl(2).
const ARCH_GET_CPUID: u64 = 0x1011;
const ARCH_SET_CPUID: u64 = 0x1012;

/// SUID_DUMP_USER: the owner of the process may dump and trace the process.
const DUMPABLE: u32 = 1;
/// SUID_DUMP_ROOT. prctl(2) cannot set this value. The kernel sets it when credentials change and `fs.suid_dumpable`
/// is 2.
const DUMPABLE_BY_ROOT: u32 = 2;
/// PR_TSC_ENABLE.
const TSC_ENABLED: u32 = 1;
/// The thread may execute the instruction CPUID.
const CPUID_ENABLED: u32 = 1;
/// PR_MCE_KILL_DEFAULT.
const MACHINE_CHECK_DEFAULT: u32 = 2;

const WORD_BYTES: usize = size_of::<u32>();
/// The raw state contains one 32-bit word for each setting that a system call returns. This is the default of each word
/// of a thread: death signal, time stamp counter, machine checks, CPUID. The default is used if the kernel does not
/// know the setting.
const THREAD_DEFAULTS: [u32; 4] = [0, TSC_ENABLED, MACHINE_CHECK_DEFAULT, CPUID_ENABLED];
/// The raw state of a thread group leader contains four more words. These are their defaults: subreaper, dumpable,
/// denial of executable writes, merging.
const LEADER_DEFAULTS: [u32; 4] = [0, DUMPABLE, 0, 0];

/// The speculation controls. Each row has the number of a control in prctl(2), and the name of its line in the status
/// file.
const SPECULATION: [(u64, &str); 2] = [(0, "Speculation_Store_Bypass"), (1, "SpeculationIndirectBranch")];
/// The texts of a line in the status file, if the thread itself can set the control. Each text has the value for
/// prctl(2): PR_SPEC_ENABLE (2), PR_SPEC_DISABLE (4) or PR_SPEC_FORCE_DISABLE (8). If a policy of the whole machine
/// applies to the control, the line has another text.
const SPECULATION_WORDS: [(&str, u32); 6] = [
    ("thread vulnerable", 2),
    ("thread mitigated", 4),
    ("thread force mitigated", 8),
    ("conditional enabled", 2),
    ("conditional disabled", 4),
    ("conditional force disabled", 8),
];

/// The state kind of prctl(2) settings.
pub(super) struct Prctl;

#[derive(Clone, PartialEq, Message)]
struct PrctlMessage {
    #[prost(bool, tag = "1")]
    no_new_privs: bool,
    /// The signal that the thread receives when its parent dies; 0 for no signal.
    #[prost(uint32, tag = "2")]
    death_signal: u32,
    /// The settings of the process. Only the record of the thread group leader has this field.
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessMessage>,
    /// The settings of the thread. `None` in images of earlier versions. These images contain two of the settings in
    /// `process`, for the leader only.
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadMessage {
    /// PR_TSC_ENABLE or PR_TSC_SIGSEGV.
    #[prost(uint32, tag = "1")]
    time_stamp_counter: u32,
    /// PR_MCE_KILL_*.
    #[prost(uint32, tag = "2")]
    machine_check: u32,
    #[prost(bool, tag = "3")]
    cpuid_faults: bool,
    /// The PR_SPEC_* value for each row of `SPECULATION`; 0 if a policy of the whole machine applies.
    #[prost(uint32, repeated, tag = "4")]
    speculation: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessMessage {
    /// The value that PR_GET_DUMPABLE returns: 0, 1 or 2.
    #[prost(uint32, tag = "1")]
    dumpable: u32,
    #[prost(bool, tag = "2")]
    child_subreaper: bool,
    /// The PR_MDWE_* bits.
    #[prost(uint32, tag = "3")]
    deny_write_execute: u32,
    /// PR_TSC_ENABLE or PR_TSC_SIGSEGV of the leader. Used only in images without [`PrctlMessage::thread`].
    #[prost(uint32, tag = "4")]
    time_stamp_counter: u32,
    /// PR_MCE_KILL_* of the leader. Used only in images without [`PrctlMessage::thread`].
    #[prost(uint32, tag = "5")]
    machine_check: u32,
    #[prost(bool, tag = "6")]
    huge_pages_disabled: bool,
    /// `true` if the kernel may merge equal pages in all memory of the process (PR_SET_MEMORY_MERGE).
    #[prost(bool, tag = "7")]
    merges_memory: bool,
}

impl StateKind for Prctl {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Sealing }
    }

    fn sources(&self) -> Option<&'static [Field]> {
        Some(&[
            Field("pdeath_signal"),
            Field("flags"),
            Field("thread_info.flags"),
            Field("signal->is_child_subreaper"),
            Field("mm->flags"),
        ])
    }

    fn add_calls(&self, capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        let get = |option: u64| [option, 0, 0, 0, 0, 0];
        let word = ByteCount(WORD_BYTES as u64);
        for option in [PR_GET_PDEATHSIG, PR_GET_TSC] {
            calls.add_into(nr::PRCTL, get(option), 1, word);
        }
        calls.add(nr::PRCTL, get(PR_MCE_KILL_GET));
        calls.add(nr::ARCH_PRCTL, get(ARCH_GET_CPUID));
        if capture.tid == capture.pid.leader() {
            calls.add_into(nr::PRCTL, get(PR_GET_CHILD_SUBREAPER), 1, word);
            for option in [PR_GET_DUMPABLE, PR_GET_MDWE, PR_GET_MEMORY_MERGE] {
                calls.add(nr::PRCTL, get(option));
            }
        }
        Ok(())
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let leader = capture.tid == capture.pid.leader();
        raw.push(u8::from(leader));
        // The results are in call order.
        let defaults = THREAD_DEFAULTS.into_iter().chain(LEADER_DEFAULTS);
        for (result, default) in capture.results(NAME).into_iter().zip(defaults) {
            raw.extend(result.word_or(default)?.to_ne_bytes());
        }
        raw.extend_from_slice(capture.file("status")?);
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some((leader, rest)) = raw.split_first() else { return Ok(None) };
        let leader = *leader != 0;
        let count = THREAD_DEFAULTS.len() + if leader { LEADER_DEFAULTS.len() } else { 0 };
        let (words, status) = rest.split_at(count * WORD_BYTES);
        let words: Vec<u32> = words
            .chunks_exact(WORD_BYTES)
            .filter_map(|word| word.first_chunk().map(|word| u32::from_ne_bytes(*word)))
            .collect();
        let process = leader.then(|| {
            let words = &words[THREAD_DEFAULTS.len()..];
            ProcessMessage {
                child_subreaper: words[0] != 0,
                dumpable: words[1],
                deny_write_execute: words[2],
                merges_memory: words[3] != 0,
                huge_pages_disabled: procfs::status_line(status, "THP_enabled") == Some("0"),
                ..ProcessMessage::default()
            }
        });
        let thread = ThreadMessage {
            time_stamp_counter: words[1],
            machine_check: words[2],
            cpuid_faults: words[3] != CPUID_ENABLED,
            speculation: SPECULATION.iter().map(|(_, line)| speculation(status, line)).collect(),
        };
        let no_new_privs = procfs::status_line(status, "NoNewPrivs") == Some("1");
        let message = PrctlMessage { no_new_privs, death_signal: words[0], process, thread: Some(thread) };
        Ok(Some(message.encode_to_vec()))
    }

    /// Disables transparent huge pages before the memory is filled. Without this step, the kernel could fill the
    /// memory with huge pages, if the system is configured for huge pages.
    fn before_pages(&self, _version: u32, payload: &[u8], stub: &mut Stub) -> Result<()> {
        let message: PrctlMessage = crate::error::decode(NAME, payload)?;
        if message.process.is_some_and(|process| process.huge_pages_disabled) {
            set(stub, PR_SET_THP_DISABLE, 1)?;
        }
        Ok(())
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<PrctlMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: PrctlMessage = crate::error::decode(NAME, payload)?;
        if let Some(process) = &message.process {
            restore_process(process, restore.stub)?;
            if message.thread.is_none() {
                restore_policies(process.time_stamp_counter, process.machine_check, restore.stub)?;
            }
        }
        if let Some(thread) = &message.thread {
            restore_thread(thread, restore.stub)?;
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
    if process.merges_memory {
        set(stub, PR_SET_MEMORY_MERGE, 1)?;
    }
    if process.deny_write_execute != 0 {
        set(stub, PR_SET_MDWE, u64::from(process.deny_write_execute))?;
    }
    // The stub has inherited `dumpable` from the restorer, or the change of credentials has set `dumpable`.
    let dumpable = stub.call(nr::PRCTL, [PR_GET_DUMPABLE, 0, 0, 0, 0, 0])? as u32;
    if dumpable != process.dumpable {
        // prctl(2) cannot set DUMPABLE_BY_ROOT. The value 0 is used instead, because 0 does not permit the owner of
        // the process to dump the process either.
        let wanted = if process.dumpable == DUMPABLE_BY_ROOT { 0 } else { process.dumpable };
        set(stub, PR_SET_DUMPABLE, u64::from(wanted))?;
    }
    Ok(())
}

fn restore_thread(thread: &ThreadMessage, stub: &mut Stub) -> Result<()> {
    restore_policies(thread.time_stamp_counter, thread.machine_check, stub)?;
    if thread.cpuid_faults {
        stub.call(nr::ARCH_PRCTL, [ARCH_SET_CPUID, 0, 0, 0, 0, 0])?;
    }
    let now = procfs::read(format!("/proc/{}/task/{}/status", stub.pid(), stub.tid()))?;
    for ((number, line), wanted) in SPECULATION.iter().zip(&thread.speculation) {
        if *wanted != 0 && *wanted != speculation(&now, line) {
            let arguments = [PR_SET_SPECULATION_CTRL, *number, u64::from(*wanted), 0, 0, 0];
            stub.call(nr::PRCTL, arguments)?;
        }
    }
    Ok(())
}

fn restore_policies(time_stamp_counter: u32, machine_check: u32, stub: &mut Stub) -> Result<()> {
    if machine_check != MACHINE_CHECK_DEFAULT {
        stub.call(nr::PRCTL, [PR_MCE_KILL, PR_MCE_KILL_SET, u64::from(machine_check), 0, 0, 0])?;
    }
    if time_stamp_counter != TSC_ENABLED {
        set(stub, PR_SET_TSC, u64::from(time_stamp_counter))?;
    }
    Ok(())
}

/// Returns the PR_SPEC_* value of a line in a status file; 0 if a policy of the whole machine applies.
fn speculation(status: &[u8], line: &str) -> u32 {
    let words = procfs::status_line(status, line).unwrap_or_default();
    SPECULATION_WORDS.iter().find(|(known, _)| *known == words).map_or(0, |(_, value)| *value)
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

    const STATUS: &[u8] =
        b"Name:\tx\nTHP_enabled:\t0\nNoNewPrivs:\t1\nSpeculation_Store_Bypass:\tthread force \
        mitigated\nSpeculationIndirectBranch:\talways enabled\n";

    fn raw(leader: bool, words: &[u32], status: &[u8]) -> Vec<u8> {
        let words = words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        [&[u8::from(leader)][..], &words, status].concat()
    }

    fn decoded(raw: &[u8]) -> PrctlMessage {
        PrctlMessage::decode(Prctl.after(raw).unwrap().unwrap().as_slice()).unwrap()
    }

    #[test]
    fn a_leaders_record_has_the_settings_of_its_process() {
        let message = decoded(&raw(true, &[15, 2, 1, 0, 1, 0, 3, 1], STATUS));
        let process = ProcessMessage {
            dumpable: 0,
            child_subreaper: true,
            deny_write_execute: 3,
            huge_pages_disabled: true,
            merges_memory: true,
            ..ProcessMessage::default()
        };
        let thread = ThreadMessage {
            time_stamp_counter: 2,
            machine_check: 1,
            cpuid_faults: true,
            speculation: vec![8, 0],
        };
        let (process, thread) = (Some(process), Some(thread));
        assert_eq!(message, PrctlMessage { no_new_privs: true, death_signal: 15, process, thread });
    }

    #[test]
    fn the_record_of_another_thread_has_its_own_settings_only() {
        let message = decoded(&raw(false, &[9, 1, 2, 1], STATUS));
        assert!(message.no_new_privs && message.death_signal == 9 && message.process.is_none());
        let thread = message.thread.unwrap();
        assert_eq!((thread.time_stamp_counter, thread.machine_check, thread.cpuid_faults), (1, 2, false));
    }
}
