//! A program under a watch, and the comparison of its files.
//!
//! A boundary binds the state of files to a checkpoint.
//!
//! Owns: starting and killing the program, and passing its open and mapped files to the watch.
//! Does not: stop threads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
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
pub(crate) struct Found {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    content: Vec<u8>,
    extended: Option<Vec<u8>>,
    /// The first path of the same inode.
    inode: PathBuf,
}

pub(crate) fn tree(root: &Path) -> BTreeMap<PathBuf, Found> {
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
pub(crate) fn difference(was: &BTreeMap<PathBuf, Found>, is: &BTreeMap<PathBuf, Found>) -> Option<String> {
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

pub(crate) struct Subject {
    pub(crate) child: Child,
    pub(crate) input: ChildStdin,
    output: BufReader<PipeReader>,
}

impl Subject {
    pub(crate) fn start(watch: &Watch, program: &str, root: &Path, more: &[&str]) -> Self {
        // The program would inherit a file that this test has open for writing. The rollback would then change this
        // file.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| sys::close_range::close_on_exec_from(Fd(3)).unwrap());
        let (output, written) = std::io::pipe().unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program);
        let mut command = Command::new("python3");
        command.arg(program).arg(root).args(more);
        command.stdin(Stdio::piped()).stdout(written.try_clone().unwrap()).stderr(written).process_group(0);
        let pending = watch.calls().prepare(&mut command, false).unwrap();
        let mut child = command.spawn().unwrap();
        watch.calls().started(pending).unwrap();
        let input = child.stdin.take().unwrap();
        drop(command);
        Self { child, input, output: BufReader::new(output) }
    }

    pub(crate) fn order(&mut self, steps: usize) {
        writeln!(self.input, "{steps}").unwrap();
    }

    pub(crate) fn wait(&mut self) {
        assert_eq!(self.read(), "done\n");
    }

    pub(crate) fn read(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Passes open and mapped files to the watch, like the capture of a checkpoint.
    pub(crate) fn boundary(&self, watch: &Watch, sequence: Sequence) -> Boundary {
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
    pub(crate) fn kill(mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::KILL;
        while rustix::process::kill_process_group(group, signal).is_ok() {
            self.child.try_wait().unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Maximum size of the log in most tests, in bytes.
pub(crate) const ROOMY: ByteCount = ByteCount(1 << 30);

/// Starts a watch. Also returns the directory for the files of the program.
pub(crate) fn watch(place: &Path, bytes_max: ByteCount) -> (Watch, PathBuf) {
    // Without a cost limit, every boundary is exact.
    watch_with(place, bytes_max, 1e9)
}

pub(crate) fn watch_with(place: &Path, bytes_max: ByteCount, cost_max: f64) -> (Watch, PathBuf) {
    let root = place.join("files");
    fs::create_dir(&root).unwrap();
    let directory = place.join("undo");
    let start = Sequence(0);
    let apart_max = Duration::MAX;
    let options = WatchOptions { directory, bytes_max, cost_max, apart_max, start, clock: Clock::default() };
    (Watch::start(options, ListenerHolder::start(|create| create()).unwrap()).unwrap(), root)
}
