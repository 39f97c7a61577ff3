//! The state of subjects (protected process trees) in the OpenMetrics text format.
//!
//! Owns: the mapping from values of a status to metrics.
//! Invariants: the names of metrics and labels are a public interface. Names may be added, but not changed.
//! Does not: read a status.

use std::fmt;
use std::sync::atomic::AtomicU64;

use guardian::SubjectReport;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
type Counters = Family<Labels, Counter>;

/// Returns all metrics of the given subjects.
pub(crate) fn text(subjects: &[SubjectReport]) -> String {
    let mut registry = Registry::with_prefix("undying");
    let metrics = Metrics::register(&mut registry);
    subjects.iter().for_each(|subject| metrics.add(subject));
    let mut text = String::new();
    // Writing to a string never fails.
    let _: fmt::Result = encode(&mut text, &registry);
    text
}

#[derive(Default)]
struct Metrics {
    state: Gauges,
    incarnation: Gauges,
    restarts: Counters,
    checkpoints: Counters,
    checkpoint_age: Gauges,
    checkpoint_rate: Gauges,
    restarts_from: RestartsFrom,
    pause: Gauges,
    refusals: Counters,
    store: Gauges,
    connections: Connections,
    channels: Channels,
}

/// Where a restart would begin, and where the last restart has begun.
#[derive(Default)]
struct RestartsFrom {
    reach: Gauges,
    lost: Gauges,
    late: Counters,
    inexact: Counters,
}

#[derive(Default)]
struct Connections {
    at_deaths: Counters,
    idle: Gauges,
    held: Gauges,
    late_releases: Counters,
}

#[derive(Default)]
struct Channels {
    level: Gauges,
    callers: Gauges,
    complaints: Gauges,
}

impl Metrics {
    fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        let Self { state, incarnation, restarts, checkpoints, .. } = &own;
        registry.register("subject_state", "1 for the state that the subject is in", state.clone());
        registry.register(
            "incarnation",
            "Number of the current incarnation of the program",
            incarnation.clone(),
        );
        registry.register("restarts", "Restarts by the present guardian", restarts.clone());
        registry.register(
            "checkpoints",
            "Checkpoints that the present guardian has committed",
            checkpoints.clone(),
        );
        let Self { checkpoint_age, checkpoint_rate, pause, refusals, store, .. } = &own;
        let (seconds, bytes) = (|| Unit::Seconds, || Unit::Bytes);
        let help = "Age of the newest checkpoint";
        registry.register_with_unit("checkpoint_age", help, seconds(), checkpoint_age.clone());
        let help = "Checkpoints per second, requested and recently achieved";
        registry.register("checkpoint_rate_hertz", help, checkpoint_rate.clone());
        let Self { restarts_from: RestartsFrom { reach, lost, late, inexact }, .. } = &own;
        let help = "1 for what a death now would bring";
        registry.register("death_now", help, reach.clone());
        let help = "Age of the checkpoint that the last restart has restored, at the death before";
        registry.register_with_unit("restored_checkpoint_age", help, seconds(), lost.clone());
        registry.register(
            "checkpoints_late",
            "Checkpoints that were due and not taken in time",
            late.clone(),
        );
        let help = "Checkpoints to which files cannot be rolled back";
        registry.register("checkpoints_inexact", help, inexact.clone());
        let help = "Recent pauses of the program for checkpoints, by quantile";
        registry.register_with_unit("pause", help, seconds(), pause.clone());
        registry.register("checkpoints_refused", "Checkpoints that were not taken", refusals.clone());
        registry.register_with_unit("store", "All checkpoints of the subject", bytes(), store.clone());
        let Self { connections, channels, .. } = &own;
        let help = "External connections at deaths, by outcome";
        registry.register("connections", help, connections.at_deaths.clone());
        let help = "Connections that stay open if the program dies now";
        registry.register("connections_idle", help, connections.idle.clone());
        let help = "Connections whose output is held until a checkpoint has it; they go on should the program die now";
        registry.register("connections_held", help, connections.held.clone());
        let help = "Held output that was sent before a checkpoint contained it";
        registry.register("late_releases", help, connections.late_releases.clone());
        registry.register("channel", "1 for each address, with its level", channels.level.clone());
        let help = "Threads of other components that wait for this component";
        registry.register("callers_waiting", help, channels.callers.clone());
        let help = "Weight of the present complaints about this component";
        registry.register("complaints_weight", help, channels.complaints.clone());
        own
    }

    fn add(&self, subject: &SubjectReport) {
        let labels = || labels(subject);
        let with = |name, value: &str| {
            let mut labels = labels();
            labels.push((name, value.to_owned()));
            labels
        };
        let set = |family: &Gauges, labels: &Labels, value: f64| {
            family.get_or_create(labels).set(value);
        };
        let state =
            subject.component.as_ref().map_or_else(|| subject.state.to_string(), |one| one.state.clone());
        set(&self.state, &with("state", &state), 1.0);
        // The checkpoints of a member of a group are those of the group, which has a row of its own.
        if subject.component.as_ref().is_none_or(|component| component.together.is_none()) {
            self.add_checkpoints(subject);
        }
        for channel in &subject.channels {
            let mut labels = with("address", &channel.local);
            labels.push(("level", channel.level.clone()));
            set(&self.channels.level, &labels, 1.0);
        }
        if let Some(component) = &subject.component {
            set(&self.channels.callers, &labels(), component.callers as f64);
            set(&self.channels.complaints, &labels(), f64::from(component.complaints));
        }
    }

    fn add_checkpoints(&self, subject: &SubjectReport) {
        let facts = &subject.facts;
        let labels = || labels(subject);
        let with = |name, value: &str| {
            let mut labels = labels();
            labels.push((name, value.to_owned()));
            labels
        };
        let set = |family: &Gauges, labels: &Labels, value: f64| {
            family.get_or_create(labels).set(value);
        };
        let count = |family: &Counters, labels: &Labels, value: u64| {
            family.get_or_create(labels).inc_by(value);
        };
        set(&self.incarnation, &labels(), facts.incarnation as f64);
        count(&self.restarts, &labels(), facts.restarts);
        count(&self.checkpoints, &labels(), facts.checkpoints);
        if let Some(age) = subject.checkpoint_age_us {
            set(&self.checkpoint_age, &labels(), seconds(age));
        }
        set(&self.checkpoint_rate, &with("rate", "requested"), facts.requested_hz);
        set(&self.checkpoint_rate, &with("rate", "achieved"), facts.achieved_hz);
        if let Some(death_now) = &facts.death_now {
            set(&self.restarts_from.reach, &with("brings", &death_now.brings.to_string()), 1.0);
        }
        if let Some(age) = facts.restored_age_us {
            set(&self.restarts_from.lost, &labels(), seconds(age));
        }
        count(&self.restarts_from.late, &labels(), facts.held_back.iter().map(|one| one.count).sum());
        count(&self.restarts_from.inexact, &labels(), facts.inexact_checkpoints);
        let pauses = [("0.5", facts.pause_us.p50), ("0.99", facts.pause_us.p99), ("1", facts.pause_us.max)];
        for (quantile, pause) in pauses {
            set(&self.pause, &with("quantile", quantile), seconds(pause));
        }
        count(&self.refusals, &labels(), facts.refusals.iter().map(|one| one.count).sum());
        set(&self.store, &labels(), subject.store_bytes as f64);
        count(&self.connections.at_deaths, &with("outcome", "kept"), facts.connections.kept);
        count(&self.connections.at_deaths, &with("outcome", "rewound"), facts.connections.rewound);
        count(&self.connections.at_deaths, &with("outcome", "ended"), facts.connections.ended);
        set(&self.connections.idle, &labels(), facts.connections.idle as f64);
        set(&self.connections.held, &labels(), facts.connections.held as f64);
        count(&self.connections.late_releases, &labels(), facts.connections.late_releases);
    }
}

fn labels(subject: &SubjectReport) -> Labels {
    let mut labels = vec![("subject", subject.facts.name.clone())];
    labels.extend(subject.component.as_ref().map(|component| ("system", component.system.clone())));
    labels
}

fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}
