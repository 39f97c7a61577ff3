//! Tests remote system calls in a program whose threads wait in many different places, and the death of the
//! tracer during a call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::Subject;
use model::{ByteCount, Pid, Signal, Tid};
use sys::Errno;
use sys::ptrace::{self, Registers, XSTATE_BYTES_MAX};
use sys::seccomp_listener::{Notification, Waited, watch_program};
use sys::watched_start::watch_from_start;
use testkit::rounds;
use undying_tracee::remote::{KnownThread, Places, Query, RemoteContext, SessionCapacity, SignalSets};
use undying_tracee::{FreezeError, Gadgets, ProcessMemory, RemoteError, RemoteSession, StoppedTree, procfs};

const GETPID: i64 = 39;
const GETTID: i64 = 186;
const PPOLL: i64 = 271;
const SIGALTSTACK: i64 = 131;
const EVENTFD: i64 = 290;
const EFD_CLOEXEC: u64 = 0o2_000_000;
const PRCTL: i64 = 157;
const RT_SIGACTION: i64 = 13;
const SIGALRM: u64 = 14;
const PR_GET_NAME: u64 = 16;
const NAME_BYTES: ByteCount = ByteCount(16);
const ALTERNATE_STACK_BYTES: ByteCount = ByteCount(24);

/// Registers, extended state and mask of a stopped thread.
struct Seen {
    registers: Registers,
    state: Vec<u8>,
    mask: u64,
}

impl Seen {
    fn of(tid: Tid) -> Self {
        let mut state = [0_u8; XSTATE_BYTES_MAX];
        let length = ptrace::extended_state(tid, &mut state).unwrap();
        Self {
            registers: ptrace::registers(tid).unwrap(),
            state: state[..length].to_vec(),
            mask: ptrace::signal_mask(tid).unwrap(),
        }
    }

    /// Reports whether both extended states have the same contents. The header may differ: the processor may
    /// record there that a component has its initial value again.
    fn same_state(&self, other: &Self) -> bool {
        const COMPONENTS_IN_USE: std::ops::Range<usize> = 512..520;
        let same = |(index, (one, two))| one == two || COMPONENTS_IN_USE.contains(&index);
        self.state.iter().zip(&other.state).enumerate().all(same)
    }
}

/// Stops the subject once and makes some calls in every thread, as a checkpoint does.
fn call_in_every_thread(pid: Pid) {
    let memory = ProcessMemory::open(pid).unwrap();
    let gadgets = Gadgets::find(&memory, &procfs::mappings(pid).unwrap()).unwrap();
    call_with(pid, &memory, gadgets, 0..usize::MAX).unwrap();
}

/// Makes the same calls in one batch, with a failing call in the middle.
fn ask_at_once(session: &mut RemoteSession<'_>, pid: Pid, tid: Tid) {
    let status = procfs::read(format!("/proc/{pid}/task/{tid}/status")).unwrap();
    let set = |name| procfs::signal_set(&status, name);
    let signals = SignalSets { caught: set("SigCgt"), pending: set("SigPnd") | set("ShdPnd") };
    let opening = Query { number: EVENTFD, arguments: [0, EFD_CLOEXEC, 0, 0, 0, 0] };
    let opened = session.open(&[opening; 2], signals).unwrap();
    assert!(opened.iter().all(Result::is_ok), "{opened:?}");
    session.close_opened(signals).unwrap();
    let data = session.data().get();
    session.write_data(&[0xee; 96]).unwrap();
    let query = |number, arguments| Query { number, arguments };
    let mut queries = vec![
        query(GETPID, [0; 6]),
        query(PRCTL, [PR_GET_NAME, data, 0, 0, 0, 0]),
        query(PRCTL, [u64::MAX, 0, 0, 0, 0, 0]),
        query(SIGALTSTACK, [0, data + 16, 0, 0, 0, 0]),
    ];
    queries.extend((0..30).map(|_| query(GETTID, [0; 6])));
    queries.push(query(RT_SIGACTION, [SIGALRM, 0, data + 64, 8, 0, 0]));
    let results = common::batch(session, &queries, signals);
    assert_eq!(results[0], Ok(pid.get() as u64));
    assert_eq!((results[1], results[3]), (Ok(0), Ok(0)));
    assert!(results[2].is_err());
    assert!(results[4..34].iter().all(|result| *result == Ok(tid.get() as u64)));
    assert_eq!(results[34], Ok(0));
    let action = session.read_data(ByteCount(96)).unwrap()[64..].to_vec();
    assert_ne!(action, vec![0xee; 32], "the action of a signal was told");
    let data = session.read_data(ByteCount(64)).unwrap();
    assert_eq!(&data[..4], b"self");
    assert_ne!(data[16..40], [0xee; 24]);
    assert_eq!(data[40..], [0xee; 24]);
}

/// Makes calls in the threads at these indices of the list of stopped threads.
fn call_with(
    pid: Pid,
    memory: &ProcessMemory,
    gadgets: Gadgets,
    places: std::ops::Range<usize>,
) -> Result<(), FreezeError> {
    let mut tree = StoppedTree::stop(pid)?;
    let mappings = procfs::mappings(pid).unwrap();
    let context = RemoteContext { memory, mappings: &mappings, gadgets };
    let threads = &mut tree.processes[0].threads;
    let (start, end) = (places.start.min(threads.len()), places.end.min(threads.len()));
    for thread in &mut threads[start..end] {
        let tid = thread.tid();
        let before = Seen::of(tid);
        let mut session = RemoteSession::begin(thread, &context).unwrap();
        assert_eq!(session.call(GETPID, [0; 6]).unwrap(), pid.get() as u64);
        assert_eq!(session.call(GETTID, [0; 6]).unwrap(), tid.get() as u64);
        let data = session.data().get();
        session.call(PRCTL, [PR_GET_NAME, data, 0, 0, 0, 0]).unwrap();
        assert_eq!(&session.read_data(NAME_BYTES).unwrap()[..4], b"self");
        session.call(SIGALTSTACK, [0, data, 0, 0, 0, 0]).unwrap();
        assert_ne!(session.read_data(ALTERNATE_STACK_BYTES).unwrap(), vec![0xff; 24]);
        assert!(session.call(PRCTL, [u64::MAX, 0, 0, 0, 0, 0]).is_err());
        ask_at_once(&mut session, pid, tid);
        session.end().unwrap();
        let after = Seen::of(tid);
        assert_eq!(before.registers, after.registers, "thread {tid}");
        assert_eq!(before.mask, after.mask, "thread {tid}");
        assert!(before.same_state(&after), "thread {tid}: its extended state changed");
    }
    tree.resume().unwrap();
    Ok(())
}

#[test]
fn calls_give_results_and_leave_no_trace() {
    const STOPS: u32 = 100;
    let Some(mut subject) = Subject::start("self_checking", &[]) else { return };
    let memory = ProcessMemory::open(subject.pid()).unwrap();
    let gadgets = Gadgets::find(&memory, &procfs::mappings(subject.pid()).unwrap()).unwrap();
    for stop in 0..STOPS {
        let called = call_with(subject.pid(), &memory, gadgets, 0..usize::MAX);
        called.unwrap_or_else(|error| panic!("{error}; the subject says: {}", subject.line()));
        std::thread::sleep(Duration::from_millis(u64::from(stop % 8)));
        assert!(subject.is_alive(), "the subject says: {}", subject.line());
    }
    subject.goes_on();
    assert_eq!(subject.finish(), 0);
}

/// Begins sessions in as many threads at the same time as the memory permits, repeatedly until all threads
/// had one. Returns the maximum number of simultaneous sessions. Drops every third session while its chain
/// runs.
fn call_together(pid: Pid, memory: &ProcessMemory, gadgets: Gadgets) -> Result<usize, FreezeError> {
    let mut tree = StoppedTree::stop(pid)?;
    let mappings = procfs::mappings(pid).unwrap();
    let context = RemoteContext { memory, mappings: &mappings, gadgets };
    let seen: Vec<Seen> = tree.processes[0].threads.iter().map(|thread| Seen::of(thread.tid())).collect();
    let mut places = Places::find(pid, &context).unwrap();
    let capacity = SessionCapacity { calls: 4, data: ByteCount(64), opened: 0 };
    let (mut most, mut together) = (0, Vec::new());
    let finish = |together: &mut Vec<(RemoteSession<'_>, _)>| {
        for (index, (mut session, batch)) in together.drain(..).enumerate().rev() {
            if index % 3 == 2 {
                continue;
            }
            let tid = session.tid().get() as u64;
            let results = session.finish_batch(batch).unwrap();
            assert_eq!(results, [Ok(pid.get() as u64), Ok(0), Ok(tid)], "thread {tid}");
            assert_eq!(&session.read_data(NAME_BYTES).unwrap()[..4], b"self");
            session.end().unwrap();
        }
    };
    for thread in &mut tree.processes[0].threads {
        let tid = thread.tid();
        let known = KnownThread::read(tid, memory).unwrap();
        let top = places.take(capacity.bytes(&known)).unwrap_or_else(|| {
            finish(&mut together);
            places.reset();
            places.take(capacity.bytes(&known)).unwrap()
        });
        let (signals, is_filtered) =
            procfs::call_status(&procfs::read(format!("/proc/{pid}/task/{tid}/status")).unwrap());
        let mut session =
            RemoteSession::begin_at(thread, &context, &known, top, capacity, is_filtered).unwrap();
        let query = |number, arguments| Query { number, arguments };
        let name = [PR_GET_NAME, session.data().get(), 0, 0, 0, 0];
        let queries = [query(GETPID, [0; 6]), query(PRCTL, name), query(GETTID, [0; 6])];
        let batch = session.begin_batch(&queries, signals).unwrap();
        together.push((session, batch));
        most = most.max(together.len());
    }
    finish(&mut together);
    drop(together);
    for (thread, before) in tree.processes[0].threads.iter().zip(&seen) {
        let after = Seen::of(thread.tid());
        assert_eq!(before.registers, after.registers, "thread {}", thread.tid());
        assert_eq!(before.mask, after.mask, "thread {}", thread.tid());
        assert!(before.same_state(&after), "thread {}: its extended state changed", thread.tid());
    }
    tree.resume().unwrap();
    Ok(most)
}

#[test]
fn threads_make_calls_at_the_same_time() {
    const STOPS: u32 = 100;
    let Some(mut subject) = Subject::start("self_checking", &[]) else { return };
    let memory = ProcessMemory::open(subject.pid()).unwrap();
    let gadgets = Gadgets::find(&memory, &procfs::mappings(subject.pid()).unwrap()).unwrap();
    let mut most = 0;
    for stop in 0..STOPS {
        let called = call_together(subject.pid(), &memory, gadgets);
        most =
            most.max(called.unwrap_or_else(|error| panic!("{error}; the subject says: {}", subject.line())));
        std::thread::sleep(Duration::from_millis(u64::from(stop % 8)));
        assert!(subject.is_alive(), "the subject says: {}", subject.line());
    }
    println!("{most} at a time");
    assert!(most > 4, "{most} at a time");
    subject.goes_on();
    assert_eq!(subject.finish(), 0);
}

#[test]
fn a_process_that_is_killed_while_its_leader_makes_a_call_is_noticed_at_once() {
    const LONGEST: Duration = Duration::from_secs(2);
    let Some(subject) = Subject::start("self_checking", &[]) else { return };
    let pid = subject.pid();
    let memory = ProcessMemory::open(pid).unwrap();
    let gadgets = Gadgets::find(&memory, &procfs::mappings(pid).unwrap()).unwrap();
    let mut tree = StoppedTree::stop(pid).unwrap();
    let mappings = procfs::mappings(pid).unwrap();
    let context = RemoteContext { memory: &memory, mappings: &mappings, gadgets };
    // The other threads are killed during their stop, while this thread waits for the leader.
    let leader = &mut tree.processes[0].threads[0];
    let mut session = RemoteSession::begin(leader, &context).unwrap();
    session.write_data(&[60_u64, 0].map(u64::to_ne_bytes).concat()).unwrap();
    let minute = [0, 0, session.data().get(), 0, 0, 0];
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        sys::signal::send(pid, Signal(9)).unwrap();
    });
    let begun = Instant::now();
    assert!(session.call(PPOLL, minute).is_err());
    drop(session);
    drop(tree);
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    killer.join().unwrap();
    while procfs::stat(pid).is_ok_and(|stat| !stat.is_zombie()) {
        assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal that the subject blocks and waits for, again after each arrival. Meanwhile makes calls in
/// all threads of the subject.
fn no_signal_is_lost(mode: &str) {
    let stops = testkit::rounds(50, 1500);
    const URGENT: Signal = Signal(23);
    let Some(mut subject) = Subject::start("signal_waiter", &[mode]) else { return };
    let pid = subject.pid();
    let of_thread = (mode == "thread").then(|| Tid(subject.line().parse().unwrap()));
    let over = AtomicBool::new(false);
    let (mut came, mut sent) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let memory = ProcessMemory::open(pid).unwrap();
            let gadgets = Gadgets::find(&memory, &procfs::mappings(pid).unwrap()).unwrap();
            for _ in 0..stops {
                let mut tree = StoppedTree::stop(pid).unwrap();
                let mappings = procfs::mappings(pid).unwrap();
                let context = RemoteContext { memory: &memory, mappings: &mappings, gadgets };
                for thread in &mut tree.processes[0].threads {
                    let tid = thread.tid().get() as u64;
                    let mut session = RemoteSession::begin(thread, &context).unwrap();
                    // A sleep of 100 microseconds gives the signal time to arrive. An interrupted sleep must
                    // not replace the wait that the kernel stores for the thread.
                    session.write_data(&[0_u64, 100_000].map(u64::to_ne_bytes).concat()).unwrap();
                    let sleep = Query { number: PPOLL, arguments: [0, 0, session.data().get(), 0, 0, 0] };
                    let queries = [sleep, Query { number: GETTID, arguments: [0; 6] }];
                    let results = common::batch(&mut session, &queries, SignalSets::default());
                    assert_eq!(results, [Ok(0), Ok(tid)]);
                    session.end().unwrap();
                }
                tree.resume().unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) && came == sent {
            match of_thread {
                Some(tid) => sys::signal::send_to_thread(pid, tid, URGENT).unwrap(),
                None => sys::signal::send(pid, URGENT).unwrap(),
            }
            sent += 1;
            came += u64::from(subject.line() == format!("got {sent}"));
        }
    });
    println!("{came} of {sent} signals came");
    assert_eq!(came, sent);
}

#[test]
fn a_signal_that_the_process_blocks_is_not_lost_to_a_chain() {
    no_signal_is_lost("process");
}

#[test]
fn a_signal_that_a_thread_waits_for_is_not_lost_to_a_chain() {
    no_signal_is_lost("thread");
}

#[test]
fn waits_end_although_the_stops_never_do() {
    const INTERVAL: Duration = Duration::from_millis(4);
    // This takes at least one second, and longer on a busy machine.
    const STOPS: u32 = 250;
    // Indices of threads whose calls last 20 ms, five times as long as the time between two stops.
    const TIMED: [usize; 5] = [1, 3, 5, 8, 14];
    let Some(mut subject) = Subject::start("self_checking", &[]) else { return };
    let before = subject.rounds();
    for _ in 0..STOPS {
        std::thread::sleep(INTERVAL);
        match StoppedTree::stop(subject.pid()) {
            Ok(tree) => tree.resume().unwrap(),
            Err(error) => panic!("{error}; the subject says: {}", subject.line()),
        }
    }
    let after = subject.rounds();
    for place in TIMED {
        let rounds = after[place] - before[place];
        println!("place {place}: {rounds} rounds in {STOPS} stops");
        assert!(rounds > 20, "place {place}: {rounds} rounds in {STOPS} stops");
    }
    assert_eq!(subject.finish(), 0);
}

/// Runs the helper process that is killed. With the role `PID`, it makes calls until it is killed. With `PID
/// STEP PLACE`, it makes calls in the thread with the index `PLACE`, and dies at a step.
fn be_helper(role: &str) {
    let mut words = role.split(' ').map(|word| word.parse::<i32>().unwrap());
    let pid = Pid(words.next().unwrap());
    let (Some(step), Some(place)) = (words.next(), words.next()) else {
        loop {
            call_in_every_thread(pid);
        }
    };
    let memory = ProcessMemory::open(pid).unwrap();
    let gadgets = Gadgets::find(&memory, &procfs::mappings(pid).unwrap()).unwrap();
    common::die_at(step as u64, place == 0);
    call_with(pid, &memory, gadgets, place as usize..place as usize + 1).unwrap();
}

#[test]
fn the_death_of_the_tracer_at_any_step_harms_nothing() {
    if let Some(role) = common::role() {
        return be_helper(&role);
    }
    // Most of the time, the test waits for rounds of a subject. So several subjects run in parallel, each for
    // a part of the threads.
    let share = |first| std::thread::spawn(move || die_at_each_step(first));
    let shares: Vec<_> = (0..SUBJECTS).map(share).collect();
    let deaths: Option<usize> = shares.into_iter().map(|share| share.join().unwrap()).sum();
    let Some(deaths) = deaths else { return };
    println!("died at each of {deaths} steps");
    assert!(deaths > 500 / rounds(6, 1));
}

/// Number of subjects whose tracers die in parallel.
const SUBJECTS: usize = 4;

/// For every `SUBJECTS`th thread: dies once at each step of a stop with calls in this thread, or at each third
/// step in the short form. Returns the number of deaths, or `None` without a C compiler.
fn die_at_each_step(first: usize) -> Option<usize> {
    common::stay_on_one_processor(first);
    let mut subject = Subject::start_nice("self_checking", &["lenient"])?;
    let places = procfs::threads(subject.pid()).unwrap().len();
    let mut deaths = 0;
    for place in (first..places).step_by(SUBJECTS) {
        let each = rounds(6, 1);
        let mut step = fastrand::usize(0..each);
        while !survives(&mut subject, step, place) {
            step += each;
            deaths += 1;
        }
    }
    println!("{} calls saw EINTR", subject.finish());
    Some(deaths)
}

/// Reports whether a tracer finished before it reached the step.
fn survives(subject: &mut Subject, step: usize, place: usize) -> bool {
    let role = format!("{} {step} {place}", subject.pid());
    let status =
        common::helper("remote::the_death_of_the_tracer_at_any_step_harms_nothing", &role).status().unwrap();
    common::wait_untraced(subject.pid());
    subject.goes_on();
    assert!(subject.is_alive(), "step {step}, place {place}: the subject says: {}", subject.line());
    nothing_waits(subject.pid());
    !common::has_died(status)
}

/// Checks that no thread has a pending signal of the kind that ends chains.
fn nothing_waits(pid: Pid) {
    const ENDS: u64 = 1 << 16 | 1 << 22 | 1 << 27;
    for tid in procfs::threads(pid).unwrap() {
        let status = procfs::read(format!("/proc/{pid}/task/{tid}/status")).unwrap();
        assert_eq!(procfs::signal_set(&status, "SigPnd") & ENDS, 0, "thread {tid}");
    }
}

#[test]
fn the_death_of_the_tracer_at_any_moment_harms_nothing() {
    let deaths = testkit::rounds(30, 1000);
    const LONGEST_US: u64 = 30_000;
    const TEST: &str = "remote::the_death_of_the_tracer_at_any_moment_harms_nothing";
    if let Some(role) = common::role() {
        return be_helper(&role);
    }
    let Some(mut subject) = Subject::start("self_checking", &["lenient"]) else { return };
    let before = procfs::descriptors(subject.pid()).unwrap();
    let mut random = testkit::seeded(TEST);
    for death in 0..deaths {
        let mut helper = common::helper(TEST, &subject.pid().to_string()).spawn().unwrap();
        let wait = Duration::from_micros(random.u64(..LONGEST_US));
        let started = Instant::now();
        while started.elapsed() < wait {
            std::hint::spin_loop();
        }
        helper.kill().unwrap();
        helper.wait().unwrap();
        common::wait_untraced(subject.pid());
        if death % 10 == 0 {
            subject.goes_on();
        }
        assert!(subject.is_alive(), "death {death} after {wait:?}: the subject says: {}", subject.line());
    }
    subject.goes_on();
    nothing_waits(subject.pid());
    common::eventually("its own descriptors alone", || procfs::descriptors(subject.pid()).unwrap() == before);
    println!("{} calls saw EINTR", subject.finish());
}

/// Steps at which the registers lead to the restore frame while the thread's own signals can arrive.
const OPEN_STEPS: [&str; 2] = ["pointed home", "mask brought back"];

/// Indices of the thread in a handler on an alternate stack, and of the leader. Both receive signals all the
/// time.
const RESTLESS: [usize; 2] = [11, 0];

static OPEN_STEP: AtomicU64 = AtomicU64::new(0);

fn die_at_open_step(step: &'static str) {
    if step == OPEN_STEPS[OPEN_STEP.load(Ordering::Relaxed) as usize] {
        common::die();
    }
}

/// A signal can arrive while a thread is on its restore path. It must be handled below the frame of a
/// handler, and must not restart an alternate stack. The next tracer must not overwrite the restore frame.
#[test]
fn signals_on_the_restore_path_harm_nothing() {
    const TEST: &str = "remote::signals_on_the_restore_path_harm_nothing";
    let deaths: usize = testkit::rounds(30, 1000);
    if let Some(role) = common::role() {
        let mut words = role.split(' ').map(|word| word.parse::<i32>().unwrap());
        let pid = Pid(words.next().unwrap());
        OPEN_STEP.store(words.next().unwrap() as u64, Ordering::Relaxed);
        let place = words.next().unwrap() as usize;
        let memory = ProcessMemory::open(pid).unwrap();
        let gadgets = Gadgets::find(&memory, &procfs::mappings(pid).unwrap()).unwrap();
        undying_tracee::steps::observe(die_at_open_step);
        return call_with(pid, &memory, gadgets, place..place + 1).unwrap();
    }
    let Some(mut subject) = Subject::start("self_checking", &["lenient", "restless"]) else { return };
    for death in 0..deaths {
        let place = RESTLESS[death / OPEN_STEPS.len() % RESTLESS.len()];
        let role = format!("{} {} {place}", subject.pid(), death % OPEN_STEPS.len());
        let status = common::helper(TEST, &role).status().unwrap();
        common::wait_untraced(subject.pid());
        assert!(subject.is_alive(), "death {death}: the subject says: {}", subject.line());
        assert!(common::has_died(status), "death {death}");
    }
    subject.goes_on();
    subject.finish();
}

/// A remote call that matches the seccomp filter of a watched subject is not reported to the listener, and
/// does not wait.
#[test]
fn calls_in_a_watched_program_are_not_reported() {
    const FTRUNCATE: i64 = 77;
    const QUIET: Duration = Duration::from_millis(300);
    let probe = sys::features::entry(sys::features::Feature::FileNotify).probe;
    if let Err(error) = probe(&std::env::temp_dir()) {
        return println!("unsupported: file-notify: {error}");
    }
    let mut command = std::process::Command::new("sleep");
    let pending = watch_from_start(command.arg("600"), watch_program(), None).unwrap();
    let mut child = command.spawn().unwrap();
    let (pid, listener) = (Pid(child.id() as i32), pending.receive().unwrap());
    let mut notification = Notification::default();
    while listener.wait(Some(QUIET)).unwrap() == Waited::Ready {
        listener.receive(&mut notification).unwrap();
        listener.answer_continue(notification.id()).unwrap();
    }
    let memory = ProcessMemory::open(pid).unwrap();
    let mappings = procfs::mappings(pid).unwrap();
    let gadgets = Gadgets::find(&memory, &mappings).unwrap();
    for _ in 0..2 {
        let mut tree = StoppedTree::stop(pid).unwrap();
        let context = RemoteContext { memory: &memory, mappings: &mappings, gadgets };
        let mut session = RemoteSession::begin(&mut tree.processes[0].threads[0], &context).unwrap();
        let arguments = [u64::MAX, 0, 0, 0, 0, 0];
        let refused = session.call(FTRUNCATE, arguments).unwrap_err();
        assert!(matches!(refused, RemoteError::Refused { errno: Errno::EBADF, .. }), "{refused}");
        let signals = SignalSets { caught: 0, pending: 0 };
        let query = Query { number: FTRUNCATE, arguments };
        assert_eq!(common::batch(&mut session, &[query; 3], signals), [Err(Errno::EBADF); 3]);
        session.end().unwrap();
        assert_eq!(listener.wait(Some(Duration::ZERO)), Ok(Waited::TimedOut));
        tree.resume().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(listener.wait(Some(Duration::from_secs(10))), Ok(Waited::Gone));
}
