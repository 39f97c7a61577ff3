//! The plan of a system: the components, the needs of each component, and the consequences of failures.
//!
//! A file (`system.toml`) describes the system, and can change while the system runs.
//!
//! Owns: the ids of components, the start order, and the defaults for keys that are missing in the file.
//! Invariants: a component keeps its id while the system runs, even if a later version of the file omits the component.
//! Only this module converts names of components to ids.
//! Does not: know the state of a component.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::Index;
use std::time::Duration;

use crate::back_off::{BackOffPlan, SplitMix64};
use crate::restarts::RestartLimit;
use crate::system::{self, GiveUp, Policy, Strategy, System};

/// The timeout for readiness, if the table `ready` has no key `timeout`. systemd uses the same default.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// The time from the signal that requests the end of a component to SIGKILL, for a component without the key
/// `stop_timeout`. `docker stop` uses the same time.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The quorum of a component without the key `complaints`. The quorum is the sum of the weights of complaints at which
/// the component is restarted.
///
/// With a sum of 2, two complaints with weight 1 or one complaint with weight 2 restart the component. A single faulty
/// client that complains with weight 1 does not restart the component.
const QUORUM: Quorum =
    Quorum { sum: const { NonZeroU32::new(2).expect("2 is not zero") }, within: Duration::from_mins(1) };

/// The id of a component within one system.
///
/// The components of the first version of the file have the lowest ids, beginning with 0, in the order of the names. A
/// later version of the file can add components, which get the next ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ComponentId(u32);

impl ComponentId {
    /// Returns the id as an index into a list with one element for each component.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The plan of a system.
#[derive(Clone, PartialEq, Debug)]
pub struct SystemPlan {
    components: Vec<ComponentPlan>,
    groups: Vec<GroupPlan>,
    /// All components. Each component comes after the components that it needs.
    start_order: Vec<ComponentId>,
}

/// The plan of one component.
#[derive(Clone, PartialEq, Debug)]
pub struct ComponentPlan {
    /// The name in the file.
    pub name: String,
    /// The policy for restarts after a death.
    pub policy: Policy,
    /// The components that must be ready before this component is started.
    pub needs: Vec<ComponentId>,
    /// The components that directly need this component.
    pub dependents: Vec<ComponentId>,
    /// The components that this component needs directly or indirectly, in start order.
    pub all_needs: Vec<ComponentId>,
    /// The components that need this component directly or indirectly, in start order.
    pub all_dependents: Vec<ComponentId>,
    /// The timeout for readiness. `None`: the component is ready as soon as it was started.
    pub ready_timeout: Option<Duration>,
    /// The limit on restarts.
    pub limit: RestartLimit,
    /// The back-off of restarts. Each component has another random seed.
    pub back_off: BackOffPlan,
    /// What happens when the component gives up, because it was restarted too often, or cannot be started or restored.
    pub on_give_up: GiveUp,
    /// The quorum of complaints at which the component is restarted.
    pub quorum: Quorum,
    /// The time from the signal that requests the end of the component to SIGKILL.
    pub stop_timeout: Duration,
    /// Whether the present version of the file omits the component.
    pub is_removed: bool,
}

/// The complaints at which a component is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quorum {
    /// The sum of the weights at which the component is restarted.
    pub sum: NonZeroU32,
    /// The time for which a complaint counts.
    pub within: Duration,
}

/// A group: components that are restarted or checkpointed together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupPlan {
    /// The name in the file.
    pub name: String,
    /// The members, in the order of the file.
    pub members: Vec<ComponentId>,
    /// The members that are restarted when a member has died.
    pub strategy: Strategy,
    /// Whether the members are checkpointed at one moment and restored together.
    pub together: bool,
}

impl SystemPlan {
    /// Returns the plan of a system. `seed` determines the random seeds of the components' back-offs.
    #[must_use]
    pub fn of(system: &System, seed: u64) -> Self {
        Self { components: Vec::new(), groups: Vec::new(), start_order: Vec::new() }.revised(system, seed)
    }

    /// Returns the plan for a new version of the file.
    ///
    /// Components that the new version omits remain in the plan, are marked as removed, and are last in the start
    /// order.
    #[must_use]
    pub fn revised(&self, system: &System, seed: u64) -> Self {
        let mut names: Vec<&str> = self.components.iter().map(|component| component.name.as_str()).collect();
        let own = system.component.keys().map(|name| name.get_ref().as_str());
        let new: Vec<&str> = own.filter(|name| !names.contains(name)).collect();
        names.extend(new);
        let ids: BTreeMap<&str, ComponentId> = names.into_iter().zip((0..).map(ComponentId)).collect();
        let all = |names: &mut dyn Iterator<Item = &str>| -> Vec<ComponentId> {
            names.filter_map(|name| ids.get(name).copied()).collect()
        };
        let mut seeds = SplitMix64(seed);
        let mut components = self.components.clone();
        components.iter_mut().for_each(|component| component.is_removed = true);
        for (name, component) in &system.component {
            let needs = all(&mut component.needs.iter().map(|need| need.get_ref().as_str()));
            let plan = ComponentPlan::new(name.get_ref(), component, needs, seeds.next());
            match ids.get(name.get_ref().as_str()).and_then(|id| components.get_mut(id.index())) {
                Some(known) => *known = plan,
                None => components.push(plan),
            }
        }
        let groups = system.group.iter().map(|(name, group)| GroupPlan {
            name: name.get_ref().clone(),
            members: all(&mut group.members.get_ref().iter().map(|member| member.get_ref().as_str())),
            strategy: group.strategy,
            together: group.together,
        });
        let mut start_order = all(&mut system.start_order().into_iter().flatten());
        start_order.extend(self.start_order.iter().filter(|id| components[id.index()].is_removed));
        let mut plan = Self { groups: groups.collect(), components, start_order };
        plan.close();
        plan
    }

    /// Computes `all_needs`, `dependents` and `all_dependents` of all components from `needs`.
    fn close(&mut self) {
        let mut all_needs = vec![BTreeSet::new(); self.components.len()];
        for id in &self.start_order {
            for need in &self[*id].needs {
                let further: Vec<ComponentId> = all_needs[need.index()].iter().copied().collect();
                all_needs[id.index()].extend(further);
                all_needs[id.index()].insert(*need);
            }
        }
        for id in self.start_order.clone() {
            let in_order = |needs: &dyn Fn(&ComponentId) -> bool| -> Vec<ComponentId> {
                self.start_order.iter().filter(|other| needs(other)).copied().collect()
            };
            let needs = in_order(&|other| all_needs[id.index()].contains(other));
            let all_dependents = in_order(&|other| all_needs[other.index()].contains(&id));
            let dependents = in_order(&|other| self[*other].needs.contains(&id));
            let component = &mut self.components[id.index()];
            (component.all_needs, component.all_dependents, component.dependents) =
                (needs, all_dependents, dependents);
        }
    }

    /// Returns the ids of all components, including removed components.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ComponentId> + use<> {
        let count = u32::try_from(self.components.len()).unwrap_or(u32::MAX);
        (0..count).map(ComponentId)
    }

    /// Returns the components in start order. Each component comes after the components that it needs.
    #[must_use]
    pub fn start_order(&self) -> &[ComponentId] {
        &self.start_order
    }

    /// Returns the groups, sorted by name.
    #[must_use]
    pub fn groups(&self) -> &[GroupPlan] {
        &self.groups
    }

    /// Returns the component with this name; `None` for a removed component.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ComponentId> {
        self.ids().find(|id| self[*id].name == name && !self[*id].is_removed)
    }

    /// Returns the other members of the group of `died` that are restarted when component `died` has died.
    pub(super) fn sharing_fate_of(&self, died: ComponentId) -> Vec<ComponentId> {
        let is_member = |group: &&GroupPlan| group.members.contains(&died);
        let Some(group) = self.groups.iter().find(is_member) else { return Vec::new() };
        let others = group.members.iter().copied();
        match group.strategy {
            Strategy::One => Vec::new(),
            Strategy::Rest => others.skip_while(|member| *member != died).skip(1).collect(),
            Strategy::All => others.filter(|member| *member != died).collect(),
        }
    }
}

/// Access to the plan of one component.
///
/// # Panics
///
/// Panics if the id belongs to another, larger system.
impl Index<ComponentId> for SystemPlan {
    type Output = ComponentPlan;

    fn index(&self, id: ComponentId) -> &ComponentPlan {
        &self.components[id.index()]
    }
}

impl ComponentPlan {
    /// Creates the plan of one component. `SystemPlan::close` later sets `all_needs`, `dependents` and
    /// `all_dependents`.
    fn new(name: &str, component: &system::Component, needs: Vec<ComponentId>, seed: u64) -> Self {
        let ready = component.ready.as_ref();
        let quorum = component
            .complaints
            .map(|complaints| Quorum { sum: complaints.quorum, within: complaints.within.0 });
        Self {
            name: name.to_owned(),
            policy: component.policy,
            needs,
            dependents: Vec::new(),
            all_needs: Vec::new(),
            all_dependents: Vec::new(),
            ready_timeout: ready.map(|ready| ready.timeout.map_or(READY_TIMEOUT, |timeout| timeout.0)),
            limit: component.restart.max.into(),
            back_off: BackOffPlan::of(&component.restart, seed),
            on_give_up: component.restart.on_give_up,
            quorum: quorum.unwrap_or(QUORUM),
            stop_timeout: component.stop_timeout.map_or(STOP_TIMEOUT, |timeout| timeout.0),
            is_removed: false,
        }
    }
}
