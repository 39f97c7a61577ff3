//! The library behind the commands of `undying`: each command calls functions of this crate.
//!
//! A subject is a protected process tree, and its *root* is the first process. A guardian is the process of `undying
//! run` or `undying up`, which checkpoints subjects, and restarts a subject after a death. The *guard* is the code that
//! controls one subject. A *component* is a subject of a system. An *incarnation* is a subject from one start or
//! restore to its next death.
//!
//! Owns: the event loop of `run` and `up`, the reaction to a death, and the plain values that commands print.
//! Invariants: the guardian may be killed at any instant, and the subject then continues. Only one thread of the
//! guardian traces a subject; the other threads do not touch the traced threads.
//! Does not: parse a command line or print; `cli` does. Names no kind of resource, no dirty-page tracker and no store
//! backend.
#![forbid(unsafe_code)]

mod advice;
mod ancestry;
mod aside;
mod error;
mod event;
mod exit;
mod files;
mod foreground;
mod history;
mod host;
mod images;
mod inspection;
mod journal;
mod location;
mod mark;
mod on_restore;
mod once;
mod own_lines;
mod pidfile;
mod record;
mod replication;
mod room;
mod run;
mod signals;
mod started_as;
mod status;
mod streams;
mod subject;
mod subject_state;
mod system;
mod tidying;
mod time;
mod undoing;

pub use engine::{MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Preference, Tuning};
pub use error::{Found, GuardianError, Result};
pub use event::kind::EventKind;
pub use event::reason::{headline, one_line};
pub use event::severity::Severity;
pub use event::{CheckpointEvent, PhaseTimes, RunEvent};
pub use exit::ExitCode;
pub use files::FilesReport;
pub use history::{DeathRow, FailedChild, FollowedBy, History, age, deaths, write_trace};
pub use host::{Host, OnEvent, SubjectId, run};
pub use images::{
    CheckpointRow, DescriptorRow, ImageReport, MappingRow, ProcessRow, Progress, SubjectRow, VerifyReport,
    checkpoints, hold, prune, release, restart_with_state, show, subjects, verify,
};
pub use inspection::{
    CheckState, DoctorCheck, DoctorReport, ObstacleReport, PreflightMode, PreflightReport, doctor, preflight,
};
pub use journal::EventRow;
pub use location::StoreLocation;
pub use once::{CheckpointRequest, Checkpointed, RestoreRequest, Resumed, checkpoint, restore};
pub use record::{
    Brings, ConnectionsReport, CostsReport, Death, DeathNow, FreshReport, HeldReport, LateReport,
    PauseMicroseconds, RefusalReport, SlicesReport, StoredReport, SubjectFacts, VerifiedReport,
};
pub use replication::{
    FaultRow, Gap, InjectOutcome, InjectReport, InjectRequest, InjectTarget, REPLICAS, REPLICAS_DEFAULT,
    ReplicateReport, inject, random_seed, replicate,
};
pub use room::lacks_for;
pub use run::{
    COMPRESS_AFTER_DEFAULT, ComponentChannels, CostMax, Damaged, EVERY_DEFAULT, EVERY_MIN,
    FILES_UNDO_MAX_DEFAULT, Guarded, HELD_MAX, KEEP_DEFAULT, Launch, ReadyPipe, RunRequest, TRACKER_DEFAULT,
    blame_of,
};
pub use signals::in_background;
pub use status::{LeftProcess, SubjectReport, status};
pub use store::{CODECS, Codec, SizeLimit, codec};
pub use subject_state::SubjectState;
pub use supervise::{ChangedFiles, Percent, RestartLimit, RestartPolicy, SubjectStatus, Success, System};
pub use sys::clock::Clock;
pub use system::{ChannelFacts, ComponentFacts, SystemFile, SystemOrder, check_system, order, up};
pub use tidying::{
    Copied, GarbageItem, GarbageReport, SquashReport, gc, get_copy, link_copy, remove_copy, squash,
    store_copy,
};
pub use undoing::{AsideRow, RestoredFiles, moved_aside, put_back};
