//! Descriptors that the subject opens for us, and closes by itself should this program die.
//!
//! Owns: the calls that close them, laid on the way home; opening and closing.
//! Invariants: from the call that opens a descriptor to the one that closes it, the way home leads through a call that
//! closes it, with the number put there by the subject itself; each is closed once, since its number may be another's
//! right afterwards.
//! Does not: use them; who has them opened takes duplicates.
//!
//! Each closing is a signal frame whose registers make the call, with a number that is unused until a descriptor gets
//! it. The call that opens returns into the store, which puts the number there; a kernel that writes the number itself
//! (recvmsg(2)) writes it there. A program without a store leaves its descriptor open if we die in the microseconds
//! between the end of that call and our writing the number.

use model::{Address, ByteCount};
use sys::Errno;

use super::chain::{self, Query, Slots};
use super::error::RemoteError;
use super::layout::CLOSING_BYTES;
use super::session::{Position, RemoteSession};
use crate::arch;
use crate::arch::numbers::CLOSE;
use crate::procfs::SignalSets;
use crate::steps;

impl RemoteSession<'_> {
    /// Makes calls that each open a descriptor; they stay open until [`Self::close_opened`], or until the session
    /// ends. A session has room for as many as it was begun with.
    pub fn open(
        &mut self,
        queries: &[Query],
        signals: SignalSets,
    ) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        let (opened, way) = (self.opened + queries.len(), self.layout.way(self.opened + queries.len()));
        // The last one that is laid is the lowest; the first call has it.
        let slots = Slots { first: self.layout.number_at(opened), stride: ByteCount(CLOSING_BYTES) };
        let Some(chain) = self.chain_of(queries, signals, way, Some(slots)) else {
            return queries.iter().map(|query| self.open_one(query)).collect();
        };
        for count in self.opened + 1..=opened {
            self.lay_closing(count)?;
        }
        self.set_off(&chain)?;
        self.opened = opened;
        self.come_to_end(&chain, queries.len())?.into_iter().map(Ok).collect()
    }

    /// Makes a call that opens a descriptor.
    pub fn open_one(&mut self, query: &Query) -> Result<Result<u64, Errno>, RemoteError> {
        self.lay_closing(self.opened + 1)?;
        let frame = self.layout.way(self.opened + 1).start;
        let link = self.gadgets.store.map(|(_, store)| frame - link_bytes(store));
        let result = self.call_from(link.unwrap_or(frame), query);
        self.opened += 1;
        match result {
            Ok(number) => {
                // The thread is not to go through the store as long as we live.
                self.layout.memory.write(self.layout.number_at(self.opened), &number.to_ne_bytes())?;
                steps::reach("descriptor noted");
                Ok(Ok(number))
            }
            Err(RemoteError::Refused { errno, .. }) => Ok(Err(errno)),
            Err(error) => Err(error),
        }
    }

    /// Makes a call for which the kernel opens a descriptor and writes its number, four bytes, to the address that
    /// `query` is told; up to sixteen bytes before it may be written as well. `None` if it wrote no number.
    pub fn open_into(
        &mut self,
        query: impl FnOnce(&Self, Address) -> Result<Query, RemoteError>,
    ) -> Result<Option<u64>, RemoteError> {
        self.lay_closing(self.opened + 1)?;
        let query = query(self, self.layout.number_at(self.opened + 1))?;
        let result = self.call_from(self.layout.way(self.opened + 1).start, &query);
        self.opened += 1;
        result?;
        self.layout.number_of(self.opened)
    }

    /// Has the subject close what it has opened, the newest first.
    pub fn close_opened(&mut self, signals: SignalSets) -> Result<(), RemoteError> {
        let mut numbers = Vec::with_capacity(self.opened);
        for count in (1..=self.opened).rev() {
            numbers.extend(self.layout.number_of(count)?);
        }
        if numbers.is_empty() {
            self.opened = 0;
            return Ok(());
        }
        let close = |number: &u64| Query { number: CLOSE, arguments: [*number, 0, 0, 0, 0, 0] };
        let queries: Vec<Query> = numbers.iter().map(close).collect();
        let Some(chain) = self.chain_of(&queries, signals, self.layout.home, None) else {
            return self.close_one_by_one();
        };
        // From the moment that the registers lead there, the numbers of the chain count and the closings do not.
        self.set_off(&chain)?;
        self.opened = 0;
        for result in self.come_to_end(&chain, queries.len())? {
            result.map_err(|errno| RemoteError::Refused { tid: self.tid(), number: CLOSE, errno })?;
        }
        Ok(())
    }

    fn close_one_by_one(&mut self) -> Result<(), RemoteError> {
        while self.opened > 0 {
            let number = self.layout.number_of(self.opened)?;
            // The call itself goes home past its own closing.
            self.opened -= 1;
            if let Some(number) = number {
                self.call(CLOSE, [number, 0, 0, 0, 0, 0])?;
            }
        }
        Ok(())
    }

    /// Closes what is still open when a session ends, or is given up with a chain on its way.
    pub(super) fn give_up_opened(&mut self) -> Result<(), RemoteError> {
        if self.position == Position::Running {
            self.reach_event_stop()?;
        }
        self.close_one_by_one()
    }

    /// Lays the closing of the descriptor that is opened as the `count`th; nothing leads there yet.
    fn lay_closing(&self, count: usize) -> Result<(), RemoteError> {
        debug_assert!(count <= self.layout.room.opened, "what is opened fits its room");
        let (frame, next) = (self.layout.way(count).start, self.layout.way(count - 1).start);
        let call = self.registers_for(CLOSE, [chain::UNSET, 0, 0, 0, 0, 0], next);
        let mut bytes = Vec::with_capacity(CLOSING_BYTES as usize);
        if let Some((at, store)) = self.gadgets.store {
            bytes.extend(at.get().to_ne_bytes());
            bytes.resize(link_bytes(store).get() as usize, 0);
        }
        let start = frame - ByteCount(bytes.len() as u64);
        bytes.extend(arch::frame(&call, u64::MAX, self.layout.home.state, self.gadgets.restorer));
        self.layout.memory.write(start, &bytes)?;
        steps::reach("closing laid");
        Ok(())
    }

    /// Makes a call that returns to what lies at `stack`; the store then puts the result into the newest closing.
    fn call_from(&mut self, stack: Address, query: &Query) -> Result<u64, RemoteError> {
        let call = self.registers_for(query.number, query.arguments, stack);
        let call = match self.gadgets.store {
            Some((_, store)) => {
                arch::with_preserved(&call, store.base, self.layout.number_at(self.opened + 1))
            }
            None => call,
        };
        self.make(query.number, &call)
    }
}

fn link_bytes(store: arch::Store) -> ByteCount {
    ByteCount(8 * (1 + store.words as u64))
}
