//! Calls of a session that are made together.
//!
//! Owns: which calls go in one chain, its course, and the calls one by one where no chain can be made.
//! Invariants: where the thread stands, nothing is overwritten that its way home leads through; a signal that others
//! send while a chain is on its way is kept for the session.
//! Does not: know how a chain is laid out; `chain` does.

use model::Tid;
use sys::ptrace::{self, Stop};
use sys::{Errno, Error};

use super::chain::{self, Chain, Query, Slots};
use super::error::RemoteError;
use super::session::{Intercepted, Position, RemoteSession, STOP};
use crate::arch::{self, HomePlace};
use crate::procfs::SignalSets;
use crate::steps;

/// `si_code` in `siginfo_t`, and its value for tkill(2).
const SIGINFO_CODE: usize = 8;
const SI_TKILL: i32 = -6;

/// Calls of which some may be on their way.
#[derive(Debug)]
pub struct Batch {
    queries: Vec<Query>,
    signals: SignalSets,
    results: Vec<Result<u64, Errno>>,
    /// Those that go together and have not been begun, last first.
    parts: Vec<Vec<usize>>,
    /// Those that were.
    begun: Option<(Chain, Vec<usize>)>,
}

impl RemoteSession<'_> {
    /// Makes several calls, with one stop in the end where the program's code and the thread's signals allow it.
    /// Their arguments may point into the data; none may depend on the result of another.
    pub fn batch(
        &mut self,
        queries: &[Query],
        signals: SignalSets,
    ) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        let batch = self.begin_batch(queries, signals)?;
        self.finish_batch(batch)
    }

    /// Begins to make several calls; the thread may be on its way afterwards, and nothing else can be asked of it
    /// until they are finished.
    pub fn begin_batch(&mut self, queries: &[Query], signals: SignalSets) -> Result<Batch, RemoteError> {
        let mut order: Vec<usize> = (0..queries.len()).collect();
        // A chain of words serves calls with the same fourth argument.
        order.sort_by_key(|index| queries[*index].arguments[3]);
        let groups = order.chunk_by(|one, next| queries[*one].arguments[3] == queries[*next].arguments[3]);
        let mut parts: Vec<_> =
            groups.flat_map(|group| group.chunks(self.layout.room.links())).map(<[usize]>::to_vec).collect();
        parts.reverse();
        let results = vec![Ok(0); queries.len()];
        let mut batch = Batch { queries: queries.to_vec(), signals, results, parts, begun: None };
        self.begin_part(&mut batch)?;
        Ok(batch)
    }

    /// What the calls of a batch came to; those that were not begun are made.
    pub fn finish_batch(&mut self, mut batch: Batch) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        while let Some((chain, part)) = batch.begun.take() {
            let made = self.come_to_end(&chain, part.len())?;
            part.iter().zip(made).for_each(|(index, result)| batch.results[*index] = result);
            self.begin_part(&mut batch)?;
        }
        Ok(batch.results)
    }

    /// Begins the next chain of a batch; what cannot be made in a chain is made at once.
    fn begin_part(&mut self, batch: &mut Batch) -> Result<(), RemoteError> {
        while let Some(part) = batch.parts.pop() {
            let queries: Vec<Query> = part.iter().map(|index| batch.queries[*index]).collect();
            if let Some(chain) = self.chain_of(&queries, batch.signals, self.layout.way(self.opened), None) {
                self.set_off(&chain)?;
                batch.begun = Some((chain, part));
                break;
            }
            let made = self.make_one_by_one(&queries)?;
            part.iter().zip(made).for_each(|(index, result)| batch.results[*index] = result);
        }
        Ok(())
    }

    /// The chain of some calls that ends with a signal and then leads to `way`, if one can be made.
    pub(super) fn chain_of(
        &self,
        queries: &[Query],
        signals: SignalSets,
        way: HomePlace,
        slots: Option<Slots>,
    ) -> Option<Chain> {
        let signal =
            chain::harmless(signals, self.mask).filter(|_| queries.len() <= self.layout.room.links())?;
        let plan = chain::Plan {
            thread: (self.thread.pid(), self.thread.tid()),
            original: &self.original,
            gadgets: &self.gadgets,
            start: self.layout.chain,
            home: way,
            signal,
            slots,
        };
        // rt_sigreturn, which every link of a chain of frames goes through, makes the kernel forget what it needs to
        // resume the call that the stop broke off.
        let may_forget = !arch::resumed_by_kernel(&self.original);
        plan.build_of_words(queries).or_else(|| plan.build_of_frames(queries).filter(|_| may_forget))
    }

    pub(super) fn set_off(&mut self, chain: &Chain) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        if self.position != Position::Found {
            // It is stopped in the chain before, which this one is written over.
            self.point_at(self.layout.way(self.opened))?;
            steps::reach("pointed away from a chain");
        }
        debug_assert!(
            chain.bytes.len() as u64 <= (self.layout.data - self.layout.chain).get(),
            "a chain fits its room"
        );
        self.layout.memory.write(self.layout.chain, &chain.bytes)?;
        steps::reach("chain written");
        self.hold_back(chain.mask)?;
        ptrace::set_registers(tid, &chain.first)?;
        self.position = Position::Moved;
        steps::reach("pointed at the chain");
        ptrace::resume(tid, None)?;
        self.position = Position::Running;
        steps::reach("chain begun");
        Ok(())
    }

    pub(super) fn come_to_end(
        &mut self,
        chain: &Chain,
        count: usize,
    ) -> Result<Vec<Result<u64, Errno>>, RemoteError> {
        let tid = self.thread.tid();
        let results = loop {
            let injected = match self.next_stop()? {
                Stop::Delivery(signal) if signal == chain.signal => {
                    let is_blocked = self.mask & chain::bit(signal) != 0;
                    // Who blocks it may wait for it: it matters who has sent it.
                    if is_blocked && !chain::stands_at_end(&ptrace::registers(tid)?) {
                        self.intercepted.push(Intercepted { signal, is_own: is_sent_to_thread(tid)? });
                    } else {
                        let results = chain.slots.read(count, self.layout.memory)?;
                        if results.last().is_some_and(Option::is_some) {
                            break results;
                        }
                    }
                    // Another process has sent the same signal, which has no effect here.
                    None
                }
                Stop::Delivery(STOP) => Some(STOP),
                Stop::Delivery(signal) => return Err(RemoteError::Signalled { tid, signal }),
                _ => None,
            };
            ptrace::resume(tid, injected)?;
            self.position = Position::Running;
        };
        // With its mask back in place, a signal that it blocks would be queued again should this program die.
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

/// Whether the signal that a thread stands at was sent to that thread alone.
fn is_sent_to_thread(tid: Tid) -> Result<bool, Error> {
    let information = ptrace::signal_information(tid)?;
    let code = information[SIGINFO_CODE..SIGINFO_CODE + 4].try_into().map_or(0, i32::from_ne_bytes);
    Ok(code == SI_TKILL)
}
