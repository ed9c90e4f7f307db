-- What the edge holds. See docs/decisions/0004-store-layout.md for the reasons.

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

-- One row for each object held. An update stays in its row: no index changes, one page is written.
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

-- One row for each change that the cloud has not confirmed. The newest row carries the totals. A transaction
-- that only updates a few rows in place writes none: its last row carries the totals until the next one.
CREATE TABLE journal (
  revision    INTEGER PRIMARY KEY,
  object_id   INTEGER,                -- the row that was put; superseded if its revision is larger
  uid         TEXT,                   -- of an object that was removed, with what it was:
  resource_id INTEGER,
  namespace   TEXT,
  name        TEXT,
  version     TEXT,
  count       INTEGER,                -- totals; valid in the newest row
  digest      BLOB,                   -- 16 bytes, little-endian
  confirmed   INTEGER                 -- the largest revision the cloud had confirmed
) STRICT;

-- Facts about the file: epoch, created, incarnation.
CREATE TABLE meta (
  key         TEXT PRIMARY KEY,
  value       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Leases and Events that were made on this node. They are no part of revision, count and digest. From here on comments stand
-- outside of the statements: SQLite keeps them inside, and the schema must fit on one page.
-- kind: 1 Lease, 2 Event. version: of the sequence of this table, unique. changed: Unix time in seconds.
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

-- What must reach the cloud and is not confirmed yet. id: the lane in the upper 8 bits, below it the number in the
-- lane, so that a page of a lane is one run of rows. hash: 32 bits of lane and key, a small index; the text decides.
-- made: milliseconds since the boot that boot names. checksum: over all columns.
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
