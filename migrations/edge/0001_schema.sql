-- The database of the device: held objects, local objects and the outbox. The layout is explained in
-- docs/decisions/0004-store-layout.md.

-- Kinds, so that a row names its kind in one or two bytes.
CREATE TABLE resources (
  id          INTEGER PRIMARY KEY,
  "group"     TEXT NOT NULL,          -- empty for the core group
  version     TEXT NOT NULL,
  kind        TEXT NOT NULL,
  plural      TEXT NOT NULL,
  namespaced  INTEGER NOT NULL,       -- 1 if objects of the kind have a namespace
  checksum    INTEGER NOT NULL,       -- over all of the above but the id
  UNIQUE ("group", version, kind, plural, namespaced)
) STRICT;

-- One row per held object. An update in place changes no index and writes one page.
CREATE TABLE objects (
  id          INTEGER PRIMARY KEY,
  uid         TEXT NOT NULL,
  uid_key     INTEGER NOT NULL,       -- 32-bit hash of the UID: a small index, the text decides
  resource_id INTEGER NOT NULL,
  namespace   TEXT NOT NULL,          -- empty for cluster-scoped objects
  name        TEXT NOT NULL,
  version     TEXT NOT NULL,          -- resourceVersion, as received
  revision    INTEGER NOT NULL,       -- of the last change of this row
  checksum    INTEGER NOT NULL,       -- over kind, namespace, name, uid, version, revision and body
  totals      BLOB,                   -- count and digest after a change that stands in this row alone
  body        TEXT NOT NULL           -- JSON, as received
) STRICT;
CREATE INDEX objects_by_uid ON objects (uid_key);
CREATE UNIQUE INDEX objects_by_name ON objects (resource_id, namespace, name);

-- One row per change that the cloud has not confirmed. The newest row carries the totals. A transaction that only
-- updates a few rows in place writes no row here: its last object row carries the totals until the next transaction.
-- log: the salts of the write-ahead log that may have such rows; null if no object row is newer than the journal.
CREATE TABLE journal (
  revision    INTEGER PRIMARY KEY,
  object_id   INTEGER,                -- the row that was put; superseded if its revision is larger
  uid         TEXT,                   -- of an object that was removed, with what it was:
  resource_id INTEGER,
  namespace   TEXT,
  name        TEXT,
  version     TEXT,
  totals      BLOB,                   -- count and digest; these three are valid in the newest row
  confirmed   INTEGER,                -- the largest revision the cloud had confirmed
  log         INTEGER
) STRICT;

-- Properties of the file: epoch, created, incarnation.
CREATE TABLE meta (
  key         TEXT PRIMARY KEY,
  value       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Leases and Events created on this node. Revision, count and digest do not cover them. From here on comments are outside
-- of the statements: SQLite stores those inside, and the schema must fit on one page.
-- kind: 1 Lease, 2 Event. version: unique, from the sequence of this table. changed: Unix time in seconds.
-- checksum: over all columns but id.
CREATE TABLE local_objects (
  id INTEGER PRIMARY KEY,
  kind INTEGER NOT NULL,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  changed INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX local_objects_by_name ON local_objects (kind, namespace, name);

-- The outbox: uploads that the cloud has not confirmed. id: the lane in the upper 8 bits, the number in the lane below
-- it, so that the rows of a lane are contiguous. hash: 32 bits over lane and key, a small index; the text decides.
-- made: milliseconds since the boot named by boot. checksum: over all columns.
CREATE TABLE outbox (
  id INTEGER PRIMARY KEY,
  hash INTEGER NOT NULL,
  boot INTEGER NOT NULL,
  made INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  key TEXT NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX outbox_by_key ON outbox (hash);

-- The message that arrives in parts, as far as it is not in memory: a cache, of one message at a time.
-- start: the offset of the piece in the message. message: its JSON identity (UID, version, total, digest). piece: a byte of
-- encoding, and text. checksum: over all columns.
CREATE TABLE parts (
  start INTEGER PRIMARY KEY,
  length INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  message TEXT NOT NULL,
  piece BLOB NOT NULL
) STRICT;
