//! A Rust file as a flat list of tokens with their line numbers.
//!
//! Owns: the flattening, and the line at which the statement around a token starts.
//! Invariants: the list contains the tokens inside macros and attributes, which a syntax tree does not contain. It
//! never contains comments.
//! Does not: interpret tokens; the rules do.

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

/// The kind of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// An identifier or keyword.
    Word,
    /// One character of punctuation.
    Mark,
    /// A literal with its quotes. A doc comment is also a literal.
    Literal,
    /// An opening bracket of any kind.
    Open,
    /// A closing bracket.
    Close,
}

/// A token and its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub shape: Shape,
    pub text: String,
    pub line: usize,
    /// The first line of the statement, item, field or match arm that contains the token.
    pub statement_line: usize,
}

/// Tokens that continue a statement after a closing brace.
const CONTINUATIONS: [&str; 6] = ["=", ".", "?", "else", "as", ";"];

/// Returns all tokens of the stream, in order.
pub(super) fn flatten(stream: TokenStream) -> Vec<Token> {
    let mut flat = Flattener { tokens: Vec::new() };
    flat.statements(stream);
    flat.tokens
}

/// Reports whether the tokens from `start` have exactly these texts.
pub(super) fn follows(tokens: &[Token], start: usize, texts: &[&str]) -> bool {
    tokens.get(start..start + texts.len()).is_some_and(|found| {
        found.iter().zip(texts).all(|(token, text)| token.text == *text && token.shape != Shape::Literal)
    })
}

struct Flattener {
    tokens: Vec<Token>,
}

impl Flattener {
    /// Flattens the content of braces or a whole file, which is a sequence of statements.
    fn statements(&mut self, stream: TokenStream) {
        let mut statement = None;
        let mut behind_brace = false;
        for tree in stream {
            let continues = CONTINUATIONS.contains(&tree.to_string().as_str());
            if behind_brace && !continues {
                statement = None;
            }
            let statement_line = *statement.get_or_insert_with(|| start_line(&tree));
            behind_brace = matches!(&tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
            if matches!(&tree, TokenTree::Punct(mark) if matches!(mark.as_char(), ';' | ',')) {
                statement = None;
            }
            self.push(tree, statement_line);
        }
    }

    fn push(&mut self, tree: TokenTree, statement_line: usize) {
        let line = start_line(&tree);
        let mut add = |shape, text| self.tokens.push(Token { shape, text, line, statement_line });
        match tree {
            TokenTree::Ident(word) => add(Shape::Word, word.to_string()),
            TokenTree::Literal(literal) => add(Shape::Literal, literal.to_string()),
            // The quote of a lifetime is joined with its name. Without this case, the quote would look like a separate
            // word.
            TokenTree::Punct(mark) if mark.as_char() == '\'' && mark.spacing() == Spacing::Joint => {
                add(Shape::Mark, "'".to_owned());
            }
            TokenTree::Punct(mark) => add(Shape::Mark, mark.as_char().to_string()),
            TokenTree::Group(group) => self.group(group, statement_line),
        }
    }

    fn group(&mut self, group: Group, statement_line: usize) {
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        let bracket = |shape, text: &str, line| Token { shape, text: text.to_owned(), line, statement_line };
        self.tokens.push(bracket(Shape::Open, open, group.span_open().start().line));
        if group.delimiter() == Delimiter::Brace {
            self.statements(group.stream());
        } else {
            for tree in group.stream() {
                self.push(tree, statement_line);
            }
        }
        self.tokens.push(bracket(Shape::Close, close, group.span_close().start().line));
    }
}

fn start_line(tree: &TokenTree) -> usize {
    match tree {
        TokenTree::Group(group) => group.span_open().start().line,
        other => other.span().start().line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(text: &str) -> Vec<Token> {
        flatten(text.parse().expect("test snippets are balanced"))
    }

    #[test]
    fn a_statement_starts_behind_a_semicolon_or_a_brace() {
        let tokens = flat("fn f() {\n a();\n let x =\n  b(\n  c);\n if d {}\n e();\n}");
        let line_of = |text| tokens.iter().find(|token| token.text == text).map(|token| token.statement_line);
        assert_eq!(line_of("c"), Some(3));
        assert_eq!(line_of("d"), Some(6));
        assert_eq!(line_of("e"), Some(7));
    }

    #[test]
    fn a_statement_goes_on_behind_the_braces_of_a_pattern() {
        let tokens = flat("let S {\n a } =\n b();");
        assert!(tokens.iter().any(|token| token.text == "b" && token.statement_line == 1));
    }

    #[test]
    fn texts_are_found_in_code_and_not_in_strings() {
        let tokens = flat("a.unwrap(); \"unwrap\"");
        assert!(follows(&tokens, 1, &[".", "unwrap", "("]));
        let last = tokens.len() - 1;
        assert!(!follows(&tokens, last, &["\"unwrap\""]));
        assert!(!follows(&tokens, last, &["x", "y"]));
    }
}
