//! Certificates of operators in a cluster, each a ConfigMap.

use jiff::Timestamp;

use super::{ClusterRegister, Shared, TRIES, changed, left_out, objects, pause};
use crate::object_store::Failure;
use crate::register::{Changed, Result};
use edgesync_cloud_store::operators::{MAX_OPERATORS, OperatorRecord};
use edgesync_object::Object;

impl ClusterRegister {
    /// See [`super::super::Register::put_operator`]. Replicas that do this at the same moment may make a few more than there
    /// should be.
    pub(in crate::register) async fn put_operator(&self, operator: OperatorRecord) -> Result<bool> {
        let is_good = |other: &&OperatorRecord| other.revoked.is_none() && other.expires > operator.created;
        let good = self.operators().await?.iter().filter(is_good).count();
        if u32::try_from(good).is_ok_and(|good| good < MAX_OPERATORS) {
            let Shared { cluster, namespace, maps, known, .. } = &*self.shared;
            cluster.create(maps, &objects::operator_object(&operator, namespace)).await?;
            known.tell([Changed::Operators]);
            return Ok(true);
        }
        Ok(false)
    }

    pub(in crate::register) async fn operators(&self) -> Result<Vec<OperatorRecord>> {
        let mut operators = Vec::new();
        for object in self.list(&self.shared.maps, &objects::operators()).await? {
            match objects::read_operator(&object) {
                Ok(operator) => operators.push(operator),
                Err(why) => left_out(&object, &why),
            }
        }
        operators.sort_by(|one, other| {
            other.created.cmp(&one.created).then_with(|| one.serial.cmp(&other.serial))
        });
        Ok(operators)
    }

    pub(in crate::register) async fn revoke_operators(&self, which: &str, now: Timestamp) -> Result<usize> {
        let mut revoked = 0;
        for object in self.list(&self.shared.maps, &objects::operators()).await? {
            let Ok(operator) = objects::read_operator(&object) else { continue };
            if operator.revoked.is_none() && (operator.serial == which || operator.name == which) {
                revoked += usize::from(self.revoke_operator(object, now).await?);
            }
        }
        if revoked > 0 {
            self.mark().await;
            self.shared.known.tell([Changed::Operators]);
        }
        Ok(revoked)
    }

    /// Revokes a certificate; false if it is no more, or revoked meanwhile.
    async fn revoke_operator(&self, object: Object, now: Timestamp) -> Result<bool> {
        let Shared { cluster, namespace, maps, .. } = &*self.shared;
        let name = object.name().to_owned();
        let mut found = Some(object);
        for attempt in 0..TRIES {
            pause(attempt).await;
            let Some(mut object) = found else { return Ok(false) };
            let operator = objects::read_operator(&object).map_err(|why| self.damaged(maps, &name, why))?;
            if operator.revoked.is_some() {
                return Ok(false);
            }
            objects::write_operator(&mut object, &OperatorRecord { revoked: Some(now), ..operator });
            match changed(cluster.replace(maps, &object).await) {
                Ok(_) => return Ok(true),
                Err(Failure::Conflict(_)) => found = cluster.get(maps, namespace, &name).await?,
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(self.contended(maps, &name))
    }

    pub(super) async fn prune_operators(&self, before: Timestamp) -> Result<usize> {
        let mut forgotten = 0;
        for object in self.list(&self.shared.maps, &objects::operators()).await? {
            if objects::read_operator(&object).is_ok_and(|operator| operator.expires < before) {
                forgotten += usize::from(self.delete(&self.shared.maps, &object).await?);
            }
        }
        Ok(forgotten)
    }
}
