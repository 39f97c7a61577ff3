//! Replaces the pids and tids of a checkpoint with those of the living tree.
//!
//! Owns: the list of fields that contain a pid or tid.
//! Invariants: a number that is not in the map stays the same.
//! Does not: change payloads of kinds (the code for one sort of kernel object). A kind whose payload contains another pid
//! refuses the operation, unless it can be set in a living process.

use std::collections::HashMap;

use model::{Pid, Tid};

use crate::restore::plan::Plan;

/// Returns the present number for a pid or tid of the checkpoint.
pub(super) fn present_number(numbers: &HashMap<Pid, Pid>, number: i32) -> i32 {
    numbers.get(&Pid(number)).map_or(number, |present| present.get())
}

pub(super) fn renumber(plan: &mut Plan, numbers: &HashMap<Pid, Pid>) {
    let present = |number: i32| present_number(numbers, number);
    for process in &mut plan.processes {
        process.pid = Pid(present(process.pid.get()));
        let message = &mut process.message;
        for number in [&mut message.pid, &mut message.parent, &mut message.group, &mut message.session] {
            *number = present(*number);
        }
        message.foreground = message.foreground.map(present);
        message.threads.iter_mut().for_each(|tid| *tid = present(*tid));
        process.threads.iter_mut().for_each(|thread| thread.tid = Tid(present(thread.tid.get())));
    }
    for (_, envelope) in &mut plan.envelopes {
        envelope.holder.0 = Pid(present(envelope.holder.0.get()));
    }
}
