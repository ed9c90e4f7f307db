//! Lists the texts that users read, and checks their words: log lines, errors, help, tables, metric
//! descriptions, fields of built-in kinds, the page, configuration files, and everything that is
//! packaged. `tests/strings` prints the list.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod shipped;

use std::fs;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use regex_lite::Regex;

use super::sources::{File, is_test, product};

/// The directory of the page's files.
const PAGE: &str = "crates/fleet/src/page/site";
/// The directory of the built-in kinds, whose fields `kubectl explain` describes.
const KINDS: &str = "crates/schema/src/builtin";
/// Files whose remedies are values of their own, shown apart from the problem.
const REMEDIES: [&str; 3] = ["src/check", "crates/cloud/src/check", "crates/join/src/command/advice.rs"];

/// Words of no field, as patterns between word boundaries, each with what to write instead.
const PRIVATE_WORDS: &[(&str, &str)] = &[
    ("tells?|told|telling", "report, notify, inform"),
    ("says?|said|saying", "report, or the fact itself"),
    ("hears?|heard", "receive"),
    ("anew", "again, restart, rebuild, replace"),
    ("nobody|somebody|whoever|anybody|everybody", "the actor, or the passive voice"),
    ("of which|in which case", "two sentences"),
    ("so long as|as long as it", "while"),
    (
        "(is|are|was|were|be) (not )?to (be|hold|have|do|go|come|stay|write|keep|remove|get)",
        "desired, must, will",
    ),
    ("(is|was|are|be|been) no more", "deleted, ended"),
    ("not to be had", "unavailable, timed out"),
    ("puts? back|putting back", "roll back"),
    ("(brought|brings?|bringing) (\\w+ )?into effect", "apply"),
    ("(made|makes?) to (read|reload|stop|start|go)", "the verb itself"),
    ("the door|doors?", "listener, admission"),
    ("guests?|heeds?|heeded|heeding|afar", "the noun of the glossary"),
    ("look(s|ed)? (after|through)|looking (after|through)", "maintain, check"),
    ("what is|what was|what are|who is|what there is", "the noun"),
    ("must needs|mayhap|thereby|whereof|thereof|hitherto|henceforth", "plain words"),
    ("of (now|late)", "current, recent"),
    ("is sound", "check passed"),
];

/// Texts that another program prescribes, or whose words have another meaning: the text contains
/// this fragment, and this word is right there.
const ALLOWED: &[(&str, &str)] = &[];

/// A text that a user may read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Text {
    file: String,
    line: usize,
    text: String,
}

impl Text {
    fn new(file: &str, line: usize, text: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, text: text.into() }
    }

    /// Lists what is wrong with the words.
    fn problems(&self, words: &[(Regex, &str)]) -> Vec<String> {
        let at = format!("{}:{}", self.file, self.line);
        let allowed = |word: &str| {
            ALLOWED
                .iter()
                .any(|(text, allowed)| self.text.contains(text) && word.eq_ignore_ascii_case(allowed))
        };
        let found = words.iter().filter_map(|(pattern, instead)| {
            let word = pattern.find(&self.text)?.as_str();
            let shown = self.text.replace('\n', "\\n");
            (!allowed(word)).then(|| format!("{at}: '{word}' (write: {instead}): {shown}"))
        });
        let mut found: Vec<String> = found.collect();
        let is_remedy = REMEDIES.iter().any(|path| self.file.starts_with(path));
        if !is_remedy && !hint_is_marked(&self.text) {
            found.push(format!("{at}: a remedy comes after 'hint: ': {}", self.text.replace('\n', "\\n")));
        }
        found
    }
}

/// Compiles the patterns of [`PRIVATE_WORDS`].
fn private_words() -> Vec<(Regex, &'static str)> {
    let pattern = |words: &str| Regex::new(&format!(r"(?i)\b({words})\b")).unwrap();
    PRIVATE_WORDS.iter().map(|(words, instead)| (pattern(words), *instead)).collect()
}

/// Returns whether a text that recommends a command has it after `hint: `.
fn hint_is_marked(text: &str) -> bool {
    let after = |mark: &str| text.match_indices(mark).all(|(at, _)| text[at..].starts_with("hint: "));
    let marked = after("hint:") && after("Hint:");
    let advice = ["run", "see", "use", "try"].iter().find_map(|verb| {
        ["'edgesync", "`edgesync", "'systemctl"].iter().find_map(|command| {
            let found = text.find(&format!("{verb} {command}"))?;
            (!text[..found].ends_with(char::is_alphanumeric)).then_some(found)
        })
    });
    marked && advice.is_none_or(|at| text[..at].contains("hint: "))
}

/// Returns whether a literal is a text: two words, and nothing that only programs read.
fn is_text(literal: &str) -> bool {
    let word = |word: &str| word.chars().filter(|c| c.is_alphabetic()).count() >= 2;
    let statement = [
        "SELECT ",
        "INSERT ",
        "UPDATE ",
        "DELETE ",
        "CREATE ",
        "ALTER ",
        "DROP ",
        "PRAGMA ",
        "ATTACH ",
        "BEGIN ",
        "WITH ",
        "REPLACE ",
        "VACUUM ",
        "REINDEX ",
        "ANALYZE ",
        "FROM ",
        "WHERE ",
        "AND ",
        "ORDER BY",
        "LEFT JOIN",
        "JOIN ",
        "ON CONFLICT",
    ];
    let is_statement = statement.iter().any(|start| literal.trim_start().starts_with(start));
    literal.split_whitespace().filter(|part| word(part)).count() >= 2 && !is_statement
}

/// Attributes that a walk over tokens has seen before an item.
#[derive(Clone, Copy, Default)]
struct Attributes {
    /// The item is for tests.
    test: bool,
    /// The item derives a command line: its documentation is the help.
    help: bool,
}

/// Collects the texts of a Rust file.
fn rust(file: &File) -> Vec<Text> {
    let (path, text) = file;
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut found = Vec::new();
    collect(path, tokens, false, &mut found);
    found
}

fn collect(path: &str, tokens: TokenStream, help: bool, found: &mut Vec<Text>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut attributes = Attributes::default();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                // `#![…]` has a second sign.
                let inner =
                    matches!(tokens.get(at + 1), Some(TokenTree::Punct(sign)) if sign.as_char() == '!');
                let group = at + 1 + usize::from(inner);
                if let Some(TokenTree::Group(group)) = tokens.get(group)
                    && group.delimiter() == Delimiter::Bracket
                {
                    attribute(path, group.stream(), help && !inner, &mut attributes, found);
                    at += 1 + usize::from(inner);
                }
            }
            TokenTree::Punct(sign) if sign.as_char() == ';' => attributes = Attributes::default(),
            TokenTree::Group(group) if attributes.test => {
                if group.delimiter() == Delimiter::Brace {
                    attributes = Attributes::default();
                }
            }
            TokenTree::Group(group) => {
                if group.delimiter() == Delimiter::Bracket {
                    found.extend(header(path, &group.stream()));
                }
                let is_item = group.delimiter() == Delimiter::Brace;
                collect(path, group.stream(), help || attributes.help && is_item, found);
                if is_item {
                    attributes = Attributes::default();
                }
            }
            TokenTree::Literal(literal) => {
                let line = literal.span().start().line;
                let text = syn::parse_str::<syn::LitStr>(&literal.to_string()).map(|text| text.value());
                found.extend(text.ok().filter(|text| is_text(text)).map(|text| Text::new(path, line, text)));
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
        at += 1;
    }
}

/// Reads an attribute: documentation, a condition, a derivation, or texts for the command line.
fn attribute(
    path: &str,
    tokens: TokenStream,
    help: bool,
    attributes: &mut Attributes,
    found: &mut Vec<Text>,
) {
    let text = tokens.to_string();
    let name = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    match name {
        "doc" if help => {
            let before = found.len();
            collect(path, tokens, false, found);
            // Clap omits the space after the slashes.
            found[before..].iter_mut().for_each(|text| text.text = text.text.trim().to_owned());
        }
        "cfg" | "cfg_attr" => attributes.test |= text.contains("test") && !text.contains("not"),
        "test" => attributes.test = true,
        "derive" => {
            let derives = ["Parser", "Args", "Subcommand", "ValueEnum"];
            let words = text.split(|c: char| !c.is_alphanumeric());
            attributes.help |= words.into_iter().any(|word| derives.contains(&word));
        }
        "error" | "command" | "arg" | "group" | "value" => collect(path, tokens, false, found),
        _ => {}
    }
}

/// Returns the header of a table: an array of words in upper case.
fn header(path: &str, tokens: &TokenStream) -> Option<Text> {
    let mut words = Vec::new();
    let mut line = 0;
    for token in tokens.clone() {
        match token {
            TokenTree::Literal(literal) => {
                let word = syn::parse_str::<syn::LitStr>(&literal.to_string()).ok()?.value();
                let is_upper = |c: char| c.is_ascii_uppercase() || [' ', '/', '-', '(', ')'].contains(&c);
                if word.is_empty() || !word.chars().all(is_upper) {
                    return None;
                }
                line = if words.is_empty() { literal.span().start().line } else { line };
                words.push(word);
            }
            TokenTree::Punct(sign) if sign.as_char() == ',' => {}
            _ => return None,
        }
    }
    let methods = ["GET", "POST", "PUT", "PATCH", "HEAD"];
    let is_header = words.len() >= 2 && !words.iter().any(|word| methods.contains(&&**word));
    is_header.then(|| Text::new(path, line, words.join(" | ")))
}

/// Reads the strings of a script, with `{}` for each expression in a template.
struct Script<'t> {
    path: &'t str,
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
    /// The last sign that is no space, which decides whether a slash begins a pattern.
    last: char,
    found: Vec<Text>,
}

impl<'t> Script<'t> {
    fn texts(path: &'t str, text: &'t str) -> Vec<Text> {
        let mut script = Self { path, rest: text.chars().peekable(), line: 1, last: ';', found: Vec::new() };
        script.code(false);
        script.found
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// Reads code to its end, or to the brace that closes an expression of a template.
    fn code(&mut self, nested: bool) {
        let mut depth = 0;
        while let Some(sign) = self.next() {
            match sign {
                '\'' | '"' => self.string(sign),
                '`' => self.template(),
                '/' if self.rest.peek() == Some(&'/') => {
                    while self.next().is_some_and(|sign| sign != '\n') {}
                }
                '/' if self.rest.peek() == Some(&'*') => {
                    let mut before = ' ';
                    while let Some(sign) = self.next() {
                        if before == '*' && sign == '/' {
                            break;
                        }
                        before = sign;
                    }
                }
                '/' if "(,=:[!&|?{};>".contains(self.last) => self.until('/'),
                '{' => depth += 1,
                '}' if nested && depth == 0 => return,
                '}' => depth -= 1,
                _ => {}
            }
            if !sign.is_whitespace() {
                self.last = sign;
            }
        }
    }

    /// Skips to a sign that no backslash precedes.
    fn until(&mut self, end: char) {
        while let Some(sign) = self.next() {
            if sign == '\\' {
                self.next();
            } else if sign == end {
                return;
            }
        }
    }

    fn string(&mut self, end: char) {
        let (line, mut text) = (self.line, String::new());
        while let Some(sign) = self.next().filter(|sign| *sign != end) {
            text.push(if sign == '\\' { self.next().unwrap_or(sign) } else { sign });
        }
        self.keep(line, text);
    }

    fn template(&mut self) {
        let (line, mut text) = (self.line, String::new());
        while let Some(sign) = self.next().filter(|sign| *sign != '`') {
            match sign {
                '\\' => text.push(self.next().unwrap_or(sign)),
                '$' if self.rest.peek() == Some(&'{') => {
                    self.next();
                    self.code(true);
                    text.push_str("{}");
                }
                _ => text.push(sign),
            }
        }
        self.keep(line, text);
    }

    /// Keeps texts, and words with a capital: labels.
    fn keep(&mut self, line: usize, text: String) {
        let is_label = text.starts_with(|c: char| c.is_uppercase()) && text.chars().any(char::is_lowercase);
        if is_text(&text) || is_label {
            self.found.push(Text::new(self.path, line, text));
        }
    }
}

/// Collects the texts of an HTML file: those between tags, and the attributes that are shown.
fn html(path: &str, text: &str) -> Vec<Text> {
    let pattern = Regex::new(r#">([^<>]+)<|\b(?:title|alt|placeholder|aria-label)="([^"]+)""#).unwrap();
    let lines = text.lines().zip(1..);
    let texts = lines.flat_map(|(content, line)| {
        let found = pattern.captures_iter(content).filter_map(|found| found.get(1).or(found.get(2)));
        found.map(|found| Text::new(path, line, found.as_str().trim())).collect::<Vec<_>>()
    });
    texts.filter(|text| text.text.contains(char::is_alphabetic)).collect()
}

/// Collects the texts of the page.
fn page() -> Vec<Text> {
    let mut found = Vec::new();
    for entry in fs::read_dir(edgesync_testkit::programs::root().join(PAGE)).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{PAGE}/{}", path.file_name().unwrap().to_str().unwrap());
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("js") => found.extend(Script::texts(&name, &fs::read_to_string(path).unwrap())),
            Some("html") => found.extend(html(&name, &fs::read_to_string(path).unwrap())),
            _ => {}
        }
    }
    found
}

/// Collects the descriptions of a file of built-in kinds: `@v1 Node: A machine.` and
/// `spec:2 NodeSpec # Desired state.`
fn descriptions(path: &str, text: &str) -> Vec<Text> {
    let lines = text.lines().zip(1..);
    let found = lines.filter_map(|(line, number)| {
        let field = line.starts_with(' ').then(|| line.split_once(" # ")).flatten();
        let kind =
            || line.split_once(": ").filter(|_| line.starts_with(|c: char| c == '@' || c.is_uppercase()));
        Some(Text::new(path, number, field.or_else(kind)?.1))
    });
    found.collect()
}

/// Collects the descriptions of all built-in kinds.
fn kinds() -> Vec<Text> {
    let mut found = Vec::new();
    for entry in fs::read_dir(edgesync_testkit::programs::root().join(KINDS)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let name = format!("{KINDS}/{}", path.file_name().unwrap().to_str().unwrap());
            found.extend(descriptions(&name, &fs::read_to_string(path).unwrap()));
        }
    }
    found
}

/// Returns all texts of the programs, the page and the shipped files, sorted by file and line.
fn all() -> Vec<Text> {
    let files = product().into_iter().filter(|(path, _)| !is_test(path));
    let mut found: Vec<Text> = files.flat_map(|file| rust(&file)).collect();
    found.extend(page().into_iter().chain(kinds()).chain(shipped::texts()));
    found.sort();
    found.dedup();
    found
}

#[test]
fn user_facing_strings_use_the_fields_words() {
    let (all, words) = (all(), private_words());
    assert!(all.len() > 2_000, "{} strings were found", all.len());
    let problems: Vec<String> = all.iter().flat_map(|text| text.problems(&words)).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
#[ignore = "prints the list for tests/strings"]
fn print_user_facing_strings() {
    for Text { file, line, text } in all() {
        println!("{file}:{line}: {}", text.replace('\n', "\\n"));
    }
}

#[test]
fn strings_are_found_wherever_users_read_them() {
    let text = r##"
//! A module has no help.
#[derive(Debug, Parser)]
struct Args {
    /// Show the health
    #[arg(long, help = "another help")]
    health: bool,
}
/// The documentation of another item.
#[derive(Debug, Error)]
enum Error { #[error("open {0}: not found")] Open(String) }
fn run() {
    tracing::warn!(%error, "store not writable");
    let _ = anyhow!("no such {thing}").context(format!("read {}", 1));
    families! { out; Gauge a_total = 1, "Items that wait."; }
    table(&["NAME", "LAST REPORT"]);
    let methods = ["GET", "POST"];
    let sql = "SELECT name FROM nodes";
    let key = "one-word";
}
#[cfg(test)]
mod tests { fn f() { panic!("of a test") } }
const AFTER: &str = "after the tests";
"##;
    let found = rust(&("a.rs".into(), text.into()));
    let found: Vec<(usize, &str)> = found.iter().map(|text| (text.line, &*text.text)).collect();
    assert_eq!(
        found,
        [
            (5, "Show the health"),
            (6, "another help"),
            (11, "open {0}: not found"),
            (13, "store not writable"),
            (14, "no such {thing}"),
            (15, "Items that wait."),
            (16, "NAME | LAST REPORT"),
            (16, "LAST REPORT"),
            (23, "after the tests"),
        ]
    );
}

#[test]
fn strings_of_the_page_are_found() {
    let script = "// it's a comment\nel('p', {}, 'Not known', `of ${n === 1 ? 'one node' : \"many\"} or ${f({})} more`);\n\
                  const a = b.replace(/'/g, ''), c = 'Wanted';\n/* don't */ x = 4 / 2; y = 'the last';";
    let found = Script::texts("a.js", script);
    let found: Vec<(usize, &str)> = found.iter().map(|text| (text.line, &*text.text)).collect();
    let expected =
        [(2, "Not known"), (2, "one node"), (2, "of {} or {} more"), (3, "Wanted"), (4, "the last")];
    assert_eq!(found, expected);
    let found = html("a.html", "<p class=\"a b\">Two words</p>\n<img alt=\"A node\"><b></b>");
    assert_eq!(found, [Text::new("a.html", 1, "Two words"), Text::new("a.html", 2, "A node")]);
}

#[test]
fn descriptions_of_kinds_are_found() {
    let text = "# A comment.\n@v1 Node: A machine.\n spec:2 NodeSpec # Desired state.\n name:1 str";
    let expected = [Text::new("a.txt", 2, "A machine."), Text::new("a.txt", 3, "Desired state.")];
    assert_eq!(descriptions("a.txt", text), expected);
}

#[test]
fn private_words_and_unmarked_hints_are_found() {
    let words = private_words();
    for bad in [
        "the cloud is told of it",
        "the database is made anew",
        "Nobody answers",
        "what is to be where is known",
        "files were put back",
        "a rule is no more",
        "{} objects, of which {} wait",
        "not joined: run 'edgesync join' first",
        "not joined; Hint: edgesync join",
        "not joined; hint:edgesync join",
    ] {
        assert!(!Text::new("a.rs", 1, bad).problems(&words).is_empty(), "{bad}");
    }
    for good in [
        "open database {path}: permission denied",
        "not joined; hint: edgesync join",
        "not joined; hint: run 'edgesync join' first",
        "the toldo database",
        "removals wait for 'edgesync-cloud confirm-deletions'",
    ] {
        assert_eq!(Text::new("a.rs", 1, good).problems(&words), Vec::<String>::new(), "{good}");
    }
}
