//! What is wrong with a system file, as a person reads it.
//!
//! Owns: the place of a mistake, the line with a caret, the suggestion.
//! Does not: find mistakes.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// The share of letters that may differ in a suggested name: one in this many.
const LETTERS_EACH_WRONG: usize = 3;

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// Where, in bytes.
    pub place: Range<usize>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// All that is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistakes {
    /// In the order in which they were found; at least one.
    pub all: Vec<Mistake>,
    /// What was read.
    pub(super) text: String,
}

impl Mistake {
    pub(super) fn new(place: Range<usize>, what: impl Into<String>) -> Self {
        Self { place, what: what.into(), help: None }
    }

    pub(super) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

impl Mistakes {
    /// What was found in a text otherwise than by [`System::parse`](super::System::parse).
    #[must_use]
    pub fn of(text: String, all: Vec<Mistake>) -> Self {
        Self { all, text }
    }

    /// Each with the line of the file that it is in.
    #[must_use]
    pub fn shown(&self, path: &str) -> String {
        let renderer = Renderer::plain().decor_style(DecorStyle::Ascii);
        let groups = self.all.iter().map(|mistake| {
            let place = AnnotationKind::Primary.span(mistake.place.clone());
            let snippet = Snippet::source(&*self.text).path(path).annotation(place);
            let group = Level::ERROR.primary_title(&*mistake.what).element(snippet);
            match &mistake.help {
                Some(help) => renderer.render(&[group.element(Level::HELP.message(&**help))]),
                None => renderer.render(&[group]),
            }
        });
        groups.collect::<Vec<_>>().join("\n\n")
    }
}

/// A mistake that the parser has found.
pub(super) fn of_parser(error: &toml::de::Error, text: &str) -> Mistake {
    let place = error.span().unwrap_or(text.len()..text.len());
    let said = error.message();
    let Some((what, expected)) = said.split_once(", expected ") else { return Mistake::new(place, said) };
    let Some(unknown) = what.strip_prefix("unknown field `").and_then(|rest| rest.strip_suffix('`')) else {
        return Mistake::new(place, said);
    };
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let help = match suggestion(unknown, known.iter().copied()) {
        Some(meant) => format!("there is a key `{meant}`"),
        None => format!("the keys are {}", known.join(", ")),
    };
    Mistake::new(place, format!("unknown key `{unknown}`")).with_help(help)
}

/// The name that was probably meant.
pub(super) fn suggestion<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters_max = (wrong.chars().count() / LETTERS_EACH_WRONG).max(1);
    let near = known.into_iter().map(|name| (strsim::osa_distance(wrong, name), name));
    near.filter(|(letters, _)| *letters <= letters_max).min().map(|(_, name)| name)
}
