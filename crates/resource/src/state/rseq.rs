//! The state kind of the rseq(2) registration of a thread.
//!
//! Owns: the registration, and aborting a restartable sequence that a stop has interrupted.
//! Invariants: a thread that was inside a sequence continues at the abort handler of the sequence, as after any
//! preemption.
//! Does not: save the content of `struct rseq`, which is part of memory.

use model::Address;
use prost::Message;
use sys::ptrace;
use tracee::ProcessMemory;
use tracee::arch::numbers as nr;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};

const NAME: &str = "state/rseq";

/// The offset in `struct rseq` of the address of the active sequence's descriptor, in bytes.
const SEQUENCE_OFFSET: u64 = 8;

/// The state kind of rseq(2) registrations.
pub(super) struct Rseq;

#[derive(Clone, PartialEq, Message)]
struct RseqMessage {
    #[prost(uint64, tag = "1")]
    address: u64,
    #[prost(uint32, tag = "2")]
    length: u32,
    #[prost(uint32, tag = "3")]
    signature: u32,
    /// The address of the active sequence's descriptor. A registration clears the address in memory, so the restore
    /// writes the address afterwards.
    #[prost(uint64, tag = "4")]
    sequence: u64,
}

impl StateKind for Rseq {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Setup }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let configuration = match capture.known_sequence() {
            Some(known) => known,
            None => ptrace::rseq_configuration(capture.tid)?,
        };
        if configuration.address == 0 {
            return Ok(());
        }
        raw.extend(configuration.address.to_ne_bytes());
        raw.extend(configuration.length.to_ne_bytes());
        raw.extend(configuration.signature.to_ne_bytes());
        raw.extend(word_at(capture.memory(), configuration.address + SEQUENCE_OFFSET)?.to_ne_bytes());
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let word = |at: usize| raw.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let half = |at: usize| raw.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let message = (|| {
            Some(RseqMessage {
                address: word(0)?,
                length: half(8)?,
                signature: half(12)?,
                sequence: word(16)?,
            })
        })();
        Ok(message.map(|message| message.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let message: RseqMessage = crate::error::decode(NAME, payload)?;
        match message.address.checked_add(SEQUENCE_OFFSET) {
            Some(_) => Ok(()),
            None => Err(ResourceError::malformed(NAME, "its address is out of range")),
        }
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: RseqMessage = crate::error::decode(NAME, payload)?;
        let arguments = [message.address, u64::from(message.length), 0, u64::from(message.signature), 0, 0];
        restore.stub.call(nr::RSEQ, arguments)?;
        let at = Address(message.address + SEQUENCE_OFFSET);
        restore.memory.write(at, &message.sequence.to_ne_bytes())?;
        Ok(())
    }
}

fn word_at(memory: &ProcessMemory, address: u64) -> Result<u64> {
    let mut word = [0; 8];
    memory.read(Address(address), &mut word)?;
    Ok(u64::from_ne_bytes(word))
}
