//! Opens descriptors in the subject for the tracer. If this program dies, the subject closes the descriptors
//! by itself.
//!
//! Owns: the opening and closing of descriptors, and the deferred closes.
//! Invariants: from the call that opens a descriptor to the call that closes it, the restore path includes a
//! deferred close of the descriptor. The thread writes the fd into the deferred close. No
//! descriptor is closed twice, because the program may reuse the fd after the first close.
//! Does not: use the descriptors; the callers use duplicates.
//!
//! A deferred close is a signal frame with the registers for close(2). Before the opening call, the fd in the
//! frame is invalid. The opening call returns into the store gadget (an instruction sequence of the program
//! that stores the result register). The gadget writes the fd into the frame.
//!
//! If the subject has no store gadget, the tracer writes the fd into the frame some microseconds after the
//! opening call. If this program dies in these microseconds, the descriptor stays open in the subject.

use model::{Address, ByteCount};
use sys::Errno;

use super::chain::{self, Query, Slots};
use super::error::RemoteError;
use super::layout::DEFERRED_CLOSE_BYTES;
use super::session::{Position, RemoteSession};
use crate::arch;
use crate::arch::numbers::CLOSE;
use crate::procfs::SignalSets;
use crate::steps;

impl RemoteSession<'_> {
    /// Makes calls that each open a descriptor. The descriptors stay open until [`Self::close_opened`], or
    /// until the session ends. The capacity of the session limits their number.
    pub fn open(
        &mut self,
        queries: &[Query],
        signals: SignalSets,
    ) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        let (opened, restore_path) =
            (self.opened + queries.len(), self.layout.restore_path(self.opened + queries.len()));
        // The deferred close that is written last has the lowest address, and belongs to the first call.
        let slots = Slots { first: self.layout.fd_address(opened), stride: ByteCount(DEFERRED_CLOSE_BYTES) };
        let Some(chain) = self.chain_of(queries, signals, restore_path, Some(slots)) else {
            return queries.iter().map(|query| self.open_one(query)).collect();
        };
        for count in self.opened + 1..=opened {
            self.write_deferred_close(count)?;
        }
        self.start_chain(&chain)?;
        self.opened = opened;
        self.finish_chain(&chain, queries.len())?.into_iter().map(Ok).collect()
    }

    /// Makes one call that opens a descriptor.
    pub fn open_one(&mut self, query: &Query) -> Result<Result<u64, Errno>, RemoteError> {
        self.write_deferred_close(self.opened + 1)?;
        let stack = self.deferred_close(self.opened + 1);
        let result = self.make(query.number, &self.registers_for(query.number, query.arguments, stack));
        self.opened += 1;
        match result {
            Ok(fd) => {
                // The tracer writes the fd itself, because the thread does not execute the store gadget while
                // this program lives.
                self.layout.memory.write(self.layout.fd_address(self.opened), &fd.to_ne_bytes())?;
                steps::reach("descriptor noted");
                Ok(Ok(fd))
            }
            Err(RemoteError::Refused { errno, .. }) => Ok(Err(errno)),
            Err(error) => Err(error),
        }
    }

    /// Makes the subject close the opened descriptors, the newest first.
    pub fn close_opened(&mut self, signals: SignalSets) -> Result<(), RemoteError> {
        let mut fds = Vec::with_capacity(self.opened);
        for count in (1..=self.opened).rev() {
            fds.extend(self.layout.fd_of(count)?);
        }
        if fds.is_empty() {
            self.opened = 0;
            return Ok(());
        }
        let close = |fd: &u64| Query { number: CLOSE, arguments: [*fd, 0, 0, 0, 0, 0] };
        let queries: Vec<Query> = fds.iter().map(close).collect();
        let Some(chain) = self.chain_of(&queries, signals, self.layout.restore_frame, None) else {
            return self.close_one_by_one();
        };
        // As soon as the registers are set to the chain, the restore path contains the calls of the chain,
        // and no deferred close.
        self.start_chain(&chain)?;
        self.opened = 0;
        for result in self.finish_chain(&chain, queries.len())? {
            result.map_err(|errno| RemoteError::Refused { tid: self.tid(), number: CLOSE, errno })?;
        }
        Ok(())
    }

    fn close_one_by_one(&mut self) -> Result<(), RemoteError> {
        while self.opened > 0 {
            let fd = self.layout.fd_of(self.opened)?;
            // The restore path of this call must not contain the deferred close of the same descriptor.
            self.opened -= 1;
            if let Some(fd) = fd {
                self.call(CLOSE, [fd, 0, 0, 0, 0, 0])?;
            }
        }
        Ok(())
    }

    /// Closes the descriptors that are still open when a session ends. A chain of the session may still be
    /// running.
    pub(super) fn close_remaining(&mut self) -> Result<(), RemoteError> {
        if self.position == Position::Running {
            self.reach_event_stop()?;
        }
        self.close_one_by_one()
    }

    /// Writes the deferred close of the `count`th descriptor. The restore path does not include this deferred
    /// close yet.
    fn write_deferred_close(&self, count: usize) -> Result<(), RemoteError> {
        debug_assert!(count <= self.layout.capacity.opened, "what is opened fits its room");
        let next = self.layout.restore_path(count - 1).start;
        let call = self.registers_for(CLOSE, [chain::UNSET, 0, 0, 0, 0, 0], next);
        let mut bytes = Vec::with_capacity(DEFERRED_CLOSE_BYTES as usize);
        if let Some(store) = self.gadgets.store {
            bytes.extend(store.words(self.layout.fd_address(count)).flat_map(u64::to_ne_bytes));
        }
        let start = self.layout.restore_path(count).start - ByteCount(bytes.len() as u64);
        bytes.extend(arch::frame(&call, u64::MAX, self.layout.restore_frame.state, self.gadgets.restorer));
        self.layout.memory.write(start, &bytes)?;
        steps::reach("closing laid");
        Ok(())
    }

    /// Returns the address of the word to which a call returns, so that its result is stored in the `count`th
    /// deferred close.
    fn deferred_close(&self, count: usize) -> Address {
        let words = self.gadgets.store.map_or(0, |store| store.words(Address(0)).count());
        self.layout.restore_path(count).start - ByteCount(8 * words as u64)
    }
}
