//! The conversion of a component of a system to the request of a run.
//!
//! Owns: what the keys of a component mean for a run: policy, restarts, files, and how the program is started.
//! Does not: run the component.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use store::SizeLimit;
use supervise::{ChangedFiles, Component, ComponentPlan, PercentLimit, Policy, RestartPolicy, Spanned};

use crate::location::StoreLocation;
use crate::run::{
    ComponentChannels, CostMax, Damaged, EVERY_DEFAULT, Guarded, Launch, ReadyPipe, RunRequest,
};

/// Variables by which a service manager communicates with this program. Components do not inherit these variables.
const OF_THE_MANAGER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
/// Minimum age of a `warm` component at its checkpoint. Its initial work is complete by then.
const WARM_AFTER: Duration = Duration::from_secs(1);
/// Number of checkpoints of a `warm` component that are kept.
const WARM_KEEP: usize = 2;
/// Environment variable that names the socket for messages of sd_notify(3).
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG_USEC: &str = "WATCHDOG_USEC";

/// Values with which a component is started, beside its keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Means {
    /// The name of the component's socket for sd_notify(3).
    pub(super) notify: Option<String>,
    pub(super) ready: Option<Arc<ReadyPipe>>,
    pub(super) damaged: Damaged,
    pub(super) channels: Option<ComponentChannels>,
}

/// Returns the request for a component. `directory` is the directory of the system file.
pub(super) fn request(
    name: &str,
    component: &Component,
    (store, directory): (&StoreLocation, &Path),
    plan: &ComponentPlan,
    means: Means,
) -> RunRequest {
    let command = component.command.get_ref().iter().map(OsString::from).collect();
    let standard = RunRequest::new(Guarded::Command(command), store.clone());
    let (policy, every) = match component.policy {
        Policy::Never => (RestartPolicy::Never, None),
        Policy::Stateless => (RestartPolicy::Always, None),
        Policy::Checkpointed => {
            let every = component.every.as_ref().map_or(EVERY_DEFAULT, |every| every.get_ref().0);
            (RestartPolicy::Always, Some(every))
        }
    };
    let standard = if component.is_warm() { warm(standard) } else { RunRequest { every, ..standard } };
    RunRequest {
        name: Some(name.to_owned()),
        launch: launch(component, directory, means),
        ends_tree: true,
        policy,
        component_policy: Some(component.policy.name()),
        // The clients of a component connect again. Otherwise open connections could prevent every checkpoint of the
        // component.
        lose_connections: true,
        holds_output: component.holds_output(),
        success: component.success(),
        files: component.files.as_ref().map_or(standard.files, |files| Some((*files.get_ref()).into())),
        files_back_max: component.files_back_max.as_ref().map(|time| time.get_ref().0),
        files_undo_max: component
            .files_undo_max
            .as_ref()
            .map_or(standard.files_undo_max, |size| size.get_ref().0),
        files_cost_max: component.files_cost_max.as_ref().map(|part| part.get_ref().fraction()),
        cost_max: component.cost_max.as_ref().map_or(standard.cost_max, |limit| match limit.get_ref() {
            PercentLimit::Percent(part) => CostMax::Share(part.fraction()),
            PercentLimit::Off => CostMax::Off,
        }),
        store_max: component.store_max.as_ref().map_or(standard.store_max, |limit| match limit.get_ref() {
            supervise::SizeLimit::Size(size) => SizeLimit::Bytes(size.0),
            supervise::SizeLimit::Off => SizeLimit::None,
        }),
        limit: plan.limit,
        back_off: plan.back_off,
        ..standard
    }
}

/// Sets the options for a component that starts from a checkpoint of its initialised state. The files of the component
/// are common to all incarnations.
fn warm(standard: RunRequest) -> RunRequest {
    RunRequest {
        every: Some(WARM_AFTER),
        once: true,
        await_ready: true,
        keep: WARM_KEEP,
        files: Some(ChangedFiles::Append),
        ..standard
    }
}

/// Returns how the program of a component is started. `directory` is the directory of the system file.
pub(super) fn launch(component: &Component, directory: &Path, means: Means) -> Launch {
    let below = |path: &Spanned<PathBuf>| directory.join(path.get_ref());
    let mut environment: Vec<(OsString, OsString)> =
        component.environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
    if let Some(socket) = means.notify {
        environment.push((NOTIFY_SOCKET.into(), socket.into()));
        if let Some(heartbeat) = component.heartbeat.as_ref().filter(|heartbeat| heartbeat.is_notified()) {
            let every = heartbeat.every.0.as_micros().to_string();
            environment.push((WATCHDOG_USEC.into(), every.into()));
        }
    }
    Launch {
        on_restore: component.on_restore.as_ref().map(|command| command.get_ref().into()),
        environment,
        removed: OF_THE_MANAGER.iter().map(OsString::from).collect(),
        directory: Some(component.directory.as_ref().map_or_else(|| directory.to_path_buf(), below)),
        user: component.user.as_ref().map(|user| user.get_ref().clone()),
        log: component.log.as_ref().map(below),
        is_service: true,
        ready: means.ready,
        damaged: means.damaged,
        channels: means.channels,
    }
}

#[cfg(test)]
mod tests {
    use supervise::{RestartLimit, System, SystemPlan};

    use super::*;

    #[test]
    fn keys_of_a_component_become_those_of_a_run() {
        let text = "[system]\nname = \"s\"\n[component.a]\ncommand = [\"x\", \"-v\"]\npolicy = \"checkpointed\"\n\
                    every = \"50ms\"\nfiles = \"fresh\"\nfiles_back_max = \"1m\"\nfiles_undo_max = \"3GiB\"\nfiles_cost_max = 20\ncost_max = 30\nstore_max = \"4GiB\"\non_restore = \"renew\"\nsuccess = [10]\nlog = \"a.log\"\nenvironment = { PORT = \"1\" }\n\
                    heartbeat = { notify = true, every = \"10s\" }\nrestart = { max = \"7/2m\" }\n\
                    [component.b]\ncommand = [\"y\"]\npolicy = \"never\"\n\
                    [component.c]\ncommand = [\"z\"]\npolicy = \"stateless\"\nwarm = true\nready = { listen = true }\n";
        let system = System::parse(text.into()).unwrap_or_else(|mistakes| panic!("{}", mistakes.shown("s")));
        let store = StoreLocation::new(Some(Path::new("/nowhere"))).unwrap();
        let find = |name: &str| system.component.iter().find(|(key, _)| key.get_ref() == name).unwrap().1;
        let means = Means { notify: Some("@n".to_owned()), ..Means::default() };
        let (plan, at) = (SystemPlan::of(&system, 1), (&store, Path::new("/etc/shop")));
        let of = |name: &str| &plan[plan.id(name).unwrap()];
        let a = request("a", find("a"), at, of("a"), means);
        assert_eq!((a.policy, a.every), (RestartPolicy::Always, Some(Duration::from_millis(50))));
        assert_eq!(a.limit, RestartLimit { count: 7, window: Duration::from_mins(2) });
        assert_eq!(a.launch.log.as_deref(), Some(Path::new("/etc/shop/a.log")));
        assert_eq!(a.launch.directory.as_deref(), Some(Path::new("/etc/shop")));
        let has = |name: &str, value: &str| a.launch.environment.contains(&(name.into(), value.into()));
        assert!(has("PORT", "1") && has("NOTIFY_SOCKET", "@n") && has("WATCHDOG_USEC", "10000000"));
        assert!(a.files == Some(ChangedFiles::Fresh) && a.success.has(supervise::SubjectStatus::Exited(10)));
        assert_eq!(a.files_back_max, Some(Duration::from_mins(1)));
        assert_eq!((a.files_undo_max.get(), a.files_cost_max), (3 << 30, Some(0.2)));
        assert_eq!(a.cost_max, CostMax::Share(0.3));
        assert_eq!(a.store_max, SizeLimit::Bytes(model::ByteCount(4 << 30)));
        assert_eq!(a.launch.on_restore.as_deref(), Some(std::ffi::OsStr::new("renew")));
        let b = request("b", find("b"), at, of("b"), Means::default());
        assert_eq!((b.policy, b.every), (RestartPolicy::Never, None));
        assert!(b.launch.is_service && b.ends_tree && b.launch.environment.is_empty());
        let c = request("c", find("c"), at, of("c"), Means::default());
        assert_eq!((c.policy, c.every, c.once), (RestartPolicy::Always, Some(WARM_AFTER), true));
        assert!(c.await_ready && c.files == Some(ChangedFiles::Append) && !a.once);
    }
}
