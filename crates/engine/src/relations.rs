//! Determines which process creates which other process, so that each process starts in its session.
//!
//! Owns: the choice of the creator of each process, and the ids of sessions and process groups whose leader has
//! ended.
//! Invariants: no function reads or changes the system. A checkpoint and a restore use the same rules: a checkpoint
//! is refused if a restore could not create the tree.
//! Does not: create processes; `restore::tree` does.
//!
//! A process inherits its session from the process that calls clone(2). With CLONE_PARENT, the new process gets the
//! parent of the caller as its parent. If the parent of a process is outside the session of the process, a session
//! member with the same parent creates the process with CLONE_PARENT. If the session leader has ended, the restore
//! creates a placeholder: a temporary process with the pid of the leader.

use std::collections::{HashMap, HashSet};

use model::Pid;

/// The parent, process group and session of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Relation {
    pub(crate) pid: Pid,
    pub(crate) parent: Pid,
    pub(crate) group: Pid,
    pub(crate) session: Pid,
}

/// Which process creates a given process, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Birth {
    /// The parent, before the parent leaves its first session with setsid(2).
    EarlyChild,
    /// The parent, in its final session.
    Child,
    /// The leader of the session of the process. The leader is a child of the same parent.
    Sibling,
    /// A placeholder for the dead leader of the session. The placeholder is a child of the same parent.
    Placeholder,
}

/// The reason why no process can create a given process in its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Homeless {
    /// The session leader is in the tree, but is neither the parent of the process nor a child of this parent.
    LeaderElsewhere,
    /// The session leader has ended, and session members that need a placeholder have different parents.
    SeveralParents,
}

/// The [`Birth`] of every process except the roots.
#[derive(Debug, Default)]
pub(crate) struct Births {
    of: HashMap<Pid, Birth>,
    /// Processes without a possible birth, each with the reason.
    pub(crate) homeless: Vec<(Pid, Homeless)>,
    /// Sessions whose leader has ended, each with the parent that the placeholder gets.
    pub(crate) dead_sessions: Vec<(Pid, Pid)>,
    /// Process groups whose leader has ended, each with one member. Ids in `dead_sessions` are left out.
    pub(crate) dead_groups: Vec<(Pid, Pid)>,
}

impl Births {
    /// Determines the birth of each process. In `relations`, parents must precede their children.
    pub(crate) fn of(relations: &[Relation]) -> Self {
        let mut births = Self::default();
        let by_pid: HashMap<Pid, &Relation> = relations.iter().map(|one| (one.pid, one)).collect();
        // The session in which each process starts; pid 0 for the first session of a root that leads a session.
        let mut born_in = HashMap::new();
        for one in relations {
            let Some(parent) = by_pid.get(&one.parent) else {
                born_in.insert(one.pid, if one.session == one.pid { Pid(0) } else { one.session });
                continue;
            };
            let early = born_in.get(&parent.pid).copied().unwrap_or(Pid(0));
            let (birth, session) = births.find(one, parent, early, &by_pid);
            births.of.insert(one.pid, birth);
            born_in.insert(one.pid, session);
        }
        births.find_dead_groups(relations, &by_pid);
        births
    }

    /// Returns the birth of a process; [`Birth::Child`] for a root and for an unknown process.
    pub(crate) fn birth(&self, pid: Pid) -> Birth {
        self.of.get(&pid).copied().unwrap_or(Birth::Child)
    }

    fn find(
        &mut self,
        one: &Relation,
        parent: &Relation,
        early: Pid,
        by_pid: &HashMap<Pid, &Relation>,
    ) -> (Birth, Pid) {
        if one.session == one.pid || one.session == parent.session {
            return (Birth::Child, parent.session);
        }
        if one.session == early {
            return (Birth::EarlyChild, early);
        }
        if let Some(leader) = by_pid.get(&one.session) {
            if leader.parent != one.parent {
                self.homeless.push((one.pid, Homeless::LeaderElsewhere));
            }
            return (Birth::Sibling, one.session);
        }
        match self.dead_sessions.iter().find(|(session, _)| *session == one.session) {
            Some((_, known)) if *known != one.parent => {
                self.homeless.push((one.pid, Homeless::SeveralParents));
            }
            Some(_) => {}
            None => self.dead_sessions.push((one.session, one.parent)),
        }
        (Birth::Placeholder, one.session)
    }

    fn find_dead_groups(&mut self, relations: &[Relation], by_pid: &HashMap<Pid, &Relation>) {
        let mut known: HashSet<Pid> = self.dead_sessions.iter().map(|(session, _)| *session).collect();
        // If the leader of a root's group is outside the tree, the restoring process's group replaces this group.
        known.extend(relations.iter().filter(|one| !by_pid.contains_key(&one.parent)).map(|root| root.group));
        for one in relations {
            if !by_pid.contains_key(&one.group) && known.insert(one.group) {
                self.dead_groups.push((one.group, one.pid));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(rows: &[[i32; 4]]) -> Vec<Relation> {
        let relation = |[pid, parent, group, session]: [i32; 4]| Relation {
            pid: Pid(pid),
            parent: Pid(parent),
            group: Pid(group),
            session: Pid(session),
        };
        rows.iter().copied().map(relation).collect()
    }

    #[test]
    fn sessions_are_inherited_where_they_can_be() {
        // Process 10 leads session 10. Process 12 created process 11, then left session 10. Process 13 is in
        // session 12.
        let births =
            Births::of(&tree(&[[10, 1, 10, 10], [12, 10, 12, 12], [11, 12, 10, 10], [13, 12, 12, 12]]));
        assert_eq!(births.birth(Pid(12)), Birth::Child);
        assert_eq!(births.birth(Pid(11)), Birth::EarlyChild);
        assert_eq!(births.birth(Pid(13)), Birth::Child);
        assert!(
            births.homeless.is_empty() && births.dead_sessions.is_empty() && births.dead_groups.is_empty()
        );
    }

    #[test]
    fn an_orphan_is_born_by_the_leader_of_its_session() {
        let births = Births::of(&tree(&[[10, 1, 10, 10], [12, 10, 12, 12], [13, 10, 12, 12]]));
        assert_eq!(births.birth(Pid(13)), Birth::Sibling);
        let deep = [[10, 1, 10, 10], [11, 10, 10, 10], [12, 11, 12, 12], [13, 10, 12, 12]];
        assert_eq!(Births::of(&tree(&deep)).homeless, [(Pid(13), Homeless::LeaderElsewhere)]);
    }

    #[test]
    fn dead_leaders_have_a_placeholder() {
        let rows = [[10, 1, 10, 10], [12, 10, 20, 20], [13, 10, 21, 20], [14, 12, 20, 20], [15, 10, 30, 10]];
        let births = Births::of(&tree(&rows));
        assert_eq!(births.birth(Pid(12)), Birth::Placeholder);
        assert_eq!(births.birth(Pid(13)), Birth::Placeholder);
        assert_eq!(births.birth(Pid(14)), Birth::Child);
        assert_eq!(births.dead_sessions, [(Pid(20), Pid(10))]);
        assert_eq!(births.dead_groups, [(Pid(21), Pid(13)), (Pid(30), Pid(15))]);
        let rows = [[10, 1, 10, 10], [12, 10, 20, 20], [14, 12, 14, 14], [15, 14, 20, 20], [16, 14, 20, 20]];
        assert!(Births::of(&tree(&rows)).homeless.is_empty());
        let rows = [[10, 1, 10, 10], [11, 10, 10, 10], [12, 10, 20, 20], [13, 11, 20, 20]];
        assert_eq!(Births::of(&tree(&rows)).homeless, [(Pid(13), Homeless::SeveralParents)]);
    }

    #[test]
    fn a_session_and_a_group_around_the_tree_are_the_restorers() {
        let births = Births::of(&tree(&[[10, 1, 5, 5], [11, 10, 5, 5], [12, 11, 12, 12], [13, 12, 5, 5]]));
        assert_eq!(births.birth(Pid(13)), Birth::EarlyChild);
        assert!(births.dead_sessions.is_empty() && births.dead_groups.is_empty());
    }
}
