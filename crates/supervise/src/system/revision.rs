//! The differences between two versions of a component in a system file.
//!
//! Owns: the time at which each changed key takes effect: at once, with the next run, or only in a new process.
//! Does not: apply a change.

use super::description::{Component, Condition, Heartbeat};

/// The changed keys of a component, grouped by the time at which the new value takes effect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ComponentChanges {
    /// Keys that take effect only in a new process: the component has to be restarted.
    pub process: Vec<&'static str>,
    /// Keys that take effect with the next run. A run may consist of several processes, one after another.
    pub next_run: Vec<&'static str>,
    /// Keys that take effect at once.
    pub at_once: Vec<&'static str>,
}

impl ComponentChanges {
    /// Reports whether no key has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Component {
    /// Returns the differences between this version and a newer version.
    #[must_use]
    pub fn changes(&self, new: &Self) -> ComponentChanges {
        let differing = |keys: &[(&'static str, bool)]| -> Vec<&'static str> {
            keys.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect()
        };
        let (is_ready_given, is_beat_given) =
            (starts_with_ready(self, new), starts_with_heartbeat(self, new));
        ComponentChanges {
            process: differing(&[
                ("command", self.command != new.command),
                ("environment", self.environment != new.environment),
                ("user", self.user != new.user),
                ("directory", self.directory != new.directory),
                ("log", self.log != new.log),
                ("ready", is_ready_given),
                ("heartbeat", is_beat_given),
            ]),
            next_run: differing(&[
                ("policy", self.policy != new.policy),
                ("every", self.every != new.every),
                ("warm", self.warm != new.warm),
                ("output", self.output != new.output),
                ("files", self.files != new.files),
                ("files_back_max", self.files_back_max != new.files_back_max),
                ("files_undo_max", self.files_undo_max != new.files_undo_max),
                ("files_cost_max", self.files_cost_max != new.files_cost_max),
                ("cost_max", self.cost_max != new.cost_max),
                ("store_max", self.store_max != new.store_max),
                ("on_restore", self.on_restore != new.on_restore),
                ("success", self.success != new.success),
                ("restart", self.restart != new.restart),
            ]),
            at_once: differing(&[
                ("needs", self.needs != new.needs),
                ("channels", self.channels != new.channels),
                ("ready", self.ready != new.ready && !is_ready_given),
                ("heartbeat", self.heartbeat != new.heartbeat && !is_beat_given),
                ("complaints", self.complaints != new.complaints),
                ("integrity", self.integrity != new.integrity),
                ("limits", self.limits != new.limits),
                ("stop_signal", self.stop_signal != new.stop_signal),
                ("stop_timeout", self.stop_timeout != new.stop_timeout),
            ]),
        }
    }

    /// Reports whether the component gets a socket for sd_notify(3) messages.
    #[must_use]
    pub fn has_notify_socket(&self) -> bool {
        let condition = self.ready.as_ref().map(|ready| &ready.condition);
        matches!(condition, Some(Condition::Notify))
            || self.heartbeat.as_ref().is_some_and(Heartbeat::is_notified)
    }
}

/// Reports whether the new `ready` needs a socket or a pipe that a process of the old version does not have.
fn starts_with_ready(old: &Component, new: &Component) -> bool {
    let given = |component: &Component| match component.ready.as_ref().map(|ready| &ready.condition) {
        Some(Condition::Fd(number)) => Some(*number),
        _ => None,
    };
    given(old) != given(new) || !old.has_notify_socket() && new.has_notify_socket()
}

/// Reports whether a process gets the new `heartbeat` only through its environment, at its start.
fn starts_with_heartbeat(old: &Component, new: &Component) -> bool {
    let interval = |component: &Component| {
        let notified = component.heartbeat.as_ref().filter(|heartbeat| heartbeat.is_notified());
        notified.map(|heartbeat| heartbeat.every)
    };
    interval(new).is_some() && interval(old) != interval(new)
}

impl Heartbeat {
    /// Reports whether the component itself sends the heartbeat by sd_notify(3).
    #[must_use]
    pub const fn is_notified(&self) -> bool {
        self.probe.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::System;

    fn component(keys: &str) -> Component {
        let text = format!(
            "[system]\nname = \"s\"\n[component.a]\ncommand = [\"a\"]\n{keys}\n[component.b]\ncommand = [\"b\"]\n"
        );
        let system = System::parse(text.into()).unwrap_or_else(|mistakes| panic!("{}", mistakes.shown("s")));
        system.component.into_iter().next().unwrap().1
    }

    #[test]
    fn each_key_takes_effect_when_it_can() {
        type Of = fn(&ComponentChanges) -> &Vec<&'static str>;
        let (process, next_run, at_once): (Of, Of, Of) =
            (|changes| &changes.process, |changes| &changes.next_run, |changes| &changes.at_once);
        let cases: [(&str, &str, Of, &str); 20] = [
            ("", "environment = { A = \"1\" }", process, "environment"),
            ("log = \"a\"", "log = \"b\"", process, "log"),
            ("", "directory = \"/tmp\"", process, "directory"),
            ("", "user = \"nobody\"", process, "user"),
            ("", "ready = { notify = true }", process, "ready"),
            ("ready = { fd = 3 }", "ready = { fd = 4 }", process, "ready"),
            ("", "heartbeat = { notify = true, every = \"1s\" }", process, "heartbeat"),
            ("", "policy = \"never\"", next_run, "policy"),
            ("", "restart = { max = \"9/1m\" }", next_run, "restart"),
            ("", "needs = [\"b\"]", at_once, "needs"),
            ("ready = { listen = true }", "ready = { log = \"up\" }", at_once, "ready"),
            ("ready = { notify = true }", "", at_once, "ready"),
            ("", "heartbeat = { tcp = \"127.0.0.1:1\", every = \"1s\" }", at_once, "heartbeat"),
            ("", "limits = { descriptors = 9 }", at_once, "limits"),
            ("", "integrity = \"1m\"", at_once, "integrity"),
            ("", "stop_signal = \"SIGINT\"", at_once, "stop_signal"),
            ("stop_timeout = \"1s\"", "stop_timeout = \"2s\"", at_once, "stop_timeout"),
            (
                "policy = \"checkpointed\"",
                "policy = \"checkpointed\"\nfiles_cost_max = 20",
                next_run,
                "files_cost_max",
            ),
            (
                "policy = \"checkpointed\"",
                "policy = \"checkpointed\"\nstore_max = \"off\"",
                next_run,
                "store_max",
            ),
            (
                "policy = \"checkpointed\"",
                "policy = \"checkpointed\"\non_restore = \"x\"",
                next_run,
                "on_restore",
            ),
        ];
        for (old, new, of, key) in cases {
            let (old, new) = (component(old), component(new));
            let changes = old.changes(&new);
            assert!(of(&changes).contains(&key), "{key}: {changes:?}");
            assert!(old.changes(&old).is_empty() && new.changes(&new).is_empty());
        }
        let mut other = component("");
        other.command = toml::Spanned::new(0..0, vec!["c".to_owned()]);
        assert_eq!(component("").changes(&other).process, ["command"]);
    }
}
