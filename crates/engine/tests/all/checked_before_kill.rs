//! Tests that a checkpoint ends the subject only if a restore would accept the checkpoint.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use image::RecordSet;
use model::{Pid, Sequence};
use store::{CommitMeta, ImageWriter, OpenCheckpoint, PageChange, PagePool, PageSink, Ticket, WriteOptions};
use undying_engine::{CheckpointOptions, EngineError, checkpoint};

const LIMIT: Duration = Duration::from_secs(20);

/// A sink that removes a file when it receives the last pages. The subject is then stopped and captured.
struct Meddling {
    inner: Box<dyn OpenCheckpoint>,
    file: PathBuf,
}

impl PageSink for Meddling {
    fn pool(&self) -> &PagePool {
        self.inner.pool()
    }

    fn apply(&self, change: PageChange) -> store::Result<()> {
        if matches!(change, PageChange::Pages(_)) {
            let _removed_already = std::fs::remove_file(&self.file);
        }
        self.inner.apply(change)
    }
}

impl OpenCheckpoint for Meddling {
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> store::Result<Ticket> {
        self.inner.commit(records, meta)
    }
}

struct Subject(Child);

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn state_of(pid: Pid) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

#[test]
fn a_subject_that_could_not_be_restored_goes_on() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    // A pipe that this test has inherited must not become a descriptor of the subject.
    sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
    let folder = tempfile::TempDir::with_prefix_in("undying-kill-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("configuration");
    std::fs::write(&file, "text").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7<\"$0\"; exec sleep 1000"]).arg(&file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut subject = Subject(command.spawn().unwrap());
    let pid = Pid(subject.0.id() as i32);
    let begun = Instant::now();
    while std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "sleep\n" || state_of(pid) != 'S' {
        assert!(begun.elapsed() < LIMIT, "the subject does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    let image = |name: &str| -> Box<dyn OpenCheckpoint> {
        Box::new(ImageWriter::create(&folder.path().join(name), WriteOptions::default()).unwrap())
    };
    let options = CheckpointOptions { kill: true, sequence: Sequence(1), ..CheckpointOptions::default() };
    let inner = image("1");
    let error = checkpoint(pid, Box::new(Meddling { inner, file: file.clone() }), &options).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, EngineError::NotRestorable(_)), "{text}");
    assert!(text.contains("the program was not ended") && text.contains("configuration"), "{text}");
    let begun = Instant::now();
    while state_of(pid) != 'S' {
        assert!(begun.elapsed() < LIMIT, "the subject is in state {}", state_of(pid));
        std::thread::sleep(Duration::from_millis(1));
    }
    // The next checkpoint contains the content of the removed file.
    checkpoint(pid, image("2"), &CheckpointOptions { sequence: Sequence(2), ..options }).unwrap();
    // The engine may have reaped the subject already.
    assert!(!matches!(subject.0.try_wait(), Ok(None)), "it was not ended");
}
