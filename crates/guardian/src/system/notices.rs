//! Notices of the state machine of a system, as events and as text.
//!
//! Owns: the event of each notice, and the names of states and of complainants.
//! Does not: report notices; the director does.

use std::num::NonZeroU32;

use health::integrity::{Changed, Kind};
use supervise::{
    AfterGiveUp, Complainant, ComplaintRefusal, ComponentId, ComponentState, End, Supervisor, SystemNotice,
};

use crate::event::RunEvent;
use crate::time::microseconds;

const TOO_OFTEN: &str = "was restarted too often";
const CANNOT_RUN: &str = "could not be started or brought back";

/// Returns the event of a notice, and the component that the notice is about.
pub(super) fn event(notice: SystemNotice, of: &Supervisor) -> (Option<ComponentId>, RunEvent) {
    match notice {
        SystemNotice::Waiting(id) => {
            let needs = of.waits_for(id).into_iter().map(|need| of.name(need).to_owned()).collect();
            (Some(id), RunEvent::Waits { needs })
        }
        SystemNotice::Ready(id, took) => (Some(id), RunEvent::Ready { took_us: microseconds(took) }),
        SystemNotice::NotReady(id, timeout) => {
            (Some(id), RunEvent::NotReady { timeout_us: microseconds(timeout) })
        }
        SystemNotice::Stopped(id) => (Some(id), RunEvent::Stopped {}),
        SystemNotice::NotStopped(id, timeout) => {
            (Some(id), RunEvent::NotStopped { timeout_us: microseconds(timeout) })
        }
        SystemNotice::Ended(id, _) => (Some(id), RunEvent::StaysEnded {}),
        SystemNotice::GaveUp { id, end, follows } => {
            let cause = if matches!(end, End::Failed(_)) { CANNOT_RUN } else { TOO_OFTEN };
            let follows = what_follows(follows).to_owned();
            (Some(id), RunEvent::GivenUp { cause: cause.to_owned(), follows })
        }
        SystemNotice::GroupRestarts { died, member } => {
            (Some(member), RunEvent::GroupRestarts { died: of.name(died).to_owned() })
        }
        SystemNotice::Complaint { about, sum, quorum, .. } => {
            (Some(about), RunEvent::ComplaintCounted { sum, quorum: quorum.get() })
        }
        SystemNotice::ComplaintRefused { about, why, .. } => {
            (Some(about), RunEvent::ComplaintRefused { reason: refusal(why).to_owned() })
        }
        SystemNotice::NotStarted(id) => (Some(id), RunEvent::NotStarted {}),
        SystemNotice::SystemRestarts => (None, RunEvent::SystemRestarts {}),
        SystemNotice::SystemGoesDown { has_failed } => (None, RunEvent::SystemGoesDown { has_failed }),
    }
}

pub(super) const fn state_name(state: ComponentState) -> &'static str {
    match state {
        ComponentState::Idle => "idle",
        ComponentState::Waiting => "waiting",
        ComponentState::Starting { .. } => "starting",
        ComponentState::Ready { .. } => "ready",
        ComponentState::Down { .. } => "down",
        ComponentState::Stopping { .. } | ComponentState::Killing => "stopping",
        ComponentState::Stopped => "stopped",
        ComponentState::Ended(End::Over(_) | End::Left) => "ended",
        ComponentState::Ended(End::GaveUp(_)) => "gave-up",
        ComponentState::Ended(End::Failed(_)) => "failed",
    }
}

/// Reports whether a component could not be started or restored.
pub(super) const fn has_failed(state: ComponentState) -> bool {
    matches!(state, ComponentState::Ended(End::Failed(_)))
}

/// Builds the event of an executable page that has changed.
pub(super) fn changed(changed: &Changed) -> RunEvent {
    let what = match changed.kind {
        Kind::Flip => "memory has changed by itself",
        Kind::Breakpoint => "it is a breakpoint of a debugger or a probe",
        Kind::Traced => "another program traces it",
        Kind::Patched => "code was replaced",
        Kind::FileChanged => "the file was changed, and its times were not",
        Kind::Unknown => "the earlier content is not known",
    };
    RunEvent::CodeChanged {
        pid: changed.pid.get(),
        file: changed.file.display().to_string(),
        offset: changed.offset,
        bits: changed.bits,
        what: what.to_owned(),
    }
}

pub(super) fn complainant(by: Complainant, of: &Supervisor) -> String {
    match by {
        Complainant::Operator => "the operator".to_owned(),
        Complainant::Component(id) => of.name(id).to_owned(),
    }
}

/// Returns the answer to a complaint that was counted. Further complaints of the same complainant add nothing, so the
/// answer states what does.
pub(super) fn counted(
    (about, by): (ComponentId, Complainant),
    sum: u32,
    quorum: NonZeroU32,
    of: &Supervisor,
) -> String {
    let (name, by) = (of.name(about), complainant(by, of));
    let counts = format!("the complaint about {name} counts: {sum} of the quorum of {quorum}");
    if sum >= quorum.get() {
        return format!("{counts}, so {name} is restarted");
    }
    format!(
        "{counts}; of all complaints of {by}, only the heaviest counts\nhelp: a complaint with `--weight {}` restarts {name}",
        quorum
    )
}

pub(super) const fn refusal(why: ComplaintRefusal) -> &'static str {
    match why {
        ComplaintRefusal::NotADependent => "it comes from a component that does not need this one",
        ComplaintRefusal::NotReady => "the component is not ready, or is being restarted or ended already",
    }
}

const fn what_follows(follows: AfterGiveUp) -> &'static str {
    match follows {
        AfterGiveUp::StaysDead => "it stays dead",
        AfterGiveUp::RestartsDependents => "it is started again with the components that need it",
        AfterGiveUp::RestartsSystem => "the whole system is restarted",
        AfterGiveUp::SystemGoesDown => "the system goes down",
        AfterGiveUp::RunsProgram => "it stays dead, and the program of `exec` is run",
    }
}
