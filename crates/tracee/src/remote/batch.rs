//! Makes several calls of a session together.
//!
//! Owns: the distribution of calls over chains, the execution of a chain, and single calls where no chain is
//! possible.
//! Invariants: memory on the restore path of the thread (see `session`) is not overwritten. A chain ends with
//! a signal that the thread sends to itself, the *ending signal*. If the thread blocks this signal, and the
//! same signal arrives from elsewhere during a chain, the session records it.
//! Does not: define the layout of a chain; `chain` does.

use model::Tid;
use sys::ptrace::{self, Stop};
use sys::{Errno, Error};

use super::chain::{self, Chain, Query, Slots};
use super::error::RemoteError;
use super::session::{Intercepted, Position, RemoteSession, STOP};
use crate::arch::RestoreFrame;
use crate::procfs::SignalSets;
use crate::steps;

/// Offset of `si_code` in `siginfo_t`, and its value for tkill(2) and tgkill(2).
const SIGINFO_CODE: usize = 8;
const SI_TKILL: i32 = -6;

/// Several calls, of which some may be running.
#[derive(Debug)]
pub struct Batch {
    queries: Vec<Query>,
    signals: SignalSets,
    results: Vec<Result<u64, Errno>>,
    /// Groups of indices into `queries` that are not begun, in reverse order. One chain makes the calls of
    /// one group.
    parts: Vec<Vec<usize>>,
    /// The chain that was begun, with its group.
    begun: Option<(Chain, Vec<usize>)>,
}

impl RemoteSession<'_> {
    /// Begins several calls. If the program's code and the thread's signals permit it, a whole chain needs only one stop.
    /// Arguments may point into the data memory. No argument may depend on the result of another call. Afterwards the
    /// thread may run. The session accepts no other call until
    /// `finish_batch` returns.
    pub fn begin_batch(&mut self, queries: &[Query], signals: SignalSets) -> Result<Batch, RemoteError> {
        let mut order: Vec<usize> = (0..queries.len()).collect();
        // All calls of a chain have the same fourth argument.
        order.sort_by_key(|index| queries[*index].arguments[3]);
        let groups = order.chunk_by(|one, next| queries[*one].arguments[3] == queries[*next].arguments[3]);
        let mut parts: Vec<_> = groups
            .flat_map(|group| group.chunks(self.layout.capacity.links()))
            .map(<[usize]>::to_vec)
            .collect();
        parts.reverse();
        let results = vec![Ok(0); queries.len()];
        let mut batch = Batch { queries: queries.to_vec(), signals, results, parts, begun: None };
        self.begin_part(&mut batch)?;
        Ok(batch)
    }

    /// Waits for the calls of a batch, makes the calls that are not begun, and returns all results.
    pub fn finish_batch(&mut self, mut batch: Batch) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        while let Some((chain, part)) = batch.begun.take() {
            let made = self.finish_chain(&chain, part.len())?;
            part.iter().zip(made).for_each(|(index, result)| batch.results[*index] = result);
            self.begin_part(&mut batch)?;
        }
        Ok(batch.results)
    }

    /// Begins the next chain of a batch. Calls that cannot go in a chain are made immediately.
    fn begin_part(&mut self, batch: &mut Batch) -> Result<(), RemoteError> {
        while let Some(part) = batch.parts.pop() {
            let queries: Vec<Query> = part.iter().map(|index| batch.queries[*index]).collect();
            if let Some(chain) =
                self.chain_of(&queries, batch.signals, self.layout.restore_path(self.opened), None)
            {
                self.start_chain(&chain)?;
                batch.begun = Some((chain, part));
                break;
            }
            let made = self.make_one_by_one(&queries)?;
            part.iter().zip(made).for_each(|(index, result)| batch.results[*index] = result);
        }
        Ok(())
    }

    /// Returns a chain of calls that ends with a signal and then returns to `restore_path`, or `None` if no
    /// chain is possible.
    pub(super) fn chain_of(
        &self,
        queries: &[Query],
        signals: SignalSets,
        restore_path: RestoreFrame,
        slots: Option<Slots>,
    ) -> Option<Chain> {
        let signal = chain::ending_signal(signals, self.mask)
            .filter(|_| queries.len() <= self.layout.capacity.links())?;
        let plan = chain::Plan {
            thread: self.thread.tid(),
            original: &self.original,
            gadgets: &self.gadgets,
            start: self.layout.chain,
            restore_frame: restore_path,
            signal,
            slots,
        };
        plan.build(queries)
    }

    pub(super) fn start_chain(&mut self, chain: &Chain) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        if self.position != Position::Found {
            // The thread is stopped in the previous chain, and the new chain overwrites the previous one.
            self.point_at(self.layout.restore_path(self.opened))?;
            steps::reach("pointed away from a chain");
        }
        debug_assert!(
            chain.bytes.len() as u64 <= (self.layout.data - self.layout.chain).get(),
            "a chain fits its room"
        );
        self.layout.memory.write(self.layout.chain, &chain.bytes)?;
        steps::reach("chain written");
        self.set_mask(!chain::bit(chain.signal))?;
        ptrace::set_registers(tid, &chain.first)?;
        self.position = Position::Moved;
        steps::reach("pointed at the chain");
        ptrace::resume(tid, None)?;
        self.position = Position::Running;
        steps::reach("chain begun");
        Ok(())
    }

    pub(super) fn finish_chain(
        &mut self,
        chain: &Chain,
        count: usize,
    ) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        let tid = self.thread.tid();
        let results = loop {
            let injected = match self.next_stop()? {
                Stop::Delivery(signal) if signal == chain.signal => {
                    let is_blocked = self.mask & chain::bit(signal) != 0;
                    // A thread that blocks the signal may be waiting for it, for example in sigwait(3). So
                    // the sender of the signal matters.
                    if is_blocked && !chain::has_sent_ending_signal(&ptrace::registers(tid)?) {
                        self.intercepted.push(Intercepted { signal, is_own: is_sent_to_thread(tid)? });
                    } else {
                        let results = chain.slots.read(count, self.layout.memory)?;
                        if results.last().is_some_and(Option::is_some) {
                            break results;
                        }
                    }
                    // Another process has sent the same signal. It has no effect in this thread, so it is
                    // discarded.
                    None
                }
                Stop::Delivery(STOP) => Some(STOP),
                Stop::Delivery(signal) => return Err(RemoteError::Signalled { tid, signal }),
                _ => None,
            };
            ptrace::resume(tid, injected)?;
            self.position = Position::Running;
        };
        // If the thread's own mask blocks the signal, the kernel would queue the signal again when this
        // program dies after the mask is restored. The session then restores the thread in an event stop
        // instead.
        if self.mask & chain::bit(chain.signal) == 0 {
            self.position = Position::AtSignal;
        }
        steps::reach("chain ended");
        let results = results.into_iter().enumerate().map(|(link, result)| match result {
            Some(errno @ -4095..0) => Ok(Err(Errno(-errno as i32))),
            Some(result) => Ok(Ok(result as u64)),
            None => Err(RemoteError::Broken { tid, link }),
        });
        results.collect()
    }

    fn make_one_by_one(&mut self, queries: &[Query]) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        let results = queries.iter().map(|query| match self.call(query.number, query.arguments) {
            Ok(result) => Ok(Ok(result)),
            Err(RemoteError::Refused { errno, .. }) => Ok(Err(errno)),
            Err(error) => Err(error),
        });
        results.collect()
    }
}

/// Reports whether the signal at which a thread is stopped was sent to that thread, not to the process.
fn is_sent_to_thread(tid: Tid) -> Result<bool, Error> {
    let information = ptrace::signal_information(tid)?;
    let code = information[SIGINFO_CODE..SIGINFO_CODE + 4].try_into().map_or(0, i32::from_ne_bytes);
    Ok(code == SI_TKILL)
}
