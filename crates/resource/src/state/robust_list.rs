//! The state kind of the list of robust mutexes that a thread has registered with the kernel.
//!
//! Owns: the address and the length of the list head, and emptying the list before a thread is killed.
//! Invariants: a killed thread leaves the words of its robust mutexes unchanged. The kernel would set FUTEX_OWNER_DIED in
//! each word, also in shared files. A file would then no longer match the checkpoint, in which the thread holds the
//! mutex.
//! Does not: save the list itself, which is part of memory.

use model::{Address, Pid, Tid};
use prost::Message;
use sys::process_memory;
use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateKind, StateRestore};
use crate::error::Result;

const NAME: &str = "state/robust_list";
const WORD_BYTES: usize = 8;
const HEAD_BYTES: usize = 3 * WORD_BYTES;

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
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "robust mutex lists"
    }

    fn level(&self) -> Level {
        Level::Thread
    }

    fn stage(&self) -> Stage {
        Stage::Setup
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
        restore.stub.call(nr::SET_ROBUST_LIST, [message.head, message.length, 0, 0, 0, 0])?;
        Ok(())
    }
}
