//! Sets the state of living processes and threads that differs from each checkpoint: timers and pending signals.
//!
//! Owns: the order of threads and steps.
//! Invariants: the first change comes after the comparison with the checkpoint. All present state of a process is removed
//! before the first state is set.
//! Does not: name a state kind (the code for one sort of process or thread state).

use std::collections::HashMap;

use model::{Pid, Tid};
use resource::state::{self, Level, LivingThread, StateKind};
use tracee::{StoppedProcess, StoppedTree};

use crate::capture::{AddressSpace, Present};
use crate::error::Result;
use crate::restore::plan::{Plan, PlannedProcess, PlannedState};

/// The two steps in a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Clear,
    Set,
}

/// The states of a process and of its threads, at present and at the checkpoint.
struct States<'a> {
    is: OfThreads<'a>,
    wanted: OfThreads<'a>,
}

type OfThreads<'a> = HashMap<Tid, Vec<&'a PlannedState>>;

pub(super) fn set(is: &Plan, wanted: &Plan, present: &Present, tree: &mut StoppedTree) -> Result<()> {
    for stopped in &mut tree.processes {
        let states = States { is: settable(is, stopped.pid), wanted: settable(wanted, stopped.pid) };
        let Some(space) = present.spaces.get(&stopped.pid) else { continue };
        if states.is.is_empty() && states.wanted.is_empty() {
            continue;
        }
        for step in [Step::Clear, Step::Set] {
            set_in(stopped, space, &states, step)?;
        }
    }
    Ok(())
}

fn set_in(stopped: &mut StoppedProcess, space: &AddressSpace, states: &States<'_>, step: Step) -> Result<()> {
    let context = space.context();
    for (index, thread) in stopped.threads.iter_mut().enumerate() {
        let payload = |of_threads: &OfThreads<'_>, kind: &dyn StateKind, tid: Tid| {
            let states = of_threads.get(&tid)?;
            states.iter().find(|state| state.kind.name() == kind.name()).map(|state| state.payload.clone())
        };
        let tid = thread.tid();
        let mut living = LivingThread::new(thread, &context);
        for kind in state::REGISTRY.iter().filter(|kind| kind.facts().level == Level::Thread || index == 0) {
            let Some(in_place) = kind.in_place() else { continue };
            match (step, payload(&states.wanted, *kind, tid)) {
                (Step::Clear, _) => {
                    in_place.clear(payload(&states.is, *kind, tid).as_deref(), &mut living)?;
                }
                (Step::Set, Some(wanted)) => in_place.set(&wanted, &mut living)?,
                (Step::Set, None) => {}
            }
        }
        living.finish()?;
    }
    Ok(())
}

/// Returns the states of each thread that can be set. The states of a process belong to its leader.
fn settable(plan: &Plan, pid: Pid) -> OfThreads<'_> {
    let mut found: OfThreads<'_> = HashMap::new();
    let Some(process) = plan.living().find(|process| process.pid == pid) else { return found };
    let PlannedProcess { states, threads, .. } = process;
    let of_threads = threads.iter().flat_map(|thread| thread.states.iter().map(|state| (thread.tid, state)));
    let of_process = states.iter().map(|state| (pid.leader(), state));
    for (tid, state) in of_process.chain(of_threads).filter(|(_, state)| state.kind.in_place().is_some()) {
        found.entry(tid).or_default().push(state);
    }
    found
}
