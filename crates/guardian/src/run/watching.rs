//! Connects the guardian of a subject with the watch over the files of the subject.
//!
//! The watch records the old content of a file before the subject changes the file. For this, a seccomp filter notifies
//! the watch of system calls of the subject. After a death, the watch can roll files back to a checkpoint.
//!
//! Owns: the decision whether files are rolled back in this run, and the use of the watch from the start of a program
//! to its death.
//! Invariants: in a run with file rollback, a program never runs without its seccomp filter. Files are rolled back only
//! after every process of the tree has ended. A rollback does not change a file to which another process writes.
//! Does not: record or roll back file contents; `undo` does. Does not decide what follows a death; `supervise` does.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use engine::{Covered, FilterInstall};
use model::{Pid, Sequence};
use rustix::fs::SeekFrom;
use supervise::{ChangedFiles, FileChanges, OUTPUT_TIMEOUT};
use sys::clock::Clock;
use sys::listener_holder::ListenerHolder;
use sys::packet_hold::SocketMark;
use sys::socket_call::CallHandler;
use sys::{Errno, Error};
use undo::UndoError;
use undo::back::WentBack;
use undo::watch::{CallReports, CheckpointWatch, Notice, OpenFile, Watch, WatchOptions};

use super::launch::Launch;
use super::output::MarksSockets;
use super::request::RunRequest;
use crate::error::{GuardianError, Result};
use crate::own_lines;
use crate::streams::Streams;

/// The sequence number that represents the beginning of the program. No checkpoint has this number.
pub(super) const BEGINNING: Sequence = Sequence(0);

/// Why the files of an adopted program are not watched.
const RUNS_ALREADY: &str = "a program that runs already has files open that were not watched";

/// The treatment of files in a run.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) policy: ChangedFiles,
    /// Why files are not rolled back, if no policy was requested.
    pub(super) no_rewind: Option<String>,
    /// Whether changes of all files are noticed, so that no restart restores memory beside changed files.
    pub(super) is_noticing: bool,
    /// Why changes of files that are closed at a checkpoint are not noticed, although the policy compares files.
    pub(super) unnoticed: Option<String>,
}

impl Choice {
    fn of(policy: ChangedFiles) -> Self {
        Self { policy, ..Self::default() }
    }
}

/// Chooses the file policy of a run.
///
/// # Errors
///
/// `NoRewind` if rollback was requested by name and is impossible. `OutputForgotten` or `OutputNeedsRewind` if output is
/// held, and a restart could ignore the checkpoint that has released the output.
pub(super) fn choose(request: &RunRequest) -> Result<Choice> {
    if request.every.is_none() {
        // There is no checkpoint to which files could be rolled back.
        return Ok(Choice::of(ChangedFiles::Keep));
    }
    let is_adopted = request.adopted().is_some();
    choose_if(request, if is_adopted { Some(RUNS_ALREADY.to_owned()) } else { Watch::missing() })
}

/// Chooses the file policy of a run whose files cannot be rolled back after all, because the watch could not be started.
/// Other subjects may have taken what [`choose`] has found free: the kernel limits the fanotify groups of a user. Returns
/// `None` if the failure has another cause, or if rollback was requested by name.
///
/// # Errors
///
/// `OutputNeedsRewind` if output is held.
pub(super) fn choose_after(request: &RunRequest, failure: &GuardianError) -> Result<Option<Choice>> {
    match failure {
        GuardianError::Undo(error) if error.is_shortage() && request.files.is_none() => {
            choose_if(request, Some(failure.to_string())).map(Some)
        }
        _ => Ok(None),
    }
}

/// Chooses the file policy of a run with checkpoints. `impossible` is the reason why files cannot be rolled back.
fn choose_if(request: &RunRequest, impossible: Option<String>) -> Result<Choice> {
    let is_adopted = request.adopted().is_some();
    let (policy, why) = choose_files(request.files, impossible.clone())?;
    if request.holds_output {
        check_output(request, policy, why.as_ref().filter(|_| !is_adopted))?;
    }
    if request.dry_run_tracking && policy == ChangedFiles::Rewind {
        // There is no checkpoint to which files could be rolled back.
        return Ok(Choice::of(ChangedFiles::Fresh));
    }
    // No operator expects a rollback of files for an adopted program, so the reason is not reported. However, held
    // output promises that the program does not forget the output.
    let no_rewind = why.filter(|_| !is_adopted || request.holds_output);
    let compares = matches!(policy, ChangedFiles::Fresh | ChangedFiles::Refuse | ChangedFiles::Trim)
        && !request.dry_run_tracking;
    let is_noticing = compares && impossible.is_none();
    Ok(Choice { policy, no_rewind, is_noticing, unnoticed: impossible.filter(|_| compares) })
}

/// Chooses the file policy of a run. `impossible` is the reason why files cannot be rolled back. `None` means that
/// files can be rolled back. If no policy was requested, the second returned value is this reason, for the operator.
///
/// # Errors
///
/// `NoRewind` with the reason, if rollback was requested by name.
fn choose_files(
    asked: Option<ChangedFiles>,
    impossible: Option<String>,
) -> Result<(ChangedFiles, Option<String>)> {
    match (asked, impossible) {
        (Some(ChangedFiles::Rewind), Some(why)) => Err(GuardianError::NoRewind { why }),
        (None, Some(why)) => Ok((ChangedFiles::Trim, Some(why))),
        (asked, _) => Ok((asked.unwrap_or_default(), None)),
    }
}

/// Refuses to hold output if a restart could start the program from its beginning, although a checkpoint has released
/// output. A component that is taken over continues: its start was not refused.
fn check_output(request: &RunRequest, policy: ChangedFiles, missing: Option<&String>) -> Result<()> {
    if let Some(why) = missing {
        return Err(GuardianError::OutputNeedsRewind { why: why.clone() });
    }
    let why = match policy {
        ChangedFiles::Fresh | ChangedFiles::Trim if request.adopted().is_none() => {
            format!("with --files {}, a restart after a change of a file uses no checkpoint", policy.name())
        }
        ChangedFiles::Rewind if request.files_back_max() < OUTPUT_TIMEOUT => {
            format!("--files-back-max is less than {} s", OUTPUT_TIMEOUT.as_secs())
        }
        _ => return Ok(()),
    };
    Err(GuardianError::OutputForgotten { why })
}

/// The watch over the files of a subject.
#[derive(Clone, Debug, Default)]
pub(super) enum FileWatch {
    /// Files are not watched.
    #[default]
    None,
    /// Changes of files are noticed.
    Notices(Arc<Notice>),
    /// Files are rolled back.
    RollsBack(Arc<Watching>),
}

impl FileWatch {
    /// Starts to notice changes of a subject that is to be started. The parameters are those of [`Watching::start`].
    pub(super) fn notice(request: &RunRequest, holder: ListenerHolder, mark: Option<SocketMark>) -> Self {
        let notice = Notice::new(holder);
        Self::Notices(Arc::new(match handler(request, mark) {
            Some(handler) => notice.with_channels(handler),
            None => notice,
        }))
    }

    /// Returns the watch that rolls files back.
    pub(super) fn watching(&self) -> Option<&Watching> {
        if let Self::RollsBack(watching) = self { Some(watching) } else { None }
    }

    /// Returns the reports of the notified system calls of the program.
    pub(super) fn calls(&self) -> Option<&CallReports> {
        match self {
            Self::None => None,
            Self::Notices(notice) => Some(notice.calls()),
            Self::RollsBack(watching) => Some(watching.watch.calls()),
        }
    }

    /// Returns the watch that binds the state of files to checkpoints.
    pub(super) fn of_checkpoints(&self) -> Option<Arc<dyn CheckpointWatch>> {
        match self {
            Self::None => None,
            Self::Notices(notice) => Some(Arc::clone(notice) as Arc<dyn CheckpointWatch>),
            Self::RollsBack(watching) => Some(Arc::clone(&watching.watch) as Arc<dyn CheckpointWatch>),
        }
    }

    /// Returns what is known about changes of files, if files are not rolled back.
    pub(super) fn changes(&self) -> FileChanges {
        match self {
            Self::Notices(notice) => {
                notice.unchanged_since().map_or(FileChanges::AfterNewest, FileChanges::NoneSince)
            }
            Self::None | Self::RollsBack(_) => FileChanges::Unknown,
        }
    }

    /// Records that the program starts from its beginning with the files as they are.
    pub(super) fn start_over(&self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Notices(notice) => {
                notice.start_over();
                Ok(())
            }
            Self::RollsBack(watching) => watching.start_over(),
        }
    }
}

/// Returns the handler of the socket calls that the filter reports, if there is one. `mark` is the mark of sockets whose
/// output is held.
fn handler(request: &RunRequest, mark: Option<SocketMark>) -> Option<Arc<dyn CallHandler>> {
    match (&request.launch.channels, mark) {
        (Some(channels), _) => Some(channels.handler()),
        (None, Some(mark)) => Some(Arc::new(MarksSockets(mark))),
        (None, None) => None,
    }
}

/// Starts a program with the seccomp filter. With `joins`, the program joins the present incarnation. The watch answers the notified system calls of the program from the first
/// call on.
pub(super) fn spawn(
    (calls, joins): (&CallReports, bool),
    command: &mut Command,
    launch: &Launch,
    failed: impl FnOnce(std::io::Error) -> GuardianError,
) -> Result<Pid> {
    let pending = calls.prepare(command, joins)?;
    // Installing the filter needs the privileges of this program, so the privileges are dropped afterwards.
    launch.prepare_user(command)?;
    let mut child = command.spawn().map_err(failed)?;
    if let Err(error) = calls.started(pending) {
        // Without a receiver, the notified calls of the program would wait forever.
        let _ = child.kill();
        return Err(error.into());
    }
    Ok(Pid(child.id() as i32))
}

/// Returns the seccomp filter for a restored tree. The watch answers the notified calls of the tree from the first
/// instruction on.
pub(super) fn filter(calls: &CallReports) -> FilterInstall {
    let program = calls.filter();
    let calls = calls.clone();
    let attach = move |listener| {
        calls.attach(listener).map_err(|error| match error {
            UndoError::Kernel(error) => error,
            other => Error::new(format!("watch the files of the program: {other}"), Errno::EINVAL),
        })
    };
    FilterInstall { program, listener: Box::new(attach) }
}

/// The file watch of one run whose files are rolled back.
#[derive(Debug)]
pub(crate) struct Watching {
    pub(super) watch: Arc<Watch>,
    /// Regular files that the program inherits and may write to. Each file comes with its offset at the start.
    streams: Vec<(OwnedFd, u64)>,
    /// Whether files are not rolled back past data that the program has synced and that a peer may rely on. An operator
    /// who asks for the rollback by name wants it in any case. Held output cannot tell a peer too early.
    pub(super) respects_syncs: bool,
}

impl Watching {
    /// Begins the undo log. The program starts with the files in their present state.
    ///
    /// `holder` is a helper process. If this process dies, the helper process lets every notified system call of the
    /// program continue. `mark` is the mark of sockets whose output is held.
    pub(super) fn start(
        directory: PathBuf,
        request: &RunRequest,
        holder: ListenerHolder,
        streams: &Streams,
        mark: Option<SocketMark>,
    ) -> Result<Self> {
        let (cost_max, apart_max) = request.files_costs();
        let options = WatchOptions {
            directory,
            bytes_max: request.files_undo_max,
            cost_max,
            apart_max,
            start: BEGINNING,
            clock: Clock::default(),
        };
        let offset = |file: OwnedFd| {
            let offset = rustix::fs::tell(&file).unwrap_or(0);
            (file, offset)
        };
        let shared = streams.written()?;
        let streams = streams.written()?.into_iter().map(offset).collect();
        let watch = Watch::start(options, holder)?.with_shared_files(shared).with_own_lines(own_lines::end);
        let watch = match handler(request, mark) {
            Some(handler) => watch.with_channels(handler),
            None => watch,
        };
        let respects_syncs = request.files.is_none() && !request.holds_output;
        let watching = Self { watch: Arc::new(watch), streams, respects_syncs };
        watching.bind_beginning();
        Ok(watching)
    }

    /// Records the present state of the inherited files as their state at the beginning of the program.
    fn bind_beginning(&self) {
        let open = |(file, _): &(OwnedFd, u64)| {
            let flags = rustix::fs::fcntl_getfl(file).map_or(0, |flags| flags.bits());
            (flags, rustix::fs::tell(file).ok())
        };
        let states: Vec<(u32, Option<u64>)> = self.streams.iter().map(open).collect();
        let files = self.streams.iter().zip(states);
        let files: Vec<OpenFile<'_>> = files
            .map(|((file, _), (flags, position))| OpenFile {
                file: file.as_fd(),
                flags,
                position,
                is_inherited: true,
            })
            .collect();
        self.watch.boundary(BEGINNING, &files, &[]);
        self.watch.after_pause();
    }

    /// Resets the offsets of inherited files that were rolled back to the beginning. The program shares these open file
    /// descriptions with this process.
    fn seek_back(&self, leave: &[(u64, u64)]) {
        for (file, offset) in &self.streams {
            let stays = rustix::fs::fstat(file).is_ok_and(|stat| leave.contains(&(stat.st_dev, stat.st_ino)));
            if !stays {
                // A pipe that has replaced the file has no offset.
                let _ = rustix::fs::seek(file, SeekFrom::Start(*offset));
            }
        }
    }

    /// Returns the checkpoints in `committed` to which files can be rolled back, in the same order.
    pub(super) fn exact(&self, committed: &[Sequence]) -> Vec<Sequence> {
        exact_of(committed, &self.watch.exact())
    }

    /// Returns those of the checkpoints past which files must not be rolled back: the program has synced files after the
    /// checkpoint, and has then sent data to a peer.
    pub(super) fn told(&self, checkpoints: &[Sequence]) -> Vec<Sequence> {
        if self.respects_syncs { self.watch.told_since(checkpoints) } else { Vec::new() }
    }

    /// Reports whether files can be rolled back to the beginning of the program.
    pub(super) fn reaches_beginning(&self) -> bool {
        self.watch.exact().contains(&BEGINNING)
    }

    /// Rolls files back. The returned `Covered` tells the restore which files were not rolled back. The restore
    /// compares these files.
    pub(super) fn go_back(&self, to: Sequence, leave: &[(u64, u64)]) -> Result<(WentBack, Covered)> {
        let went = self.watch.go_back(to, leave)?;
        if to == BEGINNING {
            self.seek_back(leave);
        }
        let covered = Covered::AllBut(went.uncovered.iter().chain(leave).copied().collect());
        Ok((went, covered))
    }

    /// Records that the program starts from its beginning with the files as they are.
    pub(super) fn start_over(&self) -> Result<()> {
        self.watch.start_over(BEGINNING)?;
        self.bind_beginning();
        Ok(())
    }
}

fn exact_of(committed: &[Sequence], exact: &[Sequence]) -> Vec<Sequence> {
    let exact: BTreeSet<&Sequence> = exact.iter().collect();
    committed.iter().filter(|sequence| exact.contains(sequence)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequences(numbers: &[u64]) -> Vec<Sequence> {
        numbers.iter().copied().map(Sequence).collect()
    }

    #[test]
    fn files_go_back_where_they_can_and_nothing_else_was_asked_for() {
        let why = || Some("no such kernel".to_owned());
        assert_eq!(choose_files(None, None).unwrap(), (ChangedFiles::Rewind, None));
        assert_eq!(choose_files(None, why()).unwrap(), (ChangedFiles::Trim, why()));
        let refused = choose_files(Some(ChangedFiles::Rewind), why()).unwrap_err();
        assert_eq!(refused.exit_code(), crate::ExitCode::Missing);
        assert!(refused.to_string().contains("no such kernel"), "{refused}");
        for asked in [ChangedFiles::Keep, ChangedFiles::Refuse, ChangedFiles::Fresh, ChangedFiles::Trim] {
            assert_eq!(choose_files(Some(asked), why()).unwrap(), (asked, None));
        }
    }

    fn request() -> RunRequest {
        let what = super::super::request::Guarded::Command(vec!["true".into()]);
        RunRequest::new(what, crate::StoreLocation::new(Some(std::path::Path::new("/nowhere"))).unwrap())
    }

    #[test]
    fn a_program_starts_without_rollback_if_the_watch_finds_no_resources() {
        let failed = |errno| {
            let error = sys::Error::new("create a fanotify group", sys::Errno(errno));
            GuardianError::Undo(undo::UndoError::Kernel(error))
        };
        const EMFILE: i32 = 24;
        const EIO: i32 = 5;
        let chosen = choose_after(&request(), &failed(EMFILE)).unwrap().unwrap();
        assert_eq!(chosen.policy, ChangedFiles::Trim);
        assert!(chosen.no_rewind.unwrap().contains("fanotify"));
        assert!(choose_after(&request(), &failed(EIO)).unwrap().is_none());
        let asked = RunRequest { files: Some(ChangedFiles::Rewind), ..request() };
        assert!(choose_after(&asked, &failed(EMFILE)).unwrap().is_none());
        let holding = RunRequest { holds_output: true, ..request() };
        assert!(matches!(
            choose_after(&holding, &failed(EMFILE)),
            Err(GuardianError::OutputNeedsRewind { .. })
        ));
    }

    #[test]
    fn output_is_held_only_by_checkpoints_that_a_restart_uses() {
        let request = RunRequest { holds_output: true, ..request() };
        for policy in [ChangedFiles::Rewind, ChangedFiles::Keep, ChangedFiles::Refuse] {
            check_output(&request, policy, None).unwrap();
        }
        for policy in [ChangedFiles::Fresh, ChangedFiles::Trim] {
            let error = check_output(&request, policy, None).unwrap_err();
            assert!(error.to_string().contains(policy.name()), "{error}");
        }
        let error = check_output(&request, ChangedFiles::Trim, Some(&"no kernel".to_owned())).unwrap_err();
        assert!(matches!(error, GuardianError::OutputNeedsRewind { .. }), "{error}");
        let short = RunRequest { files_back_max: Some(std::time::Duration::from_secs(1)), ..request };
        assert!(check_output(&short, ChangedFiles::Rewind, None).is_err());
    }

    #[test]
    fn what_is_exact_and_not_committed_is_never_gone_back_to() {
        assert!(exact_of(&[], &sequences(&[0, 1, 2])).is_empty());
        assert!(exact_of(&sequences(&[1, 2]), &[]).is_empty());
        let (committed, exact) = (sequences(&[3, 4, 5, 6]), sequences(&[0, 2, 3, 5, 7]));
        assert_eq!(exact_of(&committed, &exact), sequences(&[3, 5]));
    }
}
