//! Tests that a blocked disk of the log does not lengthen the pause, in which the subject is stopped. The pages
//! that the pause copies find space in buffers. If the log has too much to write, the engine waits before the next
//! pause.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::late::Late;
use crate::medium::{Gate, GatedMedium};
use model::{PageCount, Pid, Sequence};
use store::{LogOptions, LogWriter, RetentionPolicy, Store, SubjectName};
use undying_engine::{CheckpointOptions, Continuous, Phase, Taken, Tuning};

/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(30);
/// The number of pages of the subject: 80 MiB, five times the size of the buffers of the log.
const PAGES: u64 = 20_000;
/// The time for which the disk accepts no write while a thread waits for the disk. This time is longer than a
/// stopped subject waits for a buffer.
const BLOCKED: Duration = Duration::from_millis(600);

struct Lab {
    folder: tempfile::TempDir,
    gate: Arc<Gate>,
    store: Store,
    name: SubjectName,
    child: Child,
}

impl Lab {
    fn new() -> Option<Self> {
        let folder = tempfile::TempDir::with_prefix_in("undying-slow-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let gate = Arc::new(Gate::default());
        let medium = Arc::new(GatedMedium::new(&gate));
        let store = Store::open_on(medium, &folder.path().join("store")).unwrap();
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "writer", &["-O1"])?;
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let mut command = Command::new(program);
        command.arg(folder.path().join("said")).arg(PAGES.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        Some(Self { folder, gate, store, name: "writer".parse().unwrap(), child })
    }

    fn log(&self) -> LogWriter {
        let options = LogOptions { keep: RetentionPolicy::newest(3), ..LogOptions::default() };
        self.store.open_log(&self.name, options).unwrap()
    }

    /// Waits until the subject has written each page `more` times.
    fn await_rounds(&self, more: u64) {
        let rounds = || {
            let text = std::fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
            text.trim().parse().unwrap_or(0_u64)
        };
        let (begun, first) = (Instant::now(), rounds());
        while rounds() < first + more {
            assert!(begun.elapsed() < LIMIT, "it stands still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn take(&self, subject: &mut Continuous, log: &LogWriter, number: u64) -> Taken {
        // The pre-copy finds no page (tracker `late`), so the pause copies all pages that the subject writes.
        self.await_rounds(2);
        subject.checkpoint(log, &self.options(number)).unwrap().expect("the log is not far behind")
    }

    fn options(&self, number: u64) -> CheckpointOptions {
        CheckpointOptions {
            sequence: Sequence(number),
            name: self.name.to_string(),
            ..CheckpointOptions::default()
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.gate.open();
    }
}

#[test]
fn a_pause_does_not_wait_for_a_disk_that_takes_nothing() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let Some(lab) = Lab::new() else { return };
    lab.await_rounds(1);
    let log = lab.log();
    // One pause copies all pages of the subject, without a time limit.
    let tuning = Tuning { max_pause: None, ..Tuning::default() };
    let mut subject = Continuous::new(Pid(lab.child.id() as i32), &Late).tuned(tuning);
    lab.take(&mut subject, &log, 1).ticket.wait().unwrap();

    lab.gate.close();
    let held = lab.take(&mut subject, &log, 2);
    println!("{:?}", held.phases);
    assert!(held.residual >= PageCount(PAGES), "{} pages in the pause", held.residual);
    let begun = Instant::now();
    while !lab.gate.is_held() {
        assert!(begun.elapsed() < LIMIT, "the log writes nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(held.ticket.poll().unwrap().is_none(), "the checkpoint is durable although the disk is blocked");

    // Now the log has more to write than its buffers hold. The checkpoint waits for the log, but not while the
    // subject is stopped.
    let opener = Arc::clone(&lab.gate);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(BLOCKED);
        opener.open();
    });
    lab.await_rounds(2);
    let begun = Instant::now();
    let waited = lab.take(&mut subject, &log, 3);
    thread.join().unwrap();
    println!("{:?} of {:?}", waited.phases, begun.elapsed());
    assert!(waited.residual >= PageCount(PAGES), "{} pages in the pause", waited.residual);
    assert!(
        waited.phases[Phase::Backpressure] > BLOCKED / 3,
        "what is not written was not waited for: it would grow"
    );
    assert!(waited.phases.pause() < BLOCKED / 2, "{:?}", waited.phases);
    assert_eq!(held.ticket.wait().unwrap().sequence, Sequence(2));
    assert_eq!(waited.ticket.wait().unwrap().sequence, Sequence(3));

    // The log contains the pages with the content that they had in the subject.
    let read = |sequence| lab.store.image(&lab.name, sequence);
    let (_, found) = subject.checkpoint_and_verify(&log, &read, &lab.options(4)).unwrap().unwrap();
    assert!(found.pages >= PageCount(PAGES) && found.differences == PageCount(0), "{found:?}");
}
