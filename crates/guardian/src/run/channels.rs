//! The channels of one component, as its guard uses them.
//!
//! Owns: which steps of a start, a restore and an end are reported to the channels.
//! Invariants: while there is a holder, a program of a component never runs without its filter. A listener that is kept
//! goes to the next incarnation, or is closed if none follows.
//! Does not: keep listeners or hold callers; `channel` does.

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;

use channel::{Channels, ComponentId};
use engine::FilterInstall;
use model::Pid;
use sys::socket_call::CallHandler;
use sys::{Errno, Error};

use crate::error::{GuardianError, Result};

/// One component among those whose channels are kept.
#[derive(Clone, Debug)]
pub struct ComponentChannels {
    all: Arc<Channels>,
    id: ComponentId,
}

impl ComponentChannels {
    pub(crate) fn new(all: Arc<Channels>, id: ComponentId) -> Self {
        Self { all, id }
    }

    /// For a filter that the watch over files installs and receives.
    pub(super) fn handler(&self) -> Arc<dyn CallHandler> {
        self.all.handler(self.id)
    }

    /// Checkpoints are taken of the component: a caller that waits must not keep its threads from being stopped.
    pub(super) fn expect_stops(&self) {
        self.all.expect_stops(self.id);
    }

    /// Starts a program whose calls are handled from its first one on. `prepare_last` is for what takes privileges away.
    pub(super) fn spawn(
        &self,
        command: &mut Command,
        prepare_last: impl FnOnce(&mut Command) -> Result<()>,
        failed: impl FnOnce(std::io::Error) -> GuardianError,
    ) -> Result<Child> {
        if !self.is_possible() {
            prepare_last(command)?;
            return command.spawn().map_err(failed);
        }
        let pending = self.all.prepare(self.id, command)?;
        // The filter needs the privileges of this program.
        prepare_last(command)?;
        let mut child = command.spawn().map_err(failed)?;
        if let Err(error) = self.all.started(self.id, pending) {
            // Its calls would wait for ever.
            let _ = child.kill();
            return Err(error.into());
        }
        Ok(child)
    }

    /// An incarnation runs that an earlier guardian has started.
    pub(super) fn take_over(&self, root: Pid) -> Result<()> {
        Ok(self.all.take_over(self.id, root)?)
    }

    /// An incarnation runs whose filter the watch over files has.
    pub(super) fn begin(&self, is_restored: bool) {
        self.all.begin(self.id, is_restored);
    }

    /// Has a restored tree handled from its first instruction on, if that is possible.
    pub(super) fn filter(&self) -> Option<FilterInstall> {
        if !self.is_possible() {
            return None;
        }
        let own = self.clone();
        let attach = move |listener| {
            own.all.attach(own.id, listener).map_err(|error| {
                Error::new(format!("handle the channels of the program: {error}"), Errno::EINVAL)
            })
        };
        Some(FilterInstall { program: self.all.filter(self.id), listener: Box::new(attach) })
    }

    /// Whether a program can have its channels handled. If the holder was killed, the component goes on
    /// without: its listeners are given up, so that it can bind its addresses itself.
    fn is_possible(&self) -> bool {
        let is_possible = self.all.has_holder();
        if !is_possible {
            self.all.stopped(self.id);
        }
        is_possible
    }

    /// Duplicates of the listeners that were kept, for a restore.
    pub(super) fn kept(&self) -> Result<Vec<OwnedFd>> {
        if !self.is_possible() {
            return Ok(Vec::new());
        }
        let kept = self.all.inherit(self.id)?;
        Ok(kept.into_iter().map(|listener| listener.socket).collect())
    }

    /// No process of the incarnation is left.
    pub(super) fn died(&self) {
        self.all.died(self.id);
    }
}
