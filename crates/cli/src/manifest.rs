//! Manifests: splits YAML and JSON documents of files, directories and standard input into objects.
//! An error in one document does not affect the others.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use edgesync_object::yaml;

/// The largest file or input, in bytes.
pub(super) const MAX_FILE: u64 = 128 << 20;
/// File suffixes of manifests in a directory.
const SUFFIXES: [&str; 3] = ["yaml", "yml", "json"];

/// The source of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// File name; `-` for standard input.
    pub file: String,
    /// Number of the document in the file, from 1.
    pub document: usize,
    /// Number of the item in the list, from 1; `None` if the document is no list.
    pub item: Option<usize>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, document {}", shown(&self.file), self.document)?;
        match self.item {
            Some(item) => write!(f, ", item {item}"),
            None => Ok(()),
        }
    }
}

/// Returns the name of a source for people.
pub(super) fn shown(file: &str) -> &str {
    if file == "-" { "standard input" } else { file }
}

/// An object of a manifest, with `apiVersion`, `kind` and `metadata.name`.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Source of the object.
    pub origin: Origin,
    pub api_version: String,
    pub kind: String,
    /// `metadata.namespace`; empty if absent.
    pub namespace: String,
    pub name: String,
    /// The whole object, which also contains the fields above.
    pub object: Map<String, Value>,
}

/// Error of a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file or directory cannot be read.
    #[error("read {}", shown(.file))]
    Read { file: String, source: io::Error },
    /// A file is larger than the limit.
    #[error("{} is larger than {MAX_FILE} bytes; hint: split it", shown(.file))]
    TooLarge { file: String },
    /// A directory contains no manifests.
    #[error("no .yaml, .yml or .json files in {directory}")]
    Empty { directory: String },
    /// The sources contain no object.
    #[error("no objects in {0}")]
    Nothing(String),
    /// A document is neither YAML nor JSON.
    #[error("{origin}: {problem}")]
    Syntax {
        origin: Origin,
        /// Description with the line.
        problem: String,
    },
    /// A required field is missing or has a wrong type.
    #[error("{origin}: {field}: {problem}")]
    Field {
        origin: Origin,
        /// The field in JSON notation.
        field: &'static str,
        problem: &'static str,
    },
}

/// Returns the files of a `-f` argument: itself, or the manifests of a directory sorted by name.
/// Subdirectories are not entered.
///
/// # Errors
/// The path cannot be read, or contains no manifests.
pub(super) fn files(source: &str) -> Result<Vec<PathBuf>, ManifestError> {
    let failed = |error| ManifestError::Read { file: source.to_owned(), source: error };
    let path = Path::new(source);
    if source == "-" || !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
        if SUFFIXES.contains(&suffix) && path.is_file() {
            found.push(path);
        }
    }
    if found.is_empty() {
        return Err(ManifestError::Empty { directory: source.to_owned() });
    }
    found.sort();
    Ok(found)
}

/// Reads one of those files, or `input` for `-`.
///
/// # Errors
/// The file cannot be read, is not text, or is too large.
pub(super) fn read(path: &Path, input: &mut dyn Read) -> Result<String, ManifestError> {
    let file = path.display().to_string();
    let mut text = String::new();
    let read = if file == "-" {
        input.take(MAX_FILE + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|opened| opened.take(MAX_FILE + 1).read_to_string(&mut text))
    };
    match read {
        Err(source) => Err(ManifestError::Read { file, source }),
        Ok(_) if text.len() as u64 > MAX_FILE => Err(ManifestError::TooLarge { file }),
        Ok(_) => Ok(text),
    }
}

/// Parses the text of a file. It is JSON by its suffix or first character, else YAML; a `kind:
/// List` becomes its items.
pub(super) fn manifests(file: &str, text: &str) -> Vec<Result<Manifest, ManifestError>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut found = Vec::new();
    let mut add = |document: usize, parsed: Result<Value, String>| {
        let origin = Origin { file: file.to_owned(), document, item: None };
        match parsed {
            Ok(Value::Null) => {}
            Ok(value) => add_objects(origin, value, &mut found),
            Err(problem) => found.push(Err(ManifestError::Syntax { origin, problem })),
        }
    };
    if file.ends_with(".json") {
        for (index, parsed) in json_values(text).enumerate() {
            add(index + 1, parsed.map_err(|error| error.to_string()));
        }
        return found;
    }
    // Most YAML parsers accept JSON, but not concatenated values, and more slowly.
    if text.trim_start().starts_with('{')
        && let Ok(values) = json_values(text).collect::<Result<Vec<_>, _>>()
    {
        values.into_iter().enumerate().for_each(|(index, value)| add(index + 1, Ok(value)));
        return found;
    }
    for document in yaml::documents(text).filter(|document| !document.is_empty()) {
        add(document.number, document.parse().map_err(|error| error.to_string()));
    }
    found
}

fn json_values(text: &str) -> impl Iterator<Item = serde_json::Result<Value>> {
    serde_json::Deserializer::from_str(text).into_iter::<Value>()
}

/// Adds an object, or the items of a list of objects.
fn add_objects(origin: Origin, value: Value, found: &mut Vec<Result<Manifest, ManifestError>>) {
    let is_list = value.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    if !is_list || value.get("items").is_none() {
        found.push(manifest(origin, value));
        return;
    }
    let items = match value {
        Value::Object(mut list) => list.remove("items"),
        _ => None,
    };
    match items {
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                let origin = Origin { item: Some(index + 1), ..origin.clone() };
                found.push(manifest(origin, item));
            }
        }
        _ => found.push(Err(ManifestError::Field { origin, field: "items", problem: "must be a list" })),
    }
}

fn manifest(origin: Origin, value: Value) -> Result<Manifest, ManifestError> {
    let text = |pointer: &str| match value.pointer(pointer) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err("must be a string"),
    };
    let read = |pointer: &str, field: &'static str, needed: bool| {
        let problem = match text(pointer) {
            Ok(text) if !text.is_empty() || !needed => return Ok(text),
            Ok(_) => "is required",
            Err(problem) => problem,
        };
        Err(ManifestError::Field { origin: origin.clone(), field, problem })
    };
    if !value.is_object() {
        let problem = "document is not an object".to_owned();
        return Err(ManifestError::Syntax { origin, problem });
    }
    let api_version = read("/apiVersion", "apiVersion", true)?;
    let kind = read("/kind", "kind", true)?;
    let name = read("/metadata/name", "metadata.name", true)?;
    let namespace = read("/metadata/namespace", "metadata.namespace", false)?;
    let object = match value {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    Ok(Manifest { origin, api_version, kind, namespace, name, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each manifest as `item@document: kind/name`, each error as its text.
    fn lines(file: &str, text: &str) -> Vec<String> {
        let line = |found: Result<Manifest, ManifestError>| match found {
            Ok(found) => {
                let item = found.origin.item.map(|item| format!("{item}@")).unwrap_or_default();
                format!("{item}{}: {}/{}", found.origin.document, found.kind, found.name)
            }
            Err(error) => error.to_string(),
        };
        manifests(file, text).into_iter().map(line).collect()
    }

    fn config_map(name: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
    }

    #[test]
    fn documents_and_lists_are_split_into_objects() {
        let text = format!("# first\n{}---\n---\n{}", config_map("a"), config_map("b"));
        assert_eq!(lines("f.yaml", &text), ["1: ConfigMap/a", "3: ConfigMap/b"]);
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}"#;
        let list = format!(r#"{{"apiVersion":"v1","kind":"List","items":[{json},{json}]}}"#);
        assert_eq!(lines("f.json", &format!("{json}\n{list}")), ["1: Pod/p", "1@2: Pod/p", "2@2: Pod/p"]);
        assert_eq!(lines("-", &format!("{json}{json}")), ["1: Pod/p", "2: Pod/p"]);
        assert_eq!(lines("-", "{kind: Pod, apiVersion: v1, metadata: {name: p}}"), ["1: Pod/p"]);
        assert_eq!(lines("-", ""), [] as [&str; 0]);
    }

    #[test]
    fn error_names_its_document_and_others_are_parsed() {
        let text = format!(
            "kind: ConfigMap\n---\n{}---\nkind: [\n---\n- x\n---\n{}",
            config_map("7"),
            config_map("b")
        );
        let lines = lines("dir/f.yaml", &text);
        assert_eq!(lines[0], "dir/f.yaml, document 1: apiVersion: is required");
        assert_eq!(lines[1], "dir/f.yaml, document 2: metadata.name: must be a string");
        assert!(lines[2].starts_with("dir/f.yaml, document 3: line "), "{}", lines[2]);
        assert_eq!(lines[3], "dir/f.yaml, document 4: document is not an object");
        assert_eq!(lines[4], "5: ConfigMap/b");
        assert_eq!(lines.len(), 5);
        let typed = self::lines("-", "kind: ConfigMap\n");
        assert_eq!(typed, ["standard input, document 1: apiVersion: is required"]);
    }

    #[test]
    fn directory_is_read_sorted_without_other_files() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.yml", "a.yaml", "c.json", "notes.txt", "d.yaml~"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("deeper.yaml")).unwrap();
        let found = files(dir.path().to_str().unwrap()).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.yaml", "b.yml", "c.json"]);
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(files(empty.path().to_str().unwrap()), Err(ManifestError::Empty { .. })));
        assert!(matches!(files("/does/not/exist"), Err(ManifestError::Read { .. })));
    }

    #[test]
    fn non_text_file_is_refused_by_name() {
        let mut input: &[u8] = b"\xff\xfe";
        let error = read(Path::new("-"), &mut input).unwrap_err();
        assert_eq!(error.to_string(), "read standard input");
    }
}
