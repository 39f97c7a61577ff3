//! Tests of a watch over a program with few rights: calls that fail leave no trace, and changes by another program stay.
//!
//! Owns: a model of the changes by a subject and of the changes by the administrator (root).
//! Does not: test files that are open at a checkpoint; `watch` does.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use fastrand::Rng;
use model::{ByteCount, Fd, Sequence};
use rustix::thread::{CapabilitySet, CapabilitySets};
use sys::clock::Clock;
use sys::listener_holder::ListenerHolder;
use undying_undo::UndoError;
use undying_undo::watch::{Watch, WatchOptions};

const USERS: [u32; 3] = [0, 61001, 61002];
const GROUPS: [u32; 3] = [0, 61001, 61010];
/// Number of actors in `rights.py`. The last actor has the rights of root.
const ACTORS: usize = 9;

struct Subject {
    child: Child,
    input: ChildStdin,
    output: BufReader<PipeReader>,
}

impl Subject {
    fn start(watch: &Watch, program: &str, words: &[&str]) -> Self {
        // The program would inherit files that this test has open.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| sys::close_range::close_on_exec_from(Fd(3)).unwrap());
        let (output, written) = std::io::pipe().unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program);
        let mut command = Command::new("python3");
        command.arg(program).args(words);
        command.stdin(Stdio::piped()).stdout(written.try_clone().unwrap()).stderr(written).process_group(0);
        let pending = watch.calls().prepare(&mut command, false).unwrap();
        let mut child = command.spawn().unwrap();
        watch.calls().started(pending).unwrap();
        let input = child.stdin.take().unwrap();
        drop(command);
        Self { child, input, output: BufReader::new(output) }
    }

    /// Lets an actor make some calls. Returns the reports of successful calls.
    fn act(&mut self, actor: usize, calls: usize) -> Vec<String> {
        writeln!(self.input, "{actor} {calls}").unwrap();
        let mut reports = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the program has ended");
            match line.trim_end() {
                "done" => return reports,
                report => reports.push(report.to_owned()),
            }
        }
    }

    /// Sends an empty line, and returns the answer.
    fn next(&mut self) -> String {
        writeln!(self.input).unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn kill(mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        while rustix::process::kill_process_group(group, rustix::process::Signal::KILL).is_ok() {
            self.child.try_wait().unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn watch(place: &Path) -> Watch {
    let (directory, bytes_max) = (place.join("undo"), ByteCount(1 << 30));
    let options = WatchOptions {
        directory,
        bytes_max,
        cost_max: 1e9,
        apart_max: Duration::MAX,
        start: Sequence(0),
        clock: Clock::default(),
    };
    Watch::start(options, ListenerHolder::start(|create| create()).unwrap()).unwrap()
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Aspect {
    Content,
    Times,
    Rights,
    Extended,
}

const ASPECTS: [Aspect; 4] = [Aspect::Content, Aspect::Times, Aspect::Rights, Aspect::Extended];

/// The changes of one side: aspects of inodes, and names in directories. Inodes are inode numbers.
#[derive(Default, Debug)]
struct Changes {
    aspects: BTreeSet<(u64, Aspect)>,
    names: BTreeSet<(u64, String)>,
}

impl Changes {
    fn report(&mut self, report: &str) {
        let fields: Vec<&str> = report.splitn(3, ' ').collect();
        let number = fields.get(1).and_then(|text| text.parse().ok());
        let Some(number) = number else { panic!("the program said: {report}") };
        match (fields[0], fields[2]) {
            ("name", name) => drop(self.names.insert((number, name.to_owned()))),
            (_, "content") => drop(self.aspects.insert((number, Aspect::Content))),
            (_, "times") => drop(self.aspects.insert((number, Aspect::Times))),
            (_, "rights") => drop(self.aspects.insert((number, Aspect::Rights))),
            (_, "extended") => drop(self.aspects.insert((number, Aspect::Extended))),
            _ => panic!("the program said: {report}"),
        }
    }

    fn name(&mut self, path: &Path) {
        let folder = fs::metadata(path.parent().unwrap()).unwrap().ino();
        self.names.insert((folder, path.file_name().unwrap().to_str().unwrap().to_owned()));
    }
}

/// One inode in a picture of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Node {
    content: Vec<u8>,
    modified: (i64, i64),
    rights: (u32, u32, u32),
    extended: Option<Vec<u8>>,
    path: PathBuf,
    is_directory: bool,
}

/// The state of the tree: inodes by number, and names by directory.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Picture {
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<(u64, String), u64>,
}

fn picture(root: &Path) -> Picture {
    let mut picture = Picture::default();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let number = fs::metadata(&folder).unwrap().ino();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            picture.names.insert((number, name), found.ino());
            let content = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let mut value = [0; 64];
            let extended = rustix::fs::lgetxattr(&path, "user.note", &mut value[..]);
            let extended = extended.ok().map(|length| value[..length].to_vec());
            let modified = (found.mtime(), found.mtime_nsec());
            let rights = (found.mode(), found.uid(), found.gid());
            let is_directory = found.is_dir();
            if is_directory {
                folders.push(path.clone());
            }
            picture
                .nodes
                .insert(found.ino(), Node { content, modified, rights, extended, path, is_directory });
        }
    }
    picture
}

/// Keeps all inodes of a tree open. Their numbers are not used again.
fn hold(root: &Path, held: &mut HashMap<u64, File>) {
    for (number, node) in picture(root).nodes {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
        let open =
            || OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(&node.path).unwrap();
        held.entry(number).or_insert_with(open);
    }
}

/// Creates directories and files of several owners and modes.
fn plant(root: &Path, random: &mut Rng) {
    let folders = [
        (0, 0, 0o755),
        (61001, 61001, 0o755),
        (0, 0, 0o1777),
        (0, 61010, 0o2775),
        (61002, 61002, 0o700),
        (0, 0, 0o711),
        (61001, 61010, 0o770),
        (0, 0, 0o700),
    ];
    for (number, (user, group, mode)) in folders.into_iter().enumerate() {
        let folder = root.join(format!("d{number}"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(folder.join("s")).unwrap();
        for name in ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "s/f0"] {
            let path = folder.join(name);
            fs::write(&path, format!("{} at first", path.display())).unwrap();
            chown(&path, Some(USERS[random.usize(..3)]), Some(GROUPS[random.usize(..3)])).unwrap();
            let mode = [0o644, 0o600, 0o664, 0o666, 0o4755, 0o640][random.usize(..6)];
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            if random.u8(..6) == 0 {
                grant(&path, 61001);
            }
        }
        chown(folder.join("s"), Some(USERS[random.usize(..3)]), None).unwrap();
        chown(&folder, Some(user), Some(group)).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
    }
}

/// Gives a user permission to write a file by an ACL. Does nothing on a file system without ACLs.
fn grant(path: &Path, user: u32) {
    let entry = |tag: u16, permissions: u16, id: u32| {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes
    };
    let none = u32::MAX;
    let entries =
        [entry(1, 6, none), entry(2, 6, user), entry(4, 4, none), entry(16, 6, none), entry(32, 4, none)];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    acl.extend(entries.concat());
    let flags = rustix::fs::XattrFlags::empty();
    let _ = rustix::fs::setxattr(path, "system.posix_acl_access", &acl, flags);
}

/// Makes a random change as the administrator, outside the watch.
fn administrate(root: &Path, random: &mut Rng, changes: &mut Changes, first: &Picture) {
    let present = picture(root);
    let files: Vec<(&u64, &Node)> = present.nodes.iter().filter(|(_, node)| !node.is_directory).collect();
    let (number, node) = files[random.usize(..files.len())];
    // A directory that the subject has created is moved aside, together with all files in it.
    let is_at_home = |path: &Path| {
        let folder = fs::metadata(path.parent().unwrap()).unwrap().ino();
        first.nodes.contains_key(&folder)
    };
    let is_plain = node.path.symlink_metadata().unwrap().is_file();
    match random.u8(..8) {
        0 | 1 if is_plain => {
            fs::write(&node.path, format!("by root {}", random.u64(..))).unwrap();
            changes.aspects.extend([(*number, Aspect::Content), (*number, Aspect::Times)]);
        }
        2 | 3 if is_plain => {
            let mode = [0o600, 0o644, 0o4755, 0o400, 0o755][random.usize(..5)];
            fs::set_permissions(&node.path, Permissions::from_mode(mode)).unwrap();
            changes.aspects.insert((*number, Aspect::Rights));
        }
        4 if is_plain => {
            chown(&node.path, Some(USERS[random.usize(..3)]), Some(0)).unwrap();
            changes.aspects.insert((*number, Aspect::Rights));
        }
        5 if is_at_home(&node.path) => {
            // Replace the file, like passwd(1).
            let new = root.join("new");
            fs::write(&new, format!("by root {}", random.u64(..))).unwrap();
            fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
            fs::rename(&new, &node.path).unwrap();
            changes.name(&node.path);
        }
        6 if is_at_home(&node.path) => {
            let path = node.path.with_file_name(format!("r{}", random.u8(..4)));
            fs::write(&path, "by root").unwrap();
            changes.name(&path);
            let number = path.metadata().unwrap().ino();
            changes.aspects.extend([(number, Aspect::Content), (number, Aspect::Times)]);
        }
        7 if is_at_home(&node.path) => {
            let to = node.path.with_file_name(format!("m{}", random.u8(..4)));
            changes.name(&node.path);
            changes.name(&to);
            fs::rename(&node.path, &to).unwrap();
        }
        _ => {}
    }
}

/// Compares the aspects that exactly one side has changed.
fn check_aspects(seed: u64, by: [&Changes; 2], [first, last, now]: [&Picture; 3]) {
    let [subject, root] = by;
    for (number, node) in &now.nodes {
        for aspect in ASPECTS {
            let id = (*number, aspect);
            // A write sets the times, too.
            let writes = |changes: &Changes| {
                let content = (*number, Aspect::Content);
                changes.aspects.contains(&id)
                    || (aspect == Aspect::Times && changes.aspects.contains(&content))
            };
            let (is_of_subject, is_of_root) = (writes(subject), writes(root));
            let wanted = match (is_of_subject, is_of_root) {
                (false, true) => last.nodes.get(number),
                (true, false) => first.nodes.get(number),
                _ => None,
            };
            let Some(wanted) = wanted else { continue };
            let is_right = match aspect {
                Aspect::Content => wanted.content == node.content,
                // A change of a name sets the times of a directory.
                Aspect::Times => node.is_directory || wanted.modified == node.modified,
                // A write by the subject clears the set-user-ID bit.
                Aspect::Rights => {
                    let cleared = (wanted.rights.0 & !0o6000, wanted.rights.1, wanted.rights.2);
                    let is_written = subject.aspects.contains(&(*number, Aspect::Content));
                    wanted.rights == node.rights || (is_written && cleared == node.rights)
                }
                Aspect::Extended => wanted.extended == node.extended,
            };
            let whose = if is_of_root { "root" } else { "the subject" };
            assert!(is_right, "seed {seed}, {aspect:?} changed by {whose}: {wanted:?} is {node:?}");
        }
    }
}

/// Compares the names that exactly one side has changed.
fn check_names(seed: u64, by: [&Changes; 2], [first, last, now]: [&Picture; 3]) {
    let [subject, root] = by;
    for name in root.names.difference(&subject.names).filter(|(folder, _)| now.nodes.contains_key(folder)) {
        assert_eq!(now.names.get(name), last.names.get(name), "seed {seed}: root has changed {name:?}");
    }
    for name in subject.names.difference(&root.names).filter(|(folder, _)| now.nodes.contains_key(folder)) {
        let (was, is) = (first.names.get(name), now.names.get(name));
        // A removed directory is created again, with another number.
        let is_made = was.is_some_and(|was| first.nodes[was].is_directory && !now.nodes.contains_key(was));
        let is_right = if is_made { is.is_some_and(|is| now.nodes[is].is_directory) } else { was == is };
        assert!(is_right, "seed {seed}: the subject has changed {name:?}: {was:?} is {is:?}");
    }
}

/// Checks that the subject has changed each file that prevents a rollback.
fn check_denied(seed: u64, paths: &[PathBuf], subject: &Changes, first: &Picture) {
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let of_first = first.nodes.iter().find(|(_, node)| node.path == *path).map(|(number, _)| *number);
        let present = path.symlink_metadata().ok().map(|found| found.ino());
        let is_changed = [of_first, present]
            .into_iter()
            .flatten()
            .any(|number| ASPECTS.into_iter().any(|aspect| subject.aspects.contains(&(number, aspect))));
        let is_named = subject.names.iter().any(|(_, changed)| *changed == name);
        assert!(is_changed || is_named, "seed {seed}: the subject has not changed {}", path.display());
    }
}

/// Returns whether the files were rolled back. Otherwise, the rollback was refused.
fn round(place: &Path, seed: u64) -> bool {
    let mut random = Rng::with_seed(seed);
    let root = place.join("files");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(place, Permissions::from_mode(0o755)).unwrap();
    plant(&root, &mut random);
    let mut held = HashMap::new();
    hold(&root, &mut held);
    let first = picture(&root);
    let watch = watch(place);
    let mut subject = Subject::start(&watch, "rights.py", &[root.to_str().unwrap(), &seed.to_string()]);
    let (mut by_subject, mut by_root) = (Changes::default(), Changes::default());
    let actors = if random.u8(..4) == 0 { ACTORS } else { ACTORS - 1 };
    for _ in 0..random.usize(2..7) {
        for report in subject.act(random.usize(..actors), random.usize(1..40)) {
            by_subject.report(&report);
        }
        hold(&root, &mut held);
        for _ in 0..random.usize(..4) {
            administrate(&root, &mut random, &mut by_root, &first);
            hold(&root, &mut held);
        }
    }
    assert_eq!(watch.report().last_break, None, "seed {seed}");
    subject.kill();
    watch.subject_ended().unwrap();
    let last = picture(&root);
    let outcome = watch.go_back(Sequence(0), &[]);
    let now = picture(&root);
    match outcome {
        Ok(_) => {
            check_aspects(seed, [&by_subject, &by_root], [&first, &last, &now]);
            check_names(seed, [&by_subject, &by_root], [&first, &last, &now]);
            true
        }
        Err(UndoError::Denied { paths }) => {
            assert!(last == now, "seed {seed}: a refused rollback has changed files");
            check_denied(seed, &paths, &by_subject, &first);
            false
        }
        // Root has removed the last name of a file that the subject had moved, or has replaced a file of the subject.
        Err(UndoError::Lost { .. } | UndoError::Replaced { .. }) => {
            assert!(last == now, "seed {seed}: a refused rollback has changed files");
            false
        }
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

/// Returns the reason if this machine cannot run the tests.
fn unsupported() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    Watch::missing().or_else(|| (!is_root).then(|| "root".to_owned()))
}

#[test]
fn changes_by_root_stay_and_changes_by_the_subject_go_back() {
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let rounds = std::env::var("UNDYING_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let seed = std::env::var("UNDYING_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let first = seed.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    println!("seed {first}");
    let mut went_back = 0;
    for seed in first..first + rounds {
        let place = tempfile::tempdir().unwrap();
        went_back += u64::from(round(place.path(), seed));
    }
    println!("{went_back} of {rounds} rounds were rolled back, and the others were refused");
}

/// The files of `failing.py`, and the directory in which they are.
const VICTIMS: [&str; 19] = [
    "truncate",
    "ftruncate",
    "fallocate",
    "chmod",
    "fchmod",
    "chown",
    "utime",
    "utimenow",
    "setxattr",
    "open",
    "opentrunc",
    "create",
    "mkdir",
    "unlink",
    "rename",
    "replace",
    "link",
    "symlink",
    "own",
];

fn victims(place: &Path) -> PathBuf {
    let root = place.join("files");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(place, Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(root.join("rmdir")).unwrap();
    for name in VICTIMS {
        fs::write(root.join(name), "at first").unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(0o644)).unwrap();
    }
    root
}

fn failed_calls_leave_no_trace(change: impl Fn(&Path)) {
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let root = victims(place.path());
    let watch = watch(place.path());
    let mut subject = Subject::start(&watch, "failing.py", &[root.to_str().unwrap()]);
    assert_eq!(subject.next(), "", "a call without permission has succeeded");
    for name in VICTIMS {
        assert_eq!(root.join(name).metadata().unwrap().nlink(), 1, "{name} has a second hard link");
        change(&root.join(name));
    }
    let before = picture(&root);
    subject.kill();
    watch.subject_ended().unwrap();
    assert_eq!(watch.report().last_break, None);
    watch.go_back(Sequence(0), &[]).unwrap();
    assert!(before == picture(&root), "{before:?}\n{:?}", picture(&root));
}

#[test]
fn failed_calls_do_not_revert_a_mode_and_content() {
    failed_calls_leave_no_trace(|path| {
        fs::write(path, "a secret").unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    });
}

#[test]
fn failed_calls_do_not_bring_a_replaced_file_back() {
    failed_calls_leave_no_trace(|path| {
        let new = path.with_extension("new");
        fs::write(&new, "a secret").unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
        fs::rename(&new, path).unwrap();
    });
}

#[test]
fn failed_calls_do_not_bring_a_set_user_id_bit_back() {
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let root = victims(place.path());
    let path = root.join("chmod");
    fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
    let watch = watch(place.path());
    let mut subject = Subject::start(&watch, "failing.py", &[root.to_str().unwrap()]);
    assert_eq!(subject.next(), "");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    subject.kill();
    watch.subject_ended().unwrap();
    watch.go_back(Sequence(0), &[]).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o755);
}

/// Starts a program that changes the file `open`, which belongs to root.
fn changed_file(place: &Path) -> (PathBuf, Watch, Subject) {
    let root = victims(place);
    fs::set_permissions(root.join("open"), Permissions::from_mode(0o666)).unwrap();
    let watch = watch(place);
    let mut subject = Subject::start(&watch, "failing.py", &[root.to_str().unwrap()]);
    assert_eq!(subject.next(), "open");
    assert_eq!(subject.next(), "done");
    (root, watch, subject)
}

/// The kernel stores times of changes in ticks of up to 10 ms.
#[test]
fn a_change_directly_after_the_end_is_a_conflict() {
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (root, watch, subject) = changed_file(place.path());
    subject.kill();
    let ticking = place.path().join("ticking");
    let time = || {
        fs::write(&ticking, "").unwrap();
        ticking.metadata().unwrap().ctime_nsec()
    };
    let before = time();
    while time() == before {}
    watch.subject_ended().unwrap();
    fs::write(root.join("open"), "by root").unwrap();
    let error = watch.go_back(Sequence(0), &[]).unwrap_err();
    assert!(matches!(&error, UndoError::Conflict { .. }), "{error}");
}

/// Takes a lease on a file. After the first request of the kernel, the holder runs `answer`.
struct LeaseHolder(Child);

impl LeaseHolder {
    fn take(path: &Path, answer: &str) -> Self {
        let script = format!(
            "import fcntl, signal, sys, time\n\
             file = open(sys.argv[1])\n\
             def asked(*_):\n\x20   {answer}\n\
             signal.signal(signal.SIGIO, asked)\n\
             fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)\n\
             print(flush=True)\n\
             while True: time.sleep(1)"
        );
        let mut command = Command::new("python3");
        let mut child = command.args(["-c", &script]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "no lease");
        Self(child)
    }
}

impl Drop for LeaseHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kernel would make each open of a leased file wait for up to 45 s.
#[test]
fn a_lease_of_another_program_delays_a_rollback_for_seconds_at_most() {
    const AT_MOST: Duration = Duration::from_secs(20);
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (root, watch, subject) = changed_file(place.path());
    let path = root.join("open");
    subject.kill();
    watch.subject_ended().unwrap();
    let before = picture(&root);
    let began = Instant::now();
    {
        let _holder = LeaseHolder::take(&path, "pass");
        let error = watch.go_back(Sequence(0), &[]).unwrap_err();
        assert!(matches!(&error, UndoError::Leased { paths } if *paths == [path.clone()]), "{error}");
    }
    assert!(before == picture(&root));
    let _holder = LeaseHolder::take(&path, "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)");
    watch.go_back(Sequence(0), &[]).unwrap();
    assert!(began.elapsed() < AT_MOST, "{:?}", began.elapsed());
    assert_eq!(fs::read(&path).unwrap(), b"at first");
}

#[test]
fn a_file_that_the_subject_may_not_write_any_more_is_not_rolled_back() {
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    let (root, watch, subject) = changed_file(place.path());
    let path = root.join("open");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "a secret").unwrap();
    let before = picture(&root);
    subject.kill();
    watch.subject_ended().unwrap();
    let error = watch.go_back(Sequence(0), &[]).unwrap_err();
    assert!(matches!(&error, UndoError::Denied { paths } if *paths == [path.clone()]), "{error}");
    assert!(before == picture(&root));
    // A change after the end of the subject is a conflict, even with the permission.
    fs::set_permissions(&path, Permissions::from_mode(0o602)).unwrap();
    let error = watch.go_back(Sequence(0), &[]).unwrap_err();
    assert!(matches!(&error, UndoError::Conflict { .. }), "{error}");
}

/// The rights of the subject permit these calls, and the present names make them fail.
#[test]
fn calls_that_fail_because_of_the_present_names_leave_no_trace() {
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let root = place.path().join("files");
    fs::create_dir_all(root.join("full")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for name in ["f0", "f1", "f2", "f3", "full/f", "foreign"] {
        fs::write(root.join(name), "at first").unwrap();
    }
    fs::hard_link(root.join("f3"), root.join("f3 again")).unwrap();
    fs::set_permissions(root.join("foreign"), Permissions::from_mode(0o666)).unwrap();
    for name in ["", "full", "empty", "f0", "f1", "f2", "f3"] {
        chown(root.join(name), Some(61001), Some(61001)).unwrap();
    }
    let watch = watch(place.path());
    let mut subject = Subject::start(&watch, "refused.py", &[root.to_str().unwrap()]);
    assert_eq!(subject.next(), "", "a call has changed something");
    for name in ["f0", "f1", "f2", "f3", "full", "empty"] {
        fs::rename(root.join(name), root.join(format!("{name} of root"))).unwrap();
    }
    fs::write(root.join("foreign"), "by root").unwrap();
    let before = picture(&root);
    subject.kill();
    watch.subject_ended().unwrap();
    assert_eq!(watch.report().last_break, None);
    watch.go_back(Sequence(0), &[]).unwrap();
    assert!(before == picture(&root), "{before:?}\n{:?}", picture(&root));
}

/// Lets `taken.py` make a change, then lets root make changes.
fn after_changes_by_root(way: &str, root_changes: impl Fn(&Path), check: impl Fn(&Path, &Watch)) {
    if let Some(missing) = unsupported() {
        return println!("unsupported: {missing}");
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let root = place.path().join("files");
    fs::create_dir_all(root.join("d")).unwrap();
    for (name, mode) in [("capable", 0o755), ("noted", 0o644), ("of a group", 0o2755)] {
        fs::write(root.join(name), "at first").unwrap();
        let group = if name == "of a group" { 61010 } else { 61001 };
        chown(root.join(name), Some(61001), Some(group)).unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    fs::write(root.join("f"), "of root").unwrap();
    fs::write(root.join("shared"), "at first").unwrap();
    chown(root.join("shared"), Some(61001), Some(61010)).unwrap();
    fs::set_permissions(root.join("shared"), Permissions::from_mode(0o4774)).unwrap();
    fs::create_dir(root.join("of root")).unwrap();
    fs::write(root.join("of root/accounts"), "open").unwrap();
    fs::copy("/bin/mv", root.join("raised")).unwrap();
    fs::set_permissions(root.join("raised"), Permissions::from_mode(0o4755)).unwrap();
    fs::create_dir(root.join("g")).unwrap();
    chown(root.join("g"), Some(61001), Some(61010)).unwrap();
    fs::set_permissions(root.join("g"), Permissions::from_mode(0o2775)).unwrap();
    chown(root.join("d"), Some(61001), Some(61001)).unwrap();
    chown(&root, Some(61001), Some(61001)).unwrap();
    // cap_net_admin=ep, as struct vfs_cap_data.
    let capability = [1, 0, 0, 2, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("capable"), "security.capability", &capability, none).unwrap();
    let watch = watch(place.path());
    let mut subject = Subject::start(&watch, "taken.py", &[root.to_str().unwrap(), way]);
    assert_eq!(subject.next(), "");
    root_changes(&root);
    subject.kill();
    watch.subject_ended().unwrap();
    check(&root, &watch);
}

fn is_denied(watch: &Watch) -> bool {
    matches!(watch.go_back(Sequence(0), &[]), Err(UndoError::Denied { .. }))
}

#[test]
fn attributes_that_need_a_capability_stay_as_root_has_left_them() {
    let none = rustix::fs::XattrFlags::empty();
    after_changes_by_root(
        "attributes",
        |root| {
            rustix::fs::removexattr(root.join("capable"), "security.capability").unwrap();
            rustix::fs::setxattr(root.join("noted"), "trusted.root", b"by root", none).unwrap();
        },
        |root, watch| {
            watch.go_back(Sequence(0), &[]).unwrap();
            let value = |name: &str, attribute: &str| {
                let mut value = [0; 64];
                let length = rustix::fs::getxattr(root.join(name), attribute, &mut value[..]).ok()?;
                Some(value[..length].to_vec())
            };
            assert_eq!(root.join("capable").metadata().unwrap().mode() & 0o7777, 0o755);
            assert_eq!(value("capable", "security.capability"), None);
            assert_eq!(value("noted", "user.a"), None);
            assert_eq!(value("noted", "trusted.root"), Some(b"by root".to_vec()));
        },
    );
}

#[test]
fn a_set_group_id_bit_of_a_foreign_group_does_not_come_back() {
    after_changes_by_root(
        "group",
        |_| (),
        |root, watch| {
            assert!(is_denied(watch));
            assert_eq!(root.join("of a group").metadata().unwrap().mode() & 0o7777, 0o700);
        },
    );
}

#[test]
fn what_root_has_moved_to_its_own_directory_stays_there() {
    for (way, name) in [("file", "f moved"), ("directory", "d moved")] {
        let take = |root: &Path| {
            let own = root.parent().unwrap().join("of root");
            fs::create_dir(&own).unwrap();
            fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
            fs::rename(root.join(name), own.join("secret")).unwrap();
        };
        after_changes_by_root(way, take, |root, watch| {
            let before = picture(root);
            assert!(is_denied(watch));
            assert!(before == picture(root) && root.parent().unwrap().join("of root/secret").exists());
        });
    }
}

/// Runs `work` in this thread without a capability.
fn without<Output>(lost: CapabilitySet, work: impl FnOnce() -> Output) -> Output {
    let own = rustix::thread::capabilities(None).unwrap();
    let fewer = CapabilitySets { effective: own.effective - lost, ..own };
    rustix::thread::set_capabilities(None, fewer).unwrap();
    let output = work();
    rustix::thread::set_capabilities(None, own).unwrap();
    output
}

/// A step of the first attempt fails. Root then takes over a file that the attempt has already rolled back, or not yet.
#[test]
fn what_root_has_taken_over_after_a_failed_rollback_stays() {
    for (way, taken) in [("contents", "capable"), ("first_open_to_all", "noted")] {
        after_changes_by_root(
            way,
            |_| (),
            |root, watch| {
                let outcome = without(CapabilitySet::DAC_OVERRIDE, || watch.go_back(Sequence(0), &[]));
                assert!(matches!(outcome, Err(UndoError::Step { .. })), "{taken}: {outcome:?}");
                let path = root.join(taken);
                chown(&path, Some(0), Some(0)).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
                fs::write(&path, "a secret").unwrap();
                watch.go_back(Sequence(0), &[]).unwrap_err();
                let found = path.metadata().unwrap();
                assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600));
                assert_eq!(fs::read(&path).unwrap(), b"a secret");
            },
        );
    }
}

/// Not even root can change such a file, so the rollback must be refused before its first step.
#[test]
fn a_rollback_over_a_fixed_file_changes_nothing() {
    for (way, name, flag, change) in [
        ("contents", "capable", "i", "noted"),
        ("contents", "noted", "a", "capable"),
        ("file", "f moved", "i", "f moved"),
        ("file", ".", "i", "f moved"),
        ("directory", "d moved", "i", "d moved"),
    ] {
        let chattr = |root: &Path, sign: &str| {
            let flag = format!("{sign}{flag}");
            let outcome = Command::new("chattr").arg(flag).arg(root.join(name)).output();
            outcome.is_ok_and(|output| output.status.success())
        };
        let is_fixed = Cell::new(false);
        after_changes_by_root(
            way,
            |root| is_fixed.set(chattr(root, "+")),
            |root, watch| {
                if !is_fixed.get() {
                    return println!("unsupported: chattr");
                }
                let seen = || {
                    let found = root.join(change).metadata().unwrap();
                    (found.mode(), found.len(), found.modified().unwrap())
                };
                let before = seen();
                let outcome = watch.go_back(Sequence(0), &[]);
                assert_eq!(seen(), before, "{way} {name}");
                assert!(chattr(root, "-"));
                assert!(matches!(outcome, Err(UndoError::Fixed { .. })), "{way} {name}: {outcome:?}");
                let outcome = watch.go_back(Sequence(0), &[]);
                assert!(
                    matches!(outcome, Ok(_) | Err(UndoError::Conflict { .. })),
                    "{way} {name}: {outcome:?}"
                );
            },
        );
    }
}

/// The program runs a set-user-ID program of root, which changes a file that the program may not change.
#[test]
fn the_work_of_a_set_user_id_program_is_not_rolled_back() {
    let lock = |root: &Path| fs::write(root.join("of root/accounts"), "locked").unwrap();
    after_changes_by_root("raised", lock, |root, watch| {
        assert!(is_denied(watch));
        assert_eq!(fs::read(root.join("of root/accounts")).unwrap(), b"locked");
        assert_eq!(fs::read(root.join("of root/accounts.old")).unwrap(), b"open");
    });
}

#[test]
fn a_set_user_id_bit_does_not_come_back_on_the_content_of_another_user() {
    let write = |root: &Path| fs::write(root.join("shared"), "by another user").unwrap();
    after_changes_by_root("set_user_id", write, |root, watch| {
        assert!(is_denied(watch));
        assert_eq!(root.join("shared").metadata().unwrap().mode() & 0o7777, 0o774);
    });
    after_changes_by_root(
        "set_user_id",
        |_| (),
        |root, watch| {
            watch.go_back(Sequence(0), &[]).unwrap();
            assert_eq!(root.join("shared").metadata().unwrap().mode() & 0o7777, 0o4774);
        },
    );
}

#[test]
fn a_directory_that_the_program_could_not_make_is_not_made_again() {
    let remove = |root: &Path| fs::remove_dir(root.join("g moved")).unwrap();
    after_changes_by_root("group_directory", remove, |root, watch| {
        assert!(is_denied(watch));
        assert!(!root.join("g").exists());
    });
}
