//! Tests of a watch: a program changes files at random and is killed, and its files are rolled back.
//!
//! A boundary binds the state of files to a checkpoint.
//!
//! Owns: the comparison of a tree with the tree at a boundary.
//! Does not: stop threads. At each boundary, the program waits for the next line of its input.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use model::{ByteCount, Sequence};
use undying_undo::watch::{Boundary, Watch};

use crate::common::{ROOMY, Subject, difference, tree, watch, watch_with};

/// Number of incarnations of one subject. Each incarnation is killed, and its files are rolled back.
const INCARNATIONS: u64 = 3;
const EPOCHS: u64 = 5;

fn roll_back_incarnations(place: &Path, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (watch, root) = watch(place, ROOMY);
    let mut known = BTreeMap::from([(Sequence(0), tree(&root))]);
    let mut next = 1;
    for incarnation in 0..INCARNATIONS {
        let mut subject =
            Subject::start(&watch, "changing.py", &root, &[&(seed * 100 + incarnation).to_string(), "maps"]);
        for _ in 0..EPOCHS {
            subject.order(random.usize(0..40));
            subject.wait();
            if let Some(same) = watch.unchanged_from() {
                let place = difference(&known[&same], &tree(&root));
                assert_eq!(place, None, "seed {seed}, before checkpoint {next}");
            }
            known.insert(Sequence(next), tree(&root));
            let boundary = subject.boundary(&watch, Sequence(next));
            assert_eq!(boundary, Boundary::Exact, "seed {seed}, checkpoint {next}");
            next += 1;
        }
        subject.order(200);
        std::thread::sleep(Duration::from_millis(random.u64(0..60)));
        subject.kill();
        watch.subject_ended().unwrap();
        let exact = watch.exact();
        assert!(exact.contains(&Sequence(next - 1)), "seed {seed}: {:?}", watch.report());
        let to = exact[random.usize(0..exact.len())];
        watch.go_back(to, &[]).unwrap_or_else(|error| panic!("seed {seed}, to {to}: {error}"));
        let difference = difference(&known[&to], &tree(&root));
        assert_eq!(difference, None, "seed {seed}, incarnation {incarnation}, back to {to} of {exact:?}");
    }
}

#[test]
fn files_go_back_to_any_checkpoint_of_any_incarnation() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let rounds = std::env::var("UNDYING_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let seed = std::env::var("UNDYING_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let first = seed.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    println!("seed {first}");
    for seed in first..first + rounds {
        let place = tempfile::tempdir().unwrap();
        roll_back_incarnations(place.path(), seed);
    }
}

/// Number of files that `crossing.py` renames to one name.
const CROSSINGS: usize = 300;

/// Lets a program change files while another process of the program uses the same names, and rolls the files back.
fn race_goes_back(program: &str) {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let mut subject = Subject::start(&watch, program, &root, &[]);
    subject.order(CROSSINGS);
    subject.wait();
    let before = tree(&root);
    assert_eq!(subject.boundary(&watch, Sequence(1)), Boundary::Exact);
    subject.order(0);
    subject.wait();
    subject.kill();
    watch.subject_ended().unwrap();
    watch.go_back(Sequence(1), &[]).unwrap();
    assert_eq!(difference(&before, &tree(&root)), None);
}

#[test]
fn a_file_that_is_moved_to_a_name_while_that_is_opened_goes_back() {
    race_goes_back("crossing.py");
}

#[test]
fn calls_that_succeed_because_another_process_removes_a_name_go_back() {
    race_goes_back("racing.py");
}

#[test]
fn the_watch_reads_files_that_report_while_events_wait() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let mut subject = Subject::start(&watch, "reading.py", &root, &[]);
    subject.order(0);
    subject.wait();
    let before = tree(&root);
    assert_eq!(subject.boundary(&watch, Sequence(1)), Boundary::Exact);
    subject.order(0);
    // The program continues only if the watch answers the events of its own reads.
    subject.wait();
    subject.kill();
    watch.subject_ended().unwrap();
    watch.go_back(Sequence(1), &[]).unwrap();
    assert_eq!(difference(&before, &tree(&root)), None);
}

#[test]
fn a_file_with_the_inode_number_of_a_removed_directory_goes_back() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let mut subject = Subject::start(&watch, "reused.py", &root, &[]);
    subject.order(0);
    subject.wait();
    let before = tree(&root);
    assert_eq!(subject.boundary(&watch, Sequence(1)), Boundary::Exact);
    subject.order(0);
    let said = subject.read();
    if said != "done\n" {
        subject.kill();
        return println!(
            "unsupported: a file system that uses inode numbers again at once ({})",
            said.trim()
        );
    }
    assert_eq!(subject.boundary(&watch, Sequence(2)), Boundary::Exact);
    assert_eq!(watch.report().last_break, None);
    subject.kill();
    watch.subject_ended().unwrap();
    assert_eq!(watch.exact(), [Sequence(0), Sequence(1), Sequence(2)]);
    watch.go_back(Sequence(1), &[]).unwrap();
    assert_eq!(difference(&before, &tree(&root)), None);
}

/// Number of children that are killed. Most children are in a system call when the kill arrives.
const KILLED: usize = 1000;

#[test]
fn a_child_that_is_killed_in_a_call_costs_no_way_back() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let seed = fastrand::u32(..).to_string();
    println!("seed {seed}");
    let mut subject = Subject::start(&watch, "killed.py", &root, &[&seed]);
    subject.order(KILLED);
    subject.wait();
    assert_eq!(watch.report().last_break, None);
    subject.kill();
}

#[test]
fn a_checkpoint_is_unchanged_until_a_file_changes() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let mut subject = Subject::start(&watch, "changing.py", &root, &["7"]);
    subject.order(20);
    subject.wait();
    for number in 1..4 {
        assert_eq!(subject.boundary(&watch, Sequence(number)), Boundary::Exact);
        assert_eq!(watch.unchanged_from(), Some(Sequence(1)), "checkpoint {number}");
    }
    subject.order(20);
    subject.wait();
    assert_eq!(watch.unchanged_from(), None);
    assert_eq!(subject.boundary(&watch, Sequence(4)), Boundary::Exact);
    assert_eq!(watch.unchanged_from(), Some(Sequence(4)));
    subject.kill();
}

#[test]
fn a_demanded_checkpoint_is_exact_at_any_cost() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch_with(place.path(), ROOMY, 1e-9);
    let mut subject = Subject::start(&watch, "changing.py", &root, &["7"]);
    subject.order(40);
    subject.wait();
    // The first epoch has only new files, which cost nothing.
    assert_eq!(subject.boundary(&watch, Sequence(1)), Boundary::Exact);
    for (number, is_demanded) in [(2, false), (3, true), (4, false)] {
        subject.order(40);
        subject.wait();
        if is_demanded {
            watch.demand_exact();
        }
        let boundary = subject.boundary(&watch, Sequence(number));
        assert_eq!(boundary == Boundary::Exact, is_demanded, "checkpoint {number}: {boundary:?}");
    }
    subject.kill();
}

#[test]
fn a_log_without_room_loses_the_way_back_until_the_next_boundary() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ByteCount(1 << 20));
    let mut subject = Subject::start(&watch, "crossing.py", &root, &[]);
    subject.order(CROSSINGS);
    subject.wait();
    assert_eq!(subject.boundary(&watch, Sequence(1)), Boundary::Exact);
    // The log must keep every replaced file, and these files need more space than the log may use.
    subject.order(0);
    subject.wait();
    let broken = watch.report().broken.unwrap();
    assert!(broken.contains("undo log"), "{broken}");
    assert_eq!(watch.exact(), []);
    let before = tree(&root);
    assert_eq!(subject.boundary(&watch, Sequence(2)), Boundary::Exact);
    assert_eq!((watch.exact(), watch.report().broken), (vec![Sequence(2)], None));
    subject.kill();
    watch.subject_ended().unwrap();
    watch.go_back(Sequence(2), &[]).unwrap();
    assert_eq!(difference(&before, &tree(&root)), None);
}

/// Ends of connections of the program `durable.py`, outside its tree.
struct Outside {
    _sockets: (std::net::TcpStream, std::net::TcpStream, UnixStream, UnixStream, std::net::UdpSocket),
}

/// Starts `durable.py` with a connection of each kind.
fn start_durable(watch: &Watch, place: &Path, root: &Path) -> (Subject, Outside) {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unix = place.join("outside");
    let unix_server = std::os::unix::net::UnixListener::bind(&unix).unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let mut subject = Subject::start(watch, "durable.py", root, &[&port, unix.to_str().unwrap()]);
    let ports = subject.read();
    let mut ports = ports.split_whitespace().map(|port| port.parse::<u16>().unwrap());
    let client = std::net::TcpStream::connect(("127.0.0.1", ports.next().unwrap())).unwrap();
    let unix_client = UnixStream::connect(root.join("served")).unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(b"question", ("127.0.0.1", ports.next().unwrap())).unwrap();
    let (accepted, unix_accepted) = (server.accept().unwrap().0, unix_server.accept().unwrap().0);
    (subject, Outside { _sockets: (client, accepted, unix_client, unix_accepted, udp) })
}

fn has_told(watch: &Watch, since: Sequence) -> bool {
    watch.told_since(&[since]) == [since]
}

impl Subject {
    fn act(&mut self, actions: &str) {
        writeln!(self.input, "{actions}").unwrap();
        self.wait();
    }
}

#[test]
fn a_sync_and_a_later_send_to_a_peer_are_noted_until_the_next_checkpoint() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    let is_observed = sys::send_observer::SendObserver::shared().is_ok();
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let (mut subject, _outside) = start_durable(&watch, place.path(), &root);
    let syncs = [
        "fsync",
        "fdatasync",
        "fsync-in-thread",
        "fsync-in-child",
        "syncfs",
        "sync",
        "msync",
        "pwritev2",
        "write-through",
        "open-through",
    ];
    let sends = ["reply", "reply-in-child", "reply-unix", "reply-udp", "request", "request-by-sendfile"];
    let others = ["request-unix", "inside", "pipe", "nothing"];
    let mut sequence = 0;
    let mut check = |actions: &str, is_told: bool| {
        // File times have the step of the kernel's timer interrupt.
        std::thread::sleep(Duration::from_millis(25));
        sequence += 1;
        assert_eq!(subject.boundary(&watch, Sequence(sequence)), Boundary::Exact);
        std::thread::sleep(Duration::from_millis(25));
        subject.act(actions);
        assert_eq!(has_told(&watch, Sequence(sequence)), is_told, "{actions}");
        assert!(has_told(&watch, Sequence(0)) || sequence == 1);
    };
    check("fsync request", true);
    for sync in syncs {
        check(&format!("{sync} reply"), true);
        check(&format!("reply {sync}"), !is_observed || sync == "write-through");
    }
    for send in sends {
        check(&format!("fsync {send}"), true);
        check(&format!("write {send}"), false);
    }
    for other in others {
        check(&format!("write fsync {other}"), !is_observed);
    }
    subject.kill();
    watch.subject_ended().unwrap();
    let newest = Sequence(sequence);
    assert_eq!(has_told(&watch, newest), !is_observed);
    assert!(has_told(&watch, Sequence(sequence - others.len() as u64 - 1)));
    watch.go_back(newest, &[]).unwrap();
    assert!(!has_told(&watch, newest));
    assert!(has_told(&watch, Sequence(1)));
}
