//! What all logs of a process share: page buffers, threads, and the order of their I/O.
//!
//! Owns: `StorageService`, and how its parts are made.
//! Invariants: memory and threads depend on the checkpoints that are taken at the same time, and not on the number of
//! logs.
//! Does not: open logs.

use std::time::Duration;

use model::ByteCount;

use crate::scheduler::{LogIo, Scheduler, Urgent};
use crate::stock::BufferStock;
use crate::threads::Threads;

/// The nice value of the threads that compress: the lowest priority of ordinary threads.
const COMPRESSION_NICE: i32 = 19;

/// The service that all logs of a process should share. Clones refer to the same service.
#[derive(Clone, Debug)]
pub struct StorageService {
    pub(crate) stock: BufferStock,
    pub(crate) scheduler: Scheduler,
    pub(crate) writers: Threads,
    pub(crate) compressors: Threads,
}

impl StorageService {
    /// Returns a service whose logs take their buffers from this stock.
    #[must_use]
    pub fn new(stock: BufferStock) -> Self {
        let writers = Threads::new("undying-log", 0);
        let compressors = Threads::new("undying-shrink", COMPRESSION_NICE);
        Self { stock, scheduler: Scheduler::default(), writers, compressors }
    }

    /// Returns how many bytes are probably durable after this time, if all logs write as fast as they can. The speed is
    /// measured with the writes and syncs of the logs. Before the first checkpoint, the speed of a hard disk is assumed.
    #[must_use]
    pub fn durable_within(&self, limit: Duration) -> ByteCount {
        self.scheduler.durable_within(limit)
    }

    /// Makes all logs postpone writes that are less urgent than `Urgency::Final`, until the value is dropped. Each write
    /// is postponed for a limited time only.
    #[must_use]
    pub fn urgent(&self) -> Urgent {
        LogIo::new(self.scheduler.clone()).urgent()
    }
}

impl Default for StorageService {
    fn default() -> Self {
        Self::new(BufferStock::default())
    }
}
