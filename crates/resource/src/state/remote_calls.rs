//! The remote calls of state kinds, made in batches.
//!
//! Owns: collecting the calls of all kinds, and returning to each kind the results of its calls.
//! Invariants: the results are in the order of the calls of a kind. A failed call is a result, not an error of the
//! batch.
//! Does not: decide whether a thread can make several calls in one batch; the remote session does.

use std::collections::HashMap;

use model::ByteCount;
use sys::Errno;
use tracee::remote::{Batch, DATA_BYTES, Query, SessionCapacity, SignalSets};
use tracee::{RemoteError, RemoteSession};

use crate::error::{ResourceError, Result};

/// The alignment of results in the data buffer, in bytes.
const ALIGNMENT: u64 = 8;

/// The remote calls that kinds need.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemoteCalls {
    kind: &'static str,
    list: Vec<RemoteCall>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct RemoteCall {
    kind: &'static str,
    number: i64,
    arguments: [u64; 6],
    /// The index of the argument that points to the result, and the length of the result.
    output: Option<(usize, ByteCount)>,
}

/// The result of one remote call.
#[derive(Clone, Debug)]
pub struct CallResult {
    number: i64,
    tid: model::Tid,
    value: std::result::Result<u64, Errno>,
    /// The bytes that the call wrote; empty for a call that writes nothing.
    pub bytes: Vec<u8>,
}

/// Remote calls whose first batch is in flight.
#[derive(Debug)]
pub(super) struct CallsInFlight {
    signals: SignalSets,
    batch: Batch,
}

/// The results of remote calls, by the name of the kind.
pub(super) type CallResults = HashMap<&'static str, Vec<CallResult>>;

impl RemoteCalls {
    /// Assigns the calls that are added next to this kind.
    pub(super) fn of(&mut self, kind: &'static str) {
        self.kind = kind;
    }

    /// Adds a call whose result is its return value.
    pub fn add(&mut self, number: i64, arguments: [u64; 6]) {
        self.list.push(RemoteCall { kind: self.kind, number, arguments, output: None });
    }

    /// Adds a call that writes its result of `length` bytes to an address. `pointer` is the index of the argument that
    /// contains the address, counted from 0.
    pub fn add_into(&mut self, number: i64, arguments: [u64; 6], pointer: usize, length: ByteCount) {
        let output = Some((pointer, length));
        self.list.push(RemoteCall { kind: self.kind, number, arguments, output });
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the capacity that a session needs to make the calls in as few batches as possible.
    pub(super) fn capacity(&self) -> SessionCapacity {
        let data = self.list[..fitting(&self.list)].iter().map(RemoteCall::data_bytes).sum();
        SessionCapacity {
            calls: self.list.len().min(SessionCapacity::MAX.calls),
            data: ByteCount(data),
            opened: 0,
        }
    }

    /// Begins the first batch.
    pub(super) fn begin(
        &self,
        session: &mut RemoteSession<'_>,
        signals: SignalSets,
    ) -> Result<CallsInFlight> {
        let batch = session.begin_batch(&queries(&self.list[..fitting(&self.list)], session), signals)?;
        Ok(CallsInFlight { signals, batch })
    }

    /// Waits for the first batch, and then makes all other calls.
    pub(super) fn finish(
        &self,
        session: &mut RemoteSession<'_>,
        in_flight: CallsInFlight,
    ) -> Result<CallResults> {
        let mut results = CallResults::new();
        let (mut now, mut later) = self.list.split_at(fitting(&self.list));
        let mut batch = in_flight.batch;
        loop {
            let values = session.finish_batch(batch)?;
            keep(now, values, session, &mut results)?;
            (now, later) = later.split_at(fitting(later));
            if now.is_empty() {
                return Ok(results);
            }
            batch = session.begin_batch(&queries(now, session), in_flight.signals)?;
        }
    }
}

impl RemoteCall {
    fn data_bytes(&self) -> u64 {
        self.output.map_or(0, |(_, length)| length.get().next_multiple_of(ALIGNMENT))
    }
}

/// Returns the number of calls whose results fit into the data buffer together. Returns at least 1 if `calls` is not
/// empty.
fn fitting(calls: &[RemoteCall]) -> usize {
    let mut used = 0;
    let fits = |call: &&RemoteCall| {
        used += call.data_bytes();
        used <= DATA_BYTES
    };
    calls.iter().take_while(fits).count().max(calls.len().min(1))
}

/// Returns the calls with the addresses of their results.
fn queries(calls: &[RemoteCall], session: &RemoteSession<'_>) -> Vec<Query> {
    let data = session.data();
    let mut used = 0;
    let mut queries = Vec::with_capacity(calls.len());
    for call in calls {
        let mut arguments = call.arguments;
        if let Some((pointer, _)) = call.output {
            arguments[pointer] = (data + ByteCount(used)).get();
        }
        used += call.data_bytes();
        queries.push(Query { number: call.number, arguments });
    }
    queries
}

fn keep(
    calls: &[RemoteCall],
    values: Vec<std::result::Result<u64, Errno>>,
    session: &RemoteSession<'_>,
    results: &mut CallResults,
) -> Result<()> {
    let used = calls.iter().map(RemoteCall::data_bytes).sum();
    let data = session.read_data(ByteCount(used))?;
    let mut at = 0;
    for (call, value) in calls.iter().zip(values) {
        let length = call.output.map_or(0, |(_, length)| length.get() as usize);
        let bytes = data[at..at + length].to_vec();
        at += call.data_bytes() as usize;
        let result = CallResult { number: call.number, tid: session.tid(), value, bytes };
        results.entry(call.kind).or_default().push(result);
    }
    Ok(())
}

impl CallResult {
    #[cfg(test)]
    pub(super) fn test(bytes: Vec<u8>) -> Self {
        Self { number: 0, tid: model::Tid(1), value: Ok(0), bytes }
    }

    /// Returns the return value of the call, or the errno of the call as an error.
    pub fn value(&self) -> Result<u64> {
        self.value.map_err(|errno| {
            ResourceError::Remote(RemoteError::Refused { tid: self.tid, number: self.number, errno })
        })
    }

    /// Returns the word that the call wrote or returned. Returns `default` if the kernel does not support the call or
    /// the option.
    pub fn word_or(&self, default: u32) -> Result<u32> {
        match (self.value, self.bytes.first_chunk()) {
            (Ok(_), Some(word)) => Ok(u32::from_ne_bytes(*word)),
            _ => Ok(self.value_or(u64::from(default))? as u32),
        }
    }

    /// Returns the return value of the call. Returns `default` if the kernel does not support the call or the option.
    pub fn value_or(&self, default: u64) -> Result<u64> {
        match self.value {
            Err(Errno::EINVAL | Errno::ENOSYS) => Ok(default),
            _ => self.value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_where_the_data_buffer_is_full() {
        let mut calls = RemoteCalls::default();
        calls.of("state/x");
        calls.add(39, [0; 6]);
        for _ in 0..5 {
            calls.add_into(131, [0; 6], 1, ByteCount(1500));
        }
        assert_eq!(fitting(&calls.list), 3);
        assert_eq!(fitting(&calls.list[3..]), 2);
        assert_eq!(fitting(&[]), 0);
    }
}
