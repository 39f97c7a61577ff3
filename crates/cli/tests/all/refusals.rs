//! Tests of the exit code of `undying restore` that refuses: 3, with nothing changed and nothing left behind. A script
//! can then tell a missing file from a fault of `undying`.

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Guarded, Lab, Said, copy_program, supported, until};

/// The subject holds one object of each kind that a restore can miss.
const HOLDER: &str = r#"
import mmap, os, socket, sys, time
port = int(sys.argv[1])
read = open("read")
written = open("written", "r+")
mapped = mmap.mmap(os.open("mapped", os.O_RDONLY), 4096, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
fifo = os.open("fifo", os.O_RDWR)
directory = os.open("directory", os.O_RDONLY)
named = socket.socket(socket.AF_UNIX); named.bind("named"); named.listen()
server = socket.socket(); server.bind(("127.0.0.1", port)); server.listen()
os.chdir("place")
open("../ready", "w").write(f"{os.getpid()}\n")
while True: time.sleep(600)
"#;

/// A subject, and its image after `undying checkpoint --kill`.
struct Ended {
    lab: Lab,
    pid: Pid,
    port: u16,
}

impl Ended {
    fn new() -> Self {
        let lab = Lab::new();
        for name in ["directory", "place"] {
            std::fs::create_dir(lab.path(name)).unwrap();
        }
        for name in ["read", "written", "mapped"] {
            std::fs::write(lab.path(name), [b'a'; 4096]).unwrap();
        }
        std::fs::write(lab.path("holder.py"), HOLDER).unwrap();
        assert!(Command::new("mkfifo").arg(lab.path("fifo")).status().unwrap().success());
        copy_program("/bin/sleep", &lab.path("program"));
        let port = testkit::free_port();
        let mut setsid = Command::new("setsid");
        setsid.args([
            "--fork",
            "sh",
            "-c",
            r#"./program 600 & exec python3 holder.py "$1""#,
            "sh",
            &port.to_string(),
        ]);
        crate::common::wait(&mut lab.detached(&mut setsid).spawn().unwrap());
        let pid = until("the subject", || {
            let said = std::fs::read_to_string(lab.path("ready")).ok()?;
            said.strip_suffix('\n')?.parse().ok().map(Pid)
        });
        let image = lab.path("image");
        let mut tree = testkit::descendants(ProcessId::of(pid).unwrap());
        tree.push(ProcessId::of(pid).unwrap());
        let said = lab.say(["checkpoint", &pid.to_string(), "--kill", "--image", image.to_str().unwrap()]);
        assert_eq!(said.code, Some(0), "{said:?}");
        until("the end", || {
            tree.iter().for_each(|process| crate::common::reap(process.pid()));
            tree.iter().all(|process| ProcessId::of(process.pid()).is_err()).then_some(())
        });
        Self { lab, pid, port }
    }

    fn restore(&self, options: &[&str]) -> Said {
        let image = self.lab.path("image").display().to_string();
        self.lab.say(["restore", "--detach", &image].iter().chain(options))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.lab.path(name)
    }
}

fn move_away(path: &Path) {
    std::fs::rename(path, path.with_extension("away")).unwrap();
    // A restore finds a renamed file by its identity.
    let elsewhere = path.with_extension("away");
    if elsewhere.is_dir() {
        std::fs::remove_dir(elsewhere).unwrap();
    } else {
        std::fs::remove_file(elsewhere).unwrap();
    }
}

/// Makes one object unusable. Returns a value that must stay alive while the restore is tried.
type Spoil = fn(&Ended) -> Option<Box<dyn std::any::Any>>;

const SPOILED: [(&str, Spoil); 12] = [
    ("the program file", |ended| {
        move_away(&ended.path("program"));
        None
    }),
    ("a file that is read", |ended| {
        move_away(&ended.path("read"));
        None
    }),
    ("a file that is written is missing", |ended| {
        move_away(&ended.path("written"));
        None
    }),
    ("a file that is written has changed", |ended| {
        std::fs::write(ended.path("written"), [b'b'; 4096]).unwrap();
        None
    }),
    ("a mapped file is missing", |ended| {
        move_away(&ended.path("mapped"));
        None
    }),
    ("a mapped file is another", |ended| {
        move_away(&ended.path("mapped"));
        std::fs::write(ended.path("mapped"), [b'b'; 4096]).unwrap();
        None
    }),
    ("a FIFO", |ended| {
        move_away(&ended.path("fifo"));
        None
    }),
    ("an open directory", |ended| {
        move_away(&ended.path("directory"));
        None
    }),
    ("the working directory", |ended| {
        move_away(&ended.path("place"));
        None
    }),
    ("the path of a Unix socket", |ended| {
        let _ = std::fs::remove_file(ended.path("named"));
        Some(Box::new(UnixListener::bind(ended.path("named")).unwrap()))
    }),
    ("a TCP port", |ended| Some(Box::new(TcpListener::bind(("127.0.0.1", ended.port)).unwrap()))),
    ("a pid", |ended| {
        // A new process gets the pid of the subject.
        let mut last = File::options().write(true).open("/proc/sys/kernel/ns_last_pid").unwrap();
        last.write_all((ended.pid.get() - 1).to_string().as_bytes()).unwrap();
        let child = ended.lab.guard.mark(Command::new("sleep").arg("600")).spawn().unwrap();
        Some(Box::new(child))
    }),
];

#[test]
fn every_refused_restore_ends_with_3() {
    if !supported() {
        return;
    }
    for (what, spoil) in SPOILED {
        let ended = Ended::new();
        let kept = spoil(&ended);
        let is_spoiled = what != "a pid" || Path::new(&format!("/proc/{}", ended.pid)).exists();
        if !is_spoiled {
            println!("another process took the pid first");
            continue;
        }
        let said = ended.restore(&["--pidfile", ended.path("pid").to_str().unwrap()]);
        assert_eq!(said.code, Some(3), "{what}: {said:?}");
        assert!(said.stderr.contains("help: "), "{what}: {said:?}");
        let left = [ended.path("pid"), ended.path("pid.new")].map(|path| path.exists());
        assert_eq!(left, [false, false], "{what}");
        let runs = |process: &ProcessId| Some(process.pid()) == Some(ended.pid) && what != "a pid";
        assert!(!ended.lab.guard.marked().iter().any(runs), "{what}: the program runs");
        drop(kept);
    }
}

#[test]
fn a_pid_file_that_cannot_be_written_refuses_the_restore() {
    if !supported() {
        return;
    }
    let ended = Ended::new();
    for pidfile in ["directory", "missing/pid"] {
        let said = ended.restore(&["--pidfile", ended.path(pidfile).to_str().unwrap()]);
        assert_eq!(said.code, Some(3), "{said:?}");
        assert!(said.stderr.contains("cannot write the pid file"), "{said:?}");
        assert!(!Path::new(&format!("/proc/{}", ended.pid)).exists(), "the program runs");
    }
    let said = ended.restore(&["--pidfile", ended.path("pid").to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(std::fs::read_to_string(ended.path("pid")).unwrap().trim(), ended.pid.to_string());
    ProcessId::of(ended.pid).unwrap().signal(Signal::KILL).unwrap();
}

#[test]
fn a_restore_of_a_guarded_subject_names_its_guardian() {
    if !supported() {
        return;
    }
    for files in ["keep", "refuse", "rewind"] {
        let lab = Lab::new();
        let mut guarded = Guarded::run(&lab, &["--files", files], "while :; do sleep 0.05; done");
        guarded.await_checkpoints(1);
        for policy in [&[][..], &["--files", "keep"]] {
            let said = lab.say(["restore", "--detach", "job"].iter().chain(policy));
            assert_eq!(said.code, Some(3), "{said:?}");
            let told = format!("job is guarded by another undying process, pid {}", guarded.guardian.id());
            assert!(said.stderr.contains(&told), "{said:?}");
            let help = format!("`kill {}`", guarded.guardian.id());
            assert!(said.stderr.contains(&help), "{said:?}");
        }
        let guardian = ProcessId::of(Pid(guarded.guardian.id() as i32)).unwrap();
        guardian.signal(Signal::TERM).unwrap();
        crate::common::wait(&mut guarded.guardian);
    }
}
