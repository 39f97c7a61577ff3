//! A cache of remote call results: a thread with valid cached results makes no remote calls in a pause.
//!
//! Owns: the map from bytes of kernel structures to results.
//! Invariants: a cached result is used only for the same calls. The kernel fields that determine the result must have
//! the same bytes in this pause. No result is computed from the fields themselves.
//! Does not: choose the fields. Each kind names the fields that determine the results of its calls.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};

use model::Tid;
use sys::task_reader::{Field, TaskReader};
use tracee::RemoteSession;
use tracee::remote::SignalSets;

use super::remote_calls::{CallResult, CallResults, CallsInFlight, RemoteCalls};
use crate::error::Result;

/// The maximum number of cached entries per thread. Some fields contain bits that change between a few combinations.
const ENTRIES_MAX: usize = 4;

/// Cached results of threads, and the readers that validate the results.
#[derive(Debug, Default)]
pub struct ResultCache {
    readers: Readers,
    threads: HashMap<Tid, VecDeque<Entry>>,
    /// The number of threads that needed remote calls in this pause.
    misses: usize,
}

/// Readers of the kernel fields that determine results.
#[derive(Debug, Default)]
enum Readers {
    #[default]
    Untried,
    /// The kernel offers no readers, or this user may not use readers.
    Missing,
    Ready {
        leader: TaskReader,
        other: TaskReader,
    },
}

/// The remote calls of one thread in one pause.
#[derive(Debug, Default)]
pub(super) struct ThreadCalls<'a> {
    pub(super) calls: RemoteCalls,
    /// Cached results of earlier captures.
    pub(super) cache: Option<&'a RefCell<ResultCache>>,
    /// The bytes of the kernel fields in this pause.
    sources: Option<Vec<u8>>,
    /// The batch in flight.
    in_flight: Option<CallsInFlight>,
    results: CallResults,
}

#[derive(Debug)]
struct Entry {
    sources: Vec<u8>,
    calls: RemoteCalls,
    results: CallResults,
}

impl ResultCache {
    /// Creates the readers for leaders and for other threads. Called outside any pause. Without readers, every thread
    /// makes its remote calls.
    pub(super) fn prepare(&mut self, of_leader: &[Field], of_other: &[Field]) {
        if matches!(self.readers, Readers::Untried) {
            self.readers = match (TaskReader::new(of_leader), TaskReader::new(of_other)) {
                (Ok(leader), Ok(other)) => Readers::Ready { leader, other },
                _ => Readers::Missing,
            };
        }
    }

    /// Drops the entries of threads that are not in `living`.
    pub fn keep(&mut self, living: &HashSet<Tid>) {
        self.threads.retain(|tid, _| living.contains(tid));
    }

    /// Reports whether cached results can be validated.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(self.readers, Readers::Ready { .. })
    }

    /// Returns the number of threads that needed remote calls since the last call of this function.
    pub fn take_misses(&mut self) -> usize {
        std::mem::take(&mut self.misses)
    }

    /// Reads the bytes of the kernel fields of a stopped thread. Returns `None` if the fields cannot be read.
    fn sources(&mut self, tid: Tid, is_leader: bool) -> Option<Vec<u8>> {
        let Readers::Ready { leader, other } = &mut self.readers else { return None };
        let reader = if is_leader { leader } else { other };
        Some(reader.read(tid).ok()?.to_vec())
    }

    /// Returns the cached results of `calls` for the bytes in `sources`.
    fn recall(&self, tid: Tid, sources: &[u8], calls: &RemoteCalls) -> Option<CallResults> {
        let entries = self.threads.get(&tid).into_iter().flatten();
        let mut same = entries.filter(|entry| entry.sources == sources && entry.calls == *calls);
        same.next().map(|entry| entry.results.clone())
    }

    /// Adds results to the cache.
    fn note(&mut self, tid: Tid, sources: Vec<u8>, calls: RemoteCalls, results: &CallResults) {
        let kept = self.threads.entry(tid).or_default();
        kept.truncate(ENTRIES_MAX - 1);
        kept.push_front(Entry { sources, calls, results: results.clone() });
    }
}

impl ThreadCalls<'_> {
    /// Reports whether the thread needs no remote call, because no kind makes a call or all results are cached.
    pub(super) fn recall(&mut self, tid: Tid, is_leader: bool) -> bool {
        self.calls.is_empty() || self.recall_results(tid, is_leader).is_some()
    }

    fn recall_results(&mut self, tid: Tid, is_leader: bool) -> Option<()> {
        let mut cache = self.cache?.borrow_mut();
        self.sources = cache.sources(tid, is_leader);
        let recalled = self.sources.as_ref().and_then(|bytes| cache.recall(tid, bytes, &self.calls));
        cache.misses += usize::from(recalled.is_none());
        self.results = recalled?;
        Some(())
    }

    pub(super) fn begin(&mut self, session: &mut RemoteSession<'_>, signals: SignalSets) -> Result<()> {
        self.in_flight = Some(self.calls.begin(session, signals)?);
        Ok(())
    }

    /// Waits for the results of a batch in flight. Returns whether a batch was in flight.
    pub(super) fn collect(&mut self, session: &mut RemoteSession<'_>) -> Result<bool> {
        let Some(in_flight) = self.in_flight.take() else { return Ok(false) };
        self.results = self.calls.finish(session, in_flight)?;
        Ok(true)
    }

    /// Caches the results for later captures.
    pub(super) fn note(&mut self, tid: Tid) {
        if let (Some(cache), Some(sources)) = (self.cache, self.sources.take()) {
            cache.borrow_mut().note(tid, sources, std::mem::take(&mut self.calls), &self.results);
        }
    }

    pub(super) fn results_of(&self, kind: &'static str) -> &[CallResult] {
        self.results.get(kind).map_or(&[], Vec::as_slice)
    }

    pub(super) fn take(&mut self, kind: &'static str) -> Vec<CallResult> {
        self.results.remove(kind).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use model::ByteCount;

    use super::*;

    fn entry(kind: &'static str) -> (RemoteCalls, CallResults) {
        let mut calls = RemoteCalls::default();
        calls.of(kind);
        calls.add_into(131, [0; 6], 1, ByteCount(24));
        (calls, HashMap::from([(kind, vec![CallResult::test(vec![7; 24])])]))
    }

    #[test]
    fn a_result_is_valid_for_the_same_bytes_and_calls_only() {
        let mut cache = ResultCache::default();
        let (calls, results) = entry("state/sigaltstack");
        cache.note(Tid(7), vec![1, 2], calls.clone(), &results);
        assert!(cache.recall(Tid(7), &[1, 2], &calls).is_some());
        assert!(cache.recall(Tid(7), &[1, 3], &calls).is_none());
        assert!(cache.recall(Tid(8), &[1, 2], &calls).is_none());
        assert!(cache.recall(Tid(7), &[1, 2], &RemoteCalls::default()).is_none());
        cache.keep(&HashSet::new());
        assert!(cache.recall(Tid(7), &[1, 2], &calls).is_none());
    }

    #[test]
    fn a_few_combinations_are_cached_and_the_oldest_is_dropped() {
        let mut cache = ResultCache::default();
        let (calls, results) = entry("state/sigaltstack");
        for value in 0..=ENTRIES_MAX as u8 {
            cache.note(Tid(7), vec![value], calls.clone(), &results);
        }
        assert!(cache.recall(Tid(7), &[0], &calls).is_none());
        assert!((1..=ENTRIES_MAX as u8).all(|value| cache.recall(Tid(7), &[value], &calls).is_some()));
    }
}
