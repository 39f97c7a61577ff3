//! The state kind of the list of robust mutexes that a thread has registered with the kernel.
//!
//! Owns: the address and the length of the list head, emptying the list before a thread is killed, and the mutexes that
//! a death has marked.
//! Invariants: a thread that a checkpoint kills leaves the words of its robust mutexes unchanged. The kernel would set FUTEX_OWNER_DIED in
//! each word, also in shared files. A file would then no longer match the checkpoint, in which the thread holds the
//! mutex.
//! Does not: save the list itself, which is part of memory.

use model::{Address, Pid, Tid};
use prost::Message;
use sys::process_memory;
use tracee::ProcessMemory;
use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::Result;

const NAME: &str = "state/robust_list";
const WORD_BYTES: usize = 8;
const HEAD_BYTES: usize = 3 * WORD_BYTES;
/// The bit in a pointer to an entry that marks a mutex with priority inheritance.
const PRIORITY_BIT: u64 = 1;
/// The maximum length of a list that the kernel follows (ROBUST_LIST_LIMIT).
const ENTRIES_MAX: usize = 2048;
/// Bits of a mutex word; see futex(2).
const FUTEX_WAITERS: u32 = 0x8000_0000;
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;

/// The state kind of robust mutex lists.
pub(super) struct RobustList;

#[derive(Clone, PartialEq, Message)]
struct RobustListMessage {
    #[prost(uint64, tag = "1")]
    head: u64,
    #[prost(uint64, tag = "2")]
    length: u64,
}

impl StateKind for RobustList {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Setup }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let (head, length) = sys::robust_list::get(capture.tid)?;
        raw.extend(head.get().to_ne_bytes());
        raw.extend(length.get().to_ne_bytes());
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let word = |at: usize| raw.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let found = word(0).zip(word(8)).filter(|(head, _)| *head != 0);
        Ok(found.map(|(head, length)| RobustListMessage { head, length }.encode_to_vec()))
    }

    fn before_kill(&self, pid: Pid, tid: Tid) -> Result<()> {
        let (head, length) = sys::robust_list::get(tid)?;
        if head == Address(0) || length.get() != HEAD_BYTES as u64 {
            return Ok(());
        }
        // `struct robust_list_head`: the first entry, an offset, and the entry of a lock or unlock in progress. The
        // first entry of an empty list is the head itself.
        let mut list = [0; HEAD_BYTES];
        process_memory::read(pid, head, &mut list)?;
        list[..WORD_BYTES].copy_from_slice(&head.get().to_ne_bytes());
        list[HEAD_BYTES - WORD_BYTES..].fill(0);
        Ok(process_memory::write(pid, head, &list)?)
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<RobustListMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: RobustListMessage = crate::error::decode(NAME, payload)?;
        if message.length == HEAD_BYTES as u64 {
            // The list of a program that registers a list of its own may be anything.
            let _ = hold_again(restore.memory, restore.stub.tid(), Address(message.head));
        }
        restore.stub.call(nr::SET_ROBUST_LIST, [message.head, message.length, 0, 0, 0, 0])?;
        Ok(())
    }
}

/// Sets the words of robust mutexes that the kernel has marked at the death of the thread. The mutexes are in shared
/// files that were not set back. In the restored program, the thread holds these mutexes again.
fn hold_again(memory: &ProcessMemory, tid: Tid, head: Address) -> sys::Result<()> {
    let word = |at: u64| -> sys::Result<u64> {
        let mut bytes = [0; WORD_BYTES];
        memory.read(Address(at), &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let offset = word(head.get().wrapping_add(WORD_BYTES as u64))?;
    let mut entry = word(head.get())? & !PRIORITY_BIT;
    let mut entries = vec![word(head.get().wrapping_add(2 * WORD_BYTES as u64))? & !PRIORITY_BIT];
    while entry != head.get() && entries.len() < ENTRIES_MAX {
        entries.push(entry);
        entry = word(entry)? & !PRIORITY_BIT;
    }
    for entry in entries.into_iter().filter(|entry| *entry != 0) {
        let at = Address(entry.wrapping_add(offset));
        let mut bytes = [0; 4];
        memory.read(at, &mut bytes)?;
        let value = u32::from_ne_bytes(bytes);
        // Another process that has taken the mutex since has removed the mark, or has written its own tid.
        if value & !FUTEX_WAITERS == FUTEX_OWNER_DIED {
            let held = value & FUTEX_WAITERS | tid.get() as u32;
            memory.write(at, &held.to_ne_bytes())?;
        }
    }
    Ok(())
}
