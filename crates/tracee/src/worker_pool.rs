//! The priority of a tracer as long as something stands still for it, and threads that work beside it.
//!
//! Owns: raising the priority of the calling thread, and giving it back; the threads of a worker pool, where they
//! run, and with which priority.
//! Invariants: what a tracer had before comes back when the guard is dropped; without the right to raise it, nothing
//! changes; threads that are made meanwhile do not inherit it. A member gives way after each step, to threads of the
//! tree that answer remote calls above all; who is about to wait for a member hurries it first, so that no thread
//! waits for a processor that others keep busy. Without the right to hurry, there is no worker pool.
//! Does not: know the work. All of it can be done by the caller, should no member ever come to it.
//!
//! A resumed thread preempts an ordinary tracer that has others to resume; anything else that runs does too. A
//! thread of real-time priority must not spin where what it waits for may need the same processor: see `Waiter`.
//!
//! A tree that stands leaves its processors idle. That is where members may run, whatever the tracer is bound to.

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
/// SCHED_FIFO, of the lowest priority: threads with a higher one go first.
const FIFO: u32 = 1;
const PRIORITY: u32 = 1;
const RESET_ON_FORK: u64 = 1;
/// The calling thread.
const SELF: Tid = Tid(0);

/// The calling thread runs before all ordinary ones as long as this lives.
#[derive(Debug)]
pub struct Urgent {
    before: Option<Attributes>,
}

impl Urgent {
    /// Raises the priority of the calling thread, if that is allowed and it has an ordinary one.
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
            // Giving up a priority is always allowed.
            let _ = scheduling::set_attributes(SELF, &before);
        }
    }
}

/// Work that several threads can do together, step by step.
pub trait Work: Send + Sync {
    /// Does a step that was not begun, some ten microseconds; whether there was one.
    fn step(&self) -> bool;
}

/// Threads that wait for work.
pub struct WorkerPool {
    shared: Arc<Shared>,
    members: Vec<Member>,
}

struct Member {
    tid: Tid,
    is_hurried: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    orders: Mutex<Orders>,
    bell: Condvar,
}

#[derive(Default)]
struct Orders {
    /// Rises with each that is posted.
    round: u64,
    posted: Vec<Arc<dyn Work>>,
    is_over: bool,
}

impl WorkerPool {
    /// Starts so many threads, on any of some processors (one bit each).
    ///
    /// # Errors
    ///
    /// EPERM where threads may not be given real-time priority; what else may keep threads from being started.
    pub fn new(members: NonZeroUsize, processors: &[u64]) -> Result<Self, Error> {
        let mut worker_pool = Self { shared: Arc::default(), members: Vec::with_capacity(members.get()) };
        for _ in 0..members.get() {
            worker_pool.members.push(Member::start(&worker_pool.shared, processors)?);
        }
        Ok(worker_pool)
    }

    /// Adds work for all members, to be done in the order in which it is added.
    pub fn post(&self, work: Arc<dyn Work>) {
        locked(&self.shared.orders).posted.push(work);
    }

    /// Has the members begin. Once for all that was posted: who wakes up takes the lock that a post needs, and who
    /// finds it taken sleeps for longer than most work takes.
    pub fn begin(&self) {
        locked(&self.shared.orders).round += 1;
        self.shared.bell.notify_all();
    }

    /// Forgets the work that is done. Workers finish their present step.
    pub fn dismiss(&self) {
        locked(&self.shared.orders).posted.clear();
    }

    /// Has members run before all ordinary threads until they are done with what they are at.
    pub fn hurry(&self) {
        let urgent = Attributes { policy: FIFO, priority: PRIORITY, ..Attributes::default() };
        for member in &self.members {
            member.is_hurried.store(true, Ordering::SeqCst);
            // Not to be allowed any more costs time alone.
            let _ = scheduling::set_attributes(member.tid, &urgent);
        }
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        let mut orders = locked(&self.shared.orders);
        orders.is_over = true;
        drop(orders);
        self.shared.bell.notify_all();
        for thread in self.members.iter_mut().filter_map(|member| member.thread.take()) {
            // One that panicked has nothing to say here; its work was left to the caller.
            let _ = thread.join();
        }
    }
}

impl Member {
    fn start(shared: &Arc<Shared>, processors: &[u64]) -> Result<Self, Error> {
        let is_hurried = Arc::new(AtomicBool::new(true));
        let (name, named) = mpsc::channel();
        let (shared, flag, processors) = (Arc::clone(shared), Arc::clone(&is_hurried), processors.to_vec());
        let thread = std::thread::Builder::new().name("undying-worker_pool".to_owned());
        let thread = thread
            .spawn(move || serve(&shared, &flag, &processors, &name))
            .map_err(|error| Error::new("start a thread of the worker_pool", error))?;
        // Without an answer it has ended, and the caller goes without a worker pool.
        let tid =
            named.recv().map_err(|_| Error::new("start a thread of the worker_pool", Errno::ESRCH))??;
        Ok(Self { tid, is_hurried, thread: Some(thread) })
    }
}

fn serve(shared: &Shared, is_hurried: &AtomicBool, processors: &[u64], name: &Sender<Result<Tid, Error>>) {
    let ready = prepare(processors);
    let is_ready = ready.is_ok();
    // The thread that started this waits for it.
    let _ = name.send(ready);
    if !is_ready {
        return;
    }
    let (mut seen, mut works) = (0, Vec::<Arc<dyn Work>>::new());
    loop {
        if is_hurried.swap(false, Ordering::SeqCst) {
            // To give up a priority is always allowed.
            let _ =
                scheduling::set_attributes(SELF, &Attributes { policy: ORDINARY, ..Attributes::default() });
        }
        let mut orders = locked(&shared.orders);
        while orders.round == seen && !orders.is_over {
            orders = shared.bell.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
        if orders.is_over {
            return;
        }
        seen = orders.round;
        works.extend(orders.posted.iter().cloned());
        drop(orders);
        for work in works.drain(..) {
            // After each step, a thread that waits for this processor gets it. A low priority does not see to that: a
            // thread that has slept is deferred time, and the scheduler picks it again until that is used up (EEVDF,
            // Linux 6.18, also with SCHED_IDLE: a remote call waited 0.3 ms for the end of a scan).
            while work.step() {
                std::thread::yield_now();
            }
        }
    }
}

/// Whether this thread may be hurried, and its number.
fn prepare(processors: &[u64]) -> Result<Tid, Error> {
    let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get());
    let urgent = Attributes { policy: FIFO, priority: PRIORITY, ..Attributes::default() };
    scheduling::set_attributes(SELF, &urgent)?;
    // Those that may not be used are left out by the kernel; if all are, it runs where it was started.
    let _ = scheduling::set_affinity(SELF, processors);
    Ok(tid)
}

fn locked(orders: &Mutex<Orders>) -> MutexGuard<'_, Orders> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn worker_pool(members: usize) -> Option<WorkerPool> {
        let processors = scheduling::affinity(SELF).unwrap();
        match WorkerPool::new(NonZeroUsize::new(members).unwrap(), &processors) {
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
            worker_pool.hurry();
            wait_until(|| work.done.load(Ordering::SeqCst) == 1000);
            worker_pool.dismiss();
        }
    }

    #[test]
    fn members_give_way_unless_hurried() {
        let Some(worker_pool) = worker_pool(1) else { return };
        let policy = || scheduling::attributes(worker_pool.members[0].tid).unwrap().policy;
        wait_until(|| policy() == ORDINARY);
        worker_pool.hurry();
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
