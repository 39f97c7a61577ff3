//! Tests of job control for restored programs in a shell on a real terminal: the foreground process group, Ctrl-C,
//! Ctrl-Z and `fg`.

use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::terminal::{PROMPT, Terminal};
use crate::common::{Lab, supported, until};

/// A part of the message at the start of a run.
const STARTED: &str = "is protected";
const INNER: &str = "INNER> ";
const INTERRUPT: &str = "\x03";
const SUSPEND: &str = "\x1a";
/// Duration for which a job stays stopped (`STOPPED`), and number of checkpoints that are due in this time with an
/// interval of 50 ms (`STOPPED_ROUNDS`).
const STOPPED: Duration = Duration::from_secs(1);
const STOPPED_ROUNDS: u64 = 20;

impl Terminal<'_> {
    /// Asserts that the program in the foreground echoes a line, like `cat` does.
    fn echoes(&mut self, line: &str) {
        self.send(&format!("{line}\n"));
        self.expect(&format!("{line}\r\n{line}\r\n"));
    }

    /// Waits for a process with this name.
    fn process(&self, name: &str) -> ProcessId {
        until(name, || {
            let is_it = |process: &ProcessId| {
                let comm = std::fs::read_to_string(format!("/proc/{}/comm", process.pid()));
                comm.is_ok_and(|comm| comm.trim() == name)
            };
            self.lab.guard.marked().into_iter().find(is_it)
        })
    }

    /// Waits for a `cat` that reads from the terminal, which means that its process group is in the foreground.
    fn reading_cat(&mut self) -> ProcessId {
        self.echoes("begun");
        self.process("cat")
    }

    fn await_state(&self, pid: Pid, letter: char) {
        until("a state", || crate::common::status_of(pid, "State").starts_with(letter).then_some(()));
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn a_restored_job_has_the_terminal() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    terminal.send("cat\n");
    let cat = terminal.reading_cat().pid();
    let image = lab.path("image");
    let words = ["checkpoint", "--kill", "--image", image.to_str().unwrap(), &cat.to_string()];
    let said = lab.say(words);
    assert_eq!(said.code, Some(0), "{said:?}");
    terminal.expect(PROMPT);
    terminal.send("\"$UNDYING\" restore image\n");
    terminal.echoes("restored");
    assert_eq!(terminal.process("cat").pid(), cat);
    terminal.send(SUSPEND);
    terminal.expect("Stopped");
    terminal.expect(PROMPT);
    terminal.await_state(cat, 'T');
    terminal.is_usable(PROMPT);
    terminal.send("fg\n");
    terminal.expect("restore image\r\n");
    terminal.echoes("continued");
    terminal.send(SUSPEND);
    terminal.expect(PROMPT);
    // In the background, the read from the terminal stops `cat` again, and the whole job with it. Until bash knows of
    // this stop, its `fg` does not continue the job.
    terminal.send("bg; until jobs | grep -q Stopped; do sleep 0.01; done\n");
    terminal.expect(PROMPT);
    terminal.await_state(cat, 'T');
    terminal.send("fg\n");
    terminal.expect("restore image\r\n");
    terminal.echoes("again");
    terminal.send(INTERRUPT);
    terminal.expect(PROMPT);
    terminal.send("echo status $?\n");
    terminal.expect("status 130\r\n");
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
}

#[test]
fn a_restored_shell_has_its_job_in_the_foreground() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    terminal.send(
        "PS1='INNER''> ' \"$UNDYING\" --store \"$STORE\" run --name job --every 50ms -- bash --norc --noediting -i\n",
    );
    terminal.expect_all(&[INNER, STARTED]);
    terminal.send("cat\n");
    terminal.reading_cat();
    for line in ["first", "second"] {
        let count = || lab.json(&["status", "job"])[0]["checkpoints"].as_u64().unwrap();
        let from = count();
        until("checkpoints", || (count() >= from + 2).then_some(()));
        let status = lab.json(&["status", "job"])[0].clone();
        let incarnation = status["incarnation"].as_u64().unwrap();
        let root = ProcessId::of(Pid(status["pid"].as_i64().unwrap() as i32)).unwrap();
        root.signal(Signal::KILL).unwrap();
        until("the next incarnation", || {
            let status = lab.json(&["status", "job"])[0].clone();
            (status["incarnation"].as_u64()? > incarnation && status["state"] == "running").then_some(())
        });
        terminal.echoes(line);
    }
    terminal.send(SUSPEND);
    terminal.expect("Stopped");
    terminal.expect(INNER);
    terminal.send("fg\n");
    terminal.expect("cat\r\n");
    terminal.echoes("continued");
    terminal.send(INTERRUPT);
    terminal.expect(INNER);
    terminal.is_usable(INNER);
    terminal.send("exit 0\n");
    terminal.expect(PROMPT);
    terminal.send("echo status $?\n");
    terminal.expect("status 0\r\n");
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
}

/// The message of a restart is on a line of its own, and the prompt of the shell is below the message.
#[test]
fn a_restored_shell_has_its_prompt_below_the_message() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    terminal.resize(24, 80);
    terminal.send(
        "TERM=vt100 PS1='INNER''> ' \"$UNDYING\" --store \"$STORE\" run --name job --every 50ms -- bash --norc --noprofile -i\n",
    );
    terminal.expect_all(&[INNER, STARTED]);
    for _ in 0..3 {
        let status = || lab.json(&["status", "job"])[0].clone();
        let from = until("a status", || status()["checkpoints"].as_u64());
        until("checkpoints", || status()["checkpoints"].as_u64().filter(|count| *count >= from + 2));
        let root = ProcessId::of(Pid(status()["pid"].as_i64().unwrap() as i32)).unwrap();
        root.signal(Signal::KILL).unwrap();
        // The messages are inserted above the line of the prompt, which moves down.
        terminal.expect("\x1b[1L\rundying: pid");
        terminal.expect("is back at checkpoint");
        terminal.expect("\x1b8\x1b[");
        terminal.send("echo al''ive\n");
        terminal.expect("alive\r\n");
        terminal.expect(INNER);
    }
    terminal.send("exit 0\n");
    terminal.expect(PROMPT);
}

#[test]
fn a_job_restored_in_the_background_gets_the_terminal_with_fg() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    terminal.send("cat\n");
    let cat = terminal.reading_cat().pid();
    let image = lab.path("image");
    let words = ["checkpoint", "--kill", "--image", image.to_str().unwrap(), &cat.to_string()];
    let said = lab.say(words);
    assert_eq!(said.code, Some(0), "{said:?}");
    terminal.expect(PROMPT);
    terminal.send("\"$UNDYING\" restore image &\n");
    terminal.expect(PROMPT);
    terminal.await_state(cat, 'T');
    terminal.is_usable(PROMPT);
    terminal.send("fg\n");
    terminal.expect("restore image\r\n");
    terminal.echoes("continued");
    terminal.send(INTERRUPT);
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
}

#[test]
fn a_program_in_the_group_of_run_is_one_job_with_it() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    terminal.send("\"$UNDYING\" --store \"$STORE\" run --name job --every 50ms -- cat\n");
    terminal.expect(STARTED);
    terminal.reading_cat();
    until("a checkpoint", || {
        lab.json(&["status", "job"])[0]["checkpoints"].as_u64().filter(|count| *count > 1)
    });
    // Counts late checkpoints. A slow machine has several late checkpoints, and the stop itself causes at most one.
    let late = || {
        let held_back = lab.json(&["status", "job"])[0]["held_back"].clone();
        held_back.as_array().unwrap().iter().map(|row| row["count"].as_u64().unwrap()).sum::<u64>()
    };
    for line in ["first", "second"] {
        terminal.send(SUSPEND);
        terminal.expect("Stopped");
        let before = late();
        std::thread::sleep(STOPPED);
        terminal.expect(PROMPT);
        terminal.is_usable(PROMPT);
        terminal.send("fg\n");
        terminal.expect("cat\r\n");
        terminal.echoes(line);
        let taken = || lab.json(&["status", "job"])[0]["checkpoints"].as_u64();
        let from = taken().unwrap();
        until("more checkpoints", || taken().filter(|now| *now > from + 1));
        assert!(late() < before + STOPPED_ROUNDS / 2, "rounds of the stop were counted: {}", late());
        terminal.process("cat").signal(Signal::KILL).unwrap();
        terminal.expect("is back at checkpoint");
        terminal.echoes("alive");
    }
    terminal.send(INTERRUPT);
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
}

/// Writes an image of a program in a terminal, and kills the program.
fn checkpointed(terminal: &mut Terminal<'_>, lab: &Lab, name: &str) -> Pid {
    let program = terminal.process(name).pid();
    let image = lab.path("image");
    let words = ["checkpoint", "--kill", "--image", image.to_str().unwrap(), &program.to_string()];
    let said = lab.say(words);
    assert_eq!(said.code, Some(0), "{said:?}");
    program
}

#[test]
fn a_job_restored_in_another_terminal_has_that_one() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (mut first, mut second) = (Terminal::open(&lab), Terminal::open(&lab));
    first.send("cat\n");
    first.reading_cat();
    let cat = checkpointed(&mut first, &lab, "cat");
    first.expect(PROMPT);
    second.send("\"$UNDYING\" restore image\n");
    second.echoes("restored");
    assert_eq!(second.process("cat").pid(), cat);
    first.is_usable(PROMPT);
    second.echoes("again");
    second.send(SUSPEND);
    second.expect("Stopped");
    second.expect(PROMPT);
    second.send("fg\n");
    second.expect("restore image\r\n");
    second.send(INTERRUPT);
    second.expect(PROMPT);
    second.is_usable(PROMPT);
}

#[test]
fn a_restore_beside_a_shell_leaves_the_modes_of_its_terminal() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    terminal.send("(trap 'stty sane' EXIT; stty raw -echo; echo set''up; sleep 600)\n");
    terminal.expect("setup");
    checkpointed(&mut terminal, &lab, "sleep");
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
    let image = lab.path("image").display().to_string();
    // The session has no terminal. The restored program would consume the input of the shell, so the restore is
    // refused.
    let mut detached = lab.undying(["restore", "--detach", &image]);
    assert_eq!(lab.detached(&mut detached).status().unwrap().code(), Some(3));
    let told = lab.told();
    let shell = format!("this terminal controls the session of pid {} (bash)", terminal.shell.id());
    assert!(told.contains(&shell) && told.contains("help: restore with a terminal"), "{told}");
    terminal.is_usable(PROMPT);
    terminal.send("\"$UNDYING\" restore --detach image; echo status $?\n");
    terminal.expect("status 0\r\n");
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
}

/// A program that prints the window size when it starts and at each SIGWINCH.
const SIZES: &str = r#"
import os, signal, time
def show(*_):
    size = os.get_terminal_size(0)
    # One write: undying writes to this terminal, too.
    os.write(1, b"window %d %d\n" % (size.lines, size.columns))
signal.signal(signal.SIGWINCH, show)
show()
while True:
    time.sleep(0.02)
"#;

#[test]
fn a_restored_program_learns_the_size_of_its_window() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    std::fs::write(lab.path("sizes.py"), SIZES).unwrap();
    let mut terminal = Terminal::open(&lab);
    terminal.resize(30, 100);
    let words = "run --name job --every 50ms -- python3 sizes.py";
    terminal.send(&format!("\"$UNDYING\" --store \"$STORE\" {words}\n"));
    terminal.expect_all(&["window 30 100", STARTED]);
    let checkpoints = || lab.json(&["status", "job"])[0]["checkpoints"].as_u64();
    until("a checkpoint", || checkpoints().filter(|count| *count > 1));
    terminal.process("python3").signal(Signal::KILL).unwrap();
    // The program continues while `undying` prints its messages.
    terminal.expect_all(&["is back at checkpoint", "window 30 100"]);
    terminal.send(INTERRUPT);
    terminal.expect(PROMPT);
    // Restores a single image in a window of another size.
    terminal.send("python3 sizes.py\n");
    terminal.expect("window 30 100");
    checkpointed(&mut terminal, &lab, "python3");
    terminal.expect(PROMPT);
    terminal.resize(20, 70);
    terminal.send("\"$UNDYING\" restore image\n");
    terminal.expect("window 20 70");
    terminal.send(INTERRUPT);
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
}

/// Records each SIGHUP, and ends 0.5 s after the first one, as a program that saves its data.
const SAVES_AT_HANGUP: &str = r"
import os, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
end = None
open('ready', 'w').close()
while end is None or time.monotonic() < end:
    if signal.sigtimedwait([signal.SIGHUP], 0.1):
        with open('hangups', 'a') as saved:
            saved.write('one\n')
        end = end or time.monotonic() + 0.5
raise SystemExit(1)
";

/// Starts the program under a guardian in a terminal, and hangs up. Returns what the program has saved. `guardian` are
/// the words before the command.
fn saved_at_hangup(lab: &Lab, guardian: &str) -> String {
    std::fs::write(lab.path("saves.py"), SAVES_AT_HANGUP).unwrap();
    let mut terminal = Terminal::open(lab);
    terminal.send(&format!("{guardian} python3 saves.py\n"));
    until("the program", || lab.path("ready").exists().then_some(()));
    until("checkpoints", || {
        let status = lab.json(&["status", "job"]);
        (status[0]["checkpoints"].as_u64()? >= 2).then_some(())
    });
    terminal.hang_up();
    until("the end of the program", || {
        let is_it = |process: &ProcessId| {
            let words = std::fs::read_to_string(format!("/proc/{}/cmdline", process.pid()));
            words.is_ok_and(|words| words.contains("saves.py"))
        };
        (!lab.guard.marked().iter().any(is_it)).then_some(())
    });
    std::fs::read_to_string(lab.path("hangups")).unwrap_or_default()
}

/// A hangup reaches the leader of the session, which is `undying` itself after an `exec`. A shell passes it on to the
/// groups of its jobs, and its own end sends them another one.
#[test]
fn a_program_hears_of_a_hangup_as_without_undying_and_keeps_what_it_has_saved() {
    for (exec, most) in [("", 2), ("exec", 1)] {
        if !supported() {
            return;
        }
        let lab = Lab::new();
        let run = "\"$UNDYING\" --store \"$STORE\" run --name job --every 50ms --";
        let saved = saved_at_hangup(&lab, &format!("{exec} {run}"));
        assert!((1..=most).contains(&saved.lines().count()), "{exec}: {saved:?}");
        let status = until("the end", || {
            let status = lab.json(&["status", "job"]);
            (status[0]["state"] == "ended").then_some(status)
        });
        assert_eq!(status[0]["restarts"], 0, "{exec}");
    }
}

/// The program and its guardian ignore the hangup. The terminal cannot come back.
#[test]
fn files_are_not_rolled_back_to_a_checkpoint_whose_terminal_is_gone() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    let program = "exec 3<> /dev/tty; while :; do echo line >> data; sleep 0.02; done";
    terminal.send(&format!(
        "(trap '' HUP; exec \"$UNDYING\" --store \"$STORE\" run --name job --every 3s -- sh -c '{program}') 2> told\n"
    ));
    let root = until("a checkpoint", || {
        let status = lab.json(&["status", "job"]).get(0).cloned()?;
        (status["files"]["exact"].as_u64()? >= 1).then_some(Pid(status["pid"].as_i64()? as i32))
    });
    // The next checkpoint would contain the program without its terminal.
    terminal.hang_up();
    ProcessId::of(root).unwrap().signal(Signal::KILL).unwrap();
    let told = until("the end of the guardian", || {
        let status = lab.json(&["status", "job"]);
        let is_over = ["ended", "failed"].contains(&status[0]["state"].as_str()?);
        is_over.then(|| std::fs::read_to_string(lab.path("told")).unwrap())
    });
    assert!(told.contains("the program's terminal does not exist"), "{told}");
    assert!(!told.contains("rolled back to checkpoint"), "{told}");
}
