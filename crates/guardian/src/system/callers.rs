//! Callers (clients of the control socket) with an order that is not executed yet.
//!
//! Owns: the condition that each caller waits for, and the text of the answer.
//! Invariants: each caller that has not ended gets one answer.
//! Does not: execute orders.

use std::os::fd::BorrowedFd;

use supervise::{ComponentId, ComponentState, Supervisor};

use super::control::{Answer, Caller, Control, SystemOrder};
use super::notices;
use crate::error::GuardianError;
use crate::exit::ExitCode;

/// Why a caller that is not an operator is refused.
const NOT_ADMITTED: &str = "only root and the user of the guardian may do this";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// The component is ready.
    Ready(ComponentId),
    /// The run of the component is over.
    Stopped(ComponentId),
    /// The complaint about the component is counted or refused.
    Judged(ComponentId),
    /// The system has ended.
    Over,
    /// The status file contains the state that the answer describes.
    Written(Answer),
}

/// What has become of a complaint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The complaint was counted. The text states the sum.
    Counted { what: String },
    /// The complaint was not counted.
    Refused { why: &'static str },
}

/// The callers, and the conditions that they wait for.
#[derive(Debug)]
pub(super) struct Callers {
    control: Control,
    waiting: Vec<(u32, Wait)>,
}

impl Callers {
    pub(super) fn new(control: Control) -> Self {
        Self { control, waiting: Vec::new() }
    }

    /// Returns descriptors that become readable when a caller connects, sends an order or disconnects.
    pub(super) fn handles(&self) -> Vec<BorrowedFd<'_>> {
        let callers = self.control.callers().map(|(_, handle)| handle);
        std::iter::once(self.control.listener()).chain(callers).collect()
    }

    /// Receives the pending orders, each with the number of its caller.
    pub(super) fn take(&mut self) -> Vec<(u32, Caller, SystemOrder)> {
        self.control.accept();
        let numbers: Vec<u32> = self.control.callers().map(|(number, _)| number).collect();
        let control = &mut self.control;
        let taken = numbers.into_iter().filter_map(|number| {
            let (caller, order) = control.take(number)?;
            Some((number, caller, order))
        });
        let taken = taken.collect();
        let open: Vec<u32> = self.control.callers().map(|(number, _)| number).collect();
        self.waiting.retain(|(number, _)| open.contains(number));
        taken
    }

    pub(super) fn wait(&mut self, number: u32, wait: Wait) {
        self.waiting.push((number, wait));
    }

    /// Refuses an order that cannot be carried out.
    pub(super) fn refuse(&mut self, number: u32, why: String) {
        self.control.answer(number, &Answer::Refused { why, code: None });
    }

    /// Refuses an order of a caller that is not an operator.
    pub(super) fn refuse_caller(&mut self, number: u32) {
        let code = Some(ExitCode::Missing.number());
        self.control.answer(number, &Answer::Refused { why: NOT_ADMITTED.to_owned(), code });
    }

    /// Refuses an order because of an error. The caller exits with the code of the error.
    pub(super) fn refuse_with(&mut self, number: u32, error: &GuardianError) {
        let code = Some(error.exit_code().number());
        self.control.answer(number, &Answer::Refused { why: error.to_string(), code });
    }

    /// Records how a complaint was counted, or the reason why it was refused.
    pub(super) fn judged(&mut self, name: &str, about: ComponentId, verdict: Verdict) {
        let first = self.waiting.iter_mut().find(|(_, wait)| *wait == Wait::Judged(about));
        if let Some((_, wait)) = first {
            *wait = Wait::Written(match verdict {
                Verdict::Counted { what } => Answer::Done { what },
                Verdict::Refused { why } => {
                    let why = format!("the complaint about {name} does not count: {why}");
                    Answer::Refused { why, code: None }
                }
            });
        }
    }

    /// Answers callers whose component has reached the wanted state, or can no longer reach it.
    pub(super) fn answer(&mut self, of: &Supervisor) {
        for (number, wait) in std::mem::take(&mut self.waiting) {
            match answer_to(&wait, of) {
                Some(answer) => self.control.answer(number, &answer),
                None => self.waiting.push((number, wait)),
            }
        }
    }

    pub(super) fn answer_all(&mut self, what: &str) {
        for (number, _) in std::mem::take(&mut self.waiting) {
            self.control.answer(number, &Answer::Done { what: what.to_owned() });
        }
    }
}

fn answer_to(wait: &Wait, of: &Supervisor) -> Option<Answer> {
    let (Wait::Ready(id) | Wait::Stopped(id)) = wait else {
        return if let Wait::Written(answer) = wait { Some(answer.clone()) } else { None };
    };
    let (name, state) = (of.name(*id), of.state(*id));
    let what = format!("{name} is {}", notices::state_name(state));
    let is_over = matches!(state, ComponentState::Stopped | ComponentState::Ended(_));
    match wait {
        Wait::Ready(_) if state.is_ready() => Some(Answer::Done { what }),
        Wait::Ready(_) if is_over => {
            // A component that could not be started has no death.
            let verb = if notices::has_failed(state) { "status" } else { "deaths" };
            let why = format!("{what}\nhelp: `undying {verb} {name}` says why");
            Some(Answer::Refused { why, code: Some(ExitCode::Failure.number()) })
        }
        Wait::Stopped(_) if is_over => Some(Answer::Done { what }),
        _ => None,
    }
}
