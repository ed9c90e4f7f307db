//! What others change in the cluster, followed by a replica.

use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use super::{ClusterRegister, Known, Task, left_out, objects};
use crate::cloud::pairing::register::member::{Member, is_member};
use crate::cloud::pairing::register::{Changed, RegisterError, Result};
use crate::cluster::{Following, News};
use crate::object::Object;

impl ClusterRegister {
    /// Follows what others change, from now on until the last handle goes. Returns once all that there is now is known.
    ///
    /// # Errors
    /// That could not be read.
    pub async fn follow(&self) -> Result<()> {
        let shared = &self.shared;
        let mut following = shared.cluster.follow(&shared.maps, &shared.namespace, objects::LABEL);
        let known = Arc::clone(&shared.known);
        while !*known.is_current.borrow() {
            if let News::Failed(why) = known.hear(&mut following).await {
                return Err(RegisterError::Unfollowed { namespace: shared.namespace.clone(), why });
            }
        }
        let task = tokio::spawn(async move {
            loop {
                known.hear(&mut following).await;
            }
        });
        *shared.following.lock().unwrap_or_else(PoisonError::into_inner) = Some(Task(task));
        Ok(())
    }

    /// Whether what is known of others is as new as the cluster, as far as that can be seen. Meanwhile what was known last
    /// is in force.
    #[must_use]
    pub fn is_current(&self) -> watch::Receiver<bool> {
        self.shared.known.is_current.subscribe()
    }
}

impl Known {
    /// Waits for something, and knows it.
    async fn hear(&self, following: &mut Following) -> News {
        let news = following.next().await;
        self.know(&news);
        let was_current = match &news {
            News::Failed(why) => {
                let was_current = self.is_current.send_replace(false);
                if was_current {
                    tracing::warn!(
                        "what is revoked elsewhere cannot be followed: what is known stays in force: {why}"
                    );
                }
                return news;
            }
            News::Complete | News::Set(_) | News::Gone(_) => self.is_current.send_replace(true),
            News::Begun | News::Listed(_) => return news,
        };
        if !was_current {
            tracing::debug!("what is revoked elsewhere is followed");
        }
        news
    }

    fn know(&self, news: &News) {
        let changed = match news {
            News::Begun => {
                self.table().begin();
                return;
            }
            News::Complete => {
                let mut changed = self.table().complete();
                // They are not kept here: something may have changed.
                changed.push(Changed::Operators);
                return self.tell(changed);
            }
            News::Failed(_) => return,
            News::Listed(object) => {
                self.put(object, |table, member| table.list(member, &object.resource_version().into()))
            }
            News::Set(object) => {
                self.put(object, |table, member| table.set(member, &object.resource_version().into()))
            }
            News::Gone(object) => {
                self.put(object, |table, member| table.gone(&member.node, &object.resource_version().into()))
            }
        };
        self.tell(changed);
    }

    /// Something of an object is known now. One that is damaged changes nothing: what was known of the name stays.
    fn put(
        &self,
        object: &Object,
        put: impl FnOnce(&mut super::Table, &Member) -> Option<Changed>,
    ) -> Option<Changed> {
        if objects::is_operator(object) {
            return Some(Changed::Operators);
        }
        if !is_member(object) {
            return None;
        }
        match Member::read(object) {
            Ok(member) => put(&mut self.table(), &member),
            Err(why) => {
                left_out(object, &why);
                self.table().keep(object.name());
                None
            }
        }
    }
}
