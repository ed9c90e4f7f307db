//! The end of a page key while a watch is open.

use std::pin::pin;
use std::sync::Mutex;

use futures::FutureExt as _;
use tokio::time::Instant;

use super::*;

const LIFETIME: Duration = Duration::from_secs(3600);

/// One key, issued to one operator, with clocks of virtual time.
struct Issued {
    ends: Instant,
    is_key_revoked: Mutex<bool>,
    is_operator_revoked: Mutex<bool>,
    keys: watch::Sender<()>,
    operators: watch::Sender<()>,
}

impl Issued {
    fn new() -> Arc<Self> {
        let ends = Instant::now() + LIFETIME;
        let (is_key_revoked, is_operator_revoked, keys, operators) = <_>::default();
        Arc::new(Self { ends, is_key_revoked, is_operator_revoked, keys, operators })
    }

    fn access(self: &Arc<Self>) -> Access {
        Access::certificates(self.clone(), 1).with_pages(self.clone())
    }

    fn revoke_key(&self) {
        *self.is_key_revoked.lock().unwrap() = true;
        self.keys.send_replace(());
    }

    fn revoke_operator(&self) {
        *self.is_operator_revoked.lock().unwrap() = true;
        self.operators.send_replace(());
    }
}

impl Operators for Issued {
    fn find(&self, _: &Certificate) -> Option<Caller> {
        None
    }

    fn role(&self, serial: &str, name: &str) -> Option<Role> {
        let is_known = (serial, name) == ("7", "ada") && !*self.is_operator_revoked.lock().unwrap();
        is_known.then_some(Role::Edit)
    }

    fn revoked(&self) -> watch::Receiver<()> {
        self.operators.subscribe()
    }
}

impl PageKeys for Issued {
    fn holder(&self, key: &str) -> Option<PageKeyHolder> {
        let left = self.ends.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        let is_valid = key == "key" && !*self.is_key_revoked.lock().unwrap();
        let (name, serial, role) = ("ada".to_owned(), Some("7".to_owned()), Role::Edit);
        is_valid.then(|| PageKeyHolder { name, serial, role, ends: Timestamp::now() + left })
    }

    fn revoked(&self) -> watch::Receiver<()> {
        self.keys.subscribe()
    }
}

#[tokio::test(start_paused = true)]
async fn watch_ends_when_its_page_key_expires() {
    let issued = Issued::new();
    let start = Instant::now();
    let ended = issued.access().until_key_ends(Some("Bearer key"));
    tokio::time::timeout(2 * LIFETIME, ended).await.unwrap();
    let lasted = start.elapsed();
    assert!(lasted >= LIFETIME && lasted < LIFETIME + Duration::from_secs(1), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn watch_ends_when_its_page_key_or_operator_is_revoked() {
    for revoke in [Issued::revoke_key, Issued::revoke_operator] {
        let issued = Issued::new();
        let start = Instant::now();
        let mut ended = pin!(issued.access().until_key_ends(Some("Bearer key")));
        assert_eq!(ended.as_mut().now_or_never(), None);
        // The revocation of another key or operator ends nothing.
        issued.keys.send_replace(());
        assert_eq!(ended.as_mut().now_or_never(), None);
        issued.operators.send_replace(());
        assert_eq!(ended.as_mut().now_or_never(), None);
        revoke(&issued);
        ended.await;
        assert_eq!(start.elapsed(), Duration::ZERO, "not only when the key expires");
    }
}
