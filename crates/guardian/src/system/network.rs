//! The channels between the components of a system, and between components and their clients.
//!
//! Owns: the channels of each component, the times of their scans, and their facts in `status`.
//! Invariants: nothing here blocks, because the scan of descriptors runs on a worker thread.
//! Does not: keep a listener or hold a caller; the crate `channel` does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use channel::{Channels, Limits};
use model::Pid;
use serde::{Deserialize, Serialize};
use supervise::ComponentId;
use sys::clock::Clock;
use sys::listener_holder::ListenerHolder;

use crate::error::Result;
use crate::run::ComponentChannels;

/// Scan interval. A listener that a component has closed is released after two scans.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// An address of a component.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct ChannelFacts {
    pub local: String,
    /// Empty for a listener.
    #[serde(default)]
    pub peer: String,
    pub kind: String,
    /// `L0`: the listener stays while the component is down. `L1`: components that connect wait.
    pub level: String,
    /// Whether the present incarnation of the component has the listener open.
    pub is_taken: bool,
}

/// The channels of a system, if channels can be kept here.
pub(super) struct Network {
    channels: Option<Arc<Channels>>,
    /// Why channels cannot be kept.
    missing: Option<String>,
    next: Instant,
    is_scanning: Arc<AtomicBool>,
}

impl Network {
    /// Creates the value. `missing` is the reason if there is no holder.
    pub(super) fn new(
        holder: Option<ListenerHolder>,
        missing: Option<String>,
        clock: &Clock,
    ) -> Result<Self> {
        let make = |holder| Channels::new(holder, Limits::default(), clock.clone()).map(Arc::new);
        let channels = holder.map(make).transpose()?;
        Ok(Self { channels, missing, next: clock.now(), is_scanning: Arc::default() })
    }

    /// Returns the reason why listeners are not kept. Returns `None` if listeners are kept.
    pub(super) fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    pub(super) fn of(&self, id: ComponentId) -> Option<ComponentChannels> {
        self.channels.as_ref().map(|all| ComponentChannels::new(Arc::clone(all), name(id)))
    }

    /// Declares the addresses on which a component will listen. These addresses replace the addresses of an earlier
    /// call.
    pub(super) fn declare(&self, id: ComponentId, addresses: Vec<String>) -> Result<()> {
        Ok(self.channels.as_ref().map_or(Ok(()), |all| all.declare(name(id), &addresses))?)
    }

    /// Reports whether the present incarnation of a component has begun to listen. Returns `None` if channels are not
    /// kept.
    pub(super) fn listens(&self, id: ComponentId) -> Option<bool> {
        self.channels.as_ref().map(|all| all.listens(name(id)))
    }

    /// Records that a component is ready, so that waiting callers continue.
    pub(super) fn ready(&self, id: ComponentId) {
        self.channels.iter().for_each(|all| all.provider_ready(name(id)));
    }

    /// Records that a component is being ended, and is then started from its beginning, so that its clients wait.
    pub(super) fn ends_for_restart(&self, id: ComponentId) {
        self.channels.iter().for_each(|all| all.ends_for_restart(name(id)));
    }

    /// Records that no incarnation of a component follows, so that its clients are refused.
    pub(super) fn stopped(&self, id: ComponentId) {
        self.channels.iter().for_each(|all| all.stopped(name(id)));
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.channels.as_ref().map(|_| self.next)
    }

    /// Returns work for a worker, if a scan is due: the release of listeners that living components have closed.
    pub(super) fn scan(
        &mut self,
        roots: BTreeMap<ComponentId, Pid>,
        now: Instant,
    ) -> Option<impl FnOnce() + Send + use<>> {
        let all = self.channels.as_ref().filter(|_| now >= self.next)?;
        self.next = now + SCAN_INTERVAL;
        if self.is_scanning.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (all, is_scanning) = (Arc::clone(all), Arc::clone(&self.is_scanning));
        Some(move || {
            roots.into_iter().for_each(|(id, root)| all.scan(name(id), root));
            is_scanning.store(false, Ordering::Release);
        })
    }

    /// Returns the facts about the channels of a component for `status`.
    pub(super) fn facts(&self, id: ComponentId) -> Vec<ChannelFacts> {
        let held = self.channels.as_ref().map(|all| all.held(name(id))).unwrap_or_default();
        let facts = held.into_iter().map(|held| ChannelFacts {
            local: held.local,
            peer: String::new(),
            kind: held.kind.to_owned(),
            level: held.level.to_string(),
            is_taken: held.is_taken,
        });
        facts.collect()
    }

    pub(super) fn callers(&self, id: ComponentId) -> usize {
        let waiting = self.channels.as_ref().map(|all| all.waiting()).unwrap_or_default();
        waiting.iter().filter(|caller| caller.provider == name(id)).count()
    }
}

const fn name(id: ComponentId) -> channel::ComponentId {
    channel::ComponentId(id.index() as u32)
}
