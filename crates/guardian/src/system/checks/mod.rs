//! The checks on one component of a system: when it is ready, and whether it works.
//!
//! Owns: which checks the keys of a component request, and when each check is made.
//! Invariants: no check blocks. A check concerns only the present incarnation. Readiness is reported once for each
//! incarnation, and no other check is made before.
//! Does not: decide what follows from a result; `supervise::Supervisor` does.

mod heart;
mod limits;
mod readiness;
mod repeated;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use health::Handle;
use health::integrity::{Changed, Sweep};
use health::notify::{self, NotifySocket};
use model::{Fd, Pid};
use supervise::{Component, Condition, Fault};
use sys::clock::Clock;

use self::heart::Heart;
use self::limits::LimitCheck;
use self::readiness::Readiness;
use self::repeated::parsed;
use super::request::Means;
use crate::error::Result;
use crate::run::{Damaged, ReadyPipe};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Sign {
    /// The component is ready.
    Ready,
    /// The component has a fault.
    Fault(Fault),
    /// An executable page of the component has changed.
    Changed(Changed),
    /// The component has reported its state (`STATUS=`).
    Reports(String),
}

#[derive(Debug)]
pub(super) struct Checks {
    component: Component,
    log: Option<PathBuf>,
    /// Length of the log before the present incarnation.
    log_before: u64,
    notify: Option<NotifySocket>,
    pipe: Option<Arc<ReadyPipe>>,
    root: Option<Pid>,
    readiness: Option<Readiness>,
    heart: Option<Heart>,
    limits: Option<LimitCheck>,
    sweep: Option<Sweep>,
    damaged: Damaged,
}

/// Reports an error if the checks on a component cannot be made.
pub(super) fn check(component: &Component) -> Result<()> {
    readiness::check(component.ready.as_ref().map(|ready| &ready.condition))?;
    heart::check(component.heartbeat.as_ref())
}

pub(super) fn address(component: &Component) -> Option<String> {
    let Some(Condition::Probe(probe)) = component.ready.as_ref().map(|ready| &ready.condition) else {
        return None;
    };
    parsed(probe).ok().and_then(|probe| probe.address())
}

fn pipe_fd(component: &Component) -> Option<Fd> {
    match component.ready.as_ref().map(|ready| &ready.condition) {
        Some(Condition::Fd(number)) => Some(Fd(*number as i32)),
        _ => None,
    }
}

fn pipe(component: &Component) -> Option<Arc<ReadyPipe>> {
    pipe_fd(component).map(|number| Arc::new(ReadyPipe::new(number)))
}

impl Checks {
    /// Creates the checks on a component. The system file lies in `directory`. No other socket has the name `name`.
    pub(super) fn new(component: &Component, directory: &Path, name: &str, now: Instant) -> Result<Self> {
        // Errors in the keys are found before a program is started.
        check(component)?;
        Ok(Self {
            component: component.clone(),
            log: component.log.as_ref().map(|log| directory.join(log.get_ref())),
            log_before: 0,
            notify: component.has_notify_socket().then(|| NotifySocket::bind_abstract(name)).transpose()?,
            pipe: pipe(component),
            root: None,
            readiness: None,
            heart: None,
            limits: None,
            sweep: component.integrity.map(|every| Sweep::new(every.0, now)),
            damaged: Damaged::default(),
        })
    }

    /// Opens the socket for sd_notify(3) that new keys of the component require, if there is no socket yet.
    ///
    /// # Errors
    ///
    /// The socket cannot be opened.
    pub(super) fn missing_socket(&self, component: &Component, name: &str) -> Result<Option<NotifySocket>> {
        let is_missing = component.has_notify_socket() && self.notify.is_none();
        Ok(is_missing.then(|| NotifySocket::bind_abstract(name)).transpose()?)
    }

    /// Applies new keys of the component. `socket` is the result of `missing_socket`. A living incarnation is checked
    /// by the new keys from now on; its readiness is not checked again.
    pub(super) fn revise(
        &mut self,
        component: &Component,
        directory: &Path,
        socket: Option<NotifySocket>,
        now: Instant,
    ) {
        let old = std::mem::replace(&mut self.component, component.clone());
        self.notify = self.notify.take().filter(|_| component.has_notify_socket()).or(socket);
        self.notify.iter_mut().for_each(|socket| socket.set_root(self.root));
        if pipe_fd(component) != pipe_fd(&old) {
            self.pipe = pipe(component);
        }
        self.log = component.log.as_ref().map(|log| directory.join(log.get_ref()));
        if component.integrity != old.integrity {
            self.sweep = component.integrity.map(|every| Sweep::new(every.0, now));
        }
        if self.root.is_some() && self.readiness.is_none() {
            self.watch(now);
        }
    }

    /// Returns the values that a run of the component needs for the checks.
    pub(super) fn means(&mut self) -> Means {
        self.note_log();
        let notify = self.notify.as_ref().map(|socket| socket.name().to_string_lossy().into_owned());
        Means { notify, ready: self.pipe.clone(), damaged: self.damaged.clone(), channels: None }
    }

    /// Returns the list of damaged pages, which is shared.
    pub(super) fn damaged(&self) -> Damaged {
        self.damaged.clone()
    }

    /// Replaces the list of damaged pages.
    pub(super) fn share_damaged(&mut self, damaged: Damaged) {
        self.damaged = damaged;
    }

    /// Begins the checks on an incarnation that runs.
    pub(super) fn begin(&mut self, root: Pid, is_restored: bool, now: Instant) {
        self.forget();
        self.root = Some(root);
        self.notify.iter_mut().for_each(|socket| socket.set_root(Some(root)));
        let condition = self.component.ready.as_ref().map(|ready| &ready.condition);
        match condition.filter(|_| !is_restored) {
            Some(condition) => {
                let log = self.log.as_deref().map(|log| (log, self.log_before));
                let pipe = self.pipe.as_ref().and_then(|pipe| pipe.take());
                self.readiness = Some(Readiness::begin(condition, root, (log, pipe), now));
            }
            None => self.watch(now),
        }
    }

    /// Reports whether an incarnation is being checked.
    pub(super) fn is_begun(&self) -> bool {
        self.root.is_some()
    }

    /// Ends the checks on an incarnation that has ended.
    pub(super) fn end(&mut self) {
        self.forget();
        self.note_log();
    }

    fn forget(&mut self) {
        (self.root, self.readiness, self.heart, self.limits) = (None, None, None, None);
        self.notify.iter_mut().for_each(|socket| socket.set_root(None));
        if let Some(sweep) = &mut self.sweep {
            // Without a process tree, the time has no meaning.
            sweep.set_root(None, Clock::default().now());
        }
    }

    /// Returns the descriptors that the checks wait for.
    pub(super) fn handles(&self) -> Vec<Handle<'_>> {
        let notify = self.notify.as_ref().filter(|_| self.root.is_some());
        let mut handles: Vec<Handle<'_>> = notify.map(NotifySocket::handle).into_iter().collect();
        handles.extend(self.readiness.iter().filter_map(Readiness::handle));
        handles.extend(self.heart.iter().filter_map(Heart::handle));
        handles
    }

    /// Returns the time when `advance` is due, even if no descriptor is ready.
    pub(super) fn due(&self) -> Option<Instant> {
        let readiness = self.readiness.as_ref().and_then(Readiness::due);
        let heart = self.heart.as_ref().and_then(Heart::due);
        let limits = self.limits.as_ref().and_then(LimitCheck::due);
        let sweep = self.sweep.as_ref().and_then(Sweep::due);
        [readiness, heart, limits, sweep].into_iter().flatten().min()
    }

    /// Makes the due checks, as far as possible without waiting. If listeners are kept, `listens` returns whether the
    /// incarnation has begun to listen.
    pub(super) fn advance(&mut self, now: Instant, listens: impl FnOnce() -> Option<bool>) -> Vec<Sign> {
        let mut signs = Vec::new();
        self.take_messages(now, &mut signs);
        let is_ready = signs.contains(&Sign::Ready) || self.is_ready_now(now, listens);
        if is_ready && self.readiness.take().is_some() {
            signs.retain(|sign| *sign != Sign::Ready);
            signs.push(Sign::Ready);
            self.watch(now);
        }
        let root = self.root;
        let fault = self.heart.as_mut().zip(root).and_then(|(heart, root)| heart.advance(root, now));
        let fault = fault
            .or_else(|| self.limits.as_mut().zip(root).and_then(|(limits, root)| limits.advance(root, now)));
        let changed = self.sweep.as_mut().map(|sweep| sweep.advance(now)).unwrap_or_default();
        let flip = changed.iter().any(Changed::is_flip).then_some(Fault::CodeChanged);
        changed.iter().filter(|changed| changed.is_flip()).for_each(|changed| self.damaged.note(changed));
        signs.extend(changed.into_iter().map(Sign::Changed));
        if let Some(fault) = fault.or(flip) {
            // The component is being killed because of this fault.
            (self.heart, self.limits) = (None, None);
            signs.push(Sign::Fault(fault));
        }
        signs
    }

    fn is_ready_now(&mut self, now: Instant, listens: impl FnOnce() -> Option<bool>) -> bool {
        let Some(readiness) = &mut self.readiness else { return false };
        match (&mut *readiness, listens()) {
            (Readiness::Listen(_), Some(true)) => true,
            (readiness, Some(false)) if readiness.connects() => {
                readiness.postpone(now);
                false
            }
            (readiness, _) => readiness.advance(now),
        }
    }

    /// Returns the program of a probe that runs now.
    pub(super) fn child(&self) -> Option<Pid> {
        let readiness = self.readiness.as_ref().and_then(Readiness::child);
        readiness.or_else(|| self.heart.as_ref().and_then(Heart::child))
    }

    /// Begins the checks on a component that is ready.
    fn watch(&mut self, now: Instant) {
        self.heart = self.component.heartbeat.as_ref().map(|heartbeat| Heart::begin(heartbeat, now));
        self.limits = self.component.limits.map(|limits| LimitCheck::begin(limits, now));
        if let Some(sweep) = &mut self.sweep {
            sweep.set_root(self.root, now);
        }
    }

    fn take_messages(&mut self, now: Instant, signs: &mut Vec<Sign>) {
        // A program may send a report before its root is known here. The report then waits in the socket.
        let received = self.notify.as_mut().filter(|_| self.root.is_some()).map(NotifySocket::advance);
        // A socket that cannot be read yields no message. The missed heartbeat then shows the failure.
        for sign in received.and_then(std::result::Result::ok).into_iter().flatten().flat_map(|one| one.signs)
        {
            match sign {
                notify::Sign::Ready if self.readiness.as_ref().is_some_and(Readiness::is_notified) => {
                    signs.push(Sign::Ready);
                }
                notify::Sign::Status(text) => signs.push(Sign::Reports(text)),
                other => self.heart.iter_mut().for_each(|heart| heart.receive(&other, now)),
            }
        }
    }

    fn note_log(&mut self) {
        let length = self.log.as_ref().and_then(|log| std::fs::metadata(log).ok());
        self.log_before = length.map_or(0, |metadata| metadata.len());
    }
}
