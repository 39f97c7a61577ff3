//! Tests that hot pages (pages that are written all the time) are copied only once in an epoch: in the pause, with
//! their content in the pause. An epoch is the time between two checkpoints. In the pause, the subject is stopped.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{PageCount, Pid, Sequence};
use store::{LogOptions, Store, SubjectName};
use undying_engine::{CheckpointOptions, Continuous};

/// The number of pages that the subject writes without a break.
const PAGES: u64 = 60;
/// The number of consecutive busy epochs after which the hot pages are known. In a busy epoch, nearly all pages are
/// written again before the pause.
const LEARNING: u64 = 12;
/// The number of busy epochs that are counted after learning.
const JUDGED: u64 = 30;
/// The maximum number of epochs. If other programs use the processors, the subject possibly does not run between a
/// pre-copy round and the pause. An epoch that is not busy is not counted, and learning begins again.
const EPOCHS_MAX: u64 = 300;
/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(30);

/// The subject process. Dropping the value kills the process.
struct Subject(Child);

impl Drop for Subject {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn start(folder: &Path) -> Option<Subject> {
    let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "writer", &["-O1"])?;
    let said = folder.join("said");
    // A pipe that this test has inherited must not become a descriptor of the subject.
    sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
    let mut command = Command::new(program);
    command.arg(&said).args([PAGES.to_string().as_str(), "0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let subject = Subject(command.spawn().unwrap());
    let begun = Instant::now();
    while std::fs::read_to_string(&said).unwrap_or_default().is_empty() {
        assert!(begun.elapsed() < LIMIT, "it does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(subject)
}

#[test]
fn a_page_that_is_written_all_the_time_is_copied_once() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let tracker = match track::choose("pagemap-scan") {
        Ok(chosen) => chosen.kind,
        Err(error) => return println!("unsupported: {error}"),
    };
    let folder = tempfile::TempDir::with_prefix_in("undying-hot-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(child) = start(folder.path()) else { return };
    let store = Store::open(&folder.path().join("store")).unwrap();
    let name: SubjectName = "writer".parse().unwrap();
    let log = store.open_log(&name, LogOptions::default()).unwrap();
    let mut subject = Continuous::new(Pid(child.0.id() as i32), tracker);
    let mut checkpoint = |number: u64| {
        let options = CheckpointOptions {
            sequence: Sequence(number),
            name: name.to_string(),
            ..CheckpointOptions::default()
        };
        std::thread::sleep(Duration::from_millis(10));
        let begun = Instant::now();
        loop {
            // Every fifth checkpoint is compared with the subject while the subject is still stopped.
            let taken = if number.is_multiple_of(5) {
                let read = |sequence| store.image(&name, sequence);
                let taken = subject.checkpoint_and_verify(&log, &read, &options).unwrap();
                taken.map(|(taken, found)| {
                    assert!(
                        found.pages >= PageCount(PAGES) && found.differences == PageCount(0),
                        "{found:?}"
                    );
                    taken
                })
            } else {
                subject.checkpoint(&log, &options).unwrap()
            };
            if let Some(taken) = taken {
                return taken;
            }
            assert!(begun.elapsed() < LIMIT, "the log accepts no checkpoint");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (mut in_a_row, mut judged, mut precopied) = (0, 0, 0);
    for number in 1..=EPOCHS_MAX {
        let taken = checkpoint(number);
        let was_busy = taken.residual.get() >= PAGES * 9 / 10;
        if was_busy && in_a_row >= LEARNING {
            judged += 1;
            precopied += taken.precopied.get();
        }
        in_a_row = if was_busy { in_a_row + 1 } else { 0 };
        if judged == JUDGED {
            // Without learning, every counted epoch also copies all pages before its pause, and some pages more
            // than once. After an epoch in which the subject had no processor for a while, learning begins again.
            assert!(
                precopied < judged * PAGES / 2,
                "{precopied} pages were copied before {judged} pauses in which all {PAGES} were"
            );
            return;
        }
    }
    println!("unsupported: a processor for the subject; {judged} of {JUDGED} epochs were judged");
}
