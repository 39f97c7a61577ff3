//! Tests descriptors that a program opens for its tracer, and the death of the tracer meanwhile.

use crate::common;
use crate::common::Subject;
use model::Pid;
use undying_tracee::remote::{Query, RemoteContext, SignalSets};
use undying_tracee::{Gadgets, ProcessMemory, RemoteSession, StoppedTree, procfs};

const GETPID: i64 = 39;
const EVENTFD: i64 = 290;
const EFD_CLOEXEC: u64 = 0o2_000_000;

/// The ways to make calls.
const WAYS: [&str; 2] = ["in a chain", "one by one"];
const PLACES: usize = 3;

/// Makes calls in one thread, in one of the ways.
fn call(pid: Pid, way: usize, place: usize) {
    let memory = ProcessMemory::open(pid).unwrap();
    let mappings = procfs::mappings(pid).unwrap();
    let gadgets = Gadgets::find(&memory, &mappings).unwrap();
    assert!(gadgets.store.is_some() && gadgets.loads.is_some(), "{gadgets:?}");
    let caught = if WAYS[way] == "one by one" { u64::MAX } else { 0 };
    let signals = SignalSets { caught, ..SignalSets::default() };
    let mut tree = StoppedTree::stop(pid).unwrap();
    let context = RemoteContext { memory: &memory, mappings: &mappings, gadgets };
    let mut session = RemoteSession::begin(&mut tree.processes[0].threads[place], &context).unwrap();
    let ask = Query { number: GETPID, arguments: [0; 6] };
    // Each chain is longer than the previous chain, which it overwrites.
    let ask = |session: &mut RemoteSession<'_>, calls| {
        let told = common::batch(session, &vec![ask; calls], signals);
        assert_eq!(told, vec![Ok(pid.get() as u64); calls]);
    };
    ask(&mut session, 1);
    let open = Query { number: EVENTFD, arguments: [0, EFD_CLOEXEC, 0, 0, 0, 0] };
    let refused = Query { number: EVENTFD, arguments: [0, u64::MAX, 0, 0, 0, 0] };
    let first = session.open(&[open, refused, open], signals).unwrap();
    assert!(first[0].is_ok() && first[1].is_err() && first[2].is_ok(), "{first:?}");
    assert_eq!(opened(pid), 2);
    ask(&mut session, 5);
    session.open_one(&open).unwrap().unwrap();
    assert_eq!(opened(pid), 3);
    session.close_opened(signals).unwrap();
    assert_eq!(opened(pid), 0);
    ask(&mut session, 20);
    // The end of the session closes the descriptors that are still open.
    session.open(&[open], signals).unwrap()[0].unwrap();
    session.end().unwrap();
    assert_eq!(opened(pid), 0);
    tree.resume().unwrap();
}

/// Returns the number of open eventfds in the program. The program opens them only for the tracer.
fn opened(pid: Pid) -> usize {
    let numbers = procfs::descriptors(pid).unwrap();
    // A descriptor of the program's own may have been closed meanwhile.
    let targets = numbers.into_iter().filter_map(|fd| Some(procfs::descriptor_info(pid, fd).ok()?.target));
    targets.filter(|target| target.to_string_lossy().contains("[eventfd]")).count()
}

#[test]
fn the_death_of_the_tracer_at_any_step_leaves_no_descriptor() {
    const TEST: &str = "opened::the_death_of_the_tracer_at_any_step_leaves_no_descriptor";
    if let Some(role) = common::role() {
        let numbers: Vec<u64> = role.split(' ').map(|word| word.parse().unwrap()).collect();
        common::die_at(numbers[1], false);
        return call(Pid(numbers[0] as i32), numbers[2] as usize, numbers[3] as usize);
    }
    common::stay_on_one_processor(0);
    let Some(mut subject) = Subject::start("descriptors", &[]) else { return };
    let mut deaths = 0;
    for (way, place) in (0..WAYS.len()).flat_map(|way| (0..PLACES).map(move |place| (way, place))) {
        for step in (0..).step_by(testkit::rounds(2, 1)) {
            let role = format!("{} {step} {way} {place}", subject.pid());
            let status = common::helper(TEST, &role).status().unwrap();
            common::wait_untraced(subject.pid());
            subject.goes_on();
            let what = format!("step {step} of place {place}, {}", WAYS[way]);
            common::eventually(&what, || opened(subject.pid()) == 0);
            assert!(subject.is_alive(), "{what}: {}", subject.line());
            if !common::has_died(status) {
                break;
            }
            deaths += 1;
        }
    }
    println!("died at each of {deaths} steps");
    assert!(deaths > 100);
    subject.finish();
}
