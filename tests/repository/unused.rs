//! Finds public items that no other crate uses: rustc looks for dead code within one crate only.
//!
//! An item counts as used if its name occurs anywhere in another package, its tests included. A
//! type also counts as used if it occurs in the signature of a public item of its crate. Common
//! names hide unused items; every item that is listed is unused.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::sources::{FOR_TESTS, File, below, is_test, packages};

/// Keywords that begin an item, after `pub`.
const ITEMS: [&str; 9] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "mod"];
/// Qualifiers that may precede the keyword.
const QUALIFIERS: [&str; 4] = ["const", "async", "unsafe", "extern"];
/// Crates with users outside of this workspace.
const PUBLISHED: [&str; 1] = ["cel"];

/// Collects the identifiers of a file.
fn words(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => words(group.stream(), found),
            TokenTree::Ident(word) => drop(found.insert(word.to_string())),
            _ => {}
        }
    }
}

/// A public item: its name, whether it is a type, and the identifiers of its signature or
/// definition.
struct Public {
    name: String,
    is_type: bool,
    signature: BTreeSet<String>,
}

/// Returns the items that are `pub`, without those for tests.
fn public_items(tokens: TokenStream) -> Vec<Public> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    let mut at = 0;
    let mut skip_next_item = false;
    while at < tokens.len() {
        match &tokens[at] {
            // An attribute: `#` and a group in brackets.
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                if let Some(TokenTree::Group(group)) = tokens.get(at + 1)
                    && group.delimiter() == Delimiter::Bracket
                {
                    let text = group.stream().to_string();
                    skip_next_item |=
                        text.starts_with("cfg") && (text.contains("test") || text.contains("feature"));
                    at += 1;
                }
            }
            TokenTree::Ident(word) if *word == "pub" && !skip_next_item => {
                found.extend(item(&tokens[at + 1..]));
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                if !skip_next_item {
                    found.extend(public_items(group.stream()));
                }
                skip_next_item = false;
            }
            TokenTree::Punct(sign) if sign.as_char() == ';' => skip_next_item = false,
            _ => {}
        }
        at += 1;
    }
    found
}

/// Parses the item after `pub`; `None` for a field, a re-export or restricted visibility.
fn item(tokens: &[TokenTree]) -> Option<Public> {
    let word = |at: usize| match tokens.get(at)? {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    };
    let mut at = 0;
    // `const fn` is a function, `const NAME` a constant.
    while QUALIFIERS.contains(&word(at)?.as_str())
        && word(at + 1).is_some_and(|next| ITEMS.contains(&next.as_str()))
    {
        at += 1;
    }
    let (kind, name) = (word(at)?, word(at + 1)?);
    if !ITEMS.contains(&kind.as_str()) {
        return None;
    }
    let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind.as_str());
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(sign) => sign.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    let rest = &tokens[at + 2..];
    let length =
        rest.iter().position(ends).map_or(rest.len(), |end| end + usize::from(is_type)).min(rest.len());
    let mut signature = BTreeSet::new();
    words(rest[..length].iter().cloned().collect(), &mut signature);
    signature.remove(&name);
    Some(Public { name, is_type, signature })
}

/// Collects the tokens after `type NAME =`: associated types are as visible as the traits they
/// implement.
fn associated_types(tokens: TokenStream, found: &mut BTreeSet<String>) {
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => associated_types(group.stream(), found),
            TokenTree::Ident(word) if word == "type" => {
                let until =
                    |token: &TokenTree| !matches!(token, TokenTree::Punct(sign) if sign.as_char() == ';');
                words(tokens.by_ref().skip(1).take_while(until).collect(), found);
            }
            _ => {}
        }
    }
}

fn parsed((path, text): &File) -> TokenStream {
    text.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn unused(packages: &BTreeMap<String, Vec<File>>) -> Vec<String> {
    let mut named: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (package, files) in packages {
        let found = named.entry(package).or_default();
        files.iter().for_each(|file| words(parsed(file), found));
    }
    let mut unused = Vec::new();
    for (package, files) in packages {
        if FOR_TESTS.contains(&package.as_str()) || PUBLISHED.contains(&package.as_str()) {
            continue;
        }
        let items: Vec<(&str, Public)> = files
            .iter()
            .filter(|(path, _)| !path.ends_with("/main.rs") && !is_test(path) && !path.contains("/model"))
            .flat_map(|file| public_items(parsed(file)).into_iter().map(|item| (file.0.as_str(), item)))
            .collect();
        let of_others =
            |name: &str| named.iter().any(|(other, words)| other != package && words.contains(name));
        let mut associated = BTreeSet::new();
        files.iter().for_each(|file| associated_types(parsed(file), &mut associated));
        let in_signature = |name: &str| {
            associated.contains(name) || items.iter().any(|(_, item)| item.signature.contains(name))
        };
        let is_used = |item: &Public| of_others(&item.name) || item.is_type && in_signature(&item.name);
        let left = items.iter().filter(|(_, item)| !is_used(item));
        unused.extend(left.map(|(path, item)| format!("{path}: {}", item.name)));
    }
    unused
}

#[test]
fn public_items_are_used_by_another_package() {
    let mut packages = packages();
    let programs = ["src/main.rs", "crates/cloud/src/main.rs", "crates/demo/src/main.rs"];
    let programs =
        packages.values().flatten().filter(|(path, _)| programs.contains(&path.as_str())).cloned().collect();
    packages.insert("programs".to_owned(), programs);
    for others in ["tests", "benches", "packaging"] {
        packages.insert(others.to_owned(), below(others));
    }
    let unused = unused(&packages);
    assert!(unused.is_empty(), "make them pub(crate), or delete them:\n{}", unused.join("\n"));
}

#[test]
fn unused_public_items_are_found() {
    let text = "pub struct Taken; pub struct Shown; pub struct Left { pub field: Shown } impl Taken { pub const fn taken() {} pub fn left() {} }\n\
                pub const LEFT: u8 = 1; pub(crate) fn own() {} pub use other::Thing; pub mod inner { pub fn deep() {} }\n\
                #[cfg(test)] mod tests { pub fn helper() {} } #[cfg(any(test, feature = \"x\"))] pub fn hook() {}";
    let packages = BTreeMap::from([
        ("a".to_owned(), vec![("a.rs".to_owned(), text.to_owned())]),
        (
            "b".to_owned(),
            vec![("b.rs".to_owned(), "fn f() { a::Taken::taken(); a::inner::x(); }".to_owned())],
        ),
    ]);
    assert_eq!(unused(&packages), ["a.rs: Left", "a.rs: left", "a.rs: LEFT", "a.rs: deep"]);
}

#[test]
fn no_lint_against_dead_code_is_turned_off() {
    let turns_off = |file: &File| {
        let mut found = BTreeSet::new();
        words(parsed(file), &mut found);
        found.contains("dead_code")
    };
    let files = ["src", "crates", "tests", "benches"].into_iter().flat_map(below);
    let found: Vec<String> = files.filter(turns_off).map(|(path, _)| path).collect();
    assert!(found.is_empty(), "delete what nothing uses:\n{}", found.join("\n"));
    let attribute = "#[allow(dead_code)] fn f() {}".to_owned();
    assert!(turns_off(&("a.rs".to_owned(), attribute)), "the attribute is found");
}
