//! The command of `--on-restore`, which runs after each restore, before the restored program goes on.
//!
//! Owns: the environment of the command, its time limit, and the text about its failure.
//! Invariants: while the command runs, the restored processes exist and are stopped. A command that fails, or exceeds its
//! time limit, does not prevent that the program goes on.
//! Does not: run the command at a start from the beginning.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use model::{Pid, Sequence};
use supervise::SubjectStatus;
use sys::clock::Deadline;
use sys::listener_holder::Creation;

/// Maximum duration of the command. The program waits for the command, and its peers wait for the program.
const LIMIT: Duration = Duration::from_secs(60);
/// Poll interval of the wait for the end of the command.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The checkpoint that is restored, as the environment of the command describes it.
#[derive(Clone, Debug)]
pub(crate) struct RestoredFrom {
    /// Name of the subject; empty for an image outside a store.
    pub(crate) name: String,
    /// The image: a directory, or NAME@SEQ.
    pub(crate) image: String,
    pub(crate) sequence: Sequence,
    /// The working directory of the command. `None`: the directory of this process.
    pub(crate) directory: Option<PathBuf>,
}

/// Signals for the command: the mask of blocked signals, and the signals with default actions, as sets of bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SignalSets {
    pub(crate) blocked: u64,
    pub(crate) defaults: u64,
}

/// Runs the command with `sh -c`, and waits for its end. `create` creates the process. Returns why the command has failed.
pub(crate) fn run(
    script: &OsString,
    (restored_from, root): (&RestoredFrom, Pid),
    signals: SignalSets,
    create: impl FnOnce(Creation<'_>) -> sys::Result<Pid>,
) -> Option<String> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).stdin(Stdio::null());
    if let Some(directory) = &restored_from.directory {
        command.current_dir(directory);
    }
    command.env("UNDYING_NAME", &restored_from.name).env("UNDYING_IMAGE", &restored_from.image);
    command.env("UNDYING_SEQ", restored_from.sequence.to_string()).env("UNDYING_PID", root.to_string());
    sys::signal::start_with(&mut command, signals.blocked, signals.defaults);
    sys::descriptor_table::start_with_first_limit(&mut command);
    let (command, started) = (RefCell::new(command), RefCell::new(None));
    let created = create(&|| {
        let child = command.borrow_mut().spawn().map_err(|error| sys::Error::new("start sh", error))?;
        let pid = Pid(child.id() as i32);
        *started.borrow_mut() = Some(child);
        Ok(pid)
    });
    match (created, started.into_inner()) {
        (Ok(_), Some(child)) => judge(await_end(child)),
        (Err(error), _) => Some(error.to_string()),
        (Ok(_), None) => None,
    }
}

/// Waits for the end of the command. Returns `None` if the command was killed at its time limit.
fn await_end(mut child: Child) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Deadline::after(LIMIT);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if deadline.has_passed() {
            child.kill()?;
            return child.wait().map(|_| None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn judge(ended: std::io::Result<Option<ExitStatus>>) -> Option<String> {
    use std::os::unix::process::ExitStatusExt as _;
    match ended {
        Ok(Some(status)) if status.success() => None,
        Ok(Some(status)) => Some(format!("it {}", SubjectStatus::from_wait(status.into_raw()))),
        Ok(None) => Some(format!("it did not end within {LIMIT:?}, and was killed")),
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_here(script: &str) -> Option<String> {
        let (name, image) = ("job".to_owned(), "job@7".to_owned());
        let restored_from = RestoredFrom { name, image, sequence: Sequence(7), directory: Some("/".into()) };
        run(&script.into(), (&restored_from, Pid(42)), SignalSets::default(), |create| create())
    }

    #[test]
    fn the_command_knows_what_was_restored_and_its_failure_has_a_reason() {
        let knows = r#"test "$UNDYING_NAME $UNDYING_IMAGE $UNDYING_SEQ $UNDYING_PID" = "job job@7 7 42" -a "$PWD" = /"#;
        assert_eq!(run_here(knows), None);
        assert_eq!(run_here("exit 3").as_deref(), Some("it exited with 3"));
        assert_eq!(run_here("kill -9 $$").as_deref(), Some("it was killed by signal 9"));
    }
}
