//! A system as its supervisor needs it: components by id, what they need, what follows when they fail.
//!
//! Owns: the ids of components, the order in which they start, defaults of what the file leaves out.
//! Invariants: a component keeps its id when the file is read again, also while the file does not have it; names are
//! looked up here and nowhere else.
//! Does not: know what a component is doing.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::Index;
use std::time::Duration;

use crate::back_off::{BackOffPlan, SplitMix64};
use crate::restarts::RestartLimit;
use crate::system::{self, GiveUp, Policy, Strategy, System};

/// How long a component may take to be ready if `ready` has no `timeout`: as in systemd.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// What restarts a component without `complaints`: two complainants, or an operator with a weight of 2. A single client
/// that is itself at fault restarts nothing.
const QUORUM: Quorum =
    Quorum { sum: const { NonZeroU32::new(2).expect("2 is not zero") }, within: Duration::from_mins(1) };

/// A component of one system. The components of the first file have the ids from 0 on, in the order of their names;
/// those that a later file adds follow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ComponentId(u32);

impl ComponentId {
    /// Its place, from 0, for a list with one element for each component.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is decided about a system before it is started.
#[derive(Clone, PartialEq, Debug)]
pub struct SystemPlan {
    components: Vec<ComponentPlan>,
    groups: Vec<GroupPlan>,
    /// Each component after all that it needs.
    start_order: Vec<ComponentId>,
}

/// What is decided about one component.
#[derive(Clone, PartialEq, Debug)]
pub struct ComponentPlan {
    /// Its name in the file.
    pub name: String,
    /// What follows its death.
    pub policy: Policy,
    /// Components that are ready before it is started.
    pub needs: Vec<ComponentId>,
    /// Components that need it.
    pub dependents: Vec<ComponentId>,
    /// Components that it cannot run without, directly or not, in start order.
    pub all_needs: Vec<ComponentId>,
    /// Components that cannot run without it, directly or not, in start order.
    pub all_dependents: Vec<ComponentId>,
    /// How long it may take to be ready. `None`: it is ready as soon as it was started.
    pub ready_timeout: Option<Duration>,
    /// How many restarts it is allowed.
    pub limit: RestartLimit,
    /// How long its restarts wait, with a seed of its own.
    pub back_off: BackOffPlan,
    /// What follows when it was restarted too often, or cannot be brought back.
    pub on_give_up: GiveUp,
    /// How many complaints restart it.
    pub quorum: Quorum,
    /// The file that was read last does not have it.
    pub is_removed: bool,
}

/// How many complaints restart a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quorum {
    /// The sum of their weights.
    pub sum: NonZeroU32,
    /// The time in which they come.
    pub within: Duration,
}

/// Components that share a fate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupPlan {
    /// Its name in the file.
    pub name: String,
    /// Its members, in the order of the file.
    pub members: Vec<ComponentId>,
    /// Which members are restarted when one has died.
    pub strategy: Strategy,
    /// They are checkpointed at one moment and restored together.
    pub together: bool,
}

impl SystemPlan {
    /// The plan of a system that was read. The jitter of its components is drawn from `seed`.
    #[must_use]
    pub fn of(system: &System, seed: u64) -> Self {
        Self { components: Vec::new(), groups: Vec::new(), start_order: Vec::new() }.revised(system, seed)
    }

    /// The plan after the file was read again. Components that it does not have any more stay, marked as removed, behind
    /// all others in the start order.
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

    /// Completes what follows from `needs`.
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

    /// The components, removed ones included.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ComponentId> + use<> {
        let count = u32::try_from(self.components.len()).unwrap_or(u32::MAX);
        (0..count).map(ComponentId)
    }

    /// The components, each after all that it needs.
    #[must_use]
    pub fn start_order(&self) -> &[ComponentId] {
        &self.start_order
    }

    /// The groups, by their names.
    #[must_use]
    pub fn groups(&self) -> &[GroupPlan] {
        &self.groups
    }

    /// The component of this name, unless it is removed.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ComponentId> {
        self.ids().find(|id| self[*id].name == name && !self[*id].is_removed)
    }

    /// The members of its group that are restarted when a component has died.
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

/// # Panics
///
/// With an id of another, larger system.
impl Index<ComponentId> for SystemPlan {
    type Output = ComponentPlan;

    fn index(&self, id: ComponentId) -> &ComponentPlan {
        &self.components[id.index()]
    }
}

impl ComponentPlan {
    /// Without what follows from the needs of others.
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
            is_removed: false,
        }
    }
}
