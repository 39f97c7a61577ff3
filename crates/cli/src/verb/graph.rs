//! The graph of a system: its components, their dependencies, and their states.
//!
//! Owns: the text in the DOT language of Graphviz.
//! Does not: draw the graph; `dot -Tsvg` does.

use std::fmt::Write as _;

use guardian::{ComponentFacts, SubjectReport};

fn colour(state: &str) -> &'static str {
    match state {
        "ready" => "palegreen",
        "starting" | "waiting" | "idle" => "lightyellow",
        "down" | "stopping" => "orange",
        "gave-up" | "failed" => "tomato",
        _ => "lightgrey",
    }
}

/// Returns a text as a string of the DOT language.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns a directed graph of the components among these subjects. An arrow leads from a component to a component that
/// it needs. A dashed arrow means that the first component currently waits for the second.
pub(super) fn text(subjects: &[SubjectReport]) -> String {
    let mut text = String::from("digraph system {\n  rankdir=LR;\n  node [shape=box, style=filled];\n");
    for subject in subjects {
        let Some(component) = &subject.component else { continue };
        let addresses =
            subject.channels.iter().map(|channel| format!("\n{} {}", channel.level, channel.local));
        let addresses: String = addresses.collect();
        let label = format!("{}\n{}, {}{addresses}", component.name, component.policy, component.state);
        let label = quoted(&label).replace('\n', "\\n");
        let (name, fill) = (quoted(&component.name), colour(&component.state));
        // Writing to a string never fails.
        let _ = writeln!(text, "  {name} [label={label}, fillcolor={fill}];");
        let _ = arrows(&mut text, component);
    }
    text.push_str("}\n");
    text
}

fn arrows(text: &mut String, component: &ComponentFacts) -> std::fmt::Result {
    component.needs.iter().try_for_each(|need| {
        let style = if component.waits_for.contains(need) { " [style=dashed]" } else { "" };
        writeln!(text, "  {} -> {}{style};", quoted(&component.name), quoted(need))
    })
}
