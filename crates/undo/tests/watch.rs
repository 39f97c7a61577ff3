//! Tests of a watch: a program changes files at random and is killed, and its files are rolled back.
//!
//! A boundary binds the state of files to a checkpoint.
//!
//! Owns: the comparison of a tree with the tree at a boundary.
//! Does not: stop threads. At each boundary, the program waits for the next line of its input.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Once;
use std::time::Duration;

use model::{ByteCount, Fd, Pid, Sequence};
use sys::clock::Clock;
use sys::listener_holder::ListenerHolder;
use undying_undo::watch::{Boundary, MappedFile, OpenFile, Watch, WatchOptions};

/// The state of a path that a rollback must restore.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    content: Vec<u8>,
    extended: Option<Vec<u8>>,
    /// The first path of the same inode.
    inode: PathBuf,
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Found> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    let mut paths = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                folders.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if metadata.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let extended = extended(&path, &metadata);
        let inode = inodes.entry(metadata.ino()).or_insert_with(|| path.clone()).clone();
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let owner = (metadata.uid(), metadata.gid());
        found.insert(path, Found { mode: metadata.mode(), owner, modified, content, extended, inode });
    }
    found
}

/// Returns the extended attribute that the program sets.
fn extended(path: &Path, metadata: &fs::Metadata) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let length =
        rustix::fs::getxattr(path, "user.note", &mut value[..]).ok().filter(|_| metadata.is_file())?;
    value.truncate(length);
    Some(value)
}

/// Describes the first difference of two trees.
fn difference(was: &BTreeMap<PathBuf, Found>, is: &BTreeMap<PathBuf, Found>) -> Option<String> {
    for (path, before) in was {
        let Some(after) = is.get(path) else { return Some(format!("{} is missing", path.display())) };
        if before.content != after.content {
            let at = before.content.iter().zip(&after.content).position(|(one, other)| one != other);
            let lengths = (before.content.len(), after.content.len());
            return Some(format!("{}: content, lengths {lengths:?}, first at {at:?}", path.display()));
        }
        let without = |found: &Found| Found { content: Vec::new(), ..found.clone() };
        if before != after {
            return Some(format!("{}: {:?} is {:?}", path.display(), without(before), without(after)));
        }
    }
    is.keys().find(|path| !was.contains_key(*path)).map(|path| format!("{} is new", path.display()))
}

struct Subject {
    child: Child,
    input: ChildStdin,
    output: BufReader<PipeReader>,
}

impl Subject {
    fn start(watch: &Watch, program: &str, root: &Path, more: &[&str]) -> Self {
        // The program would inherit a file that this test has open for writing. The rollback would then change this
        // file.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| sys::close_range::close_on_exec_from(Fd(3)).unwrap());
        let (output, written) = std::io::pipe().unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program);
        let mut command = Command::new("python3");
        command.arg(program).arg(root).args(more);
        command.stdin(Stdio::piped()).stdout(written.try_clone().unwrap()).stderr(written).process_group(0);
        let pending = watch.prepare(&mut command).unwrap();
        let mut child = command.spawn().unwrap();
        watch.started(pending).unwrap();
        let input = child.stdin.take().unwrap();
        drop(command);
        Self { child, input, output: BufReader::new(output) }
    }

    fn order(&mut self, steps: usize) {
        writeln!(self.input, "{steps}").unwrap();
    }

    fn wait(&mut self) {
        assert_eq!(self.read(), "done\n");
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Passes open and mapped files to the watch, like the capture of a checkpoint.
    fn boundary(&self, watch: &Watch, sequence: Sequence) -> Boundary {
        let pid = Pid(self.child.id() as i32);
        let handle = sys::pidfd::open(pid).unwrap();
        let mut open: Vec<(OwnedFd, u32, u64)> = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            let number: i32 = entry.unwrap().file_name().into_string().unwrap().parse().unwrap();
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap();
            let field = |name: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                line.trim().to_owned()
            };
            let flags = u32::from_str_radix(&field("flags:"), 8).unwrap();
            let position = field("pos:").parse().unwrap();
            let file = sys::pidfd::duplicate(handle.as_fd(), pid, Fd(number)).unwrap();
            let is_regular =
                fs::metadata(format!("/proc/{pid}/fd/{number}")).is_ok_and(|file| file.is_file());
            if flags & 3 != 0 && is_regular {
                open.push((file, flags, position));
            }
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mapped: Vec<((u32, u32), u64, PathBuf)> = maps
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (major, minor) = fields[3].split_once(':').unwrap();
                let number = |text| u32::from_str_radix(text, 16).unwrap();
                (fields[1] == "rw-s" && fields.len() > 5).then(|| {
                    let device = (number(major), number(minor));
                    (device, fields[4].parse().unwrap(), PathBuf::from(fields[5..].join(" ")))
                })
            })
            .collect();
        let open: Vec<OpenFile<'_>> = open
            .iter()
            .map(|(file, flags, position)| OpenFile {
                file: file.as_fd(),
                flags: *flags,
                position: Some(*position),
                is_inherited: false,
            })
            .collect();
        let mapped: Vec<MappedFile<'_>> = mapped
            .iter()
            .map(|(device, inode, path)| MappedFile {
                device: *device,
                inode: *inode,
                path,
                is_writable: true,
            })
            .collect();
        let boundary = watch.boundary(sequence, &open, &mapped);
        watch.after_pause();
        boundary
    }

    /// Kills the program and its children.
    fn kill(mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::KILL;
        while rustix::process::kill_process_group(group, signal).is_ok() {
            self.child.try_wait().unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Number of incarnations of one subject. Each incarnation is killed, and its files are rolled back.
const INCARNATIONS: u64 = 3;
const EPOCHS: u64 = 5;

/// Maximum size of the log in most tests, in bytes.
const ROOMY: ByteCount = ByteCount(1 << 30);

/// Starts a watch. Also returns the directory for the files of the program.
fn watch(place: &Path, bytes_max: ByteCount) -> (Watch, PathBuf) {
    // Without a cost limit, every boundary is exact.
    watch_with(place, bytes_max, 1e9)
}

fn watch_with(place: &Path, bytes_max: ByteCount, cost_max: f64) -> (Watch, PathBuf) {
    let root = place.join("files");
    fs::create_dir(&root).unwrap();
    let directory = place.join("undo");
    let start = Sequence(0);
    let apart_max = Duration::MAX;
    let options = WatchOptions { directory, bytes_max, cost_max, apart_max, start, clock: Clock::default() };
    (Watch::start(options, ListenerHolder::start(|create| create()).unwrap()).unwrap(), root)
}

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
            if let Some(same) = watch.unchanged() {
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
const KILLED: usize = 2000;

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
        assert_eq!(watch.unchanged(), Some(Sequence(number)));
    }
    subject.order(20);
    subject.wait();
    assert_eq!(watch.unchanged(), None);
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
