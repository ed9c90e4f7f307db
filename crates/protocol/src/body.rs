//! The JSON text of objects and patches, shared by the messages to all nodes.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use serde_json::value::RawValue;

/// The JSON text of an object on its way to nodes. Clones share the text.
#[derive(Clone)]
pub struct Body(Arc<Shared>);

/// A weak reference to a [`Body`].
#[derive(Clone, Debug)]
pub struct WeakBody(Weak<Shared>);

struct Shared {
    json: Box<RawValue>,
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Body {
    /// Creates a body from JSON text.
    ///
    /// # Errors
    /// Fails when the text is not JSON.
    pub fn new(json: String) -> serde_json::Result<Self> {
        let json = RawValue::from_string(json)?;
        Ok(Self(Arc::new(Shared { json, companion: OnceLock::new() })))
    }

    /// Returns the JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.json.get()
    }

    /// Attaches a value that is dropped with the last clone of the body. Only the first attachment
    /// counts.
    pub fn accompany(&self, companion: impl Any + Send + Sync) {
        let _ = self.0.companion.set(Box::new(companion));
    }

    /// Returns a weak reference to the text.
    #[must_use]
    pub fn downgrade(&self) -> WeakBody {
        WeakBody(Arc::downgrade(&self.0))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.as_str().len())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.json.get().len())
    }
}

impl WeakBody {
    /// Returns the body if a strong reference remains.
    #[must_use]
    pub fn upgrade(&self) -> Option<Body> {
        self.0.upgrade().map(Body)
    }

    /// Returns whether this is a reference to that text, not to an equal one.
    #[must_use]
    pub fn is(&self, body: &Body) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&body.0))
    }
}
