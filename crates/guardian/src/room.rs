//! How many programs a guardian can protect on this machine.
//!
//! Owns: the need of one program, and the comparison with the limits of the kernel.
//! Invariants: a limit that cannot be read counts as no limit.
//! Does not: refuse anything. A program beyond the room for rollback starts without it, and says so.

use rustix::process::{Resource, getrlimit};
use supervise::{FilesPolicy, Policy, System};

/// Descriptors of a guardian without a program.
const DESCRIPTORS_OWN: u64 = 64;
/// Descriptors of a guardian for each program with checkpoints. Most are files and pipes of the program; a program with
/// many processes needs more.
const DESCRIPTORS_EACH: u64 = 80;
/// Fanotify groups for each program whose files are rolled back: for content, and for names.
const GROUPS_EACH: u64 = 2;
/// The number of fanotify groups that the kernel allows each user.
const GROUPS_MAX: &str = "/proc/sys/fs/fanotify/max_user_groups";

/// The room for programs with checkpoints. `None` means that the kernel sets no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub(crate) descriptors: Option<u64>,
    pub(crate) groups: Option<u64>,
}

impl Room {
    /// Reads the limits. A guardian raises its limit of descriptors as far as the kernel allows.
    pub(crate) fn here() -> Self {
        let groups = std::fs::read_to_string(GROUPS_MAX).ok();
        Self {
            descriptors: getrlimit(Resource::Nofile).maximum,
            groups: groups.and_then(|text| text.trim().parse().ok()),
        }
    }

    /// Returns the number of programs for which the descriptors of one guardian suffice.
    pub(crate) fn programs(&self) -> Option<u64> {
        self.descriptors.map(|limit| limit.saturating_sub(DESCRIPTORS_OWN) / DESCRIPTORS_EACH)
    }

    /// Returns the number of programs whose files can be rolled back, of all guardians of this user.
    pub(crate) fn rolled_back(&self) -> Option<u64> {
        self.groups.map(|limit| limit / GROUPS_EACH)
    }

    fn lacks(&self, system: &System) -> Vec<String> {
        let all = system.component.values().filter(|component| component.policy == Policy::Checkpointed);
        let (mut count, mut back) = (0, 0);
        for component in all {
            count += 1;
            back += u64::from(
                component.files.as_ref().is_none_or(|files| *files.get_ref() == FilesPolicy::Rewind),
            );
        }
        let mut lacks = Vec::new();
        if let Some(room) = self.programs().filter(|room| *room < count) {
            let needed = DESCRIPTORS_OWN + count * DESCRIPTORS_EACH;
            lacks.push(format!(
                "the limit of open descriptors suffices for about {room} of {count} components with checkpoints\n\
                 help: raise the hard limit to {needed} (`ulimit -Hn`, or LimitNOFILE= of the service)"
            ));
        }
        if let Some(room) = self.rolled_back().filter(|room| *room < back) {
            let needed = back * GROUPS_EACH;
            lacks.push(format!(
                "the files of {room} of {back} components can be rolled back; the others start without it\n\
                 help: sysctl fs.fanotify.max_user_groups={needed}"
            ));
        }
        lacks
    }
}

/// Returns what this machine lacks for all components of a system, as messages with advice. A component that finds no room
/// starts nevertheless, with less protection.
#[must_use]
pub fn lacks_for(system: &System) -> Vec<String> {
    Room::here().lacks(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(components: usize, more: &str) -> System {
        let of_one = |number: usize| format!("[component.c{number}]\ncommand = [\"/bin/true\"]\n{more}\n");
        let text = format!("[system]\nname = \"s\"\n{}", (0..components).map(of_one).collect::<String>());
        System::parse(text.into_bytes()).unwrap()
    }

    #[test]
    fn a_lack_is_told_with_the_value_that_suffices() {
        let room = Room { descriptors: Some(1024), groups: Some(16) };
        assert_eq!((room.programs(), room.rolled_back()), (Some(12), Some(8)));
        let checkpointed = "policy = \"checkpointed\"";
        assert!(room.lacks(&system(8, checkpointed)).is_empty());
        assert!(room.lacks(&system(40, "")).is_empty(), "components without checkpoints need little");
        let lacks = room.lacks(&system(40, checkpointed));
        assert!(lacks[0].contains("about 12 of 40") && lacks[0].contains("limit to 3264"), "{lacks:?}");
        assert!(lacks[1].contains("8 of 40") && lacks[1].contains("max_user_groups=80"), "{lacks:?}");
        let kept = room.lacks(&system(10, "policy = \"checkpointed\"\nfiles = \"keep\""));
        assert!(kept.is_empty(), "{kept:?}");
        let wide = Room { descriptors: None, groups: None };
        assert!(wide.lacks(&system(40, checkpointed)).is_empty());
    }

    #[test]
    fn the_limits_of_this_machine_are_read() {
        let room = Room::here();
        assert!(room.programs().is_none_or(|programs| programs > 1), "{room:?}");
        if room.groups.is_none() {
            println!("unsupported: {GROUPS_MAX}");
        }
    }
}
