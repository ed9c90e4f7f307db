//! Directory, addresses and configuration files of one test.

use std::collections::{BTreeMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use tempfile::TempDir;

static USED_PORTS: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// Directory of a test, removed with it.
pub struct Site {
    directory: TempDir,
}

impl Site {
    pub fn new() -> Self {
        Self { directory: tempfile::Builder::new().prefix("edgesync-e2e-").tempdir().unwrap() }
    }

    /// Returns a path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns an unused address, reserved for the test: the loopback address belongs to this test
    /// process alone, and no port on it is returned twice. So a process may be restarted at the
    /// same address while other tests run.
    pub fn address() -> SocketAddr {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        // Process ids have 22 bits.
        let ip = Ipv4Addr::new(127, 128 + (high & 0x3f), middle, low);
        let mut used_ports = USED_PORTS.lock().unwrap();
        loop {
            let address = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
            if used_ports.insert(address.port()) {
                return address;
            }
        }
    }
}

/// A configuration: dotted keys with TOML values, followed by text.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<String, String>,
    more: String,
}

impl Settings {
    /// Sets a key; `value` is TOML, so a string has quotes.
    pub fn set(&mut self, key: &str, value: &str) -> &mut Self {
        self.values.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets a key to a string.
    pub fn text(&mut self, key: &str, value: impl ToString) -> &mut Self {
        self.set(key, &format!("{:?}", value.to_string()))
    }

    /// Removes a key, so that its default applies.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.values.remove(key);
        self
    }

    /// Returns whether a key is set to this string.
    pub fn is(&self, key: &str, value: &str) -> bool {
        self.values.get(key).is_some_and(|set| *set == format!("{value:?}"))
    }

    /// Sets the tables that follow the keys.
    pub fn tables(&mut self, more: &str) -> &mut Self {
        more.clone_into(&mut self.more);
        self
    }

    pub fn write(&self, path: &Path) {
        // Grouped into tables, as users write it.
        let mut sections: BTreeMap<&str, String> = BTreeMap::new();
        for (key, value) in &self.values {
            let (section, key) = key.split_once('.').expect("section.key");
            *sections.entry(section).or_default() += &format!("{key} = {value}\n");
        }
        let sections = sections.iter().map(|(name, lines)| format!("[{name}]\n{lines}\n"));
        std::fs::write(path, sections.collect::<String>() + &self.more).unwrap();
    }
}
