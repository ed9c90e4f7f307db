//! Checks that this program can open the database.

use super::{Check, CheckFn, DEFAULT_TIMEOUT, Examined, Finding, chain};
use crate::store::inspect::{self, Schema};
use edgesync_store::StoreError;

pub(super) const CHECK: Check = Check {
    id: "database-version",
    title: "Database version",
    needs: &["configuration"],
    limit: DEFAULT_TIMEOUT,
    examine: CheckFn::Files(examine),
};

fn examine(examined: &mut Examined) -> Finding {
    let path = examined.config().store.path;
    let shown = path.display();
    if matches!(path.try_exists(), Ok(false)) {
        return Finding::skipped(format!("{shown} does not exist yet; the agent creates it when it starts"));
    }
    match inspect::schema(&path) {
        Ok(schema) => evaluate(schema),
        Err(error @ StoreError::Foreign { .. }) => {
            Finding::failed(error.to_string(), "set store.path to another file, or move this one away")
        }
        Err(error @ StoreError::Unreleased { .. }) => Finding::warning(
            error.to_string(),
            "start the agent, which sets the database aside and salvages readable rows into a new one; the cloud resends the rest",
        ),
        Err(error @ StoreError::Corrupt(_)) => Finding::failed(
            format!("{shown}: {}", chain(&error)),
            "start the agent, which salvages readable rows, or run 'edgesync repair'",
        ),
        Err(error) => Finding::failed(format!("{shown}: {}", chain(&error)), "run the check as root"),
    }
}

fn evaluate(Schema { found, known }: Schema) -> Finding {
    if found > known {
        let message = format!("schema version {found}, this program supports versions up to {known}");
        let next_step = "install the version of edgesync that wrote it, or a newer one; this one sets the database aside when it starts and salvages readable rows into a new one, and the cloud resends the rest";
        return Finding::warning(message, next_step);
    }
    if found < known {
        return Finding::ok(format!(
            "schema version {found}; the agent migrates it to {known} when it starts"
        ));
    }
    Finding::ok(format!("schema version {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, ok, warned};

    #[test]
    fn a_newer_schema_warns_and_an_older_one_is_ok() {
        ok(evaluate(Schema { found: 3, known: 3 }), "schema version 3");
        ok(evaluate(Schema { found: 2, known: 3 }), "migrates it to 3");
        warned(evaluate(Schema { found: 4, known: 3 }), "schema version 4", "newer");
    }

    #[tokio::test]
    async fn a_foreign_database_is_distinguished_from_a_damaged_one() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        assert!(
            matches!(examine(&mut examined), Finding::Skipped(why) if why.contains("does not exist yet"))
        );
        testbed.store().await.close().await;
        ok(examine(&mut examined), "schema version");
        let path = examined.config().store.path;
        let unreleased = "PRAGMA application_id = 0x65737945";
        rusqlite::Connection::open(&path).unwrap().execute_batch(unreleased).unwrap();
        warned(examine(&mut examined), "before the first release", "sets the database aside");
        std::fs::write(&path, vec![0xff; 8192]).unwrap();
        failed(examine(&mut examined), "damaged", "repair");
        std::fs::write(&path, "").unwrap();
        failed(examine(&mut examined), "another program", "store.path");
    }
}
