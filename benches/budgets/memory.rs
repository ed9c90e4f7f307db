//! The memory of a joined agent over TLS, as the kernel divides it among processes (PSS), with its
//! parts; of static programs too, if `EDGESYNC_TEST_STATIC_DEVICE` names any, with colons between.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::processes::{Process, edge_program, mib, until};
use crate::table::Table;
use crate::tls::Joined;

/// Objects held at each measurement, with their number as shown.
const HELD: [(usize, &str); 3] = [(0, "no objects"), (1_000, "1,000 objects"), (10_000, "10,000 objects")];
/// Time for the node to become idle, and to return the memory of a burst.
const SETTLE: Duration = Duration::from_secs(20);

/// Measures each program.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    measure(edge_program(), "PSS", table)?;
    let more = std::env::var_os("EDGESYNC_TEST_STATIC_DEVICE").unwrap_or_default();
    for program in std::env::split_paths(&more) {
        let pss_of = match is_32_bit(&program)? {
            true => "PSS of the static program for 32 bits",
            false => "PSS of the static program",
        };
        measure(&program, pss_of, table)?;
    }
    Ok(())
}

/// Measures one agent while the number of its objects grows.
fn measure(program: &Path, pss_of: &str, table: &mut Table) -> anyhow::Result<()> {
    let (limit, budget) = match is_32_bit(program)? {
        true => (7_000_000, "≤ 7 MB (Greengrass nucleus lite: 12.4)"),
        false => (9_000_000, "≤ 9 MB (EdgeCore: 107; Greengrass nucleus lite: 14.8)"),
    };
    let site = Joined::new()?;
    let agent = site.agent(program)?;
    let mut created = 0;
    for (count, held) in HELD {
        site.create(created..count)?;
        created = count;
        until("the node is in sync", || {
            let status = site.status()?;
            (status.sync.in_sync && status.objects.total == count as u64).then_some(())
        })?;
        std::thread::park_timeout(SETTLE);
        let pss = Pss::of(&agent)?;
        let what = format!("{pss_of}, idle with {held}");
        if count == 10_000 {
            table.budget(&what, mib(pss.total), budget, pss.total * 1024 <= limit);
        } else {
            table.figure(&what, mib(pss.total));
        }
        for (part, size) in pss.parts() {
            table.figure(&format!("  of it {part}, {held}"), mib(size));
        }
    }
    Ok(())
}

/// Returns whether a program is for machines of 32 bits (ELF class).
fn is_32_bit(program: &Path) -> anyhow::Result<bool> {
    let bytes = std::fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    Ok(bytes.get(4) == Some(&1))
}

/// Shares of a process in memory, in KiB.
#[derive(Default)]
struct Pss {
    total: u64,
    /// Pages of the program's file with code.
    code: u64,
    /// Its other pages: constants, tables of relocations.
    constants: u64,
    /// Pages of shared libraries.
    libraries: u64,
    /// Pages of other files: the shared memory of the database.
    files: u64,
    /// Pages of the program and of libraries that were changed: relocated addresses, and variables.
    changed: u64,
    /// Heap and stacks.
    anonymous: u64,
}

impl Pss {
    fn of(process: &Process) -> anyhow::Result<Self> {
        let id = process.id();
        let read = |file: &str| {
            let path = format!("/proc/{id}/{file}");
            std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        let program = std::fs::read_link(format!("/proc/{id}/exe"))?;
        let mut shares = Self::parse(&read("smaps")?, &program.display().to_string());
        let rollup = read("smaps_rollup")?;
        let total = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).and_then(number);
        shares.total = total.context("smaps_rollup has no Pss")?;
        Ok(shares)
    }

    /// Adds up the mappings of a process.
    fn parse(smaps: &str, program: &str) -> Self {
        let mut shares = Self::default();
        let (mut mapping, mut share) = ("", 0);
        for line in smaps.lines() {
            let Some((key, value)) = line.split_once(' ') else { continue };
            match key {
                "Pss:" => share = number(value).unwrap_or_default(),
                "Anonymous:" => {
                    let anonymous = number(value).unwrap_or_default().min(share);
                    *shares.changed_of(mapping) += anonymous;
                    *shares.part_of(mapping, program) += share - anonymous;
                }
                // The first line of a mapping: addresses, access, offset, device, inode, path.
                _ if !key.ends_with(':') => mapping = value,
                _ => {}
            }
        }
        shares
    }

    fn part_of(&mut self, mapping: &str, program: &str) -> &mut u64 {
        match mapped_file(mapping) {
            path if path == program && mapping.starts_with("r-x") => &mut self.code,
            path if path == program => &mut self.constants,
            path if path.contains(".so") => &mut self.libraries,
            path if path.starts_with('/') => &mut self.files,
            _ => &mut self.anonymous,
        }
    }

    fn changed_of(&mut self, mapping: &str) -> &mut u64 {
        if mapped_file(mapping).is_empty() { &mut self.anonymous } else { &mut self.changed }
    }

    /// Returns the parts with their names, in the order of the table.
    fn parts(&self) -> [(&'static str, u64); 6] {
        [
            ("the program's code", self.code),
            ("its constants", self.constants),
            ("relocated addresses and variables", self.changed),
            ("pages of libraries", self.libraries),
            ("pages of the database", self.files),
            ("heap and stacks", self.anonymous),
        ]
    }
}

/// Returns the path of a mapping; empty for none.
fn mapped_file(mapping: &str) -> &str {
    mapping.find('/').and_then(|at| mapping.get(at..)).unwrap_or_default()
}

/// Parses a size such as `  12 kB`, in KiB.
fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}
