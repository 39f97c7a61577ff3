//! Tests that kinds refuse payloads that the kinds cannot have written. A kind is the code for one type of kernel
//! object.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use undying_resource::memory::ObjectRecord;
use undying_resource::{fd, memory, state};

/// A length in bytes that exceeds the space for an argument in a process under construction.
const LONG: usize = 1 << 20;

#[test]
fn no_kind_accepts_a_payload_that_is_no_message() {
    // The payload is a field that does not end.
    let payload = vec![0xff; LONG];
    for kind in fd::REGISTRY {
        assert!(kind.check(kind.version(), &payload).is_err(), "{}", kind.name());
    }
    for kind in state::REGISTRY {
        assert!(kind.check(kind.version(), &payload).is_err(), "{}", kind.name());
    }
    for kind in memory::REGISTRY.iter().filter(|kind| kind.name() != "memory/shared_anonymous") {
        let record = ObjectRecord { payload: payload.clone(), ..ObjectRecord::default() };
        assert!(kind.check(&record).is_err(), "{}", kind.name());
    }
}

/// A message with one bytes field.
#[derive(Clone, PartialEq, prost::Message)]
struct Bytes {
    #[prost(bytes = "vec", repeated, tag = "1")]
    one: Vec<Vec<u8>>,
}

/// A message with the layout of a signal action: a signal and its bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Action {
    #[prost(bytes = "vec", tag = "2")]
    bytes: Vec<u8>,
}

#[test]
fn no_state_kind_accepts_arguments_of_another_length_than_the_kernels() {
    use prost::Message;
    let signals = |length: usize| Bytes { one: vec![vec![1; length]] }.encode_to_vec();
    let actions = |length: usize| {
        Bytes { one: vec![Action { bytes: vec![1; length] }.encode_to_vec()] }.encode_to_vec()
    };
    let cases = [
        ("state/thread_name", vec![b'x'; 15], vec![b'x'; 16]),
        ("state/sigaltstack", vec![0; 24], vec![0; 25]),
        ("state/tid_address", vec![0; 8], vec![0; 9]),
        ("state/sigpending", signals(128), signals(LONG)),
        ("state/sigactions", actions(32), actions(LONG)),
    ];
    for (name, good, bad) in cases {
        let kind = state::kind_named(name).unwrap();
        kind.check(1, &good).unwrap();
        assert!(kind.check(1, &bad).is_err(), "{name}");
    }
}
