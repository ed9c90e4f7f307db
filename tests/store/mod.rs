//! The stores on real files: crashes, damage, full disks, limits.

mod cost;
mod crash;
mod damage;
mod edge;
mod format;
mod full;
mod kill;
mod local;
mod outbox;
mod parts;
mod patches;
mod seal;
mod start;
mod support;
