//! Signals reach all replicas at the same place.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::process::{Command, Stdio};

use model::{Pid, Signal};
use undying_replica::{End, Limits, replicate};

/// The program `signals.c`, which runs as replicas on another thread.
struct Running {
    pid: Pid,
    output: BufReader<PipeReader>,
    input: Option<PipeWriter>,
    run: std::thread::JoinHandle<End>,
}

/// Starts the program under a name of its own.
fn started(name: &str) -> Option<Running> {
    let compiled = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "signals", &["-O2"])?;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    std::fs::copy(compiled, &program).unwrap();
    let ((input, writer), (output, given)) = (pipe().unwrap(), pipe().unwrap());
    let mut command = Command::new(program);
    command.stdin(Stdio::from(input)).stdout(Stdio::from(given));
    let run = std::thread::spawn(move || {
        let _folder = folder;
        replicate(command, 2, Limits::default()).unwrap().0
    });
    let mut output = BufReader::new(output);
    let pid = Pid(line(&mut output).parse().unwrap());
    Some(Running { pid, output, input: Some(writer), run })
}

fn line(output: &mut BufReader<PipeReader>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn a_signal_interrupts_a_blocked_call_in_all_replicas() {
    let Some(mut program) = started("interrupted") else { return };
    for count in 1..=5 {
        // The program waits in read(2).
        std::thread::sleep(std::time::Duration::from_millis(5));
        sys::signal::send(program.pid, Signal(10)).unwrap();
        assert_eq!(line(&mut program.output), format!("signal {count}"));
    }
    program.input.as_ref().unwrap().write_all(b"text\n").unwrap();
    assert_eq!(line(&mut program.output), "read 5");
    program.input = None;
    assert_eq!(line(&mut program.output), "end");
    assert_eq!(program.run.join().unwrap(), End::Exited(3));
}

#[test]
fn a_signal_without_a_handler_ends_the_program() {
    let Some(program) = started("ended") else { return };
    sys::signal::send(program.pid, Signal(15)).unwrap();
    assert_eq!(program.run.join().unwrap(), End::Killed(Signal(15)));
}

#[test]
fn a_closed_reader_ends_the_program_as_without_replicas() {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut command = Command::new("cat");
    command.arg("/etc/passwd").stdout(Stdio::from(writer));
    let (end, ..) = replicate(command, 2, Limits::default()).unwrap();
    assert_eq!(end, End::Killed(Signal(13)));
}

/// A replica that another process kills is a fault.
#[test]
fn the_death_of_one_replica_stops_all() {
    const NAME: &str = "killed";
    for victim in ["follower", "leader"] {
        let Some(program) = started(NAME) else { return };
        let children = tracee::procfs::children(Pid(std::process::id() as i32)).unwrap();
        let is_replica = |child: &Pid| {
            std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == NAME)
        };
        let replicas: Vec<Pid> = children.into_iter().filter(is_replica).collect();
        assert_eq!(replicas.len(), 2);
        let is_leader = |replica: &&Pid| **replica == program.pid;
        let chosen = replicas.iter().find(|replica| is_leader(replica) == (victim == "leader")).unwrap();
        sys::signal::send(*chosen, Signal(9)).unwrap();
        let end = program.run.join().unwrap();
        assert!(matches!(end, End::Diverged(_)), "{victim}: {end:?}");
        let lives = |replica: &Pid| std::fs::metadata(format!("/proc/{replica}")).is_ok();
        assert!(!replicas.iter().any(lives), "{victim}");
    }
}
