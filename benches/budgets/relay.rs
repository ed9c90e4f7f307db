//! A TCP relay to the broker that can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A relay; down at first.
pub(crate) struct Relay {
    port: u16,
    to: u16,
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
    carried: Arc<AtomicU64>,
}

impl Relay {
    /// Creates a relay to a port of this machine.
    pub(crate) fn new(port: u16, to: u16) -> Self {
        Self { port, to, open: Arc::default(), carried: Arc::default() }
    }

    /// Returns the relay's own port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the bytes carried in both directions.
    pub(crate) fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }

    /// Accepts connections from now on.
    pub(crate) fn up(&self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", self.port))?;
        *self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Vec::new());
        let (open, to, carried) = (Arc::clone(&self.open), self.to, Arc::clone(&self.carried));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let mut open = open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let Some(streams) = open.as_mut() else { return };
                let Ok(other) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                for one in [&stream, &other] {
                    let _ = one.set_nodelay(true);
                    streams.extend(one.try_clone());
                }
                copy(&stream, &other, &carried);
                copy(&other, &stream, &carried);
            }
        });
        Ok(())
    }

    /// Closes all connections, and accepts no more.
    pub(crate) fn down(&self) {
        let streams = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        for stream in streams.into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread, so that it ends.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.down();
    }
}

fn copy(from: &TcpStream, to: &TcpStream, carried: &Arc<AtomicU64>) {
    let carried = Arc::clone(carried);
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            carried.fetch_add(length as u64, Ordering::Relaxed);
            if to.write_all(buffer.get(..length).unwrap_or_default()).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
