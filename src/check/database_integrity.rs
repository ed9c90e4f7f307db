//! Checks every row of the database, and that count, digest and indexes match.

use std::time::{Duration, Instant};

use super::{Check, CheckFn, Examined, Finding, chain};
use crate::store::inspect;

/// Time limit for reading rows: enough for all of a small database.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) const CHECK: Check = Check {
    id: "database-integrity",
    title: "Database integrity",
    needs: &["configuration", "database-version"],
    limit: Duration::from_secs(25),
    examine: CheckFn::Files(examine),
};

fn examine(examined: &mut Examined) -> Finding {
    let path = examined.config().store.path;
    if matches!(path.try_exists(), Ok(false)) {
        return Finding::skipped("no database yet");
    }
    if inspect::schema(&path).is_ok_and(|schema| schema.found != schema.known) {
        return Finding::skipped("schema version of another program version: start the agent first");
    }
    let next_step = match examined.agent_runs {
        true => {
            "run 'edgesync verify --online': the agent repairs the database, and the cloud resends lost objects"
        }
        false => "run 'edgesync repair'",
    };
    let until = Instant::now() + READ_TIMEOUT;
    match inspect::inspect(&path, || Instant::now() < until) {
        Ok(Some(found)) if found.is_sound() => {
            let (rows, revision) = (found.rows, found.totals.revision);
            examined.sealed = Some(found.sealed);
            Finding::ok(format!("{rows} objects, revision {revision}: checksums, count and digest match"))
        }
        Ok(Some(found)) => {
            let problems = found.problems().join("; ");
            examined.sealed = Some(found.sealed);
            Finding::failed(problems, next_step)
        }
        Ok(None) => Finding::warning(
            format!("not read completely within {} s", READ_TIMEOUT.as_secs()),
            "run 'edgesync verify', which has no time limit",
        ),
        Err(error) => Finding::failed(chain(&error), next_step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{Testbed, failed, flip_in, ok};

    #[tokio::test]
    async fn a_flipped_bit_fails_and_recommends_repair() {
        let testbed = Testbed::new("");
        let mut examined = testbed.examined();
        let path = examined.config().store.path;
        assert!(matches!(examine(&mut examined), Finding::Skipped(_)));
        let store = testbed.filled_store(20).await;
        ok(examine(&mut examined), "20 objects");
        store.close().await;
        ok(examine(&mut examined), "20 objects");
        flip_in(&path, b"marker-7");
        failed(examine(&mut examined), "checksum mismatch in 1 object", "edgesync repair");
    }
}
