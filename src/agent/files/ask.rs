//! What the helper is asked: one connection for each request.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::agent::kinds::KnownKinds;
use crate::api::Role;
use crate::files::Rule;
use crate::files::wire::{Listed, MAX_FRAME, Outcome, Reply, Request};
use crate::object::ResourceVersion;
use crate::process::chain;
use crate::store::StoreError;
use crate::store::edge::{EdgeStore, Entry, ObjectRef};
use crate::sync::change::Uid;
use crate::sync::digest::BucketSet;

/// Objects that are read at once, with their bodies and without.
const PAGE: usize = 100;
const ENTRIES: usize = 500;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("the helper cannot be asked at {path}: {source} (is edgesync-files.socket enabled?)")]
    Helper { path: String, source: io::Error },
    #[error("the helper refuses: {0}")]
    Refused(String),
    #[error("the database cannot be read: {0}")]
    Store(String),
    #[error("there is no rule {0:?}")]
    NoRule(String),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(chain(&error))
    }
}

/// The objects that a rule concerns, in the order of namespace and name. Bodies are read only where labels decide.
pub(super) async fn objects(
    store: &EdgeStore,
    kinds: &KnownKinds,
    rule: &Rule,
) -> Result<Vec<Listed>, Trouble> {
    let held = store.held_kinds().await?;
    let taken: Vec<_> = held.into_iter().filter(|resource| rule.objects.takes(resource)).collect();
    let mut found = Vec::new();
    let mut take = |uid: &Uid, version: &ResourceVersion, object: &ObjectRef| {
        let ObjectRef { resource, namespace, name } = object;
        if rule.objects.names(resource, namespace, name) {
            found.push(Listed {
                uid: uid.to_string(),
                api_version: resource.api_version(),
                kind: resource.kind.clone(),
                namespace: namespace.to_string(),
                name: name.to_string(),
                version: version.as_str().to_owned(),
                sealed: kinds.seals(resource),
            });
        }
    };
    if rule.objects.selector.is_empty() && !taken.is_empty() {
        let mut after = None;
        loop {
            let page = store.inventory(BucketSet::ALL, after, ENTRIES).await?;
            for Entry { uid, version, object, .. } in &page.entries {
                if let Some(version) = version {
                    take(uid, version, object);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        found.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        return Ok(found);
    }
    for resource in taken {
        let mut after = None;
        loop {
            let page = store.list(Arc::clone(&resource), None, after, PAGE).await?;
            for item in &page.items {
                if rule.objects.selector.matches_json(&item.body) {
                    take(&item.uid, &item.version, &item.object);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

/// Asks, hands over the objects that are wanted, and waits for the outcome.
pub(super) async fn ask(socket: &Path, store: &EdgeStore, request: &Request) -> Result<Outcome, Trouble> {
    let failed = |source| Trouble::Helper { path: socket.display().to_string(), source };
    let mut stream = UnixStream::connect(socket).await.map_err(failed)?;
    let text = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
    write(&mut stream, &text).await.map_err(failed)?;
    loop {
        let frame = read(&mut stream).await.map_err(failed)?;
        match serde_json::from_slice(&frame).map_err(|error| failed(error.into()))? {
            Reply::Done(outcome) => return Ok(*outcome),
            Reply::Refused(why) => return Err(Trouble::Refused(why)),
            Reply::Want(numbers) => {
                for number in numbers {
                    let Some(listed) = request.objects.get(number) else { continue };
                    let held = store.by_uid(listed.uid.as_str().into()).await?;
                    // Another version would be said to be this one. It comes with the next request.
                    let held = held.filter(|held| held.version.as_str() == listed.version);
                    let body = held.as_ref().map_or("", |held| &held.body);
                    write(&mut stream, body.as_bytes()).await.map_err(failed)?;
                }
            }
        }
    }
}

async fn write(stream: &mut UnixStream, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&length.to_le_bytes()).await?;
    stream.write_all(frame).await
}

async fn read(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await?;
    if length > MAX_FRAME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = Vec::new();
    let read = stream.take(u64::from(length)).read_to_end(&mut frame).await?;
    if read as u64 == u64::from(length) { Ok(frame) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The rules as they are shown. What programs say of Secrets is for those who may see Secrets.
pub(super) fn show(outcome: &Outcome, role: Role) -> Value {
    let mut rules = outcome.rules.clone();
    if role != Role::Admin {
        for rule in &mut rules {
            let mut secrets = rule.objects.iter_mut().filter(|object| object.sealed).peekable();
            if secrets.peek().is_some() {
                rule.output = "it may quote Secrets: ask as root".to_owned();
            }
            secrets.for_each(|object| object.message.clear());
        }
    }
    json!({ "rules": rules })
}
