//! The way of pages into an image: through a thread of its own, or all at the end when they are few.
//!
//! Owns: the decision between the two, the worker thread and the way to it.
//! Invariants: orders reach the worker in the order they were sent; no write is under way once the writer, or its end,
//! was waited for or dropped.
//! Does not: write; the worker does.

use std::path::PathBuf;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::batch::PageBatch;
use crate::error::{Error, Result};
use crate::layout::WriteOptions;
use crate::medium::Medium;
use crate::pool::Pool;
use crate::worker::{Finished, Order, Worker};

/// Orders that wait for the worker at most; every buffer of a pool can wait, and more would be memory that nobody has
/// granted.
const ORDERS_MAX: usize = 64;

type Outcome = Result<Option<Finished>>;

/// Takes pages for an image.
#[derive(Debug)]
pub(crate) struct PagesWriter {
    stage: Mutex<Stage>,
    pub(crate) pool: Arc<Pool>,
}

#[derive(Debug)]
enum Stage {
    /// At most one small batch has come: to wake a thread, and to wait for it, would take longer than to write it.
    Few {
        worker: Box<Worker>,
        held: Option<PageBatch>,
    },
    Thread {
        orders: SyncSender<Order>,
        handle: JoinHandle<Outcome>,
    },
    Over,
}

/// A writer that takes no more pages.
#[derive(Debug)]
pub(crate) enum Ending {
    Done(Finished),
    Coming { pool: Arc<Pool>, handle: JoinHandle<Outcome> },
}

impl PagesWriter {
    pub(crate) fn new(medium: Arc<dyn Medium>, segment: PathBuf, options: WriteOptions) -> Self {
        let pool = Arc::new(Pool::new(options.buffers.get(), options.buffer_pages.bytes()));
        let worker = Worker::new(medium, segment, Arc::clone(&pool), options.buffers, options.codec);
        Self { stage: Mutex::new(Stage::Few { worker: Box::new(worker), held: None }), pool }
    }

    /// Many pages are going to come: starts the thread.
    pub(crate) fn begin(&self) -> Result<()> {
        self.stage().start(&self.pool).map(drop)
    }

    pub(crate) fn send(&self, order: Order) -> Result<()> {
        let mut stage = self.stage();
        let order = match (&mut *stage, order) {
            (Stage::Few { held: held @ None, .. }, Order::Pages(batch))
                if batch.size() < self.pool.size() =>
            {
                *held = Some(batch);
                return Ok(());
            }
            // Told inside a pause, where a thread is not to be started for nothing.
            (Stage::Few { held: None, .. }, Order::Discard(..)) => return Ok(()),
            (_, order) => order,
        };
        let orders = stage.start(&self.pool)?;
        // It may wait for the worker.
        drop(stage);
        self.pass(&orders, order)
    }

    /// Takes no more pages, and has what there is written.
    pub(crate) fn end(self) -> Result<Ending> {
        match std::mem::replace(&mut *self.stage(), Stage::Over) {
            Stage::Few { worker, held } => worker.write_few(held).map(Ending::Done),
            Stage::Thread { orders, handle } => {
                let ending = Ending::Coming { pool: Arc::clone(&self.pool), handle };
                match self.pass(&orders, Order::Finish) {
                    Ok(()) => Ok(ending),
                    Err(error) => ending.wait().and(Err(error)),
                }
            }
            Stage::Over => Err(failure(&self.pool)),
        }
    }

    fn pass(&self, orders: &SyncSender<Order>, order: Order) -> Result<()> {
        orders.send(order).map_err(|_| failure(&self.pool))
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage {
    /// The way to the thread, which is started if it was not.
    fn start(&mut self, pool: &Pool) -> Result<SyncSender<Order>> {
        match std::mem::replace(self, Self::Over) {
            Self::Few { worker, held } => {
                let (orders, receiver) = mpsc::sync_channel(ORDERS_MAX);
                let thread = std::thread::Builder::new().name("undying-image".to_owned());
                let handle = thread.spawn(move || worker.run(&receiver));
                let handle = handle.map_err(|error| sys::Error::new("start a thread", error))?;
                *self = Self::Thread { orders: orders.clone(), handle };
                // It has room for this one.
                match held.map(|batch| orders.send(Order::Pages(batch))) {
                    Some(Err(_)) => Err(failure(pool)),
                    _ => Ok(orders),
                }
            }
            Self::Thread { orders, handle } => {
                *self = Self::Thread { orders: orders.clone(), handle };
                Ok(orders)
            }
            Self::Over => Err(failure(pool)),
        }
    }
}

impl Ending {
    /// Waits until everything is written.
    pub(crate) fn wait(self) -> Result<Finished> {
        let (pool, handle) = match self {
            Self::Done(finished) => return Ok(finished),
            Self::Coming { pool, handle } => (pool, handle),
        };
        match handle.join() {
            Ok(Ok(Some(finished))) => Ok(finished),
            Ok(Ok(None)) => Err(failure(&pool)),
            Ok(Err(error)) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for PagesWriter {
    fn drop(&mut self) {
        if let Stage::Thread { orders, handle } = std::mem::replace(&mut *self.stage(), Stage::Over) {
            drop(orders);
            // Its result, or panic, is of no more use: the image is given up.
            let _ = handle.join();
        }
    }
}

/// Why the worker takes no more orders.
fn failure(pool: &Pool) -> Error {
    let gone = || Error::Io(sys::Error::new("go on after a failed write", sys::Errno::SHORT));
    pool.failure().unwrap_or_else(gone)
}
