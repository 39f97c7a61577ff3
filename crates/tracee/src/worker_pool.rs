//! Raises the priority of a tracer while a subject is stopped, and runs worker threads beside the tracer.
//!
//! Owns: the change of the priority of the calling thread. Also the threads of a worker pool, their
//! processors and their priority.
//! Invariants: dropping [`Urgent`] restores the previous priority. If a raised priority is not permitted, the
//! priority stays unchanged. New threads do not inherit the raised priority. After each step, a worker yields
//! the processor, mainly to threads of the tree that execute remote calls. Before a thread waits for a
//! worker, the waiting thread raises the priority of the worker, so that other threads do not delay the
//! worker. If a raised priority is not permitted, no worker pool is created.
//! Does not: know the work. If no worker runs, the caller can do all the work.
//!
//! A tracer resumes the threads of a subject one after the other. Without a raised priority, a resumed thread
//! or any other thread can preempt the tracer, and delay the resumption of the remaining threads. A thread
//! with real-time priority must not spin, because the thread for which it waits may need the same processor:
//! see `Waiter`.
//!
//! While a tree is stopped, the processors of the tree are idle. Workers may run on these processors,
//! regardless of the processors to which the tracer is bound.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use model::Tid;
use sys::scheduling::{self, Attributes};
use sys::{Errno, Error};

/// SCHED_OTHER and SCHED_BATCH.
const ORDINARY: u32 = 0;
const BATCH: u32 = 3;
/// SCHED_FIFO with the lowest priority. Threads with a higher real-time priority run first.
const FIFO: u32 = 1;
const PRIORITY: u32 = 1;
const RESET_ON_FORK: u64 = 1;
/// The tid argument that means the calling thread.
const SELF: Tid = Tid(0);

/// While this value exists, the calling thread runs before all threads of normal priority.
#[derive(Debug)]
pub struct Urgent {
    before: Option<Attributes>,
}

impl Urgent {
    /// Raises the priority of the calling thread, if this is permitted and the thread has normal priority.
    #[must_use]
    pub fn begin() -> Self {
        let raised =
            Attributes { policy: FIFO, priority: PRIORITY, flags: RESET_ON_FORK, ..Attributes::default() };
        let ordinary = |before: &Attributes| matches!(before.policy, ORDINARY | BATCH);
        let before = scheduling::attributes(SELF).ok().filter(ordinary);
        let before = before.filter(|_| scheduling::set_attributes(SELF, &raised).is_ok());
        Self { before }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Lowering a priority is always permitted.
            let _ = scheduling::set_attributes(SELF, &before);
        }
    }
}

/// Work that several threads can do together, in steps.
pub trait Work: Send + Sync {
    /// Does a step that no thread has begun. A step takes about ten microseconds. Returns false if all steps
    /// have been begun.
    fn step(&self) -> bool;
}

/// Worker threads that wait for work.
pub struct WorkerPool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
}

struct Worker {
    tid: Tid,
    has_raised_priority: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Increases at each [`WorkerPool::begin`].
    round: u64,
    posted: Vec<Arc<dyn Work>>,
    is_over: bool,
}

impl WorkerPool {
    /// Starts `workers` worker threads that may run on any of the `processors` (one bit each).
    ///
    /// # Errors
    ///
    /// EPERM if real-time priority is not permitted. Another error if a thread cannot be started.
    pub fn new(workers: NonZeroUsize, processors: &[u64]) -> Result<Self, Error> {
        let mut worker_pool = Self { shared: Arc::default(), workers: Vec::with_capacity(workers.get()) };
        for _ in 0..workers.get() {
            worker_pool.workers.push(Worker::start(&worker_pool.shared, processors)?);
        }
        Ok(worker_pool)
    }

    /// Returns the number of workers.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Adds work for all workers. Each worker does the posted work in the order in which it was added.
    pub fn post(&self, work: Arc<dyn Work>) {
        locked(&self.shared.queue).posted.push(work);
    }

    /// Wakes all workers. Call this function once, after all calls of [`Self::post`]. A woken worker takes
    /// the lock that `post` needs. If `post` must wait for the lock, the wait is longer than most work.
    pub fn begin(&self) {
        locked(&self.shared.queue).round += 1;
        self.shared.wake.notify_all();
    }

    /// Drops all posted work. Workers finish the work that they have already taken.
    pub fn dismiss(&self) {
        locked(&self.shared.queue).posted.clear();
    }

    /// Makes the workers run before all threads of normal priority, until the workers have finished their
    /// current work.
    pub fn raise_priority(&self) {
        let urgent = Attributes { policy: FIFO, priority: PRIORITY, ..Attributes::default() };
        for worker in &self.workers {
            worker.has_raised_priority.store(true, Ordering::SeqCst);
            // If the change is no longer permitted, the work only takes longer.
            let _ = scheduling::set_attributes(worker.tid, &urgent);
        }
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let mut queue = locked(&self.shared.queue);
        queue.is_over = true;
        drop(queue);
        self.shared.wake.notify_all();
        for thread in self.workers.iter_mut().filter_map(|worker| worker.thread.take()) {
            // If a worker has panicked, its work is left to the caller.
            let _ = thread.join();
        }
    }
}

impl Worker {
    fn start(shared: &Arc<Shared>, processors: &[u64]) -> Result<Self, Error> {
        let has_raised_priority = Arc::new(AtomicBool::new(true));
        let (name, named) = mpsc::channel();
        let (shared, flag, processors) =
            (Arc::clone(shared), Arc::clone(&has_raised_priority), processors.to_vec());
        let thread = std::thread::Builder::new().name("undying-worker".to_owned());
        let thread = thread
            .spawn(move || serve(&shared, &flag, &processors, &name))
            .map_err(|error| Error::new("start a thread of the worker_pool", error))?;
        // If nothing is received, the thread has ended, and the caller works without a worker pool.
        let tid =
            named.recv().map_err(|_| Error::new("start a thread of the worker_pool", Errno::ESRCH))??;
        Ok(Self { tid, has_raised_priority, thread: Some(thread) })
    }
}

fn serve(
    shared: &Shared,
    has_raised_priority: &AtomicBool,
    processors: &[u64],
    name: &Sender<Result<Tid, Error>>,
) {
    let ready = prepare(processors);
    let is_ready = ready.is_ok();
    // The thread that started this worker waits for the message.
    let _ = name.send(ready);
    if !is_ready {
        return;
    }
    let (mut seen, mut works) = (0, Vec::<Arc<dyn Work>>::new());
    loop {
        if has_raised_priority.swap(false, Ordering::SeqCst) {
            // Lowering a priority is always permitted.
            let _ =
                scheduling::set_attributes(SELF, &Attributes { policy: ORDINARY, ..Attributes::default() });
        }
        let mut queue = locked(&shared.queue);
        while queue.round == seen && !queue.is_over {
            queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.is_over {
            return;
        }
        seen = queue.round;
        works.extend(queue.posted.iter().cloned());
        drop(queue);
        for work in works.drain(..) {
            // After each step, the worker lets a thread run that waits for this processor. A low priority of
            // the worker is not sufficient. The scheduler (EEVDF, Linux 6.18) grants additional run time
            // (lag) to a worker that has slept, even with SCHED_IDLE. The worker then runs until this time is
            // used up: a remote call waited 0.3 ms for the end of a scan.
            while work.step() {
                std::thread::yield_now();
            }
        }
    }
}

/// Checks whether this thread may have real-time priority, binds it to the processors, and returns its tid.
fn prepare(processors: &[u64]) -> Result<Tid, Error> {
    let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get());
    let urgent = Attributes { policy: FIFO, priority: PRIORITY, ..Attributes::default() };
    scheduling::set_attributes(SELF, &urgent)?;
    // The kernel ignores processors that are not permitted. If no processor in the list is permitted, the
    // thread keeps its processors.
    let _ = scheduling::set_affinity(SELF, processors);
    Ok(tid)
}

fn locked(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use super::*;

    #[derive(Default)]
    struct Count {
        left: AtomicU64,
        done: AtomicU64,
    }

    impl Work for Count {
        fn step(&self) -> bool {
            let less = |left: u64| left.checked_sub(1);
            let had_one = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
            self.done.fetch_add(u64::from(had_one), Ordering::SeqCst);
            had_one
        }
    }

    fn worker_pool(workers: usize) -> Option<WorkerPool> {
        let processors = scheduling::affinity(SELF).unwrap();
        match WorkerPool::new(NonZeroUsize::new(workers).unwrap(), &processors) {
            Err(error) if error.errno == Errno::EPERM => {
                println!("unsupported: real-time priority");
                None
            }
            worker_pool => Some(worker_pool.unwrap()),
        }
    }

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(20), "too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_posted_is_done_each_time() {
        let Some(worker_pool) = worker_pool(2) else { return };
        for _ in 0..50 {
            let work = Arc::new(Count { left: AtomicU64::new(1000), ..Count::default() });
            worker_pool.post(work.clone());
            worker_pool.begin();
            worker_pool.raise_priority();
            wait_until(|| work.done.load(Ordering::SeqCst) == 1000);
            worker_pool.dismiss();
        }
    }

    #[test]
    fn workers_yield_unless_their_priority_is_raised() {
        let Some(worker_pool) = worker_pool(1) else { return };
        let policy = || scheduling::attributes(worker_pool.workers[0].tid).unwrap().policy;
        wait_until(|| policy() == ORDINARY);
        worker_pool.raise_priority();
        assert_eq!(policy(), FIFO);
        worker_pool.post(Arc::new(Count::default()));
        worker_pool.begin();
        wait_until(|| policy() == ORDINARY);
    }

    #[test]
    fn nothing_is_kept_of_work_that_was_dismissed() {
        let Some(worker_pool) = worker_pool(1) else { return };
        let work = Arc::new(Count::default());
        worker_pool.post(work.clone());
        worker_pool.begin();
        worker_pool.dismiss();
        wait_until(|| Arc::strong_count(&work) == 1);
    }

    #[test]
    fn the_priority_comes_back() {
        let before = scheduling::attributes(SELF).unwrap();
        let urgent = Urgent::begin();
        let inside = scheduling::attributes(SELF).unwrap();
        if inside.policy != FIFO {
            println!("unsupported: real-time priority");
        }
        drop(urgent);
        assert_eq!(scheduling::attributes(SELF).unwrap(), before);
    }
}
