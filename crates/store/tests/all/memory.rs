//! Tests of checkpoints in memory: committed checkpoints can be read, memory usage stays bounded, and readers keep the
//! checkpoints that they have opened.

use image::{RecordSet, SpaceId};
use model::{AddressRange, ByteCount, PageCount, Sequence};
use store::{Base, CheckpointSink, Error, Memory, MemoryOptions, Urgency};

use crate::common::log_model;
use crate::common::log_model::{Subject, address, meta};

use undying_store as store;

const BUFFER: PageCount = PageCount(16);

fn options() -> MemoryOptions {
    MemoryOptions { buffer_pages: BUFFER, buffers_max: 400, keep: 3.try_into().unwrap() }
}

#[test]
fn random_checkpoints_come_back_and_memory_stays_bounded() {
    for seed in 1..=8 {
        let memory = Memory::new(options());
        let mut subject = Subject::new(seed, 400, 60);
        let mut readers = Vec::new();
        for round in 0..300 {
            let Some(ticket) = subject.epoch(&memory).unwrap() else { continue };
            let committed = ticket.wait().unwrap();
            assert_eq!(committed.commit.pages.0, subject.now.pages.len() as u64);
            for sequence in subject.history.keys().rev().take(3) {
                subject.compare(*sequence, &memory.image(*sequence).unwrap().unwrap()).unwrap();
            }
            if let Some(fourth) = subject.history.keys().rev().nth(3) {
                assert!(memory.image(*fourth).unwrap().is_none());
            }
            if round % 100 == 0 {
                readers.push((ticket.sequence(), memory.image(ticket.sequence()).unwrap().unwrap()));
            }
        }
        for (sequence, reader) in &readers {
            subject.compare(*sequence, reader).unwrap();
        }
        // Each of three checkpoints and three readers has at most 800 live pages. Compaction allows twice this number.
        let most = ByteCount(6 * 2 * 800 * model::PAGE_BYTES + 30 * BUFFER.bytes().0);
        assert!(memory.size() <= most, "{} of {most}", memory.size());
    }
}

#[test]
fn a_checkpoint_beyond_the_limit_is_refused_and_leaves_nothing() {
    let memory = Memory::new(MemoryOptions { buffers_max: 2, ..options() });
    let epoch = memory.begin(Sequence(1), Base::Nothing, Urgency::Precopy).unwrap().unwrap();
    let batches = [epoch.pool().buffer().unwrap(), epoch.pool().buffer().unwrap()];
    assert!(matches!(epoch.pool().buffer(), Err(Error::Full(_))));
    for (number, mut batch) in (0..).zip(batches) {
        log_model::fill(batch.push(SpaceId(0), address(number), PageCount(1)).unwrap(), number + 1);
        epoch.append(batch).unwrap();
    }
    drop(epoch);
    assert!(memory.image(Sequence(1)).unwrap().is_none());
    let epoch = memory.begin(Sequence(1), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let mut batch = epoch.pool().buffer().unwrap();
    log_model::fill(batch.push(SpaceId(0), address(7), PageCount(2)).unwrap(), 9);
    epoch.append(batch).unwrap();
    epoch.discard(SpaceId(0), AddressRange::new(address(8), address(9))).unwrap();
    epoch.commit(RecordSet::new(), meta(Sequence(1))).unwrap().wait().unwrap();
    let image = memory.image(Sequence(1)).unwrap().unwrap();
    assert_eq!(image.index().pages(), PageCount(1));
    assert!(matches!(memory.begin(Sequence(1), Base::Newest, Urgency::Precopy), Err(Error::Exists { .. })));
}
