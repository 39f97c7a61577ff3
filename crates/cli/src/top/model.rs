//! The state of the live view, and the effect of each key on the state.
//!
//! Owns: the selection, the order of the rows, and the open page.
//! Invariants: the selection follows a subject by its name. If the subject vanishes, the row at its place is selected.
//! Does not: draw, or read keys.

use super::rows::{Column, Subject, sort};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Page {
    /// The page that lists all subjects.
    #[default]
    List,
    /// The page of the selected subject.
    One,
    /// The page that explains the keys.
    Help,
}

/// A key to which the view reacts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    Up,
    Down,
    Open,
    Back,
    NextColumn,
    Reverse,
    Help,
    Quit,
}

/// The state of the view.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) page: Page,
    pub(super) subjects: Vec<Subject>,
    pub(super) column: Column,
    pub(super) is_reversed: bool,
    selected: usize,
    /// Number of subjects that could not be read.
    pub(super) failed: usize,
}

impl Model {
    /// Replaces the subjects by a new sample.
    pub(super) fn update(&mut self, subjects: Vec<Subject>, failed: usize) {
        let name = self.selected().map(|subject| subject.name().to_owned());
        (self.subjects, self.failed) = (subjects, failed);
        self.sort(name);
    }

    fn sort(&mut self, keep: Option<String>) {
        sort(&mut self.subjects, self.column, self.is_reversed);
        let found = keep.and_then(|name| self.subjects.iter().position(|one| one.name() == name));
        self.selected = found.unwrap_or(self.selected).min(self.subjects.len().saturating_sub(1));
        if self.page == Page::One && found.is_none() {
            self.page = Page::List;
        }
    }

    pub(super) fn selected(&self) -> Option<&Subject> {
        self.subjects.get(self.selected)
    }

    pub(super) fn selected_place(&self) -> usize {
        self.selected
    }

    /// Applies a key. Returns whether the view continues.
    pub(super) fn press(&mut self, key: Key) -> bool {
        let name = self.selected().map(|subject| subject.name().to_owned());
        match key {
            Key::Quit => return false,
            Key::Back if self.page == Page::List => return false,
            Key::Back => self.page = Page::List,
            Key::Help => self.page = if self.page == Page::Help { Page::List } else { Page::Help },
            Key::Open if name.is_some() => self.page = Page::One,
            Key::Open => {}
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::Down => self.selected = (self.selected + 1).min(self.subjects.len().saturating_sub(1)),
            Key::NextColumn => {
                self.column = self.column.next();
                self.sort(name);
            }
            Key::Reverse => {
                self.is_reversed = !self.is_reversed;
                self.sort(name);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::series::AllSeries;
    use super::super::tests::report;
    use super::*;

    fn names(model: &Model) -> Vec<&str> {
        model.subjects.iter().map(Subject::name).collect()
    }

    fn model(rows: &[(&str, u64)]) -> Model {
        let mut model = Model::default();
        update(&mut model, rows);
        model
    }

    fn update(model: &mut Model, rows: &[(&str, u64)]) {
        let now = Instant::now();
        let reports = rows.iter().map(|(name, bytes)| report(name, *bytes)).collect();
        model.update(Subject::all(reports, &AllSeries::new(now), now), 0);
    }

    #[test]
    fn the_selection_follows_its_subject() {
        let mut model = model(&[("b", 1), ("a", 2), ("c", 3)]);
        assert_eq!(names(&model), ["a", "b", "c"]);
        model.press(Key::Down);
        assert_eq!(model.selected().unwrap().name(), "b");
        while model.column != Column::Store {
            model.press(Key::NextColumn);
        }
        assert_eq!(names(&model), ["c", "a", "b"]);
        assert_eq!(model.selected_place(), 2);
        model.press(Key::Reverse);
        assert_eq!((names(&model), model.selected_place()), (vec!["b", "a", "c"], 0));
    }

    #[test]
    fn a_subject_that_vanishes_closes_its_page() {
        let mut model = model(&[("a", 1), ("b", 2)]);
        model.press(Key::Down);
        model.press(Key::Open);
        assert_eq!(model.page, Page::One);
        update(&mut model, &[("a", 1)]);
        assert_eq!((model.page, model.selected().unwrap().name()), (Page::List, "a"));
        update(&mut model, &[]);
        assert!(model.selected().is_none() && model.press(Key::Open) && model.press(Key::Down));
        assert_eq!(model.page, Page::List);
    }

    #[test]
    fn back_leaves_a_page_and_then_the_view() {
        let mut model = model(&[("a", 1)]);
        model.press(Key::Open);
        assert!(model.press(Key::Back) && model.page == Page::List);
        model.press(Key::Help);
        assert_eq!(model.page, Page::Help);
        assert!(model.press(Key::Help) && model.page == Page::List);
        assert!(!model.press(Key::Back));
        assert!(!model.press(Key::Quit));
    }
}
