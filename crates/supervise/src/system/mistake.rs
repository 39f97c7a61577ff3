//! The mistakes in a system file, formatted for the operator.
//!
//! Owns: the position of a mistake, the quoted line with a caret, and the search for a similar name.
//! Does not: find mistakes.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// The length of a wrong name, divided by this number, is the maximum number of letters that may differ in a
/// suggestion.
const LETTERS_EACH_WRONG: usize = 3;

/// One mistake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The position in the text, in bytes.
    pub place: Range<usize>,
    /// The description of the mistake.
    pub what: String,
    /// The suggested correction.
    pub help: Option<String>,
}

/// All mistakes in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistakes {
    /// The mistakes in the order of detection; at least one.
    pub all: Vec<Mistake>,
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
    /// Returns mistakes that were not found by [`System::parse`](super::System::parse).
    #[must_use]
    pub fn of(text: String, all: Vec<Mistake>) -> Self {
        Self { all, text }
    }

    /// Formats all mistakes, each with the affected line of the file.
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

/// Returns the known name that is most similar to `wrong`; `None` if no name is similar enough.
pub(super) fn suggestion<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters_max = (wrong.chars().count() / LETTERS_EACH_WRONG).max(1);
    let near = known.into_iter().map(|name| (strsim::osa_distance(wrong, name), name));
    near.filter(|(letters, _)| *letters <= letters_max).min().map(|(_, name)| name)
}
