//! Drawing of the live view.
//!
//! Owns: the layout at each size of the terminal.
//! Invariants: text of subjects (protected process trees) is escaped. Nothing is drawn outside of the terminal, even if
//! the terminal is very small.
//! Does not: change the state of the view.

use std::time::Duration;

use model::Escaped;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};

use super::model::{Model, Page};
use super::rows::{Column, Subject};
use super::sampler::Sampler;
use super::series::{LENGTH, Second};
use super::sparkline;
use crate::print;

/// The columns in the order in which they are left out on a narrow terminal.
const LEFT_OUT: [Column; 7] =
    [Column::Deaths, Column::P50, Column::Store, Column::Age, Column::Dirty, Column::Rate, Column::State];
/// Maximum width of the name column in characters.
const NAME_MAX: usize = 32;
/// Minimum width for three adjacent sparklines, in characters.
const SPARKLINES_MIN: usize = 54;
/// Height of a large sparkline in lines, without its label.
const LARGE: u16 = 3;

/// A plotted series: its name, its value for a second, and the text form of a value.
type Plot = (&'static str, fn(&Second) -> u64, fn(u64) -> String);

const PLOTS: [Plot; 3] = [
    ("rate", |second| second.checkpoints, |value| format!("{value}/s")),
    ("pause", |second| second.pause_us, |value| print::duration(Duration::from_micros(value))),
    ("dirty", |second| second.dirty_pages, |value| format!("{value} pages/s")),
];

const HELP: [(&str, &str); 8] = [
    ("up, down, j, k", "select a subject"),
    ("enter", "show the selected subject"),
    ("esc, backspace", "back to all subjects"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("?, h", "this page"),
    ("q, Ctrl-C", "quit"),
    ("Ctrl-Z", "stop, until fg"),
];

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, sampler: &Sampler) {
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(frame.area());
    frame.render_widget(title_of(model).reversed(), title);
    match model.page {
        Page::List => list(frame, body, model, sampler),
        Page::Help => help(frame, body),
        Page::One => {
            if let Some(subject) = model.selected() {
                one(frame, body, subject, sampler);
            }
        }
    }
}

fn title_of(model: &Model) -> Line<'static> {
    let name = Column::ALL.iter().find(|(column, ..)| *column == model.column).map_or("", |one| one.1);
    let order = if model.is_reversed { ", reversed" } else { "" };
    let text = match (model.page, model.selected()) {
        (Page::One, Some(subject)) => {
            format!(" undying top: {}   esc back   q quit", Escaped(subject.name()))
        }
        (Page::Help, _) => " undying top: keys   esc back".to_owned(),
        _ => {
            let count = model.subjects.len();
            let noun = if count == 1 { "subject" } else { "subjects" };
            format!(" undying top: {count} {noun}, by {name}{order}   ? keys   q quit")
        }
    };
    Line::from(format!("{text:<width$}", width = 500))
}

/// Returns the columns that fit, with their widths. The name column receives the remaining width.
fn columns(width: usize) -> Vec<(Column, &'static str, usize)> {
    let mut columns = Column::ALL.to_vec();
    let total = |columns: &[(Column, &str, usize)]| columns.iter().map(|one| one.2 + 1).sum::<usize>();
    for column in LEFT_OUT {
        if total(&columns) <= width + 1 {
            break;
        }
        columns.retain(|one| one.0 != column);
    }
    let rest = (width + 1).saturating_sub(total(&columns));
    columns[0].2 = (columns[0].2 + rest).min(NAME_MAX);
    columns
}

fn list(frame: &mut Frame<'_>, area: Rect, model: &Model, sampler: &Sampler) {
    let width = usize::from(area.width);
    let columns = columns(width);
    let mut heading: Vec<Span<'_>> = Vec::new();
    for (column, name, width) in &columns {
        let style =
            if *column == model.column { Modifier::BOLD | Modifier::UNDERLINED } else { Modifier::BOLD };
        heading.push(Span::styled(format!("{name:<width$}", width = *width), style));
        heading.push(Span::raw(" "));
    }
    let note = note(model);
    let [head, rows, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(u16::from(note.is_some())),
    ])
    .areas(area);
    frame.render_widget(Line::from(heading), head);
    if let Some(note) = note {
        frame.render_widget(Line::from(note).fg(Color::Yellow), foot);
    }
    if model.subjects.is_empty() {
        return frame.render_widget(Line::from("no subject is or was guarded in this store"), rows);
    }
    let is_tall = width >= SPARKLINES_MIN;
    let each = if is_tall { 2 } else { 1 };
    let fit = (usize::from(rows.height) / each).max(1);
    let first = model.selected_place().saturating_sub(fit - 1);
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (place, subject) in model.subjects.iter().enumerate().skip(first).take(fit) {
        lines.push(row(subject, &columns, place == model.selected_place()));
        if is_tall {
            lines.push(small_plots(subject, sampler, width));
        }
    }
    frame.render_widget(Paragraph::new(lines), rows);
}

/// Returns the reason why the selected subject is unprotected, or the number of subjects that cannot be read.
fn note(model: &Model) -> Option<String> {
    let because =
        model.selected().and_then(|one| one.report.unprotected_because.as_ref().map(|why| (one, why)));
    match because {
        Some((subject, why)) => Some(format!(
            "{}: unprotected, because {}",
            Escaped(subject.name()),
            Escaped(&guardian::one_line(why))
        )),
        None if model.failed > 0 => Some(format!("{} subjects cannot be read", model.failed)),
        None => None,
    }
}

fn row(subject: &Subject, columns: &[(Column, &'static str, usize)], is_selected: bool) -> Line<'static> {
    let mut text = String::new();
    for (column, _, width) in columns {
        let cell = Escaped(&subject.text(*column)).to_string();
        text.push_str(&format!("{:<width$} ", shortened(&cell, *width), width = *width));
    }
    let style = if is_selected { Style::new().reversed() } else { Style::new() };
    let style = if subject.report.unprotected_because.is_some() { style.fg(Color::Red) } else { style };
    Line::styled(text, style)
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

fn small_plots(subject: &Subject, sampler: &Sampler, width: usize) -> Line<'static> {
    let labels: usize = PLOTS.iter().map(|(name, ..)| name.len() + 3).sum();
    let each = (width.saturating_sub(labels + 2)) / PLOTS.len();
    let mut spans = Vec::new();
    for (name, of, _) in PLOTS {
        let values = sampler.series.values(subject.name(), of);
        spans.push(Span::raw(format!("  {name} ")).dim());
        spans.push(Span::raw(sparkline::line(&values, each)).fg(Color::Cyan));
    }
    Line::from(spans)
}

fn one(frame: &mut Frame<'_>, area: Rect, subject: &Subject, sampler: &Sampler) {
    let facts = facts(subject);
    let is_wide = area.width >= 60;
    let lines = if is_wide { facts.len().div_ceil(2) } else { facts.len() };
    let plots = PLOTS.len() as u16 * (LARGE + 1);
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(lines as u16), Constraint::Length(plots), Constraint::Fill(1)])
            .areas(area);
    let text = |facts: &[(String, String)]| -> Vec<Line<'static>> {
        let line = |(name, value): &(String, String)| {
            Line::from(vec![Span::raw(format!("{name:<13}")).dim(), Span::raw(value.clone())])
        };
        facts.iter().map(line).collect()
    };
    if is_wide {
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(top);
        frame.render_widget(Paragraph::new(text(&facts[..lines])), left);
        frame.render_widget(Paragraph::new(text(&facts[lines..])), right);
    } else {
        frame.render_widget(Paragraph::new(text(&facts)), top);
    }
    large_plots(frame, middle, subject, sampler);
    events(frame, bottom, subject, sampler);
}

fn facts(subject: &Subject) -> Vec<(String, String)> {
    let report = &subject.report;
    let time = |us: Option<u64>| us.map_or("-".to_owned(), |us| print::duration(Duration::from_micros(us)));
    let death_now = report.facts.death_now.as_ref().map_or("-".to_owned(), |now| now.brings.to_string());
    let facts = [
        ("pid", report.pid.to_string()),
        ("state", subject.text(Column::State)),
        ("policy", report.facts.policy.clone()),
        ("incarnation", report.facts.incarnation.to_string()),
        ("restarts", report.facts.restarts.to_string()),
        ("tracker", report.facts.tracker.clone()),
        ("rate", subject.text(Column::Rate) + " Hz"),
        ("pause", format!("{}, 99 % {}", subject.text(Column::P50), subject.text(Column::P99))),
        ("longest", time(subject.figures.longest_us)),
        ("dirty", format!("{:.0} pages/s", subject.figures.dirty_pages_each_s)),
        ("written", format!("{}/s", print::bytes(subject.figures.written_bytes_each_s as u64))),
        ("store", print::bytes(report.store_bytes)),
        ("checkpoints", report.facts.checkpoints.to_string()),
        ("newest", time(report.checkpoint_age_us)),
        ("death now", death_now),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), Escaped(&value).to_string())).collect()
}

fn large_plots(frame: &mut Frame<'_>, area: Rect, subject: &Subject, sampler: &Sampler) {
    let parts = Layout::vertical([Constraint::Length(LARGE + 1); 3]).split(area);
    for ((name, of, written), part) in PLOTS.into_iter().zip(parts.iter()) {
        let values = sampler.series.values(subject.name(), of);
        let shown = &values[values.len().saturating_sub(usize::from(part.width))..];
        let most = shown.iter().copied().max().unwrap_or(0);
        let [label, plot] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(*part);
        let minutes = LENGTH.min(shown.len());
        let text = format!("{name}: at most {} in the last {minutes} s", written(most));
        frame.render_widget(Line::from(text).dim(), label);
        // The newest value is at the right edge, so missing values are filled with zeros at the left.
        let missing = usize::from(part.width).saturating_sub(shown.len());
        let data = std::iter::repeat_n(0, missing).chain(shown.iter().copied());
        frame.render_widget(Sparkline::default().data(data.collect::<Vec<u64>>()).fg(Color::Cyan), plot);
    }
}

fn events(frame: &mut Frame<'_>, area: Rect, subject: &Subject, sampler: &Sampler) {
    let count = usize::from(area.height.saturating_sub(1));
    let mut lines = vec![Line::from("last events").dim()];
    let events = sampler.events(subject.name());
    for (time, what) in events.iter().rev().take(count).rev() {
        // Only the time of day is shown, without the date.
        let clock = time.get(11..19).unwrap_or(time);
        lines.push(Line::from(format!("{clock} {}", Escaped(what))));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let mut lines: Vec<Line<'_>> =
        HELP.iter().map(|(keys, what)| Line::from(format!("{keys:<16}{what}"))).collect();
    lines.push(Line::default());
    let text = "RATE: checkpoints a second, achieved/requested. P50, P99: pause over the last 10 s. DIRTY/S: pages \
                copied a second. D: restarts by this guardian. Sparklines: one column a second, the newest at the right.";
    lines.push(Line::from(text));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}
