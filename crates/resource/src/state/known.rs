//! Cache of remote call results, so that a thread makes no remote calls in a pause when its cached results are valid.
//!
//! Owns: the map from bytes of kernel structures to results.
//! Invariants: a cached result is used for the same calls only, and only if the fields from which the kernel computes
//! it have the same bytes in this pause. No result is derived from a field alone.
//! Does not: choose the fields; each kind names those of its own calls.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};

use model::Tid;
use sys::task_reader::{Field, TaskReader};
use tracee::RemoteSession;
use tracee::remote::SignalSets;

use super::questions::{Answer, Answers, Asking, Questions};
use crate::error::Result;

/// Cached entries per thread. Some fields contain bits that change between a few combinations.
const KEPT_MAX: usize = 4;

/// Cached results of threads, and the readers that validate them.
#[derive(Debug, Default)]
pub struct KnownAnswers {
    readers: Readers,
    threads: HashMap<Tid, VecDeque<Known>>,
    /// Threads that need remote calls in this pause.
    asked: usize,
}

/// Readers of the kernel fields that results are computed from.
#[derive(Debug, Default)]
enum Readers {
    #[default]
    Untried,
    /// This kernel does not offer them, or this user may not use them.
    Missing,
    Ready {
        leader: TaskReader,
        other: TaskReader,
    },
}

/// The remote calls of one thread in one pause.
#[derive(Debug, Default)]
pub(super) struct Inquiry<'a> {
    pub(super) questions: Questions,
    /// Cached results of earlier captures.
    pub(super) known: Option<&'a RefCell<KnownAnswers>>,
    /// Bytes of the kernel fields in this pause.
    sources: Option<Vec<u8>>,
    /// The batch in flight.
    asking: Option<Asking>,
    answers: Answers,
}

#[derive(Debug)]
struct Known {
    sources: Vec<u8>,
    questions: Questions,
    answers: Answers,
}

impl KnownAnswers {
    /// Creates the readers for leaders and for other threads; called outside any pause. Without readers, every thread
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

    /// Whether cached results can be validated.
    #[must_use]
    pub fn can_tell(&self) -> bool {
        matches!(self.readers, Readers::Ready { .. })
    }

    /// Number of threads that needed remote calls since the last call.
    pub fn take_asked(&mut self) -> usize {
        std::mem::take(&mut self.asked)
    }

    /// Bytes of the kernel fields of a stopped thread; `None` if they cannot be read.
    fn sources(&mut self, tid: Tid, is_leader: bool) -> Option<Vec<u8>> {
        let Readers::Ready { leader, other } = &mut self.readers else { return None };
        let reader = if is_leader { leader } else { other };
        Some(reader.read(tid).ok()?.to_vec())
    }

    /// Cached results of these calls for these bytes.
    fn recall(&self, tid: Tid, sources: &[u8], questions: &Questions) -> Option<Answers> {
        let known = self.threads.get(&tid).into_iter().flatten();
        let mut same = known.filter(|known| known.sources == sources && known.questions == *questions);
        same.next().map(|known| known.answers.clone())
    }

    /// Adds results to the cache.
    fn note(&mut self, tid: Tid, sources: Vec<u8>, questions: Questions, answers: &Answers) {
        let kept = self.threads.entry(tid).or_default();
        kept.truncate(KEPT_MAX - 1);
        kept.push_front(Known { sources, questions, answers: answers.clone() });
    }
}

impl Inquiry<'_> {
    /// Whether the thread needs no remote call: there is none, or all results are cached.
    pub(super) fn recall(&mut self, tid: Tid, is_leader: bool) -> bool {
        self.questions.is_empty() || self.recall_answers(tid, is_leader).is_some()
    }

    fn recall_answers(&mut self, tid: Tid, is_leader: bool) -> Option<()> {
        let mut known = self.known?.borrow_mut();
        self.sources = known.sources(tid, is_leader);
        let recalled = self.sources.as_ref().and_then(|bytes| known.recall(tid, bytes, &self.questions));
        known.asked += usize::from(recalled.is_none());
        self.answers = recalled?;
        Some(())
    }

    pub(super) fn begin(&mut self, session: &mut RemoteSession<'_>, signals: SignalSets) -> Result<()> {
        self.asking = Some(self.questions.begin(session, signals)?);
        Ok(())
    }

    /// Waits for the results of a batch in flight; returns whether there was one.
    pub(super) fn collect(&mut self, session: &mut RemoteSession<'_>) -> Result<bool> {
        let Some(asking) = self.asking.take() else { return Ok(false) };
        self.answers = self.questions.finish(session, asking)?;
        Ok(true)
    }

    /// Caches the results for later captures.
    pub(super) fn note(&mut self, tid: Tid) {
        if let (Some(known), Some(sources)) = (self.known, self.sources.take()) {
            known.borrow_mut().note(tid, sources, std::mem::take(&mut self.questions), &self.answers);
        }
    }

    pub(super) fn answers_of(&self, kind: &'static str) -> &[Answer] {
        self.answers.get(kind).map_or(&[], Vec::as_slice)
    }

    pub(super) fn take(&mut self, kind: &'static str) -> Vec<Answer> {
        self.answers.remove(kind).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use model::ByteCount;

    use super::*;

    fn asked(kind: &'static str) -> (Questions, Answers) {
        let mut questions = Questions::default();
        questions.of(kind);
        questions.call_into(131, [0; 6], 1, ByteCount(24));
        (questions, HashMap::from([(kind, vec![Answer::test(vec![7; 24])])]))
    }

    #[test]
    fn a_result_is_valid_for_the_same_bytes_and_calls_only() {
        let mut known = KnownAnswers::default();
        let (questions, answers) = asked("state/sigaltstack");
        known.note(Tid(7), vec![1, 2], questions.clone(), &answers);
        assert!(known.recall(Tid(7), &[1, 2], &questions).is_some());
        assert!(known.recall(Tid(7), &[1, 3], &questions).is_none());
        assert!(known.recall(Tid(8), &[1, 2], &questions).is_none());
        assert!(known.recall(Tid(7), &[1, 2], &Questions::default()).is_none());
        known.keep(&HashSet::new());
        assert!(known.recall(Tid(7), &[1, 2], &questions).is_none());
    }

    #[test]
    fn a_few_combinations_are_cached_and_the_oldest_is_dropped() {
        let mut known = KnownAnswers::default();
        let (questions, answers) = asked("state/sigaltstack");
        for value in 0..=KEPT_MAX as u8 {
            known.note(Tid(7), vec![value], questions.clone(), &answers);
        }
        assert!(known.recall(Tid(7), &[0], &questions).is_none());
        assert!((1..=KEPT_MAX as u8).all(|value| known.recall(Tid(7), &[value], &questions).is_some()));
    }
}
