//! Bytes on the line of updates: whole, compressed, and as patches, beside zstd's own program; and
//! what a patch costs the cloud side.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_fuzz::corpus::{self, Row};
use edgesync_protocol::compression;
use edgesync_protocol::frame::{Down, Patches};
use edgesync_protocol::patch::{Edition, Patch};

use crate::table::Table;

/// The bytes that a patch may need beside zstd's, and the percentage of them.
const MAX_PERCENT: usize = 110;
const MAX_BYTES: usize = 60;

/// The bytes of the changes of one object, and the time to make its patches.
#[derive(Default)]
struct Sizes {
    pairs: usize,
    whole: usize,
    compressed: usize,
    patched: usize,
    zstd: usize,
    time: Duration,
}

pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let recorded = edgesync_testkit::programs::root().join("tests/fixtures/patches/patch-from.txt");
    let recorded = std::fs::read_to_string(recorded)?;
    let mut all = Sizes::default();
    for row in corpus::rows() {
        let line = recorded.lines().find_map(|line| line.strip_prefix(row.name)).context("a recorded row")?;
        let mut sizes = measure(&row)?;
        sizes.zstd = line.split_whitespace().map(str::parse::<usize>).sum::<Result<_, _>>()?;
        let Sizes { pairs, whole, compressed, patched, zstd, time } = sizes;
        let each = |bytes: usize| bytes / pairs;
        table.figure(
            &format!("{}: an update whole / compressed / patched", row.name),
            format!("{} / {} / {} bytes", each(whole), each(compressed), each(patched)),
        );
        table.figure(
            &format!("{}: zstd -3 --patch-from; time to make a patch", row.name),
            format!("{} bytes; {:.2} ms", each(zstd), 1000.0 * time.as_secs_f64() / pairs as f64),
        );
        all.pairs += pairs;
        all.patched += patched;
        all.zstd += zstd;
    }
    let most = all.zstd * MAX_PERCENT / 100 + MAX_BYTES * all.pairs;
    table.budget(
        &format!("all {} updates patched", all.pairs),
        format!("{} bytes", all.patched),
        &format!("≤ 1.1 × zstd + 60 each = {most} bytes"),
        all.patched <= most,
    );
    Ok(())
}

fn measure(row: &Row) -> anyhow::Result<Sizes> {
    let mut sizes = Sizes::default();
    for pair in row.versions.windows(2) {
        let [(from, base), (to, new)] = pair else { continue };
        let (from, to) = ((*from).into(), (*to).into());
        let start = Instant::now();
        let base = Edition { version: &from, text: base };
        let patch = Patch::make(&row.uid.as_str().into(), base, Edition { version: &to, text: new });
        sizes.time += start.elapsed();
        let compressed = compression::compress(new.as_bytes())?.len();
        sizes.pairs += 1;
        sizes.whole += new.len();
        sizes.compressed += compressed;
        sizes.patched += match patch {
            Some(patch) => {
                let patches = vec![Arc::new(patch)];
                Down::Patches(Patches { session: "20a116a6".into(), receipt: 1000, patches })
                    .encode(1024)?
                    .len()
            }
            None => compressed,
        };
    }
    Ok(sizes)
}
