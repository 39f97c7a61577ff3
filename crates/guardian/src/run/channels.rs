//! The channels of one component of a system, as the guard of the component uses them.
//!
//! A holder is a process that keeps the notification descriptor of the seccomp filter.
//!
//! Owns: the choice which steps of a start, a restore and an end are reported to the channels.
//! Invariants: a program of a component never runs without its filter. A kept listener is
//! passed to the next incarnation, or is closed if no incarnation follows.
//! Does not: keep listeners or hold callers; the crate `channel` does.

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;

use channel::{ChannelError, Channels, ComponentId};
use engine::FilterInstall;
use model::Pid;
use sys::packet_hold::SocketMark;
use sys::socket_call::CallHandler;
use sys::{Errno, Error};

use crate::error::{GuardianError, Result};

/// The channels of one component among all components of the system.
#[derive(Clone, Debug)]
pub struct ComponentChannels {
    all: Arc<Channels>,
    id: ComponentId,
}

impl ComponentChannels {
    pub(crate) fn new(all: Arc<Channels>, id: ComponentId) -> Self {
        Self { all, id }
    }

    /// Returns the handler of the calls, for a filter that the file watch installs and receives.
    pub(super) fn handler(&self) -> Arc<dyn CallHandler> {
        self.all.handler(self.id)
    }

    /// Records that checkpoints are taken of the component. A stop must then not wait for a held call of a thread of
    /// the component.
    pub(super) fn expect_stops(&self) {
        self.all.expect_stops(self.id);
    }

    /// With a mark, makes the output of the component's TCP connections be held from the first byte on.
    pub(super) fn mark_sockets(&self, mark: Option<SocketMark>) {
        self.all.mark_sockets(self.id, mark);
    }

    /// Starts a program whose calls are handled from its first call on. With `joins`, the program joins the present
    /// incarnation. `prepare_last` prepares the steps that drop privileges.
    pub(super) fn spawn(
        &self,
        command: &mut Command,
        joins: bool,
        prepare_last: impl FnOnce(&mut Command) -> Result<()>,
        failed: impl FnOnce(std::io::Error) -> GuardianError,
    ) -> Result<Child> {
        let pending = self.all.prepare(self.id, command)?;
        // Installing the filter needs the privileges of this program, so the privileges are dropped afterwards.
        prepare_last(command)?;
        let mut child = command.spawn().map_err(failed)?;
        if let Err(error) = self.all.started(self.id, pending, joins) {
            // Without a handler, the calls of the program would wait forever.
            let _ = child.kill();
            return Err(error.into());
        }
        Ok(child)
    }

    /// Takes over an incarnation that an earlier guardian has started.
    pub(super) fn take_over(&self, root: Pid) -> Result<()> {
        Ok(self.all.take_over(self.id, root)?)
    }

    /// Begins an incarnation whose filter belongs to the file watch.
    pub(super) fn begin(&self, is_restored: bool) {
        self.all.begin(self.id, is_restored);
    }

    /// Returns a filter that handles the calls of a restored tree from its first instruction on.
    pub(super) fn filter(&self) -> FilterInstall {
        let own = self.clone();
        let attach = move |listener| {
            own.all.attach(own.id, listener).map_err(|error| match error {
                ChannelError::Kernel(error) => error,
                other => Error::new(format!("handle the channels of the program: {other}"), Errno::EINVAL),
            })
        };
        FilterInstall { program: self.all.filter(self.id), listener: Box::new(attach) }
    }

    /// Replaces the holders that have died, so that a program can be started or restored with its filter.
    pub(super) fn repair(&self) -> Result<()> {
        Ok(self.all.repair()?)
    }

    /// Returns duplicates of the kept listeners, for a restore.
    pub(super) fn kept(&self) -> Result<Vec<OwnedFd>> {
        let kept = self.all.inherit(self.id)?;
        Ok(kept.into_iter().map(|listener| listener.socket).collect())
    }

    /// Records that no process of the incarnation is left.
    pub(super) fn died(&self) {
        self.all.died(self.id);
    }
}
