//! Random systems for the tests. A system is a group of components (programs) with needs.
//!
//! Owns: the content of a random system, and its conversion into a `System`, as if it were read from a file.
//! Invariants: component `n` has the id `n`, because its name is the letter at this position of the alphabet.
//! Does not: use the plan (`SystemPlan`) of a system. Needs and groups are computed independently of the plan.

use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use toml::Spanned;
use undying_supervise::{Complaints, GiveUp, Group, Policy, Rate, Strategy, System, Time};

pub(super) const COMPONENTS_MAX: usize = 8;
pub(super) const WINDOW: Duration = Duration::from_secs(60);
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const COMPLAINTS_WITHIN: Duration = Duration::from_secs(60);

/// A random system.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) components: Vec<ComponentSpec>,
    /// The members of each group, and the strategy that selects the restarted members.
    pub(super) groups: Vec<(Vec<usize>, Strategy)>,
}

/// A random component.
#[derive(Debug)]
pub(super) struct ComponentSpec {
    pub(super) needs: Vec<usize>,
    pub(super) all_needs: Vec<usize>,
    pub(super) has_ready: bool,
    pub(super) policy: Policy,
    pub(super) restarts_max: NonZeroU32,
    pub(super) on_give_up: GiveUp,
    /// The quorum of complaints; `None` for the default of 2.
    pub(super) quorum: Option<NonZeroU32>,
}

impl Spec {
    pub(super) fn random(random: &mut Rng) -> Self {
        let count = random.usize(2..=COMPONENTS_MAX);
        // The components start in a different order than the order of their names.
        let mut order: Vec<usize> = (0..count).collect();
        random.shuffle(&mut order);
        let chance = random.u8(1..4);
        let mut components: Vec<ComponentSpec> = (0..count).map(|_| component(random)).collect();
        for (place, id) in order.iter().enumerate() {
            let needs: Vec<usize> =
                order[..place].iter().filter(|_| random.u8(..5) < chance).copied().collect();
            let mut all_needs = needs.clone();
            needs.iter().for_each(|need| all_needs.extend(&components[*need].all_needs));
            all_needs.sort_unstable();
            all_needs.dedup();
            (components[*id].needs, components[*id].all_needs) = (needs, all_needs);
        }
        random.shuffle(&mut order);
        let mut groups = Vec::new();
        while order.len() >= 2 && random.bool() {
            let members = order.split_off(order.len() - random.usize(2..=order.len().min(4)));
            groups.push((members, [Strategy::One, Strategy::Rest, Strategy::All][random.usize(..3)]));
        }
        Self { components, groups }
    }

    /// Returns the system as if it were read from a file.
    ///
    /// `template` is a parsed system with one group. The template provides all other values of components and groups.
    /// Parsing a file for each system would take most of the test's time.
    pub(super) fn system(&self, template: &System) -> System {
        let (component, group) =
            template.component.values().zip(template.group.values()).next().expect("is there");
        let names = |ids: &[usize]| ids.iter().map(|id| spanned(name(*id))).collect();
        let components = self.components.iter().enumerate().map(|(id, spec)| {
            let mut component = component.clone();
            component.needs = names(&spec.needs);
            component.policy = spec.policy;
            component.ready = component.ready.filter(|_| spec.has_ready);
            component.restart.max = Rate(spec.restarts_max, WINDOW);
            component.restart.on_give_up = spec.on_give_up;
            component.complaints =
                spec.quorum.map(|quorum| Complaints { quorum, within: Time(COMPLAINTS_WITHIN) });
            (spanned(name(id)), component)
        });
        let groups = self.groups.iter().enumerate().map(|(place, (members, strategy))| {
            let group = Group { members: spanned(names(members)), strategy: *strategy, ..group.clone() };
            (spanned(name(place)), group)
        });
        System { system: template.system.clone(), component: components.collect(), group: groups.collect() }
    }

    /// Reports whether the component `member` may be killed because the component `died` has died.
    pub(super) fn shares_fate(&self, member: usize, died: usize) -> bool {
        self.groups.iter().any(|(members, strategy)| {
            let place = |id| members.iter().position(|other| *other == id);
            match (place(member), place(died)) {
                (Some(member), Some(died)) => {
                    member != died
                        && match strategy {
                            Strategy::One => false,
                            Strategy::Rest => member > died,
                            Strategy::All => true,
                        }
                }
                _ => false,
            }
        })
    }

    pub(super) fn depends(&self, dependent: usize, on: usize) -> bool {
        self.components[dependent].all_needs.contains(&on)
    }
}

/// Returns a parsed system with two components and one group.
pub(super) fn template() -> System {
    let ready = format!("{{ notify = true, timeout = \"{}s\" }}", READY_TIMEOUT.as_secs());
    let text = format!(
        "[system]\nname = \"random\"\n[component.a]\ncommand = [\"x\"]\nready = {ready}\n\
         [component.b]\ncommand = [\"x\"]\n[group.a]\nmembers = [\"a\", \"b\"]"
    );
    System::parse(text.into()).unwrap_or_else(|mistakes| panic!("{}", mistakes.shown("template")))
}

fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn name(id: usize) -> String {
    char::from(b'a' + id as u8).to_string()
}

fn component(random: &mut Rng) -> ComponentSpec {
    let policies = [Policy::Never, Policy::Stateless, Policy::Checkpointed, Policy::Checkpointed];
    let give_ups =
        [GiveUp::Stop, GiveUp::RestartDependents, GiveUp::RestartDependents, GiveUp::Escalate, GiveUp::Exec];
    let mut few = |most| NonZeroU32::MIN.saturating_add(random.u32(..most));
    let (restarts_max, quorum) = (few(3), few(4));
    ComponentSpec {
        needs: Vec::new(),
        all_needs: Vec::new(),
        has_ready: random.bool(),
        policy: policies[random.usize(..policies.len())],
        restarts_max,
        on_give_up: give_ups[random.usize(..give_ups.len())],
        quorum: random.bool().then_some(quorum),
    }
}
