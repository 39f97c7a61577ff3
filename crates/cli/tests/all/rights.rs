//! Tests with a user without privileges and with unsupported programs. `undying` must print the reason before it
//! changes anything.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, Said, supported, until, wait};

const NOBODY: u32 = 65_534;

/// A directory that every user may use, with a copy of the program.
struct Open {
    folder: tempfile::TempDir,
}

impl Open {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("undying-r-").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        crate::common::copy_program(env!("CARGO_BIN_EXE_undying"), &folder.path().join("undying"));
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn as_nobody(&self, program: PathBuf, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).uid(NOBODY).gid(NOBODY).current_dir(self.folder.path());
        command
    }
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn is_refused(said: &Said) {
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.stderr.contains("CAP_CHECKPOINT_RESTORE") && said.stderr.contains("setcap"), "{said:?}");
}

#[test]
fn a_user_who_could_not_restore_is_refused_before_anything_is_done() {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return;
    }
    let (lab, open) = (Lab::new(), Open::new());
    let store = open.path("store").display().to_string();
    let words = ["--store", &store, "run", "--", "touch", "started"];
    is_refused(&lab.call(&mut open.as_nobody(open.path("undying"), &words)));
    assert!(!open.path("started").exists() && !open.path("store").exists());
    let mut subject = open.as_nobody(PathBuf::from("sleep"), &["1000"]);
    let subject = lab.detached(&mut subject).current_dir(open.path("")).spawn().unwrap();
    let pid = subject.id().to_string();
    for kill in [&[][..], &["--kill"]] {
        let words = [&["checkpoint", &pid, "--image", "image"][..], kill].concat();
        is_refused(&lab.call(&mut open.as_nobody(open.path("undying"), &words)));
        assert!(!open.path("image").exists());
    }
    let said = lab.call(&mut open.as_nobody(open.path("undying"), &["preflight", &pid]));
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.stdout.contains("CAP_CHECKPOINT_RESTORE") && !said.stdout.contains("can be checkpointed"));
    end(subject);
}

/// A file capability in the format of the kernel: version 2, effective, with CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE.
const RIGHTS: [u32; 5] = [0x0200_0001, 1 << 19, 0, 1 << (40 - 32), 0];

#[test]
fn a_user_who_follows_the_advice_can_restore() {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return;
    }
    let (lab, open) = (Lab::new(), Open::new());
    let undying = open.path("undying");
    let rights: Vec<u8> = RIGHTS.iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(errno) = rustix::fs::setxattr(&undying, "security.capability", &rights, flags) {
        println!("unsupported: file capabilities: {errno}");
        return;
    }
    let start = |program: PathBuf, words: &[&str]| {
        let mut command = open.as_nobody(program, words);
        lab.detached(&mut command).current_dir(open.folder.path());
        // The user may not open the output files of the test again.
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut subject = start("sleep".into(), &["600"]);
    let pid = Pid(subject.id() as i32);
    until("the program", || crate::common::status_of(pid, "Name").starts_with("sleep").then_some(()));
    let image = open.path("image").display().to_string();
    let words = ["checkpoint", &pid.to_string(), "--image", &image, "--kill"];
    let said = lab.call(&mut open.as_nobody(undying.clone(), &words));
    assert_eq!(said.code, Some(0), "{said:?}");
    subject.wait().unwrap();
    let mut restore = start(undying.clone(), &["restore", &image]);
    let restored = until("the program", || ProcessId::of(pid).ok());
    restored.signal(Signal::TERM).unwrap();
    assert_eq!(restore.wait().unwrap().code(), Some(128 + 15));
    // The test kills the root. The guardian, which runs as this user, restores the root.
    let store = open.path("store").display().to_string();
    let script = "echo begun >> begun; until [ -e stop ]; do sleep 0.05; done";
    let words = ["--store", &store, "run", "--name", "job", "--every", "50ms", "--", "sh", "-c", script];
    let mut run = start(undying.clone(), &words);
    let status = || {
        let said = lab.call(&mut open.as_nobody(undying.clone(), &["--store", &store, "status", "--json"]));
        serde_json::from_str::<serde_json::Value>(&said.stdout).ok().map(|rows| rows[0].clone())
    };
    let root = until("checkpoints", || {
        let now = status()?;
        (now["checkpoints"].as_u64()? > 2).then(|| now["pid"].as_i64())?
    });
    ProcessId::of(Pid(root as i32)).unwrap().signal(Signal::KILL).unwrap();
    until("the next life", || (status()?["incarnation"] == 2).then_some(()));
    std::fs::write(open.path("stop"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(std::fs::read_to_string(open.path("begun")).unwrap(), "begun\n");
}

/// Starts a program without a C library. Returns `None` if this machine cannot build or run the program.
fn bare(lab: &Lab, name: &str, flags: &[&str], code: &str) -> Option<Child> {
    let (source, program) = (lab.path(&format!("{name}.c")), lab.path(name));
    std::fs::write(&source, code).unwrap();
    let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-nostdlib", "-static", "-fno-pic", "-no-pie"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .output();
    let child =
        built.ok().filter(|output| output.status.success()).and_then(|_| Command::new(&program).spawn().ok());
    if child.is_none() {
        println!("unsupported: {name}");
    }
    child
}

fn refusal(lab: &Lab, subject: Child) -> Said {
    let pid = subject.id().to_string();
    let image = lab.path("image").display().to_string();
    let said = lab.say(["checkpoint", &pid, "--image", &image]);
    end(subject);
    assert_eq!(said.code, Some(3), "{said:?}");
    said
}

#[test]
fn a_32_bit_program_is_called_what_it_is() {
    let lab = Lab::new();
    let code = "__attribute__((noreturn)) void _start(void)\n\
                { for (;;) __asm__ volatile(\"int $0x80\" :: \"a\"(29) : \"memory\"); }\n";
    let Some(subject) = bare(&lab, "bits32", &["-m32"], code) else { return };
    let said = refusal(&lab, subject);
    assert!(said.stderr.contains("32-bit x86 program") && said.stderr.contains("64-bit build"), "{said:?}");
}

#[test]
fn a_static_program_without_a_signal_restorer_is_told_what_it_lacks() {
    let lab = Lab::new();
    let code = "__attribute__((noreturn)) void _start(void)\n\
                { for (;;) __asm__ volatile(\"syscall\" :: \"a\"(34) : \"rcx\", \"r11\", \"memory\"); }\n";
    let Some(subject) = bare(&lab, "bare", &[], code) else { return };
    let said = refusal(&lab, subject);
    assert!(said.stderr.contains("sigaction") && said.stderr.contains("dynamically"), "{said:?}");
}

/// Forks children, each of which begins to be tracked.
const FORKING: &str = "
import os, time
memory = bytearray(1 << 20)
while True:
    if os.fork() == 0:
        memory[0] = 1
        time.sleep(0.1)
        os._exit(0)
    os.wait()
";

/// Duplicates descriptors of the processes of this user, until a file ends its run. Prints the names of the files.
const GRABBING: &str = "
import ctypes, os, sys
PIDFD_OPEN, PIDFD_GETFD = 434, 438
syscall = ctypes.CDLL(None).syscall
found, tries, handles = set(), 0, []

def owner(pid):
    try:
        return os.stat(f'/proc/{pid}').st_uid
    except OSError:
        return None

while not os.path.exists(sys.argv[1]):
    if tries % 100 == 0:
        for handle in handles:
            os.close(handle)
        numbers = [int(name) for name in os.listdir('/proc') if name.isdigit()]
        own = [pid for pid in numbers if pid != os.getpid() and owner(pid) == os.getuid()]
        handles = [handle for handle in (syscall(PIDFD_OPEN, pid, 0) for pid in own) if handle >= 0]
    tries += 1
    for handle in handles:
        for number in range(3, 9):
            copy = syscall(PIDFD_GETFD, handle, number, 0)
            if copy >= 0:
                found.add(os.readlink(f'/proc/self/fd/{copy}'))
                os.close(copy)
print(tries, sorted(found))
";

#[test]
fn no_process_of_the_same_user_gets_the_device_for_page_faults() {
    const PYTHON: &str = "/usr/bin/python3";
    let device = Path::new("/dev/userfaultfd");
    if !supported() {
        return;
    }
    if !device.exists() || !Path::new(PYTHON).exists() {
        return println!("unsupported: userfaultfd-sync or python3");
    }
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let as_user = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", PYTHON, "-c"];
    let words =
        ["run", "--name", "job", "--every", "20ms", "--files", "fresh", "--tracker", "write-protect", "--"];
    let words = words.into_iter().chain(as_user).chain([FORKING]);
    let mut guardian = lab.undying(words).spawn().unwrap();
    let stop = folder.path().join("stop");
    let mut grabbing = Command::new(as_user[0]);
    grabbing.args(&as_user[1..]).arg(GRABBING).arg(&stop);
    let out = lab.path("grabbed");
    let mut grabbing =
        lab.detached(&mut grabbing).stdout(std::fs::File::create(&out).unwrap()).spawn().unwrap();
    until("checkpoints", || {
        let status = lab.json(&["status", "job"]);
        if guardian.try_wait().unwrap().is_some() {
            return Some(());
        }
        (status[0]["checkpoints"].as_u64()? >= 60).then_some(())
    });
    std::fs::write(&stop, "").unwrap();
    assert!(wait(&mut grabbing).success(), "{}", lab.told());
    let grabbed = std::fs::read_to_string(out).unwrap();
    if lab.told().contains("tracker write-protect") {
        return println!("unsupported: userfaultfd-sync");
    }
    assert!(guardian.try_wait().unwrap().is_none(), "{}", lab.told());
    assert!(!grabbed.contains("userfaultfd") && grabbed.contains('['), "{grabbed}");
    end(guardian);
}
