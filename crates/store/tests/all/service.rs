//! Tests of the service that logs of a process share.

use std::time::Duration;

use model::PageCount;
use store::{BufferStock, LogOptions, StorageService, SubjectName};

use crate::common::log_model::Subject;
use crate::common::scratch::{Scratch, options};

use undying_store as store;

const LOGS: u64 = 12;

#[test]
fn logs_of_one_service_write_at_the_same_time_and_each_keeps_its_checkpoints() {
    let service = StorageService::new(BufferStock::new(PageCount(16)));
    let assumed = service.durable_within(Duration::from_millis(800));
    std::thread::scope(|scope| {
        for seed in 0..LOGS {
            let options = LogOptions { service: service.clone(), ..options() };
            scope.spawn(move || {
                let scratch = Scratch::new();
                let name: SubjectName = "subject".parse().unwrap();
                let mut subject = Subject::new(seed, 200, 40);
                for _ in 0..3 {
                    let writer = scratch.open(options.clone());
                    subject.restored(writer.base());
                    let mut taken = Vec::new();
                    for _ in 0..15 {
                        taken.extend(subject.epoch(&writer).unwrap());
                        if subject.random.bool() {
                            taken.drain(..).for_each(|ticket| drop(ticket.wait().unwrap()));
                        }
                    }
                    writer.close().unwrap();
                    assert!(!subject.compare_all(&scratch.store, &name).unwrap().is_empty());
                }
            });
        }
    });
    let measured = service.durable_within(Duration::from_millis(800));
    assert!(measured != assumed && measured.0 > 0, "{measured}");
    assert!(service.durable_within(Duration::from_millis(1_600)) > measured);
}

#[test]
fn less_urgent_writes_are_postponed_but_not_forever() {
    let service = StorageService::new(BufferStock::new(PageCount(16)));
    let urgent = service.urgent();
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { service: service.clone(), ..options() });
    let mut subject = Subject::new(1, 200, 40);
    let mut committed = 0;
    while committed < 3 {
        let Some(ticket) = subject.epoch(&writer).unwrap() else { continue };
        ticket.wait().unwrap();
        committed += 1;
    }
    drop(urgent);
    writer.close().unwrap();
    subject.compare_all(&scratch.store, &scratch.name).unwrap();
}
