//! The imports of the sources, file by file: every `use` and every path with more than one segment, `self::`, `super::` and
//! re-exports followed to the file that defines the name. Code that is compiled for tests only is left out.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Attribute, Item, UseTree};

type Segments = Vec<String>;

/// The file of a module, and what its code names.
#[derive(Debug, Default)]
struct Source {
    file: String,
    /// Imports and paths, as they are written.
    paths: Vec<Segments>,
    /// Names that the module has from elsewhere, with the path they come from; `*` for all of a module.
    imported: Vec<(String, Segments)>,
    /// Names that the file defines.
    defined: BTreeSet<String>,
}

/// The sources as modules.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    modules: BTreeMap<Segments, Source>,
}

/// One file that needs another one, by a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    /// The file with the import, below `src`.
    pub(crate) from: String,
    /// The file that defines what is imported.
    pub(crate) to: String,
    /// What is imported, as it is written.
    pub(crate) name: String,
}

impl Sources {
    /// Reads the library below a directory, from its `lib.rs` on, without the modules of its tests.
    pub(crate) fn read(src: &Path) -> Self {
        let mut sources = Self::default();
        sources.read_module(src, &src.join("lib.rs"), &[]);
        sources
    }

    /// Sources from memory: files by their path below `src`.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut sources = Self::default();
        for (file, text) in files {
            let module = file.trim_end_matches(".rs").split('/').map(str::to_owned);
            sources.add(module.filter(|segment| segment != "lib").collect(), (*file).to_owned(), text);
        }
        sources
    }

    fn read_module(&mut self, src: &Path, file: &Path, module: &[String]) {
        let text = fs::read_to_string(file).unwrap();
        let name = file.strip_prefix(src).unwrap().to_str().unwrap().to_owned();
        for child in self.add(module.to_vec(), name, &text) {
            let mut path = module.to_vec();
            path.push(child);
            let directory = path.iter().fold(src.to_owned(), |directory, segment| directory.join(segment));
            let found = [directory.with_extension("rs"), directory.join("mod.rs")];
            let file = found.iter().find(|file| file.exists());
            self.read_module(src, file.unwrap_or_else(|| panic!("no file for {path:?}")), &path);
        }
    }

    /// Adds a file and gives the modules that it declares.
    fn add(&mut self, module: Segments, file: String, text: &str) -> Vec<String> {
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut source = Source { file, ..Source::default() };
        let mut children = Vec::new();
        source.items(&parsed.items, &mut children);
        self.modules.insert(module, source);
        children
    }

    /// All imports of one file from another.
    pub(crate) fn imports(&self) -> BTreeSet<Import> {
        let mut found = BTreeSet::new();
        for (module, source) in &self.modules {
            for path in &source.paths {
                let Some(to) = self.target(module, path) else { continue };
                if to != source.file {
                    let (from, to) = (source.file.clone(), to.to_owned());
                    found.insert(Import { from, to, name: path.join("::") });
                }
            }
        }
        found
    }

    /// The file that defines what a path means inside a module; none if it is of another crate.
    fn target(&self, module: &[String], path: &[String]) -> Option<&str> {
        let absolute = self.absolute(module, path)?;
        self.definition(&absolute, 0)
    }

    /// A path of this crate from its root on.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Segments> {
        let mut base = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
                base.extend_from_slice(rest);
                return Some(base);
            }
            first => {
                // A module below, or a name that was imported and is counted there.
                base.push(first.to_owned());
                if !self.modules.contains_key(&base) {
                    return None;
                }
                base.pop();
                base.extend_from_slice(rest);
                return Some(base);
            }
        }
        base.extend_from_slice(&rest[1..]);
        Some(base)
    }

    fn definition(&self, path: &[String], depth: usize) -> Option<&str> {
        assert!(depth < 16, "re-exports of {path:?} in a circle");
        let known = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length]))?;
        let (module, rest) = path.split_at(known);
        let source = &self.modules[module];
        let Some(name) = rest.first().filter(|name| !source.defined.contains(*name)) else {
            return Some(&source.file);
        };
        let of_name = source.imported.iter().filter(|(imported, _)| imported == name);
        let of_all = source.imported.iter().filter(|(imported, _)| imported == "*");
        for (imported, origin) in of_name.chain(of_all) {
            let Some(mut origin) = self.absolute(module, origin) else { continue };
            if imported == "*" {
                origin.push(name.clone());
            }
            let inside =
                (0..=origin.len()).rev().find(|length| self.modules.contains_key(&origin[..*length]));
            let moved = inside.is_some_and(|length| origin[..length] != *module);
            if moved && let Some(found) = self.definition(&origin, depth + 1) {
                return Some(found);
            }
        }
        Some(&source.file)
    }
}

impl Source {
    fn items(&mut self, items: &[Item], children: &mut Vec<String>) {
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            match item {
                Item::Use(item) => {
                    let mut found = Vec::new();
                    flatten(&item.tree, &mut Vec::new(), &mut found);
                    for (name, path) in found {
                        self.paths.push(path.clone());
                        self.imported.push((name, path));
                    }
                }
                Item::Mod(item) => match &item.content {
                    Some((_, items)) => self.items(items, children),
                    None => children.push(item.ident.to_string()),
                },
                item => {
                    if let Some(name) = defined(item) {
                        self.defined.insert(name);
                    }
                    self.scan(item.to_token_stream());
                }
            }
        }
    }

    /// Finds paths in any tokens, also in those of macros.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let colon =
            |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    while colon(at + 1)
                        && colon(at + 2)
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    if path.len() > 1 {
                        self.paths.push(path);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.meta.to_token_stream().to_string().contains("(test)")
    })
}

fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Each name of a `use` with its whole path.
fn flatten(tree: &UseTree, path: &mut Segments, found: &mut Vec<(String, Segments)>) {
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            flatten(&part.tree, path, found);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path, found)),
        UseTree::Glob(_) => found.push(("*".to_owned(), path.clone())),
        UseTree::Name(name) => leaf(&name.ident.to_string(), None, path, found),
        UseTree::Rename(name) => leaf(&name.ident.to_string(), Some(name.rename.to_string()), path, found),
    }
}

fn leaf(name: &str, renamed: Option<String>, path: &[String], found: &mut Vec<(String, Segments)>) {
    let mut whole = path.to_vec();
    if name != "self" || whole.is_empty() {
        whole.push(name.to_owned());
    }
    let visible = renamed.unwrap_or_else(|| whole.last().cloned().unwrap_or_default());
    found.push((visible, whole));
}

/// Groups of files that need one another, directly or by way of others.
pub(crate) fn circles(imports: &BTreeSet<Import>) -> Vec<BTreeSet<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        next.entry(&import.from).or_default().insert(&import.to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|file| (*file, reach(file, &next))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (file, others) in &reached {
        if !others.contains(file) || found.iter().any(|circle| circle.contains(*file)) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|reached| reached.contains(file));
        found.push(others.iter().filter(back).map(|other| (*other).to_owned()).collect());
    }
    found
}

fn reach<'a>(from: &str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = next.get(from).into_iter().flatten().copied().collect();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(next.get(file).into_iter().flatten());
        }
    }
    reached
}
