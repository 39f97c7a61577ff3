//! Tests with a user without privileges and with unsupported programs. `undying` must print the reason before it
//! changes anything.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, Said, until};

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
