//! Tests of paths that an unprivileged subject (checkpointed program) replaces between its checkpoint and its restore.
//! The restored program must not gain access to an object of root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::Pid;
use rustix::fs::{CWD, FileType, Mode};
use rustix::process::WaitOptions;
use tempfile::TempDir;
use undying_testkit::{Guard, Undying, unsupported};

const NOBODY: u32 = 65534;
const SECRET: &[u8] = b"what root alone may read, longer than the file of the subject";
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Poll interval for the file that the subject creates when it is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The subject opens one object by its path, creates a file, and waits. It sets PR_SET_NO_NEW_PRIVS, so that it cannot
/// gain privileges by itself.
const SUBJECT: &str = r#"
import ctypes, mmap, os, sys, time
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
form, path, ready = sys.argv[1:]
if form == "cwd":
    os.chdir(path)
else:
    flags = {"file": os.O_RDWR, "append": os.O_WRONLY | os.O_APPEND, "map": os.O_RDWR, "fifo": os.O_RDWR,
             "directory": os.O_RDONLY | os.O_DIRECTORY, "named": os.O_PATH, "named_directory": os.O_PATH,
             "nofollow": os.O_RDWR | os.O_NOFOLLOW}
    held = os.open(path, flags[form])
    if form == "map":
        mapped = mmap.mmap(held, 0)
        os.close(held)
open(ready, "w").close()
while True:
    time.sleep(0.05)
"#;

/// The object that replaces the object of the subject.
#[derive(Clone, Copy, Debug)]
enum Plant {
    /// A symbolic link to an object of root.
    Link,
    /// A symbolic link that replaces the parent directory.
    LinkAbove,
    /// An object of root itself, under a second name or moved to the path.
    Other,
}

/// A directory of the subject with one object, and a directory of root with an object of the same kind and name.
struct Scene {
    form: &'static str,
    _folder: TempDir,
    images: TempDir,
    theirs: PathBuf,
    roots: PathBuf,
    guard: Guard,
}

impl Scene {
    fn new(form: &'static str) -> Self {
        let (folder, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = folder.path().canonicalize().unwrap();
        let scene = Self {
            form,
            theirs: path.join("theirs"),
            roots: path.join("roots"),
            _folder: folder,
            images,
            guard: Guard::new(),
        };
        for (directory, user, mode) in [(&scene.theirs, NOBODY, 0o755), (&scene.roots, 0, 0o700)] {
            fs::create_dir(directory).unwrap();
            scene.make(&directory.join("thing"), (mode & 0o600) | (0o100 * u32::from(scene.is_directory())));
            chown(directory.join("thing"), Some(user), Some(user)).unwrap();
            chown(directory, Some(user), Some(user)).unwrap();
            fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        }
        scene
    }

    fn is_directory(&self) -> bool {
        matches!(self.form, "directory" | "named_directory" | "cwd")
    }

    fn make(&self, path: &Path, mode: u32) {
        if self.is_directory() {
            fs::create_dir(path).unwrap();
        } else if self.form == "fifo" {
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        } else {
            let content = if path.starts_with(&self.roots) { SECRET } else { b"the subject's" };
            fs::write(path, content).unwrap();
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn thing(&self) -> PathBuf {
        self.theirs.join("thing")
    }

    fn start(&self) -> Child {
        let ready = self.theirs.join("ready");
        let mut command = Command::new("python3");
        command.args(["-I", "-c", SUBJECT, self.form]).arg(self.thing()).arg(&ready).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).uid(NOBODY).gid(NOBODY);
        let mut child = self.guard.mark(&mut command).spawn().unwrap();
        let begun = Instant::now();
        while !ready.exists() {
            assert!(begun.elapsed() < READY_LIMIT, "{}: it is not ready", self.form);
            assert!(child.try_wait().unwrap().is_none(), "{}: the subject ended", self.form);
            std::thread::sleep(POLL_INTERVAL);
        }
        child
    }

    fn plant(&self, plant: Plant) {
        let aside = |path: &Path| path.with_extension("aside");
        match plant {
            Plant::Link => {
                fs::rename(self.thing(), aside(&self.thing())).unwrap();
                symlink(self.roots.join("thing"), self.thing()).unwrap();
            }
            Plant::LinkAbove => {
                fs::rename(&self.theirs, aside(&self.theirs)).unwrap();
                symlink(&self.roots, &self.theirs).unwrap();
            }
            Plant::Other => {
                fs::rename(self.thing(), aside(&self.thing())).unwrap();
                fs::rename(self.roots.join("thing"), self.thing()).unwrap();
            }
        }
    }

    fn take_back(&self, plant: Plant) {
        let put_back = |path: &Path| fs::rename(path.with_extension("aside"), path).unwrap();
        match plant {
            Plant::Link => {
                fs::remove_file(self.thing()).unwrap();
                put_back(&self.thing());
            }
            Plant::LinkAbove => {
                fs::remove_file(&self.theirs).unwrap();
                put_back(&self.theirs);
            }
            Plant::Other => {
                fs::rename(self.thing(), self.roots.join("thing")).unwrap();
                put_back(&self.thing());
            }
        }
    }
}

/// Reports whether a process has a file open or mapped, or has it as its working directory.
fn holds(pid: Pid, file: &fs::Metadata) -> bool {
    let links = ["fd", "map_files"].map(|folder| fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap());
    let paths = links.into_iter().flatten().map(|entry| entry.unwrap().path());
    let all = paths.chain([PathBuf::from(format!("/proc/{pid}/cwd"))]);
    all.filter_map(|path| fs::metadata(path).ok())
        .any(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
}

fn attack(undying: &Undying, form: &'static str, plant: Plant) {
    let scene = Scene::new(form);
    let mut child = scene.start();
    let pid = Pid(child.id() as i32);
    let image = scene.images.path().join("image");
    let finished = undying.checkpoint(&scene.guard, scene.images.path(), pid, &image, true).unwrap();
    finished.expect_status(0).unwrap();
    child.wait().unwrap();
    let secret = fs::metadata(scene.roots.join("thing")).unwrap();
    scene.plant(plant);
    // The comparison of files would refuse most of these restores. The test is about a restore that continues.
    match undying.restore_over_files(&scene.guard, scene.images.path(), &image) {
        Ok(pid) => {
            assert!(!holds(pid, &secret), "{form}, {plant:?}: the subject has what is root's");
            // The subject could have opened an O_PATH descriptor itself, so such a descriptor gives no additional
            // access.
            scene.guard.kill_all();
        }
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("help:"), "{form}, {plant:?}: {error}");
            if !matches!(plant, Plant::Other) {
                assert!(error.contains("symbolic link"), "{form}, {plant:?}: {error}");
            }
        }
    }
    // A restore that fails late leaves the process that it was building. The subreaper must reap this process.
    let _ = rustix::process::waitpid(rustix::process::Pid::from_raw(pid.get()), WaitOptions::empty());
    scene.take_back(plant);
    let now = fs::metadata(scene.roots.join("thing")).unwrap();
    assert_eq!(
        (now.ino(), now.mode(), now.uid(), now.mtime()),
        (secret.ino(), secret.mode(), 0, secret.mtime())
    );
    if now.is_file() {
        assert_eq!(fs::read(scene.roots.join("thing")).unwrap(), SECRET, "{form}, {plant:?}");
    }
    let again = undying.restore_over_files(&scene.guard, scene.images.path(), &image).unwrap();
    let own = fs::metadata(scene.thing()).unwrap();
    assert!(holds(again, &own), "{form}: the subject has its own again");
    scene.guard.kill_all();
}

fn attack_with(forms: &[&'static str]) {
    if !rustix::process::geteuid().is_root() {
        return unsupported("root");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        return unsupported("python3");
    }
    let undying = Undying::find().unwrap();
    for form in forms.iter().copied() {
        for plant in [Plant::Link, Plant::LinkAbove, Plant::Other] {
            // Every user may name a file whose directory can be searched.
            if !(form.starts_with("named") && matches!(plant, Plant::Other)) {
                attack(&undying, form, plant);
            }
        }
    }
}

#[test]
fn an_exchanged_file_gives_an_unprivileged_subject_nothing() {
    attack_with(&["file", "append", "nofollow"]);
}

#[test]
fn an_exchanged_mapped_file_gives_an_unprivileged_subject_nothing() {
    attack_with(&["map"]);
}

#[test]
fn an_exchanged_directory_gives_an_unprivileged_subject_nothing() {
    attack_with(&["directory", "cwd"]);
}

#[test]
fn an_exchanged_pipe_or_named_file_gives_an_unprivileged_subject_nothing() {
    attack_with(&["fifo", "named", "named_directory"]);
}
