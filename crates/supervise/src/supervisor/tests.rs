//! Tests of the supervisor: the orders that follow a single event or command.

use std::num::NonZeroU32;
use std::time::Duration;

use model::Signal;

use super::*;
use crate::fault::Fault;
use crate::status::SubjectStatus;
use crate::subject::Failure;
use crate::system::System;

const CRASH: SubjectStatus = SubjectStatus::Killed(Signal(11));
const GAVE_UP: End = End::GaveUp(CRASH);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_hours(1);

/// The components of the test system: `web` needs `app`, and `app` needs `db`. `job` has no needs and no dependents.
const SHOP: &str = r#"
[component.db]
command = ["db"]
ready = { notify = true, timeout = "5s" }
[component.app]
command = ["app"]
needs = ["db"]
[component.web]
command = ["web"]
needs = ["app"]
[component.job]
command = ["job"]
policy = "never"
"#;

/// A supervisor with simulated time.
struct Shop {
    supervisor: Supervisor,
    now: Instant,
}

impl Shop {
    fn new(changes: &[(&str, &str)]) -> Self {
        let mut text = format!("[system]\nname = \"shop\"\n{SHOP}");
        for (part, instead) in changes {
            assert!(text.contains(part), "{part}");
            text = text.replacen(part, instead, 1);
        }
        let system =
            System::parse(text.into()).unwrap_or_else(|mistakes| panic!("{}", mistakes.shown("shop")));
        Self { supervisor: Supervisor::new(SystemPlan::of(&system, 1)), now: Instant::now() }
    }

    /// Returns a system in which all components are ready.
    fn ready(changes: &[(&str, &str)]) -> Self {
        let mut shop = Self::new(changes);
        assert_eq!(shop.step(SystemEvent::Up), ["run db", "run job"]);
        assert_eq!(shop.started("job"), [""; 0]);
        assert_eq!(shop.started("db"), [""; 0]);
        let db = shop.id("db");
        assert_eq!(shop.step(SystemEvent::Ready(db)), ["run app"]);
        assert_eq!(shop.started("app"), ["run web"]);
        assert_eq!(shop.started("web"), [""; 0]);
        shop
    }

    fn id(&self, name: &str) -> ComponentId {
        self.supervisor.id(name).unwrap()
    }

    fn state(&self, name: &str) -> ComponentState {
        self.supervisor.state(self.id(name))
    }

    fn raw(&mut self, event: SystemEvent) -> Vec<Order> {
        self.now += SECOND / 10;
        self.supervisor.step(self.now, event)
    }

    /// Handles an event. Returns the orders as short texts, without notices.
    fn step(&mut self, event: SystemEvent) -> Vec<String> {
        let orders = self.raw(event);
        self.short(orders)
    }

    fn short(&self, orders: Vec<Order>) -> Vec<String> {
        let name = |id| self.supervisor.name(id);
        let short = orders.into_iter().filter_map(|order| match order {
            Order::Run(id) => Some(format!("run {}", name(id))),
            Order::End(id) => Some(format!("end {}", name(id))),
            Order::KillRun(id) => Some(format!("kill {}", name(id))),
            Order::Fail(id, fault) => Some(format!("fail {}: {} {fault}", name(id), name(id))),
            Order::Exec(id) => Some(format!("exec {}", name(id))),
            Order::Report(_) => None,
        });
        short.collect()
    }

    /// Replaces the system file. Returns the orders as short texts.
    fn revise(&mut self, components: &str, restarted: &[&str]) -> Vec<String> {
        let text = format!("[system]\nname = \"shop\"\n{components}");
        let system =
            System::parse(text.into()).unwrap_or_else(|mistakes| panic!("{}", mistakes.shown("shop")));
        let plan = self.supervisor.plan().revised(&system, 1);
        let restarted: Vec<ComponentId> = restarted.iter().map(|name| self.id(name)).collect();
        self.now += SECOND / 10;
        let orders = self.supervisor.revise(self.now, plan, &restarted);
        self.short(orders)
    }

    fn started(&mut self, name: &str) -> Vec<String> {
        let id = self.id(name);
        self.step(SystemEvent::Started(id))
    }

    fn died(&mut self, name: &str) -> Vec<String> {
        let id = self.id(name);
        self.step(SystemEvent::Died(id, CRASH))
    }

    fn ended(&mut self, name: &str, end: End) -> Vec<String> {
        let id = self.id(name);
        self.step(SystemEvent::Ended(id, end))
    }

    fn stopped(&mut self, name: &str) -> Vec<String> {
        self.ended(name, End::Over(SubjectStatus::Killed(Signal(15))))
    }

    fn complain(&mut self, about: &str, by: Option<&str>, weight: u32) -> Vec<String> {
        let by = by.map_or(Complainant::Operator, |name| Complainant::Component(self.id(name)));
        let weight = NonZeroU32::new(weight).unwrap();
        let about = self.id(about);
        self.step(SystemEvent::Complaint { about, by, weight })
    }
}

#[test]
fn components_start_once_all_that_they_need_is_ready() {
    let mut shop = Shop::new(&[]);
    shop.step(SystemEvent::Up);
    let (app, web, db) = (shop.id("app"), shop.id("web"), shop.id("db"));
    assert_eq!(shop.state("app"), ComponentState::Waiting);
    assert_eq!(shop.supervisor.waits_for(app), [db]);
    assert_eq!(shop.supervisor.waits_for(web), [app]);
    assert_eq!(shop.supervisor.waits_for(db), []);
    shop.started("db");
    let ready = shop.raw(SystemEvent::Ready(db));
    let took = SECOND / 5;
    assert_eq!(ready, [Order::Report(SystemNotice::Ready(db, took)), Order::Run(app)]);
}

#[test]
fn a_component_that_is_not_ready_in_time_is_killed_once() {
    let mut shop = Shop::new(&[]);
    shop.step(SystemEvent::Up);
    shop.started("db");
    let due = shop.supervisor.wake().unwrap();
    assert_eq!(due, shop.now + Duration::from_secs(5));
    assert_eq!(shop.step(SystemEvent::Due), [""; 0]);
    shop.now = due;
    assert_eq!(shop.step(SystemEvent::Due), ["fail db: db was not ready in time"]);
    assert_eq!(shop.step(SystemEvent::Due), [""; 0]);
    let db = shop.id("db");
    assert_eq!(shop.step(SystemEvent::Ready(db)), [""; 0], "it is being killed");
    shop.died("db");
    shop.started("db");
    assert_eq!(shop.step(SystemEvent::Ready(db)), ["run app"]);
}

#[test]
fn a_death_does_not_touch_the_dependents() {
    let mut shop = Shop::ready(&[]);
    assert_eq!(shop.died("db"), [""; 0]);
    assert!(shop.state("app").is_ready());
    let db = shop.id("db");
    shop.step(SystemEvent::Restored(db));
    assert!(shop.state("db").is_ready());
}

#[test]
fn stop_ends_one_component_and_start_brings_all_that_it_needs() {
    let mut shop = Shop::ready(&[]);
    let (db, app) = (shop.id("db"), shop.id("app"));
    assert_eq!(shop.step(SystemEvent::Start(db)), [""; 0]);
    assert_eq!(shop.step(SystemEvent::Stop(db)), ["end db"]);
    assert_eq!(shop.step(SystemEvent::Stop(db)), [""; 0]);
    assert_eq!(shop.stopped("db"), [""; 0]);
    assert_eq!(shop.step(SystemEvent::Restart(app)), ["end app"]);
    // `db` is started at once, and `app` when `db` is ready.
    let mut shop = Shop::ready(&[]);
    for name in ["db", "app"] {
        let id = shop.id(name);
        shop.step(SystemEvent::Stop(id));
        shop.stopped(name);
    }
    assert_eq!(shop.step(SystemEvent::Start(app)), ["run db"]);
    shop.started("db");
    assert_eq!(shop.step(SystemEvent::Ready(db)), ["run app"]);
}

#[test]
fn a_command_during_a_stop_counts_when_the_component_has_ended() {
    let mut shop = Shop::ready(&[]);
    let db = shop.id("db");
    shop.step(SystemEvent::Stop(db));
    assert_eq!(shop.step(SystemEvent::Start(db)), [""; 0]);
    assert_eq!(shop.stopped("db"), ["run db"]);
    // A stop cancels a pending start.
    shop.step(SystemEvent::Restart(db));
    assert_eq!(shop.step(SystemEvent::Stop(db)), [""; 0]);
    assert_eq!(shop.stopped("db"), [""; 0]);
    assert_eq!(shop.state("db"), ComponentState::Stopped);
    // A stop also cancels a start that waits for a need.
    let mut shop = Shop::new(&[]);
    let app = shop.id("app");
    shop.step(SystemEvent::Up);
    assert_eq!(shop.step(SystemEvent::Stop(app)), [""; 0]);
    assert_eq!(shop.state("app"), ComponentState::Stopped);
}

#[test]
fn down_ends_dependents_first_and_kills_what_does_not_end() {
    let mut shop = Shop::ready(&[]);
    assert_eq!(shop.step(SystemEvent::Down), ["end web", "end job"]);
    assert_eq!(shop.stopped("web"), ["end app"]);
    shop.now = shop.supervisor.wake().unwrap();
    assert_eq!(shop.step(SystemEvent::Due), ["kill job", "kill app"]);
    assert_eq!(shop.step(SystemEvent::Due), [""; 0]);
    shop.stopped("job");
    assert_eq!(shop.stopped("app"), ["end db"]);
    assert!(!shop.supervisor.is_over());
    assert_eq!(shop.stopped("db"), [""; 0]);
    assert!(shop.supervisor.is_over() && !shop.supervisor.has_failed());
    assert_eq!(shop.step(SystemEvent::Up), [""; 0]);
}

#[test]
fn what_an_operator_has_stopped_keeps_the_system_open_until_it_goes_down() {
    let mut shop = Shop::new(&[]);
    assert!(!shop.supervisor.is_over(), "it was not started yet");
    let job = shop.id("job");
    shop.step(SystemEvent::Up);
    shop.step(SystemEvent::Stop(job));
    shop.stopped("job");
    shop.ended("db", GAVE_UP);
    assert!(!shop.supervisor.is_over(), "an operator may start the job again");
    shop.step(SystemEvent::Down);
    assert!(shop.supervisor.is_over() && shop.supervisor.has_failed());
}

#[test]
fn a_restart_of_the_system_leaves_alone_what_an_operator_has_stopped() {
    let changes = [("command = [\"web\"]", "command = [\"web\"]\nrestart = { on_give_up = \"escalate\" }")];
    let mut shop = Shop::ready(&changes);
    let job = shop.id("job");
    shop.ended("job", End::Over(SubjectStatus::Exited(0)));
    shop.step(SystemEvent::Stop(job));
    assert_eq!(shop.ended("web", GAVE_UP), ["end app"]);
    assert_eq!(shop.stopped("app"), ["end db"]);
    assert_eq!(shop.stopped("db"), ["run db"]);
    assert_eq!(shop.state("job"), ComponentState::Stopped);
}

#[test]
fn what_its_policy_does_not_restart_stays_ended_and_its_dependents_go_on() {
    let mut shop = Shop::ready(&[]);
    let end = End::Over(SubjectStatus::Exited(0));
    for name in ["job", "app"] {
        assert_eq!(shop.ended(name, end), [""; 0]);
        assert_eq!(shop.state(name), ComponentState::Ended(end));
    }
    assert!(shop.state("web").is_ready());
    assert!(!shop.supervisor.is_over());
    shop.ended("web", end);
    shop.ended("db", end);
    assert!(shop.supervisor.is_over() && !shop.supervisor.has_failed());
}

#[test]
fn given_up_without_a_policy_stays_dead() {
    let mut shop = Shop::ready(&[]);
    assert_eq!(shop.ended("db", GAVE_UP), [""; 0]);
    assert!(shop.state("app").is_ready());
    assert!(shop.supervisor.has_failed());
}

#[test]
fn given_up_with_restart_dependents_restarts_them_after_it_once() {
    let restart = "policy = \"stateless\"\nrestart = { on_give_up = \"restart-dependents\" }\nready";
    let changes = [("ready", restart)];
    let mut shop = Shop::ready(&changes);
    let db = shop.id("db");
    assert_eq!(shop.ended("db", GAVE_UP), ["end web"]);
    assert_eq!(shop.supervisor.waits_for(db), [shop.id("app"), shop.id("web")]);
    assert_eq!(shop.stopped("web"), ["end app"]);
    assert_eq!(shop.stopped("app"), ["run db"]);
    shop.started("db");
    assert_eq!(shop.step(SystemEvent::Ready(db)), ["run app"]);
    assert_eq!(shop.started("app"), ["run web"]);
    // `db` gives up again within two windows, and stays ended.
    assert_eq!(shop.ended("db", GAVE_UP), [""; 0]);
    assert_eq!(shop.state("db"), ComponentState::Ended(GAVE_UP));
    // A much later give-up counts as a first give-up.
    shop.step(SystemEvent::Start(db));
    shop.started("db");
    shop.now += HOUR;
    assert_eq!(shop.ended("db", GAVE_UP), ["end web"]);
}

#[test]
fn given_up_with_escalate_restarts_the_system_once_and_then_ends_it() {
    let changes = [("command = [\"web\"]", "command = [\"web\"]\nrestart = { on_give_up = \"escalate\" }")];
    let mut shop = Shop::ready(&changes);
    let failed = End::Failed(Failure::LastError);
    let again = |shop: &mut Shop| {
        assert_eq!(shop.ended("web", failed), ["end app", "end job"]);
        assert_eq!(shop.stopped("app"), ["end db"]);
        shop.stopped("db");
    };
    again(&mut shop);
    assert_eq!(shop.stopped("job"), ["run db", "run job"]);
    for name in ["job", "db"] {
        shop.started(name);
    }
    let db = shop.id("db");
    shop.step(SystemEvent::Ready(db));
    shop.started("app");
    again(&mut shop);
    assert_eq!(shop.stopped("job"), [""; 0]);
    assert!(shop.supervisor.is_over() && shop.supervisor.has_failed());
}

#[test]
fn given_up_with_exec_runs_the_program() {
    let exec = "command = [\"web\"]\nrestart = { on_give_up = \"exec\", exec = [\"mail\"], max = \"1/1m\" }";
    let mut shop = Shop::ready(&[("command = [\"web\"]", exec)]);
    assert_eq!(shop.ended("web", GAVE_UP), ["exec web"]);
    assert_eq!(shop.state("web"), ComponentState::Ended(GAVE_UP));
}

#[test]
fn what_may_still_run_is_not_run_twice() {
    let mut shop = Shop::ready(&[]);
    let db = shop.id("db");
    shop.step(SystemEvent::Restart(db));
    assert_eq!(shop.ended("db", End::Left), [""; 0]);
    assert_eq!(shop.state("db"), ComponentState::Ended(End::Left));
}

#[test]
fn a_group_restarts_its_members_once_for_each_death() {
    for (strategy, of_app) in [("one", &[][..]), ("rest", &["web"]), ("all", &["db", "web"])] {
        let group = format!(
            "[group.all]\nmembers = [\"db\", \"app\", \"web\", \"job\"]\nstrategy = \"{strategy}\"\n{SHOP}"
        );
        let mut shop = Shop::ready(&[(SHOP, &group)]);
        // The policy of `job` restarts nothing, so that `job` is not killed.
        let fate = "is in a group of which another member died";
        let failed: Vec<String> = of_app.iter().map(|name| format!("fail {name}: {name} {fate}")).collect();
        assert_eq!(shop.died("app"), failed);
        for name in of_app {
            assert_eq!(shop.died(name), [""; 0]);
        }
        for name in of_app {
            assert_eq!(shop.started(name), [""; 0]);
        }
        // A component that does not run yet is not killed again.
        let db = shop.id("db");
        shop.step(SystemEvent::Ready(db));
        assert_eq!(shop.died("web").len(), usize::from(strategy == "all"));
    }
}

#[test]
fn faults_of_the_living_are_acted_on_once() {
    let mut shop = Shop::ready(&[]);
    let web = shop.id("web");
    let fault = SystemEvent::Fault(web, Fault::Hang);
    assert_eq!(shop.step(fault), ["fail web: web makes no progress"]);
    assert_eq!(shop.step(fault), [""; 0]);
    shop.died("web");
    assert_eq!(shop.step(fault), [""; 0]);
    shop.started("web");
    assert_eq!(shop.step(fault), ["fail web: web makes no progress"]);
}

#[test]
fn complaints_restart_at_their_quorum() {
    let quorum = "command = [\"db\"]\ncomplaints = { quorum = 3, within = \"10s\" }";
    let mut shop = Shop::ready(&[("command = [\"db\"]", quorum)]);
    let db = shop.id("db");
    let killed = ["fail db: db reached the quorum of complaints"];
    // A complainant counts once, with its heaviest complaint.
    for (weight, sum) in [(1, 1), (1, 1), (2, 2), (1, 2)] {
        assert_eq!(shop.complain("db", Some("app"), weight), [""; 0]);
        assert_eq!(shop.supervisor.complaints(db, shop.now), sum);
    }
    // A complaint of a component that does not need `db` is refused.
    assert_eq!(shop.complain("db", Some("web"), 9), [""; 0]);
    assert_eq!(shop.complain("db", None, 1), killed);
    assert_eq!(shop.supervisor.complaints(db, shop.now), 0);
    assert_eq!(shop.complain("db", None, 9), [""; 0], "it is being killed");
    shop.died("db");
    shop.started("db");
    assert_eq!(shop.complain("db", None, 9), [""; 0], "it is not ready");
    shop.step(SystemEvent::Ready(db));
    // Complaints of an earlier window do not count.
    shop.complain("db", Some("app"), 2);
    shop.now += SECOND * 11;
    assert_eq!(shop.supervisor.complaints(db, shop.now), 0);
    assert_eq!(shop.complain("db", None, 2), [""; 0]);
    assert_eq!(shop.complain("db", None, u32::MAX), killed);
}

#[test]
fn without_a_quorum_in_the_file_two_complainants_restart() {
    let mut shop = Shop::ready(&[]);
    assert_eq!(shop.complain("db", None, 1), [""; 0]);
    assert_eq!(shop.complain("db", Some("app"), 1), ["fail db: db reached the quorum of complaints"]);
}

#[test]
fn ids_follow_the_names_and_each_component_has_jitter_of_its_own() {
    let shop = Shop::new(&[]);
    let plan = shop.supervisor.plan();
    let names: Vec<&str> = plan.ids().map(|id| shop.supervisor.name(id)).collect();
    assert_eq!(names, ["app", "db", "job", "web"]);
    assert!(plan.ids().all(|id| shop.supervisor.id(shop.supervisor.name(id)) == Some(id)));
    assert_eq!(shop.supervisor.id("nothing"), None);
    let (db, web) = (&plan[shop.id("db")], &plan[shop.id("web")]);
    assert_ne!(db.back_off.seed, web.back_off.seed);
    assert_eq!(db.all_dependents, [shop.id("app"), shop.id("web")]);
    assert_eq!(web.all_needs, [shop.id("db"), shop.id("app")]);
}

/// Returns the table of a component with these needs, as written in a file.
fn table(name: &str, needs: &[&str]) -> String {
    format!("[component.{name}]\ncommand = [\"{name}\"]\nneeds = {needs:?}\n")
}

#[test]
fn a_revision_touches_only_what_it_changes() {
    let mut shop = Shop::ready(&[]);
    let (db, web) = (shop.id("db"), shop.id("web"));
    // `web` is removed, `api` is new, `app` has another command, `db` and `job` are unchanged.
    let file = [table("api", &["db"]), table("app", &["db"]), table("db", &[]), table("job", &[])].concat();
    assert_eq!(shop.revise(&file, &["app"]), ["end web", "run api"]);
    assert_eq!((shop.supervisor.id("web"), shop.supervisor.name(web)), (None, "web"));
    assert_eq!(shop.id("db"), db, "ids stay");
    // `app` ends after `web`, because `web` needs `app`.
    let end = End::Over(SubjectStatus::Killed(Signal(15)));
    assert_eq!(shop.step(SystemEvent::Ended(web, end)), ["end app"]);
    assert_eq!(shop.stopped("app"), ["run app"]);
    assert!(shop.state("db").is_ready() && shop.state("job").is_ready());
    assert_eq!(shop.supervisor.state(web), ComponentState::Stopped);

    // `web` returns with the same id.
    let file = [file, table("web", &["app"])].concat();
    assert_eq!(shop.revise(&file, &[]), [""; 0]);
    assert_eq!((shop.id("web"), shop.state("web")), (web, ComponentState::Waiting));
    assert_eq!(shop.started("app"), ["run web"]);
}

#[test]
fn a_revision_starts_what_had_given_up_and_not_what_an_operator_stopped() {
    let mut shop = Shop::ready(&[]);
    shop.died("job");
    shop.ended("job", GAVE_UP);
    let web = shop.id("web");
    shop.step(SystemEvent::Stop(web));
    shop.stopped("web");
    let file = [table("app", &["db"]), table("db", &[]), table("job", &[]), table("web", &["app"])].concat();
    assert_eq!(shop.revise(&file, &["job", "web"]), ["run job"]);
}

#[test]
fn a_component_whose_condition_is_taken_out_of_the_file_is_ready() {
    let mut shop = Shop::new(&[]);
    shop.step(SystemEvent::Up);
    shop.started("db");
    let file = [table("app", &["db"]), table("db", &[]), table("job", &[]), table("web", &["app"])].concat();
    assert_eq!(shop.revise(&file, &[]), ["run app"]);
    assert_eq!(shop.supervisor.wake(), None);
}

#[test]
fn a_system_that_goes_down_is_not_revised() {
    let mut shop = Shop::ready(&[]);
    shop.step(SystemEvent::Down);
    assert_eq!(shop.revise(&[table("db", &[]), table("new", &[])].concat(), &[]), [""; 0]);
    assert_eq!(shop.supervisor.id("new"), None);
}
