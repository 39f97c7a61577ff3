//! The list of the pages in benches/results, with their titles.
//!
//! Owns: the list.
//! Does not: interpret the pages.

use std::fmt::Write as _;
use std::path::Path;

use super::rows::read;
use crate::failure::Failure;

const FOLDER: &str = "benches/results";
/// The page that contains the list.
const OWN: &str = "RESULTS.md";

pub(super) fn list(root: &Path) -> Result<String, Failure> {
    let folder = root.join(FOLDER);
    let failed = |source| Failure::Read { path: folder.clone(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let is_page = |name: &&String| name.ends_with(".md") && *name != OWN;
    let mut text = String::new();
    for name in names.iter().filter(is_page) {
        let page = read(&folder.join(name))?;
        let title = page.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(name);
        let stem = name.trim_end_matches(".md");
        let rows: Vec<String> = names
            .iter()
            .filter(|other| other.starts_with(stem) && !other.ends_with(".md"))
            .map(|other| format!("[{other}]({other})"))
            .collect();
        let rows =
            if rows.is_empty() { String::new() } else { format!(" (rows and plots: {})", rows.join(", ")) };
        let _ = writeln!(text, "- [{title}]({name}){rows}");
    }
    Ok(text)
}
