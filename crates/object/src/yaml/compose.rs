//! Builds one JSON value from the events of the YAML parser, within limits. Pure.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, StrInput, Tag};
use serde_json::{Map, Value};

use super::super::MAX_DEPTH;
use super::{YamlError, scalar};

/// Maximum number of nodes per document, including those repeated by aliases: sufficient for a
/// ConfigMap of several megabytes with many keys.
const MAX_NODES: usize = 1_000_000;
/// Maximum size of all scalars of a document in bytes, including those repeated by aliases.
const MAX_SCALAR_BYTES: usize = 64 << 20;
/// Maximum number of nodes repeated by aliases: enough for shared blocks in a manifest, too few for
/// a bomb.
const MAX_REPEATED: usize = 20_000;
/// Maximum number of aliases in a document.
const MAX_ALIASES: usize = 1_000;
/// Namespace of YAML's own tags.
const TAGS: &str = "tag:yaml.org,2002:";

/// Parses the one document of a text.
pub(super) fn compose(text: &str) -> Result<Value, YamlError> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut composer = Composer {
        parser: Parser::new_from_str_with_options(text, options),
        line: None,
        anchors: HashMap::new(),
        aliases: 0,
        repeated: 0,
        cost_so_far: Cost::default(),
    };
    composer.document().map_err(|problem| YamlError { line: composer.line, problem })
}

/// Cost of a part of a document.
#[derive(Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
}

/// Value of an anchor, and the cost of repeating it.
struct Anchored {
    value: Value,
    cost: Cost,
}

struct Composer<'a> {
    parser: Parser<'a, StrInput<'a>>,
    line: Option<usize>,
    anchors: HashMap<usize, Anchored>,
    aliases: usize,
    repeated: usize,
    cost_so_far: Cost,
}

type Composed<T> = Result<T, String>;

impl<'a> Composer<'a> {
    fn next(&mut self) -> Composed<Event<'a>> {
        match self.parser.next_event() {
            Some(Ok((event, at))) => {
                self.line = Some(at.start.line());
                Ok(event)
            }
            Some(Err(error)) => {
                self.line = Some(error.marker().line());
                Err(error.info())
            }
            None => Ok(Event::StreamEnd),
        }
    }

    fn document(&mut self) -> Composed<Value> {
        let mut found = None;
        loop {
            match self.next()? {
                Event::StreamEnd => return Ok(found.unwrap_or(Value::Null)),
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if found.is_none() => {
                    let event = self.next()?;
                    found = Some(self.node(event, MAX_DEPTH)?);
                }
                _ => return Err("more than one document".to_owned()),
            }
        }
    }

    /// Parses the value that begins with an event. `levels` is the remaining depth.
    fn node(&mut self, event: Event<'a>, levels: usize) -> Composed<Value> {
        let before = self.cost_so_far;
        let (anchor, value) = match event {
            Event::Alias(anchor) => return self.alias(anchor),
            Event::Scalar(text, style, anchor, tag) => {
                self.spend(Cost { nodes: 1, bytes: text.len() })?;
                let name = tag.as_deref().map(name_of);
                (anchor, scalar::scalar(&text, style == ScalarStyle::Plain, name.as_deref())?)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.spend(Cost { nodes: 1, bytes: 0 })?;
                (anchor, self.sequence(deeper(levels)?)?)
            }
            Event::MappingStart(_, anchor, _) => {
                self.spend(Cost { nodes: 1, bytes: 0 })?;
                (anchor, self.mapping(deeper(levels)?)?)
            }
            _ => return Err("a value is missing".to_owned()),
        };
        if anchor != 0 {
            let cost = Cost {
                nodes: self.cost_so_far.nodes - before.nodes,
                bytes: self.cost_so_far.bytes - before.bytes,
            };
            self.anchors.insert(anchor, Anchored { value: value.clone(), cost });
        }
        Ok(value)
    }

    fn alias(&mut self, anchor: usize) -> Composed<Value> {
        self.aliases += 1;
        let anchored = self.anchors.get(&anchor).ok_or("an anchor contains itself")?;
        let cost = anchored.cost;
        self.repeated += cost.nodes;
        if self.aliases > MAX_ALIASES || self.repeated > MAX_REPEATED {
            return Err("aliases expand to too much".to_owned());
        }
        self.spend(cost)?;
        self.anchors.get(&anchor).map(|anchored| anchored.value.clone()).ok_or_else(String::new)
    }

    fn spend(&mut self, cost: Cost) -> Composed<()> {
        self.cost_so_far.nodes += cost.nodes;
        self.cost_so_far.bytes += cost.bytes;
        if self.cost_so_far.nodes > MAX_NODES || self.cost_so_far.bytes > MAX_SCALAR_BYTES {
            return Err("the document is too large".to_owned());
        }
        Ok(())
    }

    fn sequence(&mut self, levels: usize) -> Composed<Value> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::Array(items)),
                event => items.push(self.node(event, levels)?),
            }
        }
    }

    fn mapping(&mut self, levels: usize) -> Composed<Value> {
        let mut fields = Map::new();
        // Keys present through a merge only; they may be given explicitly.
        let mut merged = HashSet::new();
        loop {
            let event = match self.next()? {
                Event::MappingEnd => return Ok(Value::Object(fields)),
                event => event,
            };
            let merges = is_merge(&event);
            let key = self.node(event, levels)?;
            let line = self.line;
            let event = self.next()?;
            let value = self.node(event, levels)?;
            if merges {
                merge(value, &mut fields, &mut merged)?;
                continue;
            }
            let key = scalar::key(key).ok_or("a key is not a string, number or boolean")?;
            if fields.contains_key(&key) && !merged.remove(&key) {
                self.line = line;
                return Err(format!("duplicate key {key:?}"));
            }
            fields.insert(key, value);
        }
    }
}

fn deeper(levels: usize) -> Composed<usize> {
    levels.checked_sub(1).ok_or_else(|| format!("it is nested deeper than {MAX_DEPTH} levels"))
}

/// Returns whether a key is `<<`, which merges the fields of other mappings.
fn is_merge(event: &Event<'_>) -> bool {
    match event {
        Event::Scalar(text, style, _, tag) if text == "<<" => match tag {
            Some(tag) => name_of(tag) == "merge",
            None => *style == ScalarStyle::Plain,
        },
        _ => false,
    }
}

/// Merges the fields of a mapping, or of several; earlier ones take precedence.
fn merge(from: Value, fields: &mut Map<String, Value>, merged: &mut HashSet<String>) -> Composed<()> {
    let sources = match from {
        Value::Array(sources) => sources,
        source => vec![source],
    };
    for source in sources.into_iter().rev() {
        let Value::Object(source) = source else {
            return Err("<< takes a mapping or a list of mappings".to_owned());
        };
        for (key, value) in source {
            merged.insert(key.clone());
            fields.insert(key, value);
        }
    }
    Ok(())
}

/// Returns the name of a tag without YAML's namespace. Foreign tags make a string of a scalar.
fn name_of(tag: &Tag) -> String {
    let (handle, suffix) = tag.parts();
    let whole = format!("{handle}{suffix}");
    whole.strip_prefix(TAGS).unwrap_or("str").to_owned()
}
