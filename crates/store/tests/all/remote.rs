//! Tests of a sink that is written outside of the store.

use image::RecordSet;
use model::{PageCount, Sequence};
use store::{Base, CheckpointSink, Error, LogOptions, RetentionPolicy, Urgency};

use crate::common::log_model::{Subject, meta};
use crate::common::remote_sink::RemoteSink;
use crate::common::scratch::{Scratch, options};

use undying_store as store;

const BUFFER: PageCount = PageCount(7);

#[test]
fn a_sink_outside_of_the_store_gives_back_a_whole_chain_of_checkpoints() {
    for seed in 1..=4 {
        let scratch = Scratch::new();
        let log = scratch.open(LogOptions { keep: RetentionPolicy::newest(5), ..options() });
        let sink = RemoteSink::new(log, BUFFER);
        let mut subject = Subject::new(seed, 300, 60);
        let mut committed = 0;
        for _ in 0..60 {
            let Some(ticket) = subject.epoch(&sink).unwrap() else { continue };
            committed += 1;
            if subject.random.u64(..3) == 0 {
                let done = ticket.wait().unwrap();
                assert_eq!(done.commit.pages.0, subject.now.pages.len() as u64);
                let kept = subject.compare_all(&scratch.store, &scratch.name).unwrap();
                assert_eq!(kept.last(), Some(&ticket.sequence()));
                assert_eq!(kept.len(), committed.min(5), "each of the last five is whole");
            }
        }
        drop(sink);
        assert_eq!(subject.compare_all(&scratch.store, &scratch.name).unwrap().len(), 5);
    }
}

#[test]
fn a_ticket_of_a_peer_that_has_died_reports_an_error() {
    let scratch = Scratch::new();
    let sink = RemoteSink::new(scratch.open(options()), BUFFER);
    let begin = |sequence| sink.begin(Sequence(sequence), Base::Nothing, Urgency::Final).unwrap().unwrap();
    let ticket = begin(2).commit(RecordSet::new(), meta(Sequence(2))).unwrap();
    ticket.wait().unwrap();
    // The peer panics, because sequence numbers rise.
    let ticket = begin(1).commit(RecordSet::new(), meta(Sequence(1))).unwrap();
    assert!(matches!(ticket.wait(), Err(Error::Io(_))));
    let ticket = begin(3).commit(RecordSet::new(), meta(Sequence(3))).unwrap();
    assert!(matches!(ticket.wait(), Err(Error::Io(_))));
}
