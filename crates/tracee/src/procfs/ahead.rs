//! Files of `/proc` that a crew reads while the tracer does something else.
//!
//! Owns: which of them have been read, and what they said.
//! Invariants: each is told once, as it was after the list was posted; nobody waits for anybody: what is not ready the
//! tracer reads itself.
//! Does not: open files, or parse.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::files::read_whole;
use crate::crew::{Crew, Work};

/// What a crew is to read in the next pause, and what it reads in this one.
#[derive(Debug, Default)]
pub struct ReadAhead {
    next: Option<Arc<List>>,
    now: Option<Arc<List>>,
}

/// Open files, to be read once.
#[derive(Debug)]
struct List {
    places: Vec<Place>,
    /// The first so many have not been begun. From the end, since the tracer begins with the first.
    left: AtomicUsize,
}

#[derive(Debug)]
struct Place {
    file: Arc<File>,
    answer: Mutex<Answer>,
}

#[derive(Debug)]
enum Answer {
    /// Nobody has read it; memory to read it into.
    Open(Vec<u8>),
    Given(Vec<u8>),
    /// It was told, or could not be read. Memory is given back outside of the pause.
    Over(Vec<u8>),
}

impl ReadAhead {
    /// Lists open files before a pause, with memory of some bytes for each.
    pub fn prepare(&mut self, files: impl Iterator<Item = Arc<File>>, room: usize) {
        self.next = Some(List::of(files, room));
        self.now = None;
    }

    /// Has a crew begin to read them.
    pub fn begin(&mut self, crew: &Crew) {
        self.now = self.next.take();
        if let Some(list) = &self.now {
            crew.post(Arc::clone(list) as Arc<dyn Work>);
        }
    }

    /// Gives what a file said in exchange for some memory, if it has been read; it will not be from now on.
    pub fn take(&self, index: usize, into: &mut Vec<u8>) -> bool {
        self.now.as_ref().is_some_and(|list| list.take(index, into))
    }

    /// Forgets all lists.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

impl List {
    fn of(files: impl Iterator<Item = Arc<File>>, room: usize) -> Arc<Self> {
        let place = |file| Place { file, answer: Mutex::new(Answer::Open(Vec::with_capacity(room))) };
        let places: Vec<Place> = files.map(place).collect();
        Arc::new(Self { left: AtomicUsize::new(places.len()), places })
    }

    fn take(&self, index: usize, into: &mut Vec<u8>) -> bool {
        let Some(Ok(mut answer)) = self.places.get(index).map(|place| place.answer.try_lock()) else {
            return false;
        };
        let was_given = matches!(*answer, Answer::Given(_));
        let (Answer::Open(bytes) | Answer::Given(bytes) | Answer::Over(bytes)) = &mut *answer;
        let mut bytes = std::mem::take(bytes);
        if was_given {
            std::mem::swap(&mut bytes, into);
        }
        *answer = Answer::Over(bytes);
        was_given
    }
}

impl Work for List {
    fn step(&self) -> bool {
        let claim = |left: usize| left.checked_sub(1);
        let Ok(left) = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) else {
            return false;
        };
        let place = &self.places[left - 1];
        // The tracer is at it.
        let Ok(mut answer) = place.answer.try_lock() else { return true };
        if let Answer::Open(bytes) = &mut *answer {
            let mut bytes = std::mem::take(bytes);
            *answer = match read_whole(&place.file, &mut bytes) {
                Ok(()) => Answer::Given(bytes),
                // Whoever needs it will see why.
                Err(_) => Answer::Over(bytes),
            };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_told_once_and_what_was_taken_first_is_not_read() {
        let open = |name: &str| Arc::new(File::open(format!("/proc/self/{name}")).unwrap());
        let files = ["comm", "personality", "cgroup"].map(open);
        let list = List::of(files.into_iter(), 16);
        let mut told = Vec::new();
        assert!(!list.take(0, &mut told));
        while list.step() {}
        assert!(list.take(1, &mut told));
        assert_eq!(told, std::fs::read("/proc/self/personality").unwrap());
        assert!(!list.take(1, &mut told) && !list.take(0, &mut told) && !list.take(3, &mut told));
        assert!(list.take(2, &mut told));
        assert_eq!(told, std::fs::read("/proc/self/cgroup").unwrap());
    }
}
