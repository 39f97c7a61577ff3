//! Remote calls that state kinds need of a thread, made in batches.
//!
//! Owns: collecting the calls of all kinds, and returning each kind its results.
//! Invariants: results are in the order of a kind's calls. A failed call is a result, not an error of the batch.
//! Does not: decide whether a thread can make several calls in one batch; the remote session does.

use std::collections::HashMap;

use model::ByteCount;
use sys::Errno;
use tracee::remote::{Batch, DATA_BYTES, Query, Room, SignalSets};
use tracee::{RemoteError, RemoteSession};

use crate::error::{ResourceError, Result};

/// Alignment of results in the data buffer, in bytes.
const ALIGNMENT: u64 = 8;

/// The remote calls that kinds need.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Questions {
    kind: &'static str,
    list: Vec<Question>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Question {
    kind: &'static str,
    number: i64,
    arguments: [u64; 6],
    /// The index of the argument that points to the result, and the length of the result.
    result: Option<(usize, ByteCount)>,
}

/// The result of one remote call.
#[derive(Clone, Debug)]
pub struct Answer {
    number: i64,
    tid: model::Tid,
    result: std::result::Result<u64, Errno>,
    /// The bytes that the call wrote; empty for calls that write nothing.
    pub bytes: Vec<u8>,
}

/// Remote calls of which the first batch is in flight.
#[derive(Debug)]
pub(super) struct Asking {
    signals: SignalSets,
    batch: Batch,
}

/// Results by the name of the kind.
pub(super) type Answers = HashMap<&'static str, Vec<Answer>>;

impl Questions {
    /// Assigns the following calls to this kind.
    pub(super) fn of(&mut self, kind: &'static str) {
        self.kind = kind;
    }

    /// Adds a call that returns its result.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) {
        self.list.push(Question { kind: self.kind, number, arguments, result: None });
    }

    /// Adds a call that writes its result to the address in its argument `pointer` (counted from 0).
    pub fn call_into(&mut self, number: i64, arguments: [u64; 6], pointer: usize, length: ByteCount) {
        let result = Some((pointer, length));
        self.list.push(Question { kind: self.kind, number, arguments, result });
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The room that a session needs to make the calls in as few batches as possible.
    pub(super) fn room(&self) -> Room {
        let data = self.list[..fitting(&self.list)].iter().map(Question::room).sum();
        Room { calls: self.list.len().min(Room::MOST.calls), data: ByteCount(data), opened: 0 }
    }

    /// Begins the first batch.
    pub(super) fn begin(&self, session: &mut RemoteSession<'_>, signals: SignalSets) -> Result<Asking> {
        let batch = session.begin_batch(&queries(&self.list[..fitting(&self.list)], session), signals)?;
        Ok(Asking { signals, batch })
    }

    /// Waits for the first batch, then makes all other calls.
    pub(super) fn finish(&self, session: &mut RemoteSession<'_>, asking: Asking) -> Result<Answers> {
        let mut answers = Answers::new();
        let (mut now, mut later) = self.list.split_at(fitting(&self.list));
        let mut batch = asking.batch;
        loop {
            let results = session.finish_batch(batch)?;
            keep(now, results, session, &mut answers)?;
            (now, later) = later.split_at(fitting(later));
            if now.is_empty() {
                return Ok(answers);
            }
            batch = session.begin_batch(&queries(now, session), asking.signals)?;
        }
    }
}

impl Question {
    fn room(&self) -> u64 {
        self.result.map_or(0, |(_, length)| length.get().next_multiple_of(ALIGNMENT))
    }
}

/// How many calls fit into the data buffer together; at least one, if there is any.
fn fitting(questions: &[Question]) -> usize {
    let mut used = 0;
    let fits = |question: &&Question| {
        used += question.room();
        used <= DATA_BYTES
    };
    questions.iter().take_while(fits).count().max(questions.len().min(1))
}

/// The calls, with the addresses of their results.
fn queries(questions: &[Question], session: &RemoteSession<'_>) -> Vec<Query> {
    let data = session.data();
    let mut used = 0;
    let mut queries = Vec::with_capacity(questions.len());
    for question in questions {
        let mut arguments = question.arguments;
        if let Some((pointer, _)) = question.result {
            arguments[pointer] = (data + ByteCount(used)).get();
        }
        used += question.room();
        queries.push(Query { number: question.number, arguments });
    }
    queries
}

fn keep(
    questions: &[Question],
    results: Vec<std::result::Result<u64, Errno>>,
    session: &RemoteSession<'_>,
    answers: &mut Answers,
) -> Result<()> {
    let used = questions.iter().map(Question::room).sum();
    let data = session.read_data(ByteCount(used))?;
    let mut at = 0;
    for (question, result) in questions.iter().zip(results) {
        let length = question.result.map_or(0, |(_, length)| length.get() as usize);
        let bytes = data[at..at + length].to_vec();
        at += question.room() as usize;
        let answer = Answer { number: question.number, tid: session.tid(), result, bytes };
        answers.entry(question.kind).or_default().push(answer);
    }
    Ok(())
}

impl Answer {
    #[cfg(test)]
    pub(super) fn test(bytes: Vec<u8>) -> Self {
        Self { number: 0, tid: model::Tid(1), result: Ok(0), bytes }
    }

    /// The call's return value; its errno as an error.
    pub fn result(&self) -> Result<u64> {
        self.result.map_err(|errno| {
            ResourceError::Remote(RemoteError::Refused { tid: self.tid, number: self.number, errno })
        })
    }

    /// The word that the call wrote or returned; `default` where the kernel does not support the call or option.
    pub fn word_or(&self, default: u32) -> Result<u32> {
        match (self.result, self.bytes.first_chunk()) {
            (Ok(_), Some(word)) => Ok(u32::from_ne_bytes(*word)),
            _ => Ok(self.result_or(u64::from(default))? as u32),
        }
    }

    /// The return value; `default` where the kernel does not support the call or option.
    pub fn result_or(&self, default: u64) -> Result<u64> {
        match self.result {
            Err(Errno::EINVAL | Errno::ENOSYS) => Ok(default),
            _ => self.result(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_where_the_data_buffer_is_full() {
        let mut questions = Questions::default();
        questions.of("state/x");
        questions.call(39, [0; 6]);
        for _ in 0..5 {
            questions.call_into(131, [0; 6], 1, ByteCount(1500));
        }
        assert_eq!(fitting(&questions.list), 3);
        assert_eq!(fitting(&questions.list[3..]), 2);
        assert_eq!(fitting(&[]), 0);
    }
}
